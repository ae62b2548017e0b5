"""A pin keeps the rows of a release, and of all after it, whatever their age: the store can be brought back to it.

It stands beside the last number of the store, whose row everybody locks who adds a release, pins one, or lets one
expire: what was found to be kept is still kept when the pin is set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ringcast_wire import ConditionFailedError, LimitExceededError, ReleaseState, limits

from ringcast_config_service.repository import audit
from ringcast_config_service.repository.base import Authorship
from ringcast_config_service.repository.release_records import Release
from ringcast_config_service.repository.release_transactions import (
    Ask,
    Note,
    ReleaseStatements,
    Transaction,
    locked,
    wrong_state,
)

_KNOWN_FROM: Final = 14
"""From which version of the schema on a build knows pins; one of before would remove the rows."""
_PINNABLE: Final = {ReleaseState.PUBLISHING, ReleaseState.PUBLISHED, ReleaseState.STOPPED}


def pin(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Pins a release, in place of the one that was; nothing if it is pinned.

    Raises:
        ConditionFailedError: it is not published, or rows of it or of one after it are removed.
    """
    _, release = yield from locked(sql, store, number)
    ((pinned,),) = yield Ask(sql.lock_release_pin, (store,))
    if pinned == number:
        return replace(release, pinned=True)
    if release.state not in _PINNABLE:
        raise wrong_state(release, "pinned")
    ((removed,),) = yield Ask(sql.first_removed_release, (store, number))
    if removed is not None:
        what = "its rows" if removed == number else f"the rows of release {removed}"
        raise ConditionFailedError(f"{release.place} can't be pinned: {what} are removed already", field="number")
    yield Ask(sql.raise_usable_from, (_KNOWN_FROM,))
    yield Ask(sql.set_release_pin, (store, number))
    before = {} if pinned is None else {"before": pinned}
    yield Note([audit.fact(by, "PinRelease", store, number=number, **before)])
    return replace(release, pinned=True)


def unpin(sql: ReleaseStatements, store: str, number: int, by: Authorship) -> Transaction[Release]:
    """Takes the pin of a release back; nothing if no release is pinned.

    Raises:
        ConditionFailedError: another one is pinned.
    """
    _, release = yield from locked(sql, store, number)
    ((pinned,),) = yield Ask(sql.lock_release_pin, (store,))
    if pinned is None:
        return release
    if pinned != number:
        raise ConditionFailedError(f"{release.place} is not pinned: release {pinned} of this store is", field="number")
    yield Ask(sql.set_release_pin, (store, None))
    yield Note([audit.fact(by, "UnpinRelease", store, number=number)])
    return release


def with_pin(sql: ReleaseStatements, store: str, found: list[Release]) -> Transaction[list[Release]]:
    """Releases of a store, the pinned one as such."""
    pins = yield Ask(sql.get_release_pin, (store,))
    pinned = pins[0][0] if pins else None
    return [replace(release, pinned=True) if release.number == pinned else release for release in found]


def check_room(store: str, number: int, pinned: int | None) -> None:
    """Refuses a new release of this number where the pinned one keeps as many as a store may have.

    Raises:
        LimitExceededError: it does.
    """
    if pinned is not None and number - pinned >= limits.MAX_KEPT_RELEASES:
        raise LimitExceededError(
            f"store {store!r} keeps {number - pinned} releases since release {pinned}, which is pinned, the limit is "
            f"{limits.MAX_KEPT_RELEASES}: pin a later one, or unpin it",
            field="store",
        )
