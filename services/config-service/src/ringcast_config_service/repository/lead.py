"""The lead of maintenance: one instance does all its duties, and a database refuses what any other still does.

The lead is a row of the table ``maintenance``: who has it, until when by the database's clock, and its token, which
rises with each change of hands. Each transaction of a duty begins with a check of holder and token under a lock that
lasts to its end (``CHECK_DUTY``). The instance that takes the lead waits for it. So a transaction of an instance that
has lost the lead either ended before another got it, or is refused, wherever the instance was halted in between.

- The lock is FOR KEY SHARE: extending the lead changes no key, so it need not wait for a long piece of a duty.
- An instance that hangs in the middle of such a transaction keeps the row locked until the database ends the idle
  transaction, after 10 s (:mod:`~ringcast_config_service.repository.postgres.session`).
- CockroachDB needs no lock: there a transaction that has read a row which changed before its commit begins again.
- In SQLite transactions come one after another, of all processes.
- An older build knows nothing of the lead. It compacts by a row of its own (``compaction``), and purges, beside the
  leader. All pieces are exact under the locks of what they change, so that costs time, and does no harm.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

DUTY: Final = "lead"
MAX_LEASE_MS: Final = 300_000
"""The longest lease that may be configured: an end that is further away was written by another clock."""


class Lead(NamedTuple):
    """The right to do the duties, as one instance has got it once."""

    holder: str
    token: int


class LeadState(NamedTuple):
    """Who has the lead, and for how long from now; with nothing left anybody may take it."""

    holder: str
    token: int
    left_ms: int

    @property
    def free(self) -> bool:
        return not 0 < self.left_ms <= MAX_LEASE_MS


class LostLeadError(Exception):
    """The lead is another instance's by now: nothing of this transaction was changed."""


class LeadRepository(Protocol):
    """The lead of maintenance. Each call may raise ``UnavailableError``."""

    async def lead_state(self) -> LeadState:
        """As it is now; ``("", 0, 0)`` if nobody ever had it. It takes no lock."""

    async def take_lead(self, holder: str, lease_ms: int) -> Lead | None:
        """The lead, unless another instance has it. ``holder`` names the instance: no other may have that name.

        It waits for transactions of the last holder that are under way. Where ``holder`` has it already it gets another
        token, and what it does with the first one is refused.
        """

    async def keep_lead(self, lead: Lead, lease_ms: int) -> bool:
        """Extends it, also where it has run out and nobody has taken it; whether it is still this one."""

    async def resign_lead(self, lead: Lead) -> None:
        """Ends it, once its transactions under way have ended; harmless when it is lost already."""
