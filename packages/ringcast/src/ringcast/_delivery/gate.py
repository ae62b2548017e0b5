"""What lets calls of the application start, in a store with exclusive ownership."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class NotAdmittedError(Exception):
    """A call may not start: the worker does not own the partition any more. No fault of the application's."""


class CallEndedError(Exception):
    """A call was cancelled: its session is over, and its bound was up. It counts as not made, whatever it returned."""


class Admission(Protocol):
    """A call that has been let start."""

    async def wait(self, awaitable: Awaitable[None], /) -> None:
        """Waits for what the call gives; cancels it where it runs when calls have to have ended.

        Raises:
            CallEndedError: it was cancelled. One that ignores that, or tidies up, is waited for all the same.
        """

    def end(self) -> None:
        """The call has returned."""


class CallGate(Protocol):
    """Of one config key. None of its methods waits."""

    @property
    def over_bound_s(self) -> float:
        """For how long the oldest call has been running, if that is longer than it may; else 0. From any thread."""

    def begin(self, partition: int, token: int | None = None, /) -> Admission | None:
        """Lets a call for a partition start now, or not; ``token``: that the partition was owned with, if it is known.

        ``None``: the partition is lost, and the change with it. Another owner hands it over.
        """

    def begin_last(self, partition: int, /) -> Admission | None:
        """Lets ``on_revoked`` start now. ``None``: it is late, and another worker may own the partition."""

    def end_last(self, partition: int, /) -> None:
        """``on_revoked`` has returned, or there is none: the partition can be released."""
