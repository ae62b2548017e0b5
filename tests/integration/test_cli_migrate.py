"""``ringcast store migrate``: two workers take part in the shadow, and own what they owned."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from ringcast_testkit import ManagedProcess

from tests.integration.cli_process import Cli

PARTITIONS = 8


def has_said(process: ManagedProcess, words: str) -> bool:
    return words in process.log


def test_the_shadow(cli: Cli, store: str) -> None:
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
        before = cli.ok("topology", store, "list", "--json").document["owners"]
        cli.ok("store", "migrate", store, "--phase", "shadow", "--wait", "--patience", 60)
        document = cli.ok("store", "migrate", store, "--status", "--json").document
        assert document["migration"]["stage"] == "shadow"
        (key,) = document["keys"]
        assert (key["key"], key["workers"], key["missing"], key["partitions"]) == ("list", 2, [], PARTITIONS)
        assert key["leader"] in ids
        assert key["moves"] == max(before.count(worker_id) for worker_id in ids) - PARTITIONS // 2
        assert "2 of 2" in cli.ok("store", "migrate", store, "--status").out
        assert cli.ok("topology", store, "list", "--json").document["owners"] == before
    assert cli.ok("store", "migrate", store, "--phase", "off").out == nothing
    assert "give either --phase or --status" in cli("store", "migrate", store).err
