"""The verbs of :mod:`ringcast_groupstore.aio`: those of the store, each on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from ringcast_sqlite import Threads

from ringcast_groupstore import _reads, _writes
from ringcast_groupstore._types import Entry, Value

T = TypeVar("T")
D = TypeVar("D")


class Runner:
    """Where calls run: one thread writes, a few read."""

    def __init__(self, path: Path, readers: int, max_waiting: int) -> None:
        self.reads = Threads(path, "aio-read", readers, max_waiting)
        self.writes = Threads(path, "aio-write", 1, max_waiting)

    async def shut(self) -> None:
        await asyncio.to_thread(self.writes.shut)
        await asyncio.to_thread(self.reads.shut)


class Reads:
    """The reading verbs; see those of the same name of :class:`ringcast_groupstore.GroupStore`."""

    _runner: Runner

    def _source(self) -> _reads.Reads:
        raise NotImplementedError

    async def _read(self, call: Callable[[_reads.Reads], T]) -> T:
        source = self._source()
        return await self._runner.reads.run(lambda: call(source))

    async def get(self, group: str, key: str, default: D | None = None) -> Value | D | None:
        """The value of a key, or ``default``."""
        return await self._read(lambda source: source.get(group, key, default))

    async def require(self, group: str, key: str) -> Value:
        """The value of a key, or NotFoundError."""
        return await self._read(lambda source: source.require(group, key))

    async def entry(self, group: str, key: str) -> Entry | None:
        """The value of a key with its expiry and revision."""
        return await self._read(lambda source: source.entry(group, key))

    async def contains(self, group: str, key: str) -> bool:
        """Whether the group has the key."""
        return await self._read(lambda source: source.contains(group, key))

    async def get_many(self, group: str, keys: Iterable[str]) -> dict[str, Value]:
        """Those of ``keys`` that the group has."""
        wanted = list(keys)
        return await self._read(lambda source: source.get_many(group, wanted))

    async def get_all(self, group: str) -> dict[str, Value]:
        """Everything in the group."""
        return await self._read(lambda source: source.get_all(group))

    async def items(self, group: str) -> AsyncIterator[tuple[str, Value]]:
        """Keys and values in the order of the keys, page by page."""
        async for page in self._pages(self._source()._pages.items(group)):
            for item in page:
                yield item

    async def keys(self, group: str) -> AsyncIterator[str]:
        """Keys in order, page by page."""
        async for page in self._pages(self._source()._pages.keys(group)):
            for key in page:
                yield key

    async def entries(self, prefix: str = "") -> AsyncIterator[Entry]:
        """Everything in the groups that begin with ``prefix``, page by page."""
        async for page in self._pages(self._source()._pages.entries(prefix)):
            for entry in page:
                yield entry

    async def groups(self, prefix: str = "") -> AsyncIterator[str]:
        """Names of the groups that begin with ``prefix``."""
        names = self._source().groups(prefix)
        while (name := await self._read(lambda _: next(names, None))) is not None:
            yield name

    async def count(self, group: str) -> int:
        """How many keys the group has."""
        return await self._read(lambda source: source.count(group))

    async def count_all(self, prefix: str = "") -> int:
        """How many keys the groups have that begin with ``prefix``."""
        return await self._read(lambda source: source.count_all(prefix))

    async def get_split(self, group: str, key: str, separator: str) -> Iterator[str]:
        """The parts of a text value between ``separator``."""
        return await self._read(lambda source: source.get_split(group, key, separator))

    async def get_fields(self, group: str, key: str) -> Iterator[str]:
        """The parts of a text value between white space."""
        return await self._read(lambda source: source.get_fields(group, key))

    async def render(self, template: str, group: str, *, strict: bool = False, max_chars: int = 1024 * 1024) -> str:
        """Fills a template in with the keys of a group."""
        return await self._read(lambda source: source.render(template, group, strict=strict, max_chars=max_chars))

    async def _pages(self, pages: Iterator[list[T]]) -> AsyncIterator[list[T]]:
        while (page := await self._read(lambda _: next(pages, None))) is not None:
            yield page


class Writes(Reads):
    """The writing verbs; see those of the same name of :class:`ringcast_groupstore.GroupStore`."""

    def _target(self) -> _writes.Writes:
        raise NotImplementedError

    async def _write(self, call: Callable[[_writes.Writes], T]) -> T:
        target = self._target()
        return await self._runner.writes.run(lambda: call(target))

    def _source(self) -> _reads.Reads:
        return self._target()

    async def set(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int:
        """Writes a key and returns the revision of the change."""
        return await self._write(lambda target: target.set(group, key, value, ttl_ms=ttl_ms))

    async def set_many(self, group: str, values: Mapping[str, Value], *, ttl_ms: int | None = None) -> int:
        """Writes all of ``values``, or nothing, and returns the revision of the last."""
        kept = dict(values)  # the caller's own may change while it waits
        return await self._write(lambda target: target.set_many(group, kept, ttl_ms=ttl_ms))

    async def create(self, group: str, key: str, value: Value, *, ttl_ms: int | None = None) -> int | None:
        """Writes a key only if there is none."""
        return await self._write(lambda target: target.create(group, key, value, ttl_ms=ttl_ms))

    async def compare_and_set(
        self, group: str, key: str, value: Value, *, revision: int, ttl_ms: int | None = None
    ) -> int | None:
        """Writes a key only if its last write had ``revision``."""
        return await self._write(
            lambda target: target.compare_and_set(group, key, value, revision=revision, ttl_ms=ttl_ms)
        )

    async def delete(self, group: str, key: str) -> bool:
        """Removes a key; tells whether it was there."""
        return await self._write(lambda target: target.delete(group, key))

    async def delete_many(self, group: str, keys: Iterable[str]) -> int:
        """Removes keys; tells how many were there."""
        wanted = list(keys)
        return await self._write(lambda target: target.delete_many(group, wanted))

    async def delete_group(self, group: str) -> int:
        """Removes every key of a group; tells how many there were."""
        return await self._write(lambda target: target.delete_group(group))
