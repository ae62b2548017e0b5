"""Which sessions are over, as far as the leases prove it.

A lease that was not heard of for a while proves nothing by itself: the reader may be the one that is cut off. Proof is
an answer of the bucket that holds a write of the reader's own, which it asked for after the wait, and no later refresh
of the other lease. The revisions of a bucket put all of its writes in one order, whichever server answers.

A lease that is gone hides how often it was refreshed before. So its end counts from when it was found gone, and the
server has to keep a lease for much longer than the wait: then a death is proved before the server forgets the lease.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from ringcast_wire.owner_records import Session

MAX_OWN_WRITES: Final = 32
"""Writes of the reader's own lease that are remembered; an answer holds one of the last few."""


@dataclass(slots=True)
class _Heard:
    """The newest refresh of a lease: its revision, when it was first heard of, and until when there was no other."""

    revision: int
    at: float
    until: float = -math.inf
    gone_at: float = math.inf
    """When it was first found to be gone: no session goes on by a refresh after that."""


class LeaseEvidence:
    """What one reader of the leases knows. All times are on its own monotonic clock.

    A reader that starts knows nothing, and has to wait as long as any other: nothing of this is handed to a successor.
    """

    def __init__(self, give_away_s: float) -> None:
        self._give_away_s = give_away_s
        self._heard: dict[str, _Heard] = {}
        self._succeeded: dict[Session, float] = {}
        """Sessions whose lease another process has taken, and when that was first heard of."""
        self._own_writes: deque[tuple[int, float]] = deque(maxlen=MAX_OWN_WRITES)

    def wrote(self, revision: int, asked_at: float) -> None:
        """A write of the reader's own lease, asked for at ``asked_at``, has got this revision."""
        self._own_writes.append((revision, asked_at))

    def wrote_since(self, at: float) -> int:
        """The highest revision of those writes of the reader's own lease that were asked for since; 0 for none."""
        return max((revision for revision, asked_at in self._own_writes if asked_at >= at), default=0)

    def answered(self, asked: Collection[str], found: Mapping[str, int], own_revision: int, now: float) -> None:
        """One answer: the revisions of those of the leases ``asked`` for that are there.

        ``own_revision``: that of the reader's own lease in the same answer, 0 if it is not there. An answer that lags
        behind can do no harm: it proves less.
        """
        until = max((at for revision, at in self._own_writes if revision <= own_revision), default=-math.inf)
        for lease in asked:
            heard, revision = self._heard.get(lease), found.get(lease, 0)
            if revision and (heard is None or revision > heard.revision):
                self._heard[lease] = _Heard(revision, now)
            elif heard is not None and revision == heard.revision:
                heard.until = max(heard.until, until)
            elif heard is not None and not revision and own_revision >= heard.revision:
                heard.gone_at = min(heard.gone_at, now)

    def note(self, session: Session, now: float) -> None:
        """A record names this session: so there was a refresh of its number, whatever has become of it."""
        heard = self._heard.get(session.lease)
        if heard is None or heard.revision < session.number:
            self._heard[session.lease] = _Heard(session.number, now)

    def succeeded(self, session: Session, by: Session, now: float) -> None:
        """The worker has a later session, ``by``. On the same lease, its process has taken the lease from the other."""
        if by.lease == session.lease and by.number > session.number:
            self._succeeded.setdefault(session, now)

    def is_over(self, session: Session, now: float) -> bool:
        """Whether it is proved that no call of this session runs, and none can start."""
        since = self._succeeded.get(session, math.inf)
        heard = self._heard.get(session.lease)
        if heard is None or heard.revision < session.number:  # it says nothing about a session that began later
            return now - since >= self._give_away_s
        return max(heard.until - heard.at, now - min(since, heard.gone_at)) >= self._give_away_s

    def provable_at(self, session: Session) -> float:
        """From when on a write of the reader's own lease, and an answer that holds it, may prove the end."""
        heard = self._heard.get(session.lease)
        at = min(heard.at, heard.gone_at) if heard is not None else math.inf
        return min(self._succeeded.get(session, math.inf), at) + self._give_away_s

    def keep(self, sessions: Collection[Session]) -> None:
        """Forgets everything about other sessions than these."""
        leases = {session.lease for session in sessions}
        self._heard = {lease: heard for lease, heard in self._heard.items() if lease in leases}
        self._succeeded = {session: at for session, at in self._succeeded.items() if session in sessions}
