"""What ``ringcast store migrate --status`` says of workers that are waited for."""

from __future__ import annotations

import pytest
from ringcast.topology import Awaited
from ringcast_cli._stores.migrate_command import KeyShadow, print_status
from ringcast_client import MigrationInfo, StoreInfo
from ringcast_wire import Mode, Strategy


def test_it_names_whom_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    step = MigrationInfo(stage="validate", number=3, lease_ttl_ms=10_000, call_bound_ms=1_000)
    awaited = {"w-1": Awaited("w-1", False, 1e9, 1e9 + 86_400), "w-2": Awaited("w-2", True, 1e9, None)}
    key = KeyShadow("list", "w-3", 2, (), 1, 8, "nobody", ("w-1",), (), ("w-2",), awaited)
    info = StoreInfo("gateway", 8, Mode.PARTITIONED, Strategy.JUMP, "xxh64", 256, 0, (), migration=step)
    print_status(info, step, [key], as_json=False)
    said = capsys.readouterr()
    assert "gateway has the strategy jump, and is at the stage validate" in said.out
    assert said.err.splitlines() == [
        "list: w-1 are not guarded",
        "list: w-2 may still have calls, which all others wait for",
        "list: w-1 gave its last sign of life at 2001-09-09T01:46:40+00:00: it is waited for until "
        "2001-09-10T01:46:40+00:00 at most",
    ]
