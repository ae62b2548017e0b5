"""Goes back to a release: everything that was published after it is undone, the newest first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final, Protocol, cast

from ringcast_wire import ConditionFailedError, InvalidInputError, ReleaseState, limits

from ringcast_client._common.input import check_range, check_why
from ringcast_client._releases.records import ReleaseInfo

_THERE: Final = frozenset({ReleaseState.PUBLISHED, ReleaseState.STOPPED})
_TO_UNDO: Final = frozenset({*_THERE, ReleaseState.PUBLISHING, ReleaseState.UNDOING})


class _Self(Protocol):
    """What it needs of the client."""

    def releases(self, store: str) -> AsyncGenerator[ReleaseInfo, None]: ...
    async def undo_release(self, store: str, number: int, *, reason: str | None = None) -> ReleaseInfo: ...
    async def follow_release(self, store: str, number: int) -> ReleaseInfo: ...


class RollbackCalls:
    """A part of the client of the config service."""

    async def rollback_plan(self, store: str, to: int) -> list[ReleaseInfo]:
        """What :meth:`rollback_releases` would undo now, in this order: each release above ``to`` that is published, or
        stopped, or on its way; ``to`` 0: each at all.

        Raises:
            InvalidInputError: the store has no release ``to``.
            ConditionFailedError: ``to`` is not published, or one of those above can't be undone any more.
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        check_range("to", to, 0, 2**63 - 1)
        known: dict[int, ReleaseInfo] = {}
        async for release in cast("_Self", self).releases(store):
            if release.number < to:
                break
            known[release.number] = release
        target = known.pop(to, None)
        if target is None and to:
            raise InvalidInputError(f"store {store!r} has no release {to}", field="to")
        if target is not None and target.state not in _THERE:
            raise ConditionFailedError(
                f"release {to} of store {store!r} is {target.state}: go back to one that is published", field="to"
            )
        forgotten = max(known, default=0) - limits.MAX_KEPT_RELEASES
        if (first := next((number for number in range(to + 1, forgotten + 1) if number not in known), 0)) > 0:
            raise _gone(store, first, to, "is forgotten")
        plan = [release for release in known.values() if release.state in _TO_UNDO]
        for release in plan:
            if not release.rows_kept:
                raise _gone(store, release.number, to, "was published so long ago that what it replaced is not kept")
        return plan

    async def rollback_releases(
        self,
        store: str,
        to: int,
        *,
        reason: str | None = None,
        on_undone: Callable[[ReleaseInfo], None] = lambda _: None,
    ) -> list[ReleaseInfo]:
        """Undoes all releases above ``to``, each once those above it are undone: the newest first.

        Nothing has to outlive the call: the same again goes on with what is left. One that has halted, or was not
        undone, is the last of the list. Rows that others have written since stay, and count as ``skipped``, as in
        :meth:`undo_release`. ``on_undone`` is called with each release once it is done.

        Raises:
            InvalidInputError, ConditionFailedError: as for :meth:`rollback_plan`; nothing is undone.
        """
        me = cast("_Self", self)
        why = check_why(f"rollback to release {to}" + (f": {reason}" if reason else ""))
        done = []
        for release in await self.rollback_plan(store, to):
            await me.undo_release(store, release.number, reason=why)
            undone = await me.follow_release(store, release.number)
            done.append(undone)
            on_undone(undone)
            if undone.state is not ReleaseState.UNDONE:
                break
        return done


def _gone(store: str, number: int, to: int, why: str) -> ConditionFailedError:
    return ConditionFailedError(
        f"store {store!r} can't go back to release {to}: release {number} {why}, nothing is undone", field="to"
    )
