"""A disk that is really full, and has room again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ringcast_testkit import SmallDisk

FILL = """
import os, sys
from pathlib import Path
from ringcast_groupstore import GroupStore, StoreFullError

directory = Path(sys.argv[1])
filler = directory / "filler"
filler.write_bytes(bytes(2 * 1024 * 1024))
with GroupStore(directory / "a.db", purge_interval_s=None) as store:
    written, told = 0, []
    store.on_change(told.append)
    try:
        while True:
            store.set_many(f"g{written}", {str(number): os.urandom(2_000) for number in range(20)})
            written += 1
    except StoreFullError as error:
        assert "the disk is full" in str(error) or "can't be read or written" in str(error), error
    assert written > 5
    assert len(told) == store.revision == 20 * written
    assert [store.count(f"g{number}") for number in range(written + 1)] == [20] * written + [0]
    assert store.check() == []
    try:
        store.backup(directory / "copy.db")
    except StoreFullError:
        pass
    else:
        raise AssertionError("a copy has found room")
    assert sorted(path.name for path in directory.iterdir()) == ["a.db", "a.db-open", "a.db-shm", "a.db-wal", "filler"]
    filler.unlink()
    assert store.set("after", "k", "v") == 20 * written + 1
with GroupStore(directory / "a.db", check="full") as store:
    assert store.revision == 20 * written + 1
print("done", written)
"""


@pytest.mark.skipif(not SmallDisk.supported(), reason="a mount namespace is not allowed here")
def test_a_full_disk_takes_nothing_half(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with SmallDisk(tmp_path / "disk", 6 * 1024 * 1024) as disk:
        done = subprocess.run(
            [*disk.prefix, sys.executable, "-c", FILL, str(disk.path)], capture_output=True, text=True, check=False
        )
    assert done.stdout.startswith("done"), done.stderr
