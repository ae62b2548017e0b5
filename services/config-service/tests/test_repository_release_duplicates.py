"""Ids that are the same once something is ignored: a release adds no such row, in each database."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from ringcast_config_service.repository import (
    Authorship,
    ListFilter,
    PolicyChange,
    Release,
    Repository,
    RowWrite,
    StageBatch,
    StagedRow,
    release_duplicates,
)
from ringcast_config_service.repository.release_duplicates import Hashes, Normal
from ringcast_core import row_partition
from ringcast_wire import ConditionFailedError, ReleaseState, StorePolicy, UnavailableError, check_row, shown

Bench = Any  # of conftest.py

BY = Authorship("alice", "new list")
DAY_MS = 86_400_000
CASE, SPACE, FORM, DOT = (f"unique_ignoring_{name}" for name in ("case", "outer_space", "unicode_form", "trailing_dot"))


async def set_policy(bench: Bench, *names: str, lift: frozenset[str] = frozenset()) -> None:
    change = PolicyChange(StorePolicy(**dict.fromkeys(names, True)), lift)
    bench.store = (await bench.repo.policies.set_policy("s", change)).record


async def stage(bench: Bench, values: Mapping[str, str | None], stage_id: str = "one", key: str = "k") -> Release:
    """A release of what rows are to become, of the versions that they have."""
    versions: dict[str, int] = {}
    if key == "k":
        async for page in bench.repo.reader.list_rows("s", key, ListFilter()):
            versions |= {found.row.row_id: found.row.version for found in page}
    rows = []
    for row_id, value in values.items():
        size = check_row(row_id, value or "", None)
        write = RowWrite(row_partition(row_id, 8), row_id, value, None, size, versions.get(row_id, 0))
        rows.append(StagedRow(key, write))
    release: Release = await bench.repo.releases.stage(bench.store, StageBatch(stage_id, 0, rows, True), BY)
    return release


async def take_steps(bench: Bench, number: int) -> None:
    """Until there is nothing to do, or a wave is at its gate."""
    while not (await bench.repo.releases.step("s", number, bench.repo.histories.generation)).done:
        pass


async def publish(bench: Bench, number: int) -> Release:
    await bench.repo.releases.publish("s", number, DAY_MS, BY)
    await take_steps(bench, number)
    done: Release = await bench.repo.releases.get("s", number)
    return done


@pytest.mark.parametrize(
    ("policy", "there", "added", "others"),
    [
        (CASE, "Straße", "STRASSE", ["Straße ", "Straße.", "\uff33traße"]),
        (SPACE, "a b", "\u2003a b\t", ["A b", "a  b", "a b.", "\uff41 b"]),
        (FORM, "caf\u00e9", "cafe\u0301", ["Caf\u00e9", "caf\u00e9 ", "caf\u00e9.", "cafe"]),
        (FORM, "ﬁle", "file", ["File", "file ", "file."]),
        (DOT, "a.example", "a.example.", ["A.example", "a.example..", "a.example ", "\uff41.example"]),
    ],
)
async def test_a_row_that_differs_from_another_one_only_by_what_is_ignored_is_refused(
    bench: Bench, policy: str, there: str, added: str, others: list[str]
) -> None:
    await bench.write({there: "v", "other": "v"})
    await set_policy(bench, policy)
    release = await stage(bench, {added: "w", "new": "w"})
    with pytest.raises(ConditionFailedError) as caught:
        await bench.repo.releases.publish("s", release.number, DAY_MS, BY)
    ignored = policy.removeprefix("unique_ignoring_").replace("_", " ").replace("unicode", "Unicode")
    assert str(caught.value) == (
        f"release 1 of store 's' can't be published, nothing is published: key 'k' would have the rows {there!r} and "
        f"{added!r}, which are the same where {ignored} is ignored; the policy {policy} of the store refuses it"
    )
    assert caught.value.field == policy
    assert (await bench.repo.releases.get("s", release.number)).state is ReleaseState.STAGED
    await set_policy(bench, lift=frozenset({policy}))
    assert (await publish(bench, release.number)).published == 2, "without the policy it may"
    await set_policy(bench, policy)
    differing = await stage(bench, dict.fromkeys(others, "w"), "differing")
    assert (await publish(bench, differing.number)).published == len(others)


@pytest.mark.parametrize("written", [" \uff21.Example. ", "a.example .", "\u00a0A.example\u3000\uff0e "])
async def test_several_are_ignored_together(bench: Bench, written: str) -> None:
    await bench.write({"a.example": "v"})
    await set_policy(bench, CASE, SPACE, FORM, DOT)
    release = await stage(bench, {written: "w"})
    said = (
        f"the rows 'a.example' and {shown(written)}, which are the same where Unicode form, case, outer space and "
        f"trailing dot are ignored; the policies {FORM}, {CASE}, {SPACE}, {DOT} of the store refuse it"
    )
    with pytest.raises(ConditionFailedError, match=re.escape(said)):
        await bench.repo.releases.publish("s", release.number, DAY_MS, BY)


@pytest.mark.parametrize("page_rows", [1, 2, 2_000])
async def test_two_rows_that_the_release_adds_are_compared_too_also_in_a_new_key(
    bench: Bench, page_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_duplicates, "_PAGE_ROWS", page_rows)
    await set_policy(bench, CASE)
    release = await stage(bench, {f"r{number}": "v" for number in range(20)} | {"R7": "v"}, key="other")
    with pytest.raises(ConditionFailedError, match="key 'other' would have the rows 'R7' and 'r7'"):
        await bench.repo.releases.publish("s", release.number, DAY_MS, BY)


@pytest.mark.parametrize("page_rows", [1, 2, 2_000])
async def test_every_row_of_the_key_is_compared(bench: Bench, page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_duplicates, "_PAGE_ROWS", page_rows)
    there = [f"r{number}" for number in range(20)]
    await bench.write(dict.fromkeys(there, "v"))
    await bench.write(dict.fromkeys((row_id.upper() for row_id in there), "v"), key="other")
    await set_policy(bench, CASE)
    for row_id in there:
        release = await stage(bench, {row_id.upper(): "v", "new": "v"}, row_id)
        with pytest.raises(ConditionFailedError, match=f"the rows '{row_id}' and '{row_id.upper()}'"):
            await bench.repo.releases.publish("s", release.number, DAY_MS, BY)
        await bench.repo.releases.drop("s", release.number, BY)


@pytest.mark.parametrize(("page_rows", "most_alike"), [(1, 1), (2, 3), (2_000, 50_000)])
async def test_all_rows_may_be_renamed_to_what_is_like_them(
    bench: Bench, page_rows: int, most_alike: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_duplicates, "_PAGE_ROWS", page_rows)
    monkeypatch.setattr(release_duplicates, "_MOST_ALIKE", most_alike)
    there = [f"r{number}" for number in range(20)]
    renamed = [row_id.upper() for row_id in there]
    await bench.write(dict.fromkeys(there, "v"))
    await set_policy(bench, CASE)
    release = await stage(bench, dict.fromkeys(there) | dict.fromkeys(renamed, "v"), "all")
    assert (await publish(bench, release.number)).published == 40
    most = dict.fromkeys(renamed) | dict.fromkeys(there, "v")
    del most["R7"]
    release = await stage(bench, most, "all but one")
    with pytest.raises(ConditionFailedError, match="the rows 'R7' and 'r7'"):
        await bench.repo.releases.publish("s", release.number, DAY_MS, BY)


async def test_rows_that_are_deleted_are_not_there_and_those_that_are_there_already_stay(bench: Bench) -> None:
    await bench.write({"old": "v", "Old": "v", "gone": "v", "swap": "v"})
    await bench.write({"gone": None})
    await set_policy(bench, CASE)
    release = await stage(bench, {"old": "changed", "GONE": "v", "swap": None, "SWAP": "v"} | {"new": "v"})
    assert (await publish(bench, release.number)).state is ReleaseState.PUBLISHED
    assert await bench.live() == {"old": "changed", "Old": "v", "GONE": "v", "SWAP": "v", "new": "v"}


async def test_a_release_that_was_staged_before_the_policy_and_one_whose_twin_was_written_since_are_refused(
    bench: Bench,
) -> None:
    await bench.write({"other": "v"})
    release = await stage(bench, {"row": "v"})
    await set_policy(bench, CASE)
    await bench.write({"ROW": "v"})
    with pytest.raises(ConditionFailedError, match="the rows 'ROW' and 'row'"):
        await bench.repo.releases.publish("s", release.number, DAY_MS, BY)
    await bench.write({"ROW": None})
    assert (await publish(bench, release.number)).published == 1


async def test_the_same_hash_of_other_ids_is_no_duplicate(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_duplicates, "hash", lambda text: len(text), raising=False)
    await bench.write({"aa": "v", "bbb": "v"})
    await set_policy(bench, CASE)
    release = await stage(bench, {"cc": "v", "dd": "v", "eee": "v"}, "differing")
    assert (await publish(bench, release.number)).published == 3
    for row_id, other in (("CC", "cc"), ("BBB", "bbb")):
        alike = await stage(bench, {row_id: "v", "ff": "v", "ggg": "v"}, row_id)
        with pytest.raises(ConditionFailedError, match=f"the rows '{other}' and '{row_id}'"):
            await bench.repo.releases.publish("s", alike.number, DAY_MS, BY)


@pytest.mark.parametrize(("page_rows", "most_alike"), [(1, 1), (2, 3), (2_000, 50_000)])
async def test_what_releases_that_are_being_published_are_still_to_add_is_compared(
    bench: Bench, page_rows: int, most_alike: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all waves of the first release, and however long it is paused."""
    monkeypatch.setattr(release_duplicates, "_PAGE_ROWS", page_rows)
    monkeypatch.setattr(release_duplicates, "_MOST_ALIKE", most_alike)
    await bench.write({"there": "v"})
    await set_policy(bench, CASE)
    rows = [f"r{number}" for number in range(20)]
    first = await stage(bench, dict.fromkeys(rows, "v"), "first")
    releases = bench.repo.releases
    await releases.publish("s", first.number, DAY_MS, BY, (10, 100))
    await take_steps(bench, first.number)
    await releases.pause("s", first.number, BY)
    published = [row_id for row_id in rows if row_id in await bench.live()]
    waiting = next(row_id for row_id in rows if row_id not in published)
    for stage_id, twin in (("published", published[0]), ("waiting", waiting)):
        others = [row_id for row_id in rows if row_id != twin]
        second = await stage(bench, dict.fromkeys([*others, twin.upper()], "w"), stage_id)
        adds = "" if twin in published else ", which release 1 is still to add,"
        with pytest.raises(ConditionFailedError, match=f"have the rows '{twin}'{adds} and '{twin.upper()}', which are"):
            await releases.publish("s", second.number, DAY_MS, BY)
        await releases.drop("s", second.number, BY)
    other = await stage(bench, {waiting.upper(): "w"}, "other key", key="other")
    assert (await publish(bench, other.number)).published == 1, "another key is another list"
    same = await stage(bench, {waiting: "w", "new": "w"}, "the same row")
    assert (await publish(bench, same.number)).published == 2, "the same row is no duplicate"
    await bench.write({waiting: None})
    late = await stage(bench, {waiting.upper(): "w"}, "late")
    with pytest.raises(ConditionFailedError, match=f"'{waiting}', which release 1 is still to add, and "):
        await releases.publish("s", late.number, DAY_MS, BY)
    await releases.stop("s", first.number, BY)
    assert (await publish(bench, late.number)).published == 1, "what waits of a release that is stopped never comes"


