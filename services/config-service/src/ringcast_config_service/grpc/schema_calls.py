"""The calls for the schemas of values."""

from __future__ import annotations

from typing import Final

from ringcast_service import Context
from ringcast_wire import InvalidInputError, SchemaCompatibility, SchemaKind, SchemaMode, UnavailableError
from ringcast_wire.grpc import SCHEMA_COMPATIBILITIES, SCHEMA_KINDS, SCHEMA_MODES, ConfigServiceServicer, pb

from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.grpc.input import answer
from ringcast_config_service.grpc.messages import choice
from ringcast_config_service.grpc.rows import authorship
from ringcast_config_service.repository import BrokenRow, KeySchema
from ringcast_config_service.value_schemas import Report, ValueSchemas

_KINDS: Final = {pb.SCHEMA_KIND_UNSPECIFIED: SchemaKind.JSON_SCHEMA} | {
    number: kind for kind, number in SCHEMA_KINDS.items()
}
_MODES: Final[dict[int, SchemaMode | None]] = {
    pb.SCHEMA_MODE_UNSPECIFIED: None,
    **{number: mode for mode, number in SCHEMA_MODES.items()},
}
_COMPATIBILITIES: Final[dict[int, SchemaCompatibility | None]] = {
    pb.SCHEMA_COMPATIBILITY_UNSPECIFIED: None,
    **{number: each for each, number in SCHEMA_COMPATIBILITIES.items()},
}


class SchemaCalls(ConfigServiceServicer):
    """Registers, checks and shows schemas, and sets their modes."""

    def __init__(self, schemas: ValueSchemas) -> None:
        self._schemas = schemas

    async def RegisterSchema(self, request: pb.RegisterSchemaRequest, context: Context) -> pb.KeySchema:
        async def work() -> pb.KeySchema:
            words = choice("kind", _KINDS, request.kind), request.definition
            mode = choice("mode", _MODES, request.mode)
            compatibility = choice("compatibility", _COMPATIBILITIES, request.compatibility)
            by = authorship(caller_of(context))
            return _message(await self._schemas.register(request.store, request.key, *words, mode, compatibility, by))

        return await answer(context, work())

    async def CheckSchema(self, request: pb.CheckSchemaRequest, context: Context) -> pb.SchemaReport:
        async def work() -> pb.SchemaReport:
            words = choice("kind", _KINDS, request.kind), request.definition
            return _report(await self._schemas.check(request.store, request.key, *words))

        return await answer(context, work())

    async def SetSchemaMode(self, request: pb.SetSchemaModeRequest, context: Context) -> pb.KeySchema:
        async def work() -> pb.KeySchema:
            mode = choice("mode", _MODES, request.mode)
            compatibility = choice("compatibility", _COMPATIBILITIES, request.compatibility)
            if mode is None and compatibility is None:
                raise InvalidInputError("one of mode and compatibility is needed", field="mode")
            by = authorship(caller_of(context))
            return _message(await self._schemas.set_mode(request.store, request.key, mode, compatibility, by))

        return await answer(context, work())

    async def ListSchemas(self, request: pb.ListSchemasRequest, context: Context) -> pb.ListSchemasResponse:
        async def work() -> pb.ListSchemasResponse:
            found = await self._schemas.listed(request.store, request.key)
            return pb.ListSchemasResponse(schemas=map(_message, found))

        return await answer(context, work())

    async def GetSchema(self, request: pb.GetSchemaRequest, context: Context) -> pb.KeySchema:
        async def work() -> pb.KeySchema:
            return _message(await self._schemas.show(request.store, request.key, request.version))

        return await answer(context, work())


def _message(found: KeySchema) -> pb.KeySchema:
    try:
        kind = SchemaKind(found.kind)
    except ValueError as error:
        raise UnavailableError(f"this instance does not know schemas of the kind {found.kind!r}") from error
    return pb.KeySchema(
        key=found.key,
        version=found.version,
        kind=SCHEMA_KINDS[kind],
        mode=pb.SCHEMA_MODE_UNSPECIFIED if found.mode is None else SCHEMA_MODES[found.mode],
        author=found.author,
        reason=found.reason,
        registered_at_ms=found.registered_at_ms,
        changed_at_ms=found.changed_at_ms or 0,
        definition=found.definition,
        compatibility=(
            pb.SCHEMA_COMPATIBILITY_UNSPECIFIED
            if found.compatibility is None
            else SCHEMA_COMPATIBILITIES[found.compatibility]
        ),
    )


def _report(report: Report) -> pb.SchemaReport:
    first = map(_broken, report.first)
    return pb.SchemaReport(rows=report.rows, broken=report.broken, first=first, incompatible=report.incompatible)


def _broken(row: BrokenRow) -> pb.BrokenRow:
    found = row.problem
    return pb.BrokenRow(row_id=row.row_id, where=found.where, rule=found.rule, reason=found.message, found=found.found)
