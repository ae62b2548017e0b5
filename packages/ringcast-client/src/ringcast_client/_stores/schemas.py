"""The calls for schemas of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringcast_wire import SchemaCompatibility, SchemaKind, SchemaMode, names
from ringcast_wire.grpc import SCHEMA_COMPATIBILITIES, SCHEMA_KINDS, SCHEMA_MODES, pb

from ringcast_client._calls.calls import Calls
from ringcast_client._common.enums import Known
from ringcast_client._common.input import where

_KINDS: Final = Known("a kind of schema", SCHEMA_KINDS)
_COMPATIBILITIES: Final = Known("a compatibility of schemas", SCHEMA_COMPATIBILITIES)
_MODES: Final = Known("a mode of a schema", SCHEMA_MODES)


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """A version of the schema of a key.

    ``mode`` and ``compatibility`` are ``None`` of all but the newest, and ``definition`` is empty in lists. ``author``
    has registered it, ``changed_at_ms`` is when its mode was set, 0 where it has none. Times are Unix time.
    """

    key: str
    version: int
    kind: SchemaKind
    mode: SchemaMode | None
    author: str
    reason: str
    registered_at_ms: int
    changed_at_ms: int
    definition: str
    compatibility: SchemaCompatibility | None = None


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """A row that breaks a schema: where in the value and which rule of the schema, as JSON pointers (empty: as a
    whole), why, and what is there, cut."""

    row_id: str
    where: str
    rule: str
    reason: str
    found: str


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """How many rows a key has, how many of them break a schema, and the first ten of these. ``incompatible``: why the
    compatibility of the key keeps it from being the next version, as a sentence; empty: it may be."""

    rows: int
    broken: int
    first: tuple[BrokenRow, ...]
    incompatible: str = ""


class SchemaCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def register_schema(
        self,
        store: str,
        key: str,
        definition: str,
        *,
        kind: SchemaKind = SchemaKind.JSON_SCHEMA,
        mode: SchemaMode | None = None,
        compatibility: SchemaCompatibility | None = None,
    ) -> SchemaInfo:
        """Puts a schema for the values of a key in force; the key need not be there yet. Returns it with its version.

        The newest one again changes nothing but the mode and the compatibility. Of these ``None`` is: as it is, and
        ``ENFORCE`` and ``NONE`` for the first. ``compatibility`` says what this version has to be to those before it,
        and those after it to it. Where it is enforced, no instance stores a value that breaks it from the moment in
        which this returns. It looks at all rows of the key, about 50,000 a second, so give the client a ``timeout_s``
        for that.

        Raises:
            InvalidInputError: it is no schema, is not as compatible as it has to be, or rows break it that is to be
                enforced; some of them are named.
            LimitExceededError: 1,000 keys of the store have schemas.
            UnavailableError: the service checks two other keys now, or the rows change too fast.
            UnknownStoreError, StoreDeletedError, KeyDeletedError: there is no such store, or the key is deleted.
        """
        request = pb.RegisterSchemaRequest(**where(store, key), kind=SCHEMA_KINDS[kind], definition=definition)
        if mode is not None:
            request.mode = SCHEMA_MODES[mode]
        if compatibility is not None:
            request.compatibility = SCHEMA_COMPATIBILITIES[compatibility]
        return _info(await self._calls.unary(self._calls.rpc.RegisterSchema, request))

    async def check_schema(
        self, store: str, key: str, definition: str = "", *, kind: SchemaKind = SchemaKind.JSON_SCHEMA
    ) -> SchemaReport:
        """Looks which rows of a key break a schema, by default the newest of the key, and whether it may be the next
        version; changes nothing.

        Raises:
            InvalidInputError: it is no schema, or the key has none.
            UnavailableError: the service checks two other keys now.
            UnknownStoreError, StoreDeletedError, KeyDeletedError: there is no such store, or the key is deleted.
        """
        request = pb.CheckSchemaRequest(**where(store, key), kind=SCHEMA_KINDS[kind], definition=definition)
        found = await self._calls.unary(self._calls.rpc.CheckSchema, request)
        first = (BrokenRow(row.row_id, row.where, row.rule, row.reason, row.found) for row in found.first)
        return SchemaReport(found.rows, found.broken, tuple(first), found.incompatible)

    async def set_schema_mode(
        self,
        store: str,
        key: str,
        mode: SchemaMode | None = None,
        *,
        compatibility: SchemaCompatibility | None = None,
    ) -> SchemaInfo:
        """Changes what becomes of values that break the schema of a key, and which versions may follow; ``None``: as
        it is. Raises as :meth:`register_schema`."""
        request = pb.SetSchemaModeRequest(**where(store, key))
        if mode is not None:
            request.mode = SCHEMA_MODES[mode]
        if compatibility is not None:
            request.compatibility = SCHEMA_COMPATIBILITIES[compatibility]
        return _info(await self._calls.unary(self._calls.rpc.SetSchemaMode, request))

    async def schemas(self, store: str, key: str = "") -> list[SchemaInfo]:
        """The newest schema of each key of a store by key, or the versions of one key, the newest first.

        Raises:
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.ListSchemasRequest(store=names.check_name("store", store))
        if key:
            request.key = names.check_name("key", key)
        reply = await self._calls.unary(self._calls.rpc.ListSchemas, request)
        return [_info(each) for each in reply.schemas]

    async def schema(self, store: str, key: str, version: int = 0) -> SchemaInfo:
        """A version of the schema of a key with its definition; 0: the newest.

        Raises:
            InvalidInputError: there is none.
            UnknownStoreError, StoreDeletedError: there is no such store.
        """
        request = pb.GetSchemaRequest(**where(store, key), version=version)
        return _info(await self._calls.unary(self._calls.rpc.GetSchema, request))


def _info(found: pb.KeySchema) -> SchemaInfo:
    return SchemaInfo(
        key=found.key,
        version=found.version,
        kind=_KINDS[found.kind],
        mode=_MODES[found.mode] if found.mode else None,
        author=found.author,
        reason=found.reason,
        registered_at_ms=found.registered_at_ms,
        changed_at_ms=found.changed_at_ms,
        definition=found.definition,
        compatibility=_COMPATIBILITIES[found.compatibility] if found.compatibility else None,
    )
