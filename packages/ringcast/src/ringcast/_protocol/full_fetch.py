"""The one fetch that brings every partition of a key, for workers that hold them all."""

from __future__ import annotations

from ringcast_wire import Backoff, RandomSource


class FullFetch:
    """When to fetch the whole key, and which request is under way."""

    def __init__(self, random: RandomSource) -> None:
        self.due: float | None = None
        """When to send the next request, if at all."""
        self.request: int | None = None
        """The request that is under way."""
        self._backoff = Backoff(random)

    @property
    def is_wanted(self) -> bool:
        """Whether it is under way or to be tried."""
        return self.due is not None or self.request is not None

    def take(self, now: float) -> bool:
        """Whether to send the request now."""
        if self.due is None or self.due > now:
            return False
        self.due = None
        return True

    def answered(self) -> None:
        """The answer is here."""
        self.request = None
        self._backoff.reset()

    def split(self) -> None:
        """The key is more than one reply can hold, or than can be had in time: it is fetched by partitions, of which
        each that comes is kept."""
        self.request = None

    def give_up(self) -> int | None:
        """The key is not needed any more; returns the request that was under way."""
        request, self.request, self.due = self.request, None, None
        return request

    def failed(self, now: float) -> None:
        """It is tried again, after a while."""
        self.request = None
        self.due = now + self._backoff.next_s()

    def retry_now(self, now: float) -> None:
        """Ends the delay."""
        if self.due is not None:
            self.due = now
