"""``ringcast release wait``: what is proven of a release, and why it is not, with real workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ringcast import Change, Mode, PoisonPolicy
from ringcast_testkit import PATIENCE_S, AgentProcess, until
from ringcast_wire import ConditionFailedError, Strategy

from tests.integration.cli_process import Cli, Result, Servers
from tests.integration.worker_bench import PARTITIONS, Bench, worker_bench


@pytest.fixture
async def bench(servers: Servers, cli: Cli, store_name: str) -> AsyncIterator[Bench]:
    async with worker_bench(servers, cli, store_name) as made:
        yield made


async def _release(bench: Bench, tmp_path: Path, *keys: str, rows: int = 40) -> int:
    """Stages and publishes a release of so many rows a key, and returns its number."""
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\n" + "".join(f"row{number},{number}\n" for number in range(rows)))
    words = [word for key in keys for word in ("--key", f"{key}={file}")]
    staged = await _run(bench, "stage", bench.store, *words, "--json")
    number: int = staged.document["release"]["number"]
    await _run(bench, "publish", bench.store, number)
    return number


async def _run(bench: Bench, *words: object, code: int = 0) -> Result:
    """The workers of this process answer meanwhile."""
    found = await asyncio.to_thread(bench.cli, "release", *words)
    assert found.code == code, found
    return found


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.STICKY])
async def test_a_release_that_every_worker_has_applied_is_proven(
    bench: Bench, tmp_path: Path, strategy: Strategy
) -> None:
    await bench.create(strategy=strategy)
    workers = [await bench.worker(name, keys=["list", "other"]) for name in "ab"]
    await until(lambda: all(0 < len(each.owned(key)) < PARTITIONS for each in workers for key in ("list", "other")))
    number = await _release(bench, tmp_path, "list", "other")
    said = await _run(bench, "wait", bench.store, number, "--patience", PATIENCE_S)
    assert said.out == (
        f"release {number} of {bench.store} is proven: applied by 2 workers of 2 keys, {2 * PARTITIONS} partitions "
        "written\n"
    )
    shown = await _run(bench, "show", bench.store, number)
    assert "proven 20" in shown.out
    document = (await _run(bench, "show", bench.store, number, "--json")).document
    heads = await bench.client.heads(bench.store, "list")
    (listed, _) = document["certificate"]["keys"]
    assert (listed["key"], listed["spans"], listed["revisions"]) == ("list", [0, PARTITIONS], list(heads))
    assert {each["worker_id"] for each in listed["workers"]} == {each.config.worker_id for each in workers}
    owned = {worker.config.worker_id: len(worker.owned("list")) for worker in workers}
    assert {each["worker_id"]: sum(each["spans"][1::2]) for each in listed["workers"]} == owned
    certificate = await bench.client.release_certificate(bench.store, number)
    assert certificate.proven_at_ms == document["proven_at_ms"]
    again = await bench.client.wait_for_release(bench.store, number, timeout_s=0)
    assert again.certificate == certificate, "nobody is asked again"
    await bench.client.undo_release(bench.store, number)
    with pytest.raises(ConditionFailedError, match="can't be proven: it is un"):
        await bench.client.wait_for_release(bench.store, number, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("strategy", [Strategy.JUMP, Strategy.STICKY])
async def test_workers_under_the_agent_of_a_host_count(bench: Bench, tmp_path: Path, strategy: Strategy) -> None:
    await bench.create(strategy=strategy)
    socket = str(tmp_path / "leases.sock")
    options = ("--lease-socket", socket, "--id", "host-1")
    with AgentProcess(tmp_path / "agent", nats_url=bench.servers.nats.url, options=options):
        worker = await bench.worker("a", agent=socket)
        await until(lambda: len(worker.owned("list")) == PARTITIONS)
        (member,) = (await bench.told("topology", bench.store, "list"))["members"]
        assert member["alive"]
        number = await _release(bench, tmp_path, "list")
        proof = await bench.client.wait_for_release(bench.store, number, timeout_s=PATIENCE_S)
        assert proof.certificate is not None, proof.lacks
        (key,) = proof.certificate.keys
        assert [(each.worker_id, each.spans) for each in key.workers] == [(worker.config.worker_id, (0, PARTITIONS))]
        await worker.stop()


async def test_in_mode_full_every_worker_has_to_have_it(bench: Bench, tmp_path: Path) -> None:
    await bench.create(mode=Mode.FULL)
    await bench.fill(1)
    worker = await bench.worker("a")
    with bench.process("halted") as process:
        await until(lambda: _is_member(bench, process.worker_id))
        process.pause()
        number = await _release(bench, tmp_path, "list")
        proof = await bench.client.wait_for_release(bench.store, number, timeout_s=0)
        assert {lack.sentence for lack in proof.lacks} == {f"worker {process.worker_id} does not answer"}
        process.resume()
        proof = await bench.client.wait_for_release(bench.store, number, timeout_s=PATIENCE_S)
    assert proof.certificate is not None
    (key,) = proof.certificate.keys
    found = {each.worker_id: each.spans for each in key.workers}
    assert found == dict.fromkeys((worker.config.worker_id, process.worker_id), (0, PARTITIONS))


async def _is_member(bench: Bench, worker_id: str) -> bool:
    document = await bench.told("topology", bench.store, "list")
    return any(member["worker_id"] == worker_id and member["alive"] for member in document["members"])


async def test_nothing_is_proven_where_nobody_answers(bench: Bench, tmp_path: Path) -> None:
    await bench.create()
    number = await _release(bench, tmp_path, "list")
    said = await _run(bench, "wait", bench.store, number, "--patience", 0.3, code=1)
    assert (said.out, said.err.splitlines()) == (
        "",
        [
            f"ringcast: release {number} of {bench.store} is not proven within 0.3 s:",
            "list: no worker is registered and alive",
            "list: no worker owns partition 0 and 7 more",
        ],
    )
    with pytest.raises(ConditionFailedError, match=f"release {number} of store '{bench.store}' is not proven"):
        await bench.client.release_certificate(bench.store, number)


async def test_a_worker_that_is_halted_is_named_until_it_goes_on(bench: Bench, tmp_path: Path) -> None:
    await bench.create()
    other = await bench.worker("a")
    with bench.process("halted") as process:
        await until(lambda: 0 < len(other.owned("list")) < PARTITIONS)
        process.pause()
        number = await _release(bench, tmp_path, "list")
        document = (await _run(bench, "wait", bench.store, number, "--patience", 0.3, "--json", code=1)).document
        assert document["certificate"] is None
        sentences = {lack["worker_id"]: lack["sentence"] for lack in document["lacks"]}
        assert sentences[process.worker_id] == f"worker {process.worker_id} does not answer"
        process.resume()
        proof = await bench.client.wait_for_release(bench.store, number, timeout_s=PATIENCE_S)
        assert proof.certificate is not None


@pytest.mark.parametrize("policy", [PoisonPolicy.BLOCK, PoisonPolicy.DEAD_LETTER, PoisonPolicy.DROP])
async def test_a_row_that_a_handler_has_refused_is_named(bench: Bench, tmp_path: Path, policy: PoisonPolicy) -> None:
    await bench.create()

    async def handler(change: Change) -> None:
        if change.row_id == "row7" and change.value == "7":
            raise ValueError("not seven")

    worker = await bench.worker("a", handler, handler_tries=1, poison_policy=policy)
    number = await _release(bench, tmp_path, "list")
    await until(lambda: worker.stats().poisoned == 1)
    written = await bench.client.put(bench.store, "list", "after", "value")
    partitions = set(range(PARTITIONS)) - {written.partition}
    heads = await bench.client.heads(bench.store, "list")
    for partition in (written.partition, *partitions):
        await worker.wait_for("list", partition, heads[partition], timeout_s=PATIENCE_S)
    proof = await bench.client.wait_for_release(bench.store, number, timeout_s=0)
    (lack,) = proof.lacks
    assert (lack.key, lack.worker_id, lack.row_id) == ("list", worker.config.worker_id, "row7")
    assert lack.sentence.endswith(f" at worker {worker.config.worker_id}: ValueError('not seven')")
    # A newer change of the row, which is taken, is none of the release: nothing of that is missing any more.
    await bench.client.put(bench.store, "list", "row7", "eight")
    if policy is PoisonPolicy.BLOCK:
        heads = await bench.client.heads(bench.store, "list")
        for partition, head in enumerate(heads):
            await worker.wait_for("list", partition, head, timeout_s=PATIENCE_S)
        assert await worker.unblock("list", "row7")
    proof = await bench.client.wait_for_release(bench.store, number, timeout_s=PATIENCE_S)
    assert proof.certificate is not None


async def test_a_release_may_be_waited_for_before_it_is_published(bench: Bench, tmp_path: Path) -> None:
    await bench.create()
    await bench.worker("a")
    file = tmp_path / "rows.csv"
    file.write_text("row_id,value\na,1\n")
    await _run(bench, "stage", bench.store, "--key", f"list={file}")
    seen: list[Any] = []
    waiting = [
        asyncio.create_task(bench.client.wait_for_release(bench.store, 1, timeout_s=PATIENCE_S, on_try=seen.append))
        for _ in range(3)
    ]
    await until(lambda: len(seen) >= 3)
    assert {lack.sentence for proof in seen for lack in proof.lacks} == {"the release is staged and not published yet"}
    await bench.client.publish_release(bench.store, 1)
    proofs = await asyncio.gather(*waiting)
    assert proofs[0].certificate is not None
    assert [each.certificate for each in proofs] == [proofs[0].certificate] * 3
    await bench.client.put(bench.store, "list", "b", "1")
    await _run(bench, "stage", bench.store, "--key", f"list={file}", "--max-delete-share", 1)
    await bench.client.drop_release(bench.store, 2)
    with pytest.raises(ConditionFailedError, match="can't be proven: it is dropped"):
        await bench.client.wait_for_release(bench.store, 2, timeout_s=PATIENCE_S)
