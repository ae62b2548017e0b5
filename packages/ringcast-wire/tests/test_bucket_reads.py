"""Answers of servers that lag behind; reads of a real cluster are in tests/integration/test_lagging_replica.py."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pytest
from ringcast_wire import UnavailableError
from ringcast_wire.bucket_reads import read_keys, read_newest

LED = {"leader": "n0"}
NOTHING = {"Status": "404", "Description": "No Results"}


class Said(NamedTuple):
    """A message from a server."""

    data: bytes
    headers: dict[str, str] | None = None


def info(*keys: str, last: int = 7, **more: Any) -> Said:
    """What a server says of the bucket ``b``."""
    state = {"last_seq": last, **({"subjects": {f"$KV.b.{key}": 1 for key in keys}} if keys else {})}
    return Said(json.dumps({"state": state, "total": len(keys), "cluster": LED, **more}).encode())


def records(*keys: str, up_to: int = 7) -> list[Said]:
    """A whole answer to a direct read, with one message a key, from a server that has messages up to ``up_to``."""
    said, before = [], 0
    for sequence, key in enumerate(keys, 1):
        headers = {
            "Nats-Subject": f"$KV.b.{key}",
            "Nats-Sequence": str(sequence),
            "Nats-Last-Sequence": str(before),
            "Nats-Time-Stamp": "2026-01-02T03:04:05Z",
        }
        said.append(Said(key.encode(), headers))
        before = sequence
    return [*said, Said(b"", {"Status": "204", "Nats-Last-Sequence": str(before), "Nats-UpTo-Sequence": str(up_to)})]


class Script:
    """A connection over which answers come in this order; the last of each kind comes again and again."""

    def __init__(self, infos: Sequence[Said], answers: Sequence[Sequence[Said]] = ()) -> None:
        self._infos, self._answers = list(infos), list(answers)
        self._open: list[Said] = []
        self.asked: list[tuple[str, Any]] = []
        """The subject of each request, and its document."""

    def new_inbox(self) -> str:
        return "inbox"

    async def request(self, subject: str, payload: bytes, timeout: float) -> Said:
        self.asked.append((subject, json.loads(payload)))
        return self._infos.pop(0) if len(self._infos) > 1 else self._infos[0]

    async def publish(self, subject: str, payload: bytes, reply: str) -> None:
        self.asked.append((subject, json.loads(payload)))
        self._open = list(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        while self._open:
            await self._take(self._open.pop(0))

    async def subscribe(self, subject: str, *, cb: Callable[[Said], Awaitable[None]]) -> Script:
        self._take = cb
        return self

    async def unsubscribe(self) -> None:
        assert not self._open

    def direct(self) -> list[list[str]]:
        """The keys of each direct read."""
        return [
            [subject.removeprefix("$KV.b.") for subject in document["multi_last"]]
            for _, document in self.asked
            if "multi_last" in document
        ]


async def test_a_pattern_is_read_from_a_server_that_has_everything() -> None:
    bus = Script([info("k.a", "k.b")], [records("k.a", "k.b", up_to=8)])
    found = await read_newest(bus, "b", "k.*", api="$JS.x.API")
    assert found is not None
    assert {key: record.data for key, record in found.items()} == {"k.a": b"k.a", "k.b": b"k.b"}
    assert bus.asked == [
        ("$JS.x.API.STREAM.INFO.KV_b", {"subjects_filter": "$KV.b.k.*", "offset": 0}),
        ("$JS.x.API.DIRECT.GET.KV_b", {"multi_last": ["$KV.b.k.*"]}),
    ]


@pytest.mark.parametrize("behind", [[Said(b"", NOTHING)], records("k.a", up_to=6)], ids=["nothing", "less"])
async def test_a_server_that_lags_behind_is_asked_again(behind: list[Said]) -> None:
    bus = Script([info("k.a", "k.b")], [behind, behind, records("k.a", "k.b")])
    assert set(await read_newest(bus, "b") or ()) == {"k.a", "k.b"}
    stays = Script([info("k.a", "k.b")], [behind])
    with pytest.raises(UnavailableError, match=r"^bucket b is read from a server that lags behind: try again$"):
        await read_newest(stays, "b", patience_s=0.1)


async def test_what_is_nowhere_or_gone_meanwhile_is_nothing() -> None:
    assert await read_newest(Script([info()]), "b", "k.*") == {}
    bus = Script([info("k.a"), info()], [[Said(b"", NOTHING)]])  # its time is over
    assert await read_newest(bus, "b", "k.*") == {}
    missing = Said(json.dumps({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}).encode())
    assert await read_newest(Script([missing]), "b") is None
    assert await read_keys(Script([missing]), "b") is None


async def test_a_server_that_hears_of_no_leader_is_not_believed() -> None:
    leaderless = info(cluster={"name": "c"})
    bus = Script([leaderless, leaderless, info("k.a")], [records("k.a")])
    assert set(await read_newest(bus, "b") or ()) == {"k.a"}
    with pytest.raises(UnavailableError, match=r"^bucket b has no leader: try again$"):
        await read_newest(Script([leaderless]), "b", patience_s=0.1)
    alone = json.loads(info("k.a").data)
    del alone["cluster"]
    assert await read_keys(Script([Said(json.dumps(alone).encode())]), "b") == ["k.a"]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b'{"error": {"code": 503, "description": "not available"}}', "^bucket b can't be read: not available$"),
        (b'{"state": {"last_seq": "7"}}', "^what NATS says of bucket b can't be read: Expected `int`"),
        (b"", "^what NATS says of bucket b can't be read: "),
    ],
)
async def test_what_a_server_says_of_a_bucket_can_be_no_answer(said: bytes, sentence: str) -> None:
    with pytest.raises(UnavailableError, match=sentence):
        await read_newest(Script([Said(said)]), "b")


async def test_many_keys_are_listed_in_pages_and_read_by_name() -> None:
    keys = [f"k.{number:04}" for number in range(1_000)]
    pages = [info(*keys[:600], total=1_000), info(*keys[600:], total=1_000)]
    bus = Script(pages, [records(*keys[:512]), records(*keys[512:])])
    found = await read_newest(bus, "b")
    assert sorted(found or ()) == keys
    assert [document["offset"] for _, document in bus.asked if "offset" in document] == [0, 600]
    assert bus.direct() == [keys[:512], keys[512:]]


async def test_of_some_keys_only_those_that_are_there_are_asked_for() -> None:
    bus = Script([info("a", "b", "c")], [records("a", "c")])
    assert set(await read_newest(bus, "b", among={"a", "c", "d"}) or ()) == {"a", "c"}
    assert bus.direct() == [["a", "c"]]
    assert await read_newest(Script([info("a")]), "b", among={"d"}) == {}


async def test_an_answer_that_stops_midway_is_waited_for_no_longer_than_one_message() -> None:
    bus = Script([info("a", "b")], [records("a", "b")[:1]])
    with pytest.raises(TimeoutError, match=r"^no message has come for 0\.01 s$"):
        await read_newest(bus, "b", answer_s=0.01)


async def test_what_comes_behind_an_error_changes_nothing() -> None:
    bus = Script([info("a")], [[Said(b"", {"Status": "408", "Description": "too slow"}), *records("a")]])
    with pytest.raises(UnavailableError, match=r"^the KV_b can't be read: 408 too slow$"):
        await read_newest(bus, "b")
