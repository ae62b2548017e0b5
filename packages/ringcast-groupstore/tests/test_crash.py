"""Processes that write at once, and processes that are killed while they write."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ringcast_groupstore import GroupStore

# Writes batches and single keys for ever, and says after each what was acknowledged. Every batch has one number for
# all of its keys; a deletion every seventh time. It forks a child for each line that it reads, and kills none itself.
WRITER = """
import os, sys
from ringcast_groupstore import GroupStore

def write(path, number):
    with GroupStore(path, durable=False, keep_changes=64) as store:
        while True:
            number += 1
            text = str(number)
            with store.transaction() as tx:
                tx.set_many("batch", dict.fromkeys("abcdefgh", text))
                tx.set("big", str(number % 16), text * 2000)
                if number % 7 == 0:
                    tx.delete_group("deleted")
                else:
                    tx.set("deleted", text, text, ttl_ms=3_600_000)
                revision = tx.set("count", "n", text)
            store.set("single", str(number % 50), text)
            os.write(1, f"{number} {revision + 1}\\n".encode())

for line in sys.stdin:
    path, number = line.split()
    child = os.fork()
    if child == 0:
        write(path, int(number))
    os.write(1, f"pid {child}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
"""

# Takes part in a race with others: adds to a common counter, and to keys of its own.
RACER = """
import sys
from ringcast_groupstore import GroupStore
path, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
with GroupStore(path, durable=False, busy_timeout_s=60, purge_interval_s=0.01) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(rounds):
        with store.transaction() as tx:
            tx.set("shared", "sum", str(int(tx.get("shared", "sum", "0")) + 1))
        store.set_many(name, {str(number): "v", f"{number}-short": "v"})
        store.set("ttl", f"{name}-{number}", "v", ttl_ms=1)
        while True:
            entry = store.entry("shared", "cas")
            value = str(int(entry.value) + 1 if entry else 1)
            if store.compare_and_set("shared", "cas", value, revision=entry.revision if entry else 0):
                break
        assert store.count(name) == 2 * (number + 1)
"""

KILLS = 200


class Writer:
    """The parent of the children that are killed. It stays, so that each child costs a fork and no start."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, path: Path, number: int, acknowledgements: int, spin: int) -> tuple[int, int]:
        """Starts a child, kills it some time after so many acknowledgements, and returns the last that it gave."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path} {number}\n")
        self._process.stdin.flush()
        last, revision, pid, left = number, 0, 0, acknowledgements
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "ended":
                break
            if words[0] == "pid":
                pid = int(words[1])
            else:
                last, revision, left = int(words[0]), int(words[1]), left - 1
            if pid and left <= 0:
                for _ in range(spin):  # somewhere inside the next writes
                    pass
                os.kill(pid, signal.SIGKILL)
                pid = 0
        return last, revision

    def close(self) -> None:
        """Ends the parent; its child, if any, was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait(10) == 0
        self._process.stdout.close()


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.close()


def check(path: Path, number: int, revision: int, cut: set[int]) -> int:
    """Everything up to ``number`` is there, at most the next write besides; returns the number that is.

    ``cut`` are the numbers that were never acknowledged: their second half may be missing.
    """
    with GroupStore(path, durable=False, keep_changes=64) as store:
        found = int(store.require("count", "n"))
        assert number <= found <= number + 1
        assert store.revision >= revision
        text = str(found)
        assert store.get_all("batch") == dict.fromkeys("abcdefgh", text), "whole or not at all"
        assert store.get("big", str(found % 16)) == text * 2000
        assert store.contains("deleted", text) == (found % 7 != 0)
        for expected in {*range(max(1, number - 49), number + 1)} - cut:
            assert store.get("single", str(expected % 50)) in (str(expected), str(expected + 50))
        events = store.changes(store.revision - 10)
        assert [event.revision for event in events] == list(range(store.revision - 9, store.revision + 1))
        assert store.check() == []
    return found


def test_a_power_cut_at_any_moment_loses_no_acknowledged_write(path: Path, writer: Writer) -> None:
    """SIGKILL at 200 random points; ``synchronous`` makes no difference to what the kernel has already."""
    moments = random.Random(1)
    number, cut = 0, set[int]()
    for _ in range(KILLS):
        said, revision = writer.run(path, number, moments.randrange(1, 4), moments.randrange(20_000))
        number = check(path, said, revision, cut)
        if number > said:
            cut.add(number)
    assert number >= KILLS
    assert cut, "no kill came between a commit and its acknowledgement"


def test_a_kill_while_an_older_layout_is_converted(path: Path) -> None:
    """At whichever statement: the next to open it finds the old rows and converts them."""
    script = """
import os, signal, sqlite3, sys
from pathlib import Path
from ringcast_groupstore import Limits, _schema
from ringcast_sqlite import connect
path, at = Path(sys.argv[1]), int(sys.argv[2])
connection = connect(path, writer=True)
statements = 0
def trace(statement):
    global statements
    statements += 1
    if statements == at:
        os.kill(os.getpid(), signal.SIGKILL)
connection.set_trace_callback(trace)
_schema.prepare(connection, path, Limits())
"""
    for at in (5, 8, 10, 11, 12, 13):
        source = path.with_name(f"{at}.db")
        connection = sqlite3.connect(source)
        connection.execute("CREATE TABLE kv (grp TEXT, key TEXT, value TEXT, PRIMARY KEY (grp, key))")
        connection.executemany("INSERT INTO kv VALUES ('g', ?, 'v')", ((str(number),) for number in range(100)))
        connection.commit()
        connection.close()
        done = subprocess.run([sys.executable, "-c", script, str(source), str(at)], check=False)
        assert done.returncode == -9
        with GroupStore(source, check="full") as store:
            assert store.count("g") == 100
            assert store.check() == []


def test_eight_processes_at_once(path: Path) -> None:
    """They open a file that is not there yet, and race for the same keys."""
    rounds = 15
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path), f"racer{number}", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.communicate("go\n", timeout=100)
        assert [racer.returncode for racer in racers] == [0] * 8
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    with GroupStore(path) as store:
        assert store.get_all("shared") == {"sum": str(8 * rounds), "cas": str(8 * rounds)}
        assert [store.count(f"racer{number}") for number in range(8)] == [2 * rounds] * 8
        assert store.count("ttl") == 0
        assert store.revision == 8 * rounds * 5
        assert store.check() == []
