"""What is checked of a release as a whole: how much of a key it changes, and its values where a schema is newer."""

from __future__ import annotations

from typing import Final

from ringcast_wire import ConditionFailedError, LimitExceededError, StorePolicy, limits
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


def check_shares(sql: ReleaseStatements, release: Release, policy: StorePolicy, what: str) -> Transaction[None]:
    """Refuses a release that changes more of a key than the policies of its store allow, by the rows of now.

    ``what``: it can't be, in the sentence.

    Raises:
        LimitExceededError: it does; the sentence names the key, the policy and its value.
    """
    allowed = policy.max_release_growth_percent, policy.max_release_shrink_percent, policy.max_release_change_percent
    if allowed == (None, None, None):
        return
    growth, shrink, change = allowed
    for key, added, changed, deleted, live in (yield Ask(sql.release_shares, (release.store, release.number))):
        for name, most, rows, verb in (
            ("max_release_growth_percent", growth, added - deleted, "makes it longer by"),
            ("max_release_shrink_percent", shrink, deleted - added, "makes it shorter by"),
            ("max_release_change_percent", change, changed + deleted, "changes or deletes"),
        ):
            if most is not None and live and rows * 100 > most * live:
                raise LimitExceededError(
                    f"{release.place} can't be {what}: key {key!r} has {live} rows, and the release {verb} {rows}; the "
                    f"policy {name} of the store allows {most} %",
                    field=name,
                )


def _place(release: Release) -> tuple[str, int]:
    return release.store, release.number
