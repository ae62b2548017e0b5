"""Schemas of the values of keys: registered and looked at by operators, and at hand for every write."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple

from ringcast_wire import (
    EventLog,
    InvalidInputError,
    SchemaCompatibility,
    SchemaKind,
    SchemaMode,
    UnavailableError,
    UnknownKeyError,
    limits,
    names,
)
from ringcast_wire.schemas import (
    SEALED,
    Budget,
    KeptSchemas,
    Problem,
    ValueSchema,
    broken,
    incompatibility,
    is_sealed,
    value_schema,
)

from ringcast_config_service.repository import (
    SERVICE,
    Authorship,
    BrokenRow,
    InForce,
    KeySchema,
    ListFilter,
    Repository,
    SchemaChange,
    SchemaRaceError,
    Seen,
)
from ringcast_config_service.repository.schemas import NAMED_ROWS, rows_break
from ringcast_config_service.repository.value_checks import problem_of, to_value_schema
from ringcast_config_service.telemetry import Measures

log = EventLog(logging.getLogger(__name__))

MAX_CHECKS: Final = 2
"""Calls of one instance that look at all rows of a key at once."""
MAX_CHECK_S: Final = 300.0
"""How long one may take, whatever its client would wait."""
_KEPT_CHARS: Final = 2 * limits.MIB
"""Of definitions whose schemas are kept for writes: 32 of the largest, or a thousand usual ones; 300 MB at the very
worst."""
_AGE_S: Final = 5.0
_QUIET_S: Final = 10.0
"""From one line about the values of a key to the next."""
_ATTEMPTS: Final = 3
_TURN_S: Final = 0.01
"""How long values are checked before others get their turn."""


class Report(NamedTuple):
    """What the rows of a key are for a schema: how many there are, how many break it, and the first of these.

    ``incompatible``: why the schema can't be the next version; empty: it can.
    """

    rows: int
    broken: int
    first: list[BrokenRow]
    incompatible: str = ""


class ValueCheck:
    """What is to be checked of the values that are written to a key, as this instance has read it last.

    ``schema_id``: what a write says that it was checked against, 0 where nothing is enforced.
    """

    def __init__(self, store: str, key: str, found: InForce, schema: ValueSchema, measures: Measures) -> None:
        self._store = store
        self._key = key
        self._found = found
        self._schema = schema
        self._measures = measures
        self._logged_at_s = -_QUIET_S
        self._unlogged = 0
        self.schema_id = found.schema_id if found.mode is SchemaMode.ENFORCE else 0

    async def look(self, rows: Iterable[tuple[str | None, Mapping[str, str] | None]]) -> CheckedValues:
        """Checks values with their metadata (``None``: of a delete). While it takes long others get their turn: the
        values of one batch may take many seconds."""
        problems: dict[str, Problem] = {}
        schema = self._schema
        pause_s = time.monotonic() + _TURN_S
        for value, metadata in rows:
            if value is None or is_sealed(metadata):
                continue
            if not schema.accepts(value) and (problem := schema.problem(value)) is not None:
                problems[value] = problem
            if time.monotonic() > pause_s:
                await asyncio.sleep(0)
                pause_s = time.monotonic() + _TURN_S
        return CheckedValues(self, problems)

    def found_broken(self, row_id: str, problem: Problem) -> None:
        """Refuses a row that breaks the schema, or takes note of it where nothing is enforced.

        Raises:
            InvalidInputError: with the rule ``SCHEMA``.
        """
        self._measures.schema_violations[self._store, str(self._found.mode)] += 1
        if self._found.mode is SchemaMode.ENFORCE:
            raise broken(f"{self._store}/{self._key}", self._found.version, row_id, problem)
        now_s = time.monotonic()
        if now_s < self._logged_at_s + _QUIET_S:
            self._unlogged += 1
            return
        log.warning(
            "schema.broken",
            store=self._store,
            key=self._key,
            row=row_id,
            version=self._found.version,
            place=problem.place,
            unlogged=self._unlogged,
        )
        self._logged_at_s, self._unlogged = now_s, 0


class CheckedValues(NamedTuple):
    """What has come of a look at values: ``problems`` of those that break the schema."""

    of: ValueCheck
    problems: dict[str, Problem]

    @property
    def schema_id(self) -> int:
        """As of :class:`ValueCheck`."""
        return self.of.schema_id

    def check(self, row_id: str, value: str, metadata: Mapping[str, str] | None) -> None:
        """Raises as :meth:`ValueCheck.found_broken` where a value breaks the schema that was looked at."""
        problem = SEALED if is_sealed(metadata) else self.problems.get(value)
        if problem is not None:
            self.of.found_broken(row_id, problem)


class ValueSchemas:
    """One object for all calls; it keeps what is in force for a few seconds.

    That harms nothing: a write checks in its own transaction whether it was checked against what is enforced.
    """

    def __init__(self, repository: Repository, measures: Measures) -> None:
        self._repository = repository
        self._schemas = repository.schemas
        self._measures = measures
        self._known: dict[str, tuple[dict[str, InForce], float]] = {}
        self._kept = KeptSchemas[InForce, ValueCheck](_KEPT_CHARS)
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._beside = ThreadPoolExecutor(1, "schemas")
        """Reads and compares schemas, which takes up to a second for each: one at a time, and nothing else waits."""
        self._for_writes = ThreadPoolExecutor(1, "schemas-for-writes")
        """Reads those that writes wait for, behind no call of an administrator."""

    # Writes

    async def check_of(self, store: str, key: str) -> ValueCheck | None:
        """How the values of a key are checked; ``None``: they are not."""
        in_force = self._known.get(store)
        if in_force is None or in_force[1] <= time.monotonic():
            in_force = await self._read(store)
        if (found := in_force[0].get(key)) is None:
            return None
        return self._kept.get(found) or await self._made(store, key, found)

    async def looked_at(
        self, store: str, rows: Iterable[tuple[str, str | None, Mapping[str, str] | None]]
    ) -> dict[str, CheckedValues]:
        """Checks values of several keys (key, value, metadata); without those keys whose values are not checked."""
        by_key: dict[str, list[tuple[str | None, Mapping[str, str] | None]]] = {}
        for key, value, metadata in rows:
            by_key.setdefault(key, []).append((value, metadata))
        found: dict[str, CheckedValues] = {}
        for key, values in by_key.items():
            if (check := await self.check_of(store, key)) is not None:
                found[key] = await check.look(values)
        return found

    def forget(self, store: str) -> None:
        """The schemas of a store may have changed: the next write reads them."""
        self._known.pop(store, None)

    async def _read(self, store: str) -> tuple[dict[str, InForce], float]:
        found = await self._schemas.in_force(store)
        if len(self._known) >= limits.MAX_STORES:  # of stores that are gone, or one more than there may be
            self._known.clear()
        self._known[store] = read = found, time.monotonic() + _AGE_S
        return read

    async def _made(self, store: str, key: str, found: InForce) -> ValueCheck | None:
        if (definition := await self._schemas.definition(found.schema_id)) is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            schema = await loop.run_in_executor(self._for_writes, to_value_schema, *definition)
        except UnavailableError:  # of a kind that a newer build knows: the transactions of its key say so
            return None
        check = ValueCheck(store, key, found, schema, self._measures)
        self._kept.put(found, check, definition[1])
        return check

    # Calls

    async def register(
        self,
        store: str,
        key: str,
        kind: SchemaKind,
        definition: str,
        mode: SchemaMode | None,
        compatibility: SchemaCompatibility | None = None,
        by: Authorship = SERVICE,
    ) -> KeySchema:
        """Puts a schema in force; the newest one again changes nothing but the mode and the compatibility.

        Raises:
            InvalidInputError: it is no schema, is not as compatible as it has to be, or rows break it that is to be
                enforced.
            UnavailableError: too much is checked at once, or rows change too often.
        """
        await self._ready(kind, definition)
        return await self._change(store, SchemaChange(key, kind, definition, mode, 0, compatibility), by)

    async def set_mode(
        self,
        store: str,
        key: str,
        mode: SchemaMode | None,
        compatibility: SchemaCompatibility | None = None,
        by: Authorship = SERVICE,
    ) -> KeySchema:
        """Changes what becomes of values that break the schema of a key, and which versions may follow; raises as
        :meth:`register`."""
        return await self._change(store, SchemaChange(key, None, None, mode, 0, compatibility), by)

    async def check(self, store: str, key: str, kind: SchemaKind, definition: str) -> Report:
        """Looks which rows break a schema, by default the newest of the key, and whether it may be the next version."""
        names.check_name("store", store)
        names.check_name("key", key)
        said = None
        if definition:
            schema = await self._ready(kind, definition)
            for newest in await self._schemas.newest(store, key):
                compared = newest.compatibility or SchemaCompatibility.NONE
                change = SchemaChange(key, kind, definition, None, newest.version, compared=compared)
                said = await self._incompatible(store, change, newest)
        else:
            found = await self.show(store, key)
            schema = await self._stored(found.kind, found.definition)
        async with self._checking():
            report, _ = await self._look(store, key, schema)
        return report._replace(incompatible=said or "")

    async def listed(self, store: str, key: str = "") -> list[KeySchema]:
        """The newest schema of each key, or the versions of one."""
        names.check_name("store", store)
        if not key:
            return await self._schemas.newest(store)
        return await self._schemas.versions(store, names.check_name("key", key))

    async def show(self, store: str, key: str, version: int = 0) -> KeySchema:
        """A version of the schema of a key; 0: the newest.

        Raises:
            InvalidInputError: there is none.
        """
        names.check_name("store", store)
        names.check_name("key", key)
        found = await (self._schemas.versions(store, key, version) if version else self._schemas.newest(store, key))
        if not found:
            what = f"no version {version} of a schema" if version else "no schema"
            raise InvalidInputError(f"{store}/{key} has {what}", field="version" if version else "key")
        return found[0]

    async def _ready(self, kind: SchemaKind, definition: str) -> ValueSchema:
        return await asyncio.get_running_loop().run_in_executor(self._beside, value_schema, kind, definition)

    async def _stored(self, kind: str, definition: str) -> ValueSchema:
        """The same of one that is registered, which a newer build may have done."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, to_value_schema, kind, definition)

    async def _change(self, store: str, wanted: SchemaChange, by: Authorship) -> KeySchema:
        names.check_name("store", store)
        key = names.check_name("key", wanted.key)
        for attempt in range(_ATTEMPTS):
            newest = next(iter(await self._schemas.newest(store, key)), None)
            compared = wanted.next_compatibility(newest)
            change = wanted._replace(expected=newest.version if newest else 0, compared=compared)
            try:
                if newest is not None and (said := await self._incompatible(store, change, newest)) is not None:
                    raise InvalidInputError(said, field="definition")
                seen = await self._seen(store, change, newest)
                found = await self._schemas.change(store, change, seen, by)
            except SchemaRaceError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            break
        self.forget(store)
        log.info("schema.set", store=store, key=key, version=found.version, kind=found.kind, mode=str(found.mode))
        return found

    async def _incompatible(self, store: str, change: SchemaChange, newest: KeySchema) -> str | None:
        """Compares what is to be the next version with the newest, or with all that are kept: why it is not as
        compatible as it has to be, or ``None``."""
        wanted, kind, definition = change.compared, change.kind, change.definition
        if wanted is SchemaCompatibility.NONE or kind is None or definition is None:
            return None
        if (newest.kind, newest.definition) == (kind, definition):
            return None
        budget, loop = Budget(), asyncio.get_running_loop()
        for each in await self._schemas.versions(store, change.key) if wanted.is_transitive else [newest]:
            for found in await self._schemas.versions(store, change.key, each.version):
                said = await loop.run_in_executor(self._beside, _break, wanted, kind, definition, found, budget)
                if said is not None:
                    return (
                        f"definition can't be version {newest.version + 1} of the schema of {store}/{change.key}, "
                        f"which has the compatibility {wanted}: {said}"
                    )
        return None

    async def _seen(self, store: str, change: SchemaChange, newest: KeySchema | None) -> Seen | None:
        """Looks at the rows that are there, if they have to keep to what is to be enforced.

        Raises:
            InvalidInputError: some break it.
        """
        mode = change.mode or (newest.mode if newest else None) or SchemaMode.ENFORCE
        if mode is not SchemaMode.ENFORCE:
            return None
        if change.kind is None or change.definition is None:
            if newest is None:
                return None
            kind, definition = newest.kind, newest.definition
        else:
            kind, definition = str(change.kind), change.definition
        if newest is not None and (newest.kind, newest.definition, newest.mode) == (kind, definition, mode):
            return None
        async with self._checking():
            report, seen = await self._look(store, change.key, await self._stored(kind, definition))
        if report.broken:
            raise rows_break(f"{store}/{change.key}", report.broken, report.first)
        return seen

    @asynccontextmanager
    async def _checking(self) -> AsyncIterator[None]:
        if self._checks.locked():
            raise UnavailableError(f"the rows of {MAX_CHECKS} keys are checked against schemas now: try again later")
        try:
            async with self._checks, asyncio.timeout(MAX_CHECK_S):
                yield
        except TimeoutError as error:
            raise UnavailableError(f"checking the rows took more than {MAX_CHECK_S:g} s: nothing is changed") from error

    async def _look(self, store: str, key: str, schema: ValueSchema) -> tuple[Report, Seen]:
        """Checks all rows of a key, page by page; and what of it was seen."""
        reader = self._repository.reader
        rows = count = 0
        first: list[BrokenRow] = []
        try:
            heads = await reader.heads(store, key)  # before the snapshot of the rows, so that nothing is missed
            async with aclosing(reader.list_rows(store, key, ListFilter())) as pages:
                async for page in pages:
                    pause_s = time.monotonic() + _TURN_S
                    for listed in page:
                        rows += 1
                        row = listed.row
                        if (problem := problem_of(schema, row.value, row.metadata)) is not None:
                            count += 1
                            if len(first) < NAMED_ROWS:
                                first.append(BrokenRow(row.row_id, problem))
                        if time.monotonic() > pause_s:
                            await asyncio.sleep(0)
                            pause_s = time.monotonic() + _TURN_S
        except UnknownKeyError:
            return Report(0, 0, []), Seen()
        return Report(rows, count, first), Seen(heads.history, heads.heads)


def _break(
    wanted: SchemaCompatibility, kind: SchemaKind, definition: str, before: KeySchema, budget: Budget
) -> str | None:
    """What keeps a schema from being as compatible as it has to be with a version before it, or ``None``."""
    if before.kind != kind:
        return f"version {before.version} is of the kind {before.kind}"
    if wanted.is_backward and (said := incompatibility(kind, definition, before.definition, budget)) is not None:
        return f"it can't read all values of version {before.version}: {said}"
    if wanted.is_forward:
        said = incompatibility(kind, before.definition, definition, budget, writer_is_newer=True)
        if said is not None:
            return f"version {before.version} can't read all of its values: {said}"
    return None
