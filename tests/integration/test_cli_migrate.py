"""``ringcast store migrate``: two workers take part in the shadow, are guarded, become owners, and peers again."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from ringcast_testkit import PATIENCE_S, ManagedProcess

from tests.integration.cli_process import Cli

PARTITIONS = 8


def has_said(process: ManagedProcess, words: str) -> bool:
    return words in process.log


def test_the_shadow(cli: Cli, store: str) -> None:
    def owners() -> list[str]:
        found: list[str] = cli.ok("topology", store, "list", "--json").document["owners"]
        return found

    def status() -> Any:
        return cli.ok("store", "migrate", store, "--status", "--json").document

    cli.ok("put", store, "list", "a", "1")
    nothing = f"{store} has the strategy jump, and does not migrate\n"
    assert cli.ok("store", "migrate", store, "--status").out == nothing
    times = ("--lease-ttl", "2s", "--call-bound", "200ms")
    shown = cli.ok("store", "migrate", store, "--to", "sticky", "--phase", "shadow", *times).out
    assert shown.startswith(f"{store} has the strategy jump, and is at the stage shadow: lease TTL 2 s, call bound")
    assert "migration   shadow\n" in cli.ok("store", "show", store).out
    with ExitStack() as stack:
        ids = [f"{store}-one", f"{store}-two"]
        for worker_id in ids:
            process = cli.start("watch", store, "list", "--worker-id", worker_id)
            stack.callback(process.kill)
            process.wait_until(partial(has_said, process, f"{worker_id} is ready\n"))
        process.wait_until(lambda: set(owners()) == set(ids))
        before = owners()
        cli.ok("store", "migrate", store, "--phase", "shadow", "--wait", "--patience", PATIENCE_S)
        # As few as can be, once the leader knows of the share of the worker that came last.
        moves = max(before.count(worker_id) for worker_id in ids) - PARTITIONS // 2
        process.wait_until(lambda: [key["moves"] for key in status()["keys"]] == [moves])
        document = status()
        assert document["migration"]["stage"] == "shadow"
        (key,) = document["keys"]
        assert (key["key"], key["workers"], key["missing"], key["partitions"]) == ("list", 2, [], PARTITIONS)
        assert key["leader"] in ids
        assert "2 of 2" in cli.ok("store", "migrate", store, "--status").out
        assert owners() == before
        refused = cli("store", "migrate", store, "--phase", "validate", "--gone", ids[0])
        assert f"the worker '{ids[0]}' is not gone: its session was refreshed" in refused.err
        unknown = cli("store", "migrate", store, "--phase", "validate", "--gone", ids[0], "--gone", "nobody").err
        assert f"gone names the worker 'nobody': store '{store}' has no record of it" in unknown
        _there_and_back(cli, store)
    assert cli.ok("store", "migrate", store, "--phase", "off").out == nothing
    assert "give either --phase or --status" in cli("store", "migrate", store).err
    assert "--gone goes with --phase" in cli("store", "migrate", store, "--status", "--gone", ids[0]).err
    assert "go with --phase shadow" in cli("store", "migrate", store, "--status", *times).err


def _there_and_back(cli: Cli, store: str) -> None:
    def go(phase: str) -> str:
        out: str = cli.ok("store", "migrate", store, "--phase", phase, "--wait", "--patience", PATIENCE_S).out
        return out

    refused = cli("store", "migrate", store, "--phase", "switch").err
    assert "is at the stage shadow: it can't go to switch, only to off, validate" in refused
    assert "is at the stage validate" in go("validate")
    assert "--phase back leads to the shadow" in cli("store", "migrate", store, "--phase", "shadow").err
    assert " owners " in go("switch")
    assert " peers " in go("back")


def test_the_finish(cli: Cli, store: str) -> None:
    def go(phase: str) -> str:
        out: str = cli.ok("store", "migrate", store, "--phase", phase).out
        return out

    cli.ok("put", store, "list", "a", "1")
    for phase in ("shadow", "validate", "switch"):
        go(phase)
    assert "which takes the strategy sticky" in cli("pins", store).err
    finished = f"{store} has the strategy sticky, and does not migrate\n"
    assert go("finish") == finished
    assert cli.ok("store", "migrate", store, "--status").out == finished
    shown = cli.ok("store", "show", store).out
    assert "strategy    sticky\n" in shown
    assert "migration   finish\n" in shown
    assert "has the strategy sticky already" in cli("store", "migrate", store, "--phase", "back").err
    cli.ok("pins", store)
