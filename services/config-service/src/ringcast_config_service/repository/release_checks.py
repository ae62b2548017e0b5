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
    schemas = {key: (version, kind, definition) for key, version, kind, definition in found}
    after = 0
    while schemas and (page := (yield Ask(sql.publish_page, (*_place(release), after, _PAGE_ROWS, _PAGE_BYTES)))):
        for _, key, _, row_id, value, metadata, *_ in page:
            if key not in schemas or value is None:
                continue
            version, *schema = schemas[key]
            # Looked up for each row: all of them together would take gigabytes, and those of rows in turn are kept.
            if (problem := problem_of(to_value_schema(*schema), value, unpack_metadata(metadata))) is not None:
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
    yield from _check_rows(sql, release, policy, what)
    yield from _check_bytes(sql, release, policy, what)
    yield from _check_partitions(sql, release, policy, what)


def _check_rows(sql: ReleaseStatements, release: Release, policy: StorePolicy, what: str) -> Transaction[None]:
    growth, shrink = policy.max_release_growth_percent, policy.max_release_shrink_percent
    change = policy.max_release_change_percent
    if (growth, shrink, change) == (None, None, None):
        return
    for key, added, changed, deleted, live in (yield Ask(sql.release_shares, _place(release))):
        for name, most, rows, verb in (
            ("max_release_growth_percent", growth, added - deleted, "makes it longer by"),
            ("max_release_shrink_percent", shrink, deleted - added, "makes it shorter by"),
            ("max_release_change_percent", change, changed + deleted, "changes or deletes"),
        ):
            if most is not None and live and rows * 100 > most * live:
                raise _too_much(release, what, f"key {key!r} has {live} rows", f"{verb} {rows}", name, most)


def _check_bytes(sql: ReleaseStatements, release: Release, policy: StorePolicy, what: str) -> Transaction[None]:
    """By the rows that are there now: each that the release has is looked up, so only where a policy is set."""
    growth, shrink = policy.max_release_byte_growth_percent, policy.max_release_byte_shrink_percent
    if (growth, shrink) == (None, None):
        return
    for key, added, live in (yield Ask(sql.release_byte_shares, _place(release))):
        for name, most, count, verb in (
            ("max_release_byte_growth_percent", growth, added, "adds"),
            ("max_release_byte_shrink_percent", shrink, -added, "takes away"),
        ):
            if most is not None and live and count * 100 > most * live:
                raise _too_much(release, what, f"key {key!r} has {live} bytes", f"{verb} {count}", name, most)


def _check_partitions(sql: ReleaseStatements, release: Release, policy: StorePolicy, what: str) -> Transaction[None]:
    growth, shrink = policy.max_release_partition_growth_percent, policy.max_release_partition_shrink_percent
    if (growth, shrink) == (None, None):
        return
    tolerance = policy.release_partition_tolerance_rows
    if tolerance is None:
        tolerance = limits.PARTITION_TOLERANCE_ROWS
    asked = Ask(sql.release_partition_shares, (*_place(release), tolerance, growth, shrink))
    for key, partition, added, live in (yield asked):
        grows = added > 0
        name = f"max_release_partition_{'growth' if grows else 'shrink'}_percent"
        has = f"partition {partition} of key {key!r} has {live} rows"
        does = f"makes it {'longer' if grows else 'shorter'} by {abs(added)}"
        allowed = growth if grows else shrink
        raise _too_much(release, what, has, does, name, allowed, f", and {tolerance} rows in any case")


def _too_much(
    release: Release, what: str, has: str, does: str, name: str, most: int | None, besides: str = ""
) -> LimitExceededError:
    return LimitExceededError(
        f"{release.place} can't be {what}: {has}, and the release {does}; the policy {name} of the store allows "
        f"{most} %{besides}",
        field=name,
    )


def _place(release: Release) -> tuple[str, int]:
    return release.store, release.number
