"""``ringcast drain``, ``undrain``, ``pin``, ``unpin``, ``pins``, ``balance``, ``topology`` of a ``sticky`` store."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import yaml
from ringcast_testkit import PATIENCE_S, ManagedProcess

from tests.integration.cli_process import COMMAND, Cli

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 8


def has_said(process: ManagedProcess, words: str) -> bool:
    return words in process.log


@pytest.fixture
def store(cli: Cli, store_name: str) -> str:
    options = ("--strategy", "sticky", "--lease-ttl", "2s", "--call-bound", "200ms", "--partitions", PARTITIONS)
    cli.ok("store", "create", store_name, *options)
    cli.ok("put", store_name, "list", "a", "1")
    return store_name


@pytest.fixture
def workers(cli: Cli, store: str) -> Iterator[dict[str, ManagedProcess]]:
    """Two workers, which have partitions."""
    with ExitStack() as stack:
        found = {}
        for name in ("one", "two"):
            found[name] = cli.start("watch", store, "list", "--worker-id", f"{store}-{name}")
            stack.callback(found[name].kill)
        for name, process in found.items():
            process.wait_until(partial(has_said, process, f"{store}-{name} is ready\n"))
        yield found


def test_drain_and_undrain(cli: Cli, store: str, workers: dict[str, ManagedProcess]) -> None:
    one, two = (f"{store}-{name}" for name in workers)
    lines = cli.ok("drain", one, "--wait").out.splitlines()
    assert lines[-1] == f"{one} is drained in {store}/list, and owns 0 partitions"
    document = cli.ok("topology", store, "list", "--json").document
    assert set(document["owners"]) == {two}
    assert document["exclusive"]["drains"] == [one]
    assert workers["one"].returncode is None, "a drained worker goes on"
    shown = cli.ok("topology", store, "list", "--partitions").out
    assert f"drained: {one}\n" in shown
    assert f"{PARTITIONS} of {PARTITIONS} partitions owned" in shown
    assert f"{one} leads" in shown or f"{two} leads" in shown
    assert shown.count("held") == PARTITIONS
    late = cli("drain", two, "--store", store, "--wait", "--patience", 1)
    assert late.code == 1
    assert f"no other worker of {store}/list takes partitions: {two} serves them until one does" in late.err
    assert f"ringcast: {two} is drained, and after 1 s still owns {PARTITIONS} of {store}/list" in late.err
    again = cli.ok("undrain", one, "--json").document
    assert again == {"store": store, "key": "list", "worker": one}
    documents = cli.ok("drain", two, "--store", store, "--key", "list", "--wait", "--json").documents
    assert (documents[-1]["worker_id"], documents[-1]["partitions"]) == (two, 0)
    assert cli.ok("undrain", two).out == f"{two} may have partitions of {store}/list again\n"
    assert cli.refused("undrain", two) == f"worker '{two}' is not drained in any store"


def test_pins(cli: Cli, store: str, workers: dict[str, ManagedProcess]) -> None:
    one = f"{store}-one"
    assert cli.ok("pins", store).out == f"nothing is pinned or drained in {store}\n"
    assert cli.ok("pin", store, "list", 3, one).out == f"partition 3 of {store}/list is pinned to {one}\n"
    cli.ok("drain", one, "--store", store)
    assert "is drained: the pin counts once it is not" in cli.ok("pin", store, "list", 4, one).err
    shown = cli.ok("pins", store).out
    assert f"{store}/list" in shown
    assert "3-4" in shown
    assert cli.ok("pins", store, "list", "--json").document["pins"] == {"3": one, "4": one}
    assert f"pinned: 3 to {one}, 4 to {one}" in cli.ok("topology", store, "list").out
    assert cli.ok("unpin", store, "list", 3).out == f"partition 3 of {store}/list is not pinned to {one} any more\n"
    assert cli.refused("unpin", store, "list", 3) == f"partition 3 of {store}/list is not pinned"


def test_balance(cli: Cli, store: str, workers: dict[str, ManagedProcess]) -> None:
    assert cli.ok("balance", store, "load").out == f"{store}/list has the balance load\n"
    assert f"{store}/list has the balance load" in cli.ok("pins", store).err
    assert cli.ok("pins", store, "--json").document["balance"] == "load"
    assert cli.ok("topology", store, "list", "--json").document["exclusive"]["balance"] == "load"
    done = cli.ok("balance", store, "count", "--key", "list", "--json").document
    assert done == {"store": store, "key": "list", "balance": "count"}
    assert cli.ok("pins", store).out == f"nothing is pinned or drained in {store}\n"
    assert f"store '{store}' has no config key 'other'" in cli.refused("balance", store, "load", "--key", "other")


def test_what_is_refused(cli: Cli, store: str) -> None:
    place = f"any key of store '{store}'"
    assert cli.refused("drain", "w", "--store", store) == f"no worker 'w' takes part in {place}"
    assert cli.refused("drain", "w") == "no worker 'w' takes part in any store with the strategy sticky"
    assert cli.refused("drain", "w", "--store", "nowhere") == "store 'nowhere' does not exist"
    nobody = f"no worker takes part in store '{store}': it has no keys to balance"
    assert cli.refused("balance", store, "load") == nobody
    assert cli.refused("pin", store, "list", 0, "w") == f"no worker 'w' takes part in {store}/list"
    assert f"store '{store}' has no config key 'other'" in cli.refused("pin", store, "other", 0, "w")
    assert "partition 8 is out of range: the store has partitions 0 to 7" in cli.refused("pin", store, "list", 8, "w")
    cli.ok("store", "create", f"{store}-jump", "--partitions", 2)
    assert "which takes the strategy sticky" in cli.refused("pins", f"{store}-jump")


def test_what_moves_once_a_worker_is_gone(cli: Cli, store: str, workers: dict[str, ManagedProcess]) -> None:
    one, two = (f"{store}-{name}" for name in workers)
    shown = cli.ok("plan", store, "list", "--remove", two).out
    assert shown.splitlines()[0] == f"{store}/list without {two}: {PARTITIONS // 2} of {PARTITIONS} partitions move"
    assert f"{one} | {PARTITIONS // 2} | {PARTITIONS} | +{PARTITIONS // 2}" in " | ".join(shown.split())
    document = cli.ok("plan", store, "--remove", one, "--json").document
    assert document["then"] == [two] * PARTITIONS
    assert document["moves"] == sum(owner != two for owner in document["owners"]) == PARTITIONS // 2
    workers["two"].terminate()
    workers["one"].wait_until(lambda: all_owned_by(cli, store, one))
    assert cli("plan", store, "list", "--remove", one).err.endswith(
        f"no worker of {store}/list is left to take partitions\n"
    )
    said = cli.refused("plan", store, "--remove", one, "--remove", "nobody")
    assert said == f"no key of {store} has a worker nobody"


def all_owned_by(cli: Cli, store: str, worker_id: str) -> bool:
    return set(cli.ok("topology", store, "list", "--json").document["owners"]) == {worker_id}


def test_the_hooks_of_the_example_for_kubernetes(
    cli: Cli, store: str, workers: dict[str, ManagedProcess], tmp_path: Path
) -> None:
    """As they are written there, but for the name of the store and the place of the password."""
    example = yaml.safe_load_all((ROOT / "infra/kubernetes/worker.example.yaml").read_text())
    pod = next(iter(example))["spec"]["template"]["spec"]
    hook, init = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"], pod["initContainers"][0]["command"]
    program = tmp_path / "bin/ringcast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "tools").write_text("secret\n")
    one, two = (f"{store}-{name}" for name in workers)
    path = f"{program.parent}:{cli.env['PATH']}"

    def run(words: list[str]) -> None:
        text = words[-1].replace("--store gateway", f"--store {store}").replace("/etc/ringcast/logins", str(tmp_path))
        assert store in text
        done = subprocess.run(
            [*words[:-1], text.replace(" || true", "")],
            env={**cli.env, "PATH": path, "RINGCAST_WORKER_ID": one},
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0

    run(hook)
    assert all_owned_by(cli, store, two), "the hook returns before the worker owns nothing any more"
    run(init)
    workers["one"].wait_until(lambda: not all_owned_by(cli, store, two))
