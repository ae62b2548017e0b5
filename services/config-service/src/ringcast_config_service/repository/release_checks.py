"""The values of a release are checked once more where a schema was put in force since they were staged."""

from __future__ import annotations

from typing import Final

from ringcast_wire import ConditionFailedError, limits
from ringcast_wire.schemas import broken

from ringcast_config_service.repository.packing import unpack_metadata
from ringcast_config_service.repository.release_records import Release
from ringcast_config_service.repository.release_transactions import Ask, ReleaseStatements, Transaction
from ringcast_config_service.repository.value_checks import problem_of, to_value_schema

_PAGE_ROWS: Final = 500
_PAGE_BYTES: Final = 4 * limits.MIB


def check_values(sql: ReleaseStatements, release: Release) -> Transaction[None]:
    """Looks at all rows of the keys whose schema is newer than the release, before any of them is published.

    Its steps check them again, with the heads locked: this is so that a release is not stopped half way.

    Raises:
        ConditionFailedError: a row breaks the schema; the sentence names it.
    """
    found = yield Ask(sql.schemas_since, (release.store, release.number))
    schemas = {key: (version, to_value_schema(kind, definition)) for key, version, kind, definition in found}
    after = 0
    while schemas and (page := (yield Ask(sql.publish_page, (*_place(release), after, _PAGE_ROWS, _PAGE_BYTES)))):
        for _, key, _, row_id, value, metadata, *_ in page:
            if key not in schemas or value is None:
                continue
            version, schema = schemas[key]
            if (problem := problem_of(schema, value, unpack_metadata(metadata))) is not None:
                said = broken(f"{release.store}/{key}", version, row_id, problem)
                raise ConditionFailedError(
                    f"{release.place} can't be published, nothing is published: {said}", field="number"
                )
        after = page[-1][0]


def _place(release: Release) -> tuple[str, int]:
    return release.store, release.number
