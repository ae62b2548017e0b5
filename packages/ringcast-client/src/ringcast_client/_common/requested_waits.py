"""How long a caller waits because the service asks it to."""

from __future__ import annotations

from typing import Final

from ringcast_wire import RingcastError, names

MAX_WAIT_S: Final = 600.0
"""In all without an answer in between, where too many calls are open, say."""
MAX_RATE_WAIT_S: Final = 86_400.0
"""The same, where a store takes only so many rows a second. At one row a second a batch of 1,000 rows waits for a
quarter of an hour, and batches of other writers with the same principal may come before it."""


def patience(timeout_s: float) -> tuple[str, str]:
    """The header that says how long the answer to a batch is waited for."""
    return names.GRPC_PATIENCE_KEY, str(max(1, int(timeout_s * 1_000)))


class RequestedWaits:
    """What the service has asked one caller to wait since it has answered last."""

    def __init__(self) -> None:
        self._waited_s = {True: 0.0, False: 0.0}
        """For a rate, and for anything else."""

    def answered(self) -> None:
        """The service has taken something."""
        self._waited_s = dict.fromkeys(self._waited_s, 0.0)

    def may_wait(self, refusal: RingcastError, wait_s: float) -> bool:
        """Whether the caller may wait for so long, as the refusal asks; what it waits is counted."""
        is_rate = refusal.field == "max_rows_per_second"
        self._waited_s[is_rate] += wait_s
        return self._waited_s[is_rate] <= (MAX_RATE_WAIT_S if is_rate else MAX_WAIT_S)
