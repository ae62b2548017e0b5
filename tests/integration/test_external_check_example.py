"""The server of docs/releases.md that decides over releases, asked as the config service asks one."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service.external_check.check import ExternalCheck
from ringcast_config_service.external_check.settings import ExternalCheckSettings
from ringcast_config_service.repository.release_records import Release, ReleaseKey
from ringcast_wire import ConditionFailedError, ReleaseState
from ringcast_wire.external_check import add_ExternalCheckServicer_to_server
from ringcast_wire.metrics import Histogram

PAGE = Path(__file__).resolve().parents[2] / "docs/releases.md"


def release(reason: str) -> Release:
    """One that deletes many rows."""
    return Release(
        "s",
        7,
        "stage",
        ReleaseState.STAGED,
        *("", True, 200, 4_000, 1, 0, 0, 0, 0, "alice", reason, "", "", "", 0, 0, 0),
        digest="200-abc",
        keys=(ReleaseKey("k", 0, 0, 200),),
    )


async def test_the_server_of_the_page_decides() -> None:
    (example,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        if "ExternalCheckServicer" in block
    )
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, str(PAGE), "exec"), names)
    server = grpc.aio.server()
    add_ExternalCheckServicer_to_server(names["Check"](), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    counts: Counter[str] = Counter()
    try:
        check = ExternalCheck(ExternalCheckSettings(url=f"grpc://127.0.0.1:{port}"), counts, Histogram((1.0,)))
        await check.check(release("spring cleaning"))
        with pytest.raises(
            ConditionFailedError, match="it deletes 200 rows: say in its reason that this is a cleaning"
        ):
            await check.check(release(""))
    finally:
        await server.stop(0)
    assert counts == {"allowed": 1, "refused": 1}
