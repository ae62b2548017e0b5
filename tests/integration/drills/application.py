"""The process behind the workers of a drill: the usual one of the tests, but what its application does is in the rows.

Run as a program with a directory before the arguments of the usual one. A row with the value ``fail`` makes the handler
raise, ``late:2.5`` makes it take so many seconds, and with ``hold`` it waits while the file ``hold`` is in the
directory; with ``hold:w`` only in the worker ``w``. ``on_assigned`` waits while the file ``stall`` is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import ringcast
from ringcast_testkit import _worker_main

HOLD, STALL = "hold", "stall"
_LOOK_S = 0.05


def application_of(directory: Path, worker_id: str) -> type[_worker_main.Application]:
    """The application that goes by the files of a directory."""

    class DrillApplication(_worker_main.Application):
        async def on_change(self, change: ringcast.Change) -> None:  # type: ignore[override]
            what, _, more = (change.value or "").partition(":")
            if what == "fail":
                raise RuntimeError("the handler can't take this row")
            if what == "late":
                await asyncio.sleep(float(more))
            if what == "hold" and more in ("", worker_id):
                await _gone(directory / HOLD)
            super().on_change(change)

        async def on_assigned(self, key: str, partitions: frozenset[int]) -> None:  # type: ignore[override]
            super().on_assigned(key, partitions)
            await _gone(directory / STALL)

    return DrillApplication


async def _gone(path: Path) -> None:
    while os.path.exists(path):  # noqa: ASYNC110, ASYNC240  # another process removes it
        await asyncio.sleep(_LOOK_S)


if __name__ == "__main__":
    made: Any = application_of(Path(sys.argv.pop(1)), json.loads(sys.argv[1])["worker_id"])
    _worker_main.Application = made  # type: ignore[misc]
    asyncio.run(_worker_main.main())
