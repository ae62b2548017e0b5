"""How far the replacement of all rows of a key may go: one rule for an overwrite and for a pipeline's plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from ringcast_wire import ErrorCode, RingcastError

DEFAULT_MAX_DELETE_SHARE: Final = 0.5
"""Of an overwrite; a plan has a default of its own, 0.1."""


class OverwriteRefusedError(RingcastError):
    """An overwrite would delete more than it may: nothing was deleted, and nothing staged."""

    code: ClassVar[ErrorCode] = ErrorCode.LIMIT_EXCEEDED


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is about to become of the rows of ``place`` (``store/key``). ``live``: how many there were before."""

    place: str
    live: int
    deletes: int
    after: int

    @property
    def delete_share(self) -> float:
        """Deletes, of the rows that were live."""
        return self.deletes / self.live if self.live else 0.0


def replacement_refusals(found: Replacement, max_delete_share: float, *, allow_empty: bool) -> list[str]:
    """Why it may not be, one sentence a reason; empty if it may."""
    reasons = []
    if found.after == 0 and found.live and not allow_empty:
        reasons.append(f"it would leave {found.place} without a row: allow_empty permits that")
    if found.delete_share > max_delete_share:
        reasons.append(
            f"it deletes {found.deletes} of {found.live} rows, {found.delete_share:.1%}: "
            f"max_delete_share is {max_delete_share:.1%}"
        )
    return reasons


def check_overwrite(found: Replacement, max_delete_share: float, *, allow_empty: bool, done: str) -> None:
    """Raises ``OverwriteRefusedError`` if an overwrite may not be; nothing is ``done`` then (deleted, staged)."""
    if reasons := replacement_refusals(found, max_delete_share, allow_empty=allow_empty):
        raise OverwriteRefusedError(
            f"the overwrite of {found.place} is refused, and nothing is {done}: {'; '.join(reasons)}"
        )