async def test_of_releases_with_rows_that_are_alike_one_begins_however_close_they_are(
    any_bench: Bench, another: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has compared its ids before any of them begins."""
    await any_bench.write({"there": "v"})
    await set_policy(any_bench, CASE)
    repos: Any = (any_bench.repo, another)

    async def refused(number: int) -> str:
        while True:
            try:
                await repos[number % 2].releases.publish("s", number, DAY_MS, BY, (10, 100))
            except UnavailableError:
                continue
            except ConditionFailedError as error:
                return str(error)
            return ""

    for ids, distinct in ((("a", "A"), 1), (("bb", "Bb", "bB", "BB"), 1), (("c", "d", "C", "e"), 3)):
        numbers = [(await stage(any_bench, {row_id: "v"}, row_id)).number for row_id in ids]
        compared, late = asyncio.Barrier(len(ids)), len(ids)

        async def write(call: Any, make: Any, compared: asyncio.Barrier = compared) -> Any:
            nonlocal late
            if late:
                late -= 1
                await compared.wait()
            return await call(make)

        with monkeypatch.context() as patched:
            for releases in (repo.releases for repo in repos):
                patched.setattr(releases, "_call", partial(write, releases._call))
            said = await asyncio.gather(*map(refused, numbers))
        assert said.count("") == distinct
        assert all("is still to add, and " in each for each in said if each), said
        for number in numbers:
            if (await another.releases.get("s", number)).state is ReleaseState.PUBLISHING:
                await another.releases.stop("s", number, BY)


async def test_a_policy_that_is_set_while_a_release_begins_counts(
    any_bench: Bench, another: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_bench.write({"row": "v"})
    release = await stage(any_bench, {"ROW": "v"})
    call = any_bench.repo.releases._call

    async def write(make: Any) -> Any:
        await another.policies.set_policy("s", PolicyChange(StorePolicy(unique_ignoring_case=True), frozenset()))
        return await call(make)

    monkeypatch.setattr(any_bench.repo.releases, "_call", write)
    with pytest.raises(ConditionFailedError, match="have the rows 'row' and 'ROW'"):
        await any_bench.repo.releases.publish("s", release.number, DAY_MS, BY)


def test_hashes_find_what_was_added_and_what_was_added_twice() -> None:
    hashes = Hashes()
    texts = [f"text {number}" for number in range(10_000)]
    for text in [*texts, "text 7"]:
        hashes.add(text)
    assert hashes.sort() == [hash("text 7")]
    assert all(text in hashes for text in texts)
    assert not [number for number in range(10_000, 20_000) if f"text {number}" in hashes]


def test_what_is_compared_does_not_change_when_it_is_normalised_again() -> None:
    normal = Normal(StorePolicy(**dict.fromkeys((CASE, FORM), True)))
    for code in [*range(0x20, 0xD800), *range(0xE000, 0x20000)]:
        once = normal.of(chr(code))
        assert normal.of(once) == once, hex(code)


@pytest.mark.parametrize("policy", [CASE, SPACE, FORM, DOT])
async def test_no_older_build_is_let_near_such_a_policy(bench: Bench, policy: str) -> None:
    await set_policy(bench, policy)
    assert await bench.ask("SELECT usable_from FROM schema_version") == [(15,)]
