"""The seam: what every store of metadata does, whatever keeps it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from ringcast_meta._lease import Lease
from ringcast_meta._types import Entry
from ringcast_meta._watch import Watch


class MetadataStore(Protocol):
    """Small values under keys, written by compare-and-set, with watches and leases.

    A key is words of ``A-Z a-z 0-9 _ ~ -`` with dots between. Every call but :meth:`watch` and :meth:`lease` waits for
    the server, for ``call_timeout_s`` at most, and raises

    - ``InvalidInputError`` or ``LimitExceededError`` for what can't be stored, which nothing was sent for;
    - ``UnavailableError`` when there is no answer. A write that may have been stored raises its subclass
      ``OutcomeUnknownError``: read the key to find out;
    - ``UnauthenticatedError`` or ``PermissionDeniedError`` where the server says so.

    A read is answered from the leader: it sees every write that was answered before.
    """

    async def get(self, key: str) -> Entry | None:
        """What stands under a key; ``None`` if nothing does."""

    async def read(self, prefix: str = "") -> list[Entry]:
        """Everything below a prefix, once, in the order of the keys. It takes less rights than a watch.

        An entry that stood there all the time is among them. Of several that change meanwhile some may be as they were
        before, and some as they are after it.

        Raises:
            InvalidInputError: that is no prefix.
            LimitExceededError: there is more below it than a watch takes.
        """

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        """Writes where nothing stands, and returns the revision. Of several that do so at once, one succeeds.

        With a lease (of this store), the entry goes when the lease ends.

        Raises:
            ConditionFailedError: something stands there; ``found_version`` is its revision.
            UnavailableError: the lease has ended.
        """

    async def put(self, key: str, value: bytes, *, last: int, lease: Lease | None = None) -> int:
        """Writes over the entry of revision ``last``, and returns the new revision.

        Without a lease the entry stays, even if the one before had a lease.

        Raises:
            ConditionFailedError: it has another revision, ``found_version``; 0 where nothing stands there.
            UnavailableError: the lease has ended.
        """

    async def delete(self, key: str, *, last: int) -> int:
        """Deletes the entry of revision ``last``, and returns the revision of the deletion.

        Raises:
            ConditionFailedError: it has another revision, ``found_version``; 0 where nothing stands there.
        """

    def watch(self, prefix: str = "") -> Watch:
        """Watches the entries below a prefix: enter it with ``async with``, and read it with ``async for``.

        ``prefix``: empty for everything, or whole words of a key with a dot behind each.

        Raises:
            InvalidInputError: that is no prefix.
        """

    def lease(self, ttl_s: int) -> AbstractAsyncContextManager[Lease]:
        """A lease that is kept alive from entering to leaving, and ended then with all of its entries.

        ``ttl_s``: it ends by itself after so many seconds without a refresh (2 to 600). Entering waits for the server.

        Raises:
            InvalidInputError: ``ttl_s`` is out of its range.
            LimitExceededError: on entering, 64 leases of this store are open.
            UnavailableError: on entering, there was no answer.
        """
