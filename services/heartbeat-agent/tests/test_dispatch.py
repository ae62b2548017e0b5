"""Key-shared dispatch through a real agent."""

from __future__ import annotations

import asyncio
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import nats
import pytest
from dapr.proto.runtime.v1 import configuration_pb2, dapr_pb2_grpc
from ringcast import DeadLetter
from ringcast.dispatch import Consumer, ConsumerError, Delivery
from ringcast_testkit import PATIENCE_S, AgentProcess, ConfigServiceProcess, ManagedProcess, NatsServer, TcpProxy, until
from ringcast_testkit.dispatch import (
    Followed,
    break_connection,
    following,
    hold,
    status_until,
    unconfirmed_answers,
)
from ringcast_wire import names
from ringcast_wire.dispatch import DispatchStub, pb

PARTITIONS = 16
WINDOW = 16
PROGRAM = ("-m", "ringcast_testkit.dispatch")


@pytest.fixture(scope="module")
def agent(
    tmp_path_factory: pytest.TempPathFactory, shared_nats: NatsServer, shared_service: ConfigServiceProcess
) -> Iterator[AgentProcess]:
    """An agent with a small window that soon tries again."""
    tries = ("--max-tries", "2", "--max-deliveries", "2", "--retry-first", "0.02")
    options = ("--window", str(WINDOW), "--linger", "5", *tries)
    with AgentProcess(tmp_path_factory.mktemp("agent"), nats_url=shared_nats.url, options=options) as made:
        yield made


async def until_it_hears(agent: AgentProcess, store: str, group: str = "g") -> None:
    """Waits until a group has every partition, and has read what it missed: what changes from then on, it hears."""

    def hears(status: Any) -> bool:
        held, unread = status["partitions_held"], status["partitions_unread"]
        return status["group"] == group and held == PARTITIONS and not unread

    await status_until(agent, store, hears)


@pytest.fixture
async def put(writer: Any, store_name: str) -> Any:
    """Writes rows of the test's store, without blocking the loop."""
    await asyncio.to_thread(writer.create, store_name)

    def put_all(rows: dict[str, str]) -> None:
        for row_id, value in rows.items():
            writer.put(store_name, "list", row_id, value)

    async def put(**rows: str) -> None:
        await asyncio.to_thread(put_all, rows)

    return put


def rows_of(*followed: Followed) -> list[set[str]]:
    return [{delivery.row_id for delivery in each.deliveries} for each in followed]


async def test_the_rows_that_are_there_come_first_and_two_consumers_share_them(
    agent: AgentProcess, put: Any, store_name: str
) -> None:
    rows = [f"row{number}" for number in range(40)]
    await put(**dict.fromkeys(rows, "0"))
    async with following(agent, store_name, "one") as one:
        await one.values(dict.fromkeys(rows, "0"))
        async with following(agent, store_name, "two") as two:
            # Of those that are there it is told of its own share.
            group = await status_until(
                agent, store_name, lambda group: len(group["consumers"]) == 2 and not group["lag"]
            )
            assert 0 < len(two.deliveries) < len(rows)
            assert group["cursor"] == group["last"] == len(one.deliveries) + len(two.deliveries)
            (theirs,) = rows_of(two)
            one.deliveries.clear()
            await put(**dict.fromkeys(rows, "1"))
            await two.values(dict.fromkeys(theirs, "1"))
            await one.values(dict.fromkeys(set(rows) - theirs, "1"))
            assert rows_of(one, two) == [set(rows) - theirs, theirs]
        # It has left: the other has everything.
        await put(**dict.fromkeys(rows, "2"))
        await one.values(dict.fromkeys(rows, "2"))


async def test_what_a_delivery_says(agent: AgentProcess, put: Any, writer: Any, store_name: str) -> None:
    await put(other="0")
    async with following(agent, store_name, changes_only=True) as one:
        # What changes before that is read, and a read does not tell when it was committed.
        await until_it_hears(agent, store_name)
        await asyncio.to_thread(lambda: writer.put(store_name, "list", "a", "1", origin="test"))
        await one.until(lambda deliveries: len(deliveries) == 1)
        await asyncio.to_thread(writer.delete, store_name, "list", "a")
        first, second = await one.until(lambda deliveries: len(deliveries) == 2)
        assert (first.row_id, first.value, first.deleted, first.attempt) == ("a", "1", False, 1)
        assert first.metadata == {"origin": "test"}
        assert first.committed_at_ms is not None
        assert (second.value, second.deleted) == (None, True)
        assert (second.version, second.offset) == (first.version + 1, first.offset + 1)


async def test_one_at_a_time_of_each_row(agent: AgentProcess, put: Any, store_name: str) -> None:
    async with following(agent, store_name, answer=hold) as one:
        await put(a="1")
        (first,) = await one.until(lambda deliveries: len(deliveries) == 1)
        for value in "234":
            await put(a=value)
        await put(b="1")
        await one.until(lambda deliveries: rows_of(one) == [{"a", "b"}])
        # What comes meanwhile waits behind it: the newest change.
        group = await status_until(agent, store_name, lambda group: group["lag"] == 3)
        assert (group["counts"]["coalesced"], group["in_flight"]) == (2, 2)
        assert [delivery.value for delivery in one.deliveries if delivery.row_id == "a"] == ["1"]
        first.ack()
        first.ack()
        await one.values({"a": "4"})
        assert [delivery.value for delivery in one.deliveries if delivery.row_id == "a"] == ["1", "4"]
        assert (await status_until(agent, store_name, lambda group: group["lag"] == 2))["cursor"] == 1


async def test_filters(agent: AgentProcess, put: Any, store_name: str) -> None:
    async with following(agent, store_name, "eu", filters=["eu-*"], capacity=7) as europe:
        await put(**{"eu-a": "1", "us-a": "1", "ap-1": "1", "ap-22": "1"})
        await europe.values({"eu-a": "1"})
        # What nobody wants is passed by.
        group = await status_until(agent, store_name, lambda group: group["cursor"] == 4)
        assert (group["counts"]["skipped"], group["consumers"][0]["capacity"]) == (3, 7)
        async with following(agent, store_name, "others", filters=["us-*", "ap-?"]) as others:
            await others.values({"us-a": "1", "ap-1": "1"})
            await put(**{"eu-a": "2", "us-a": "2", "ap-22": "2"})
            await europe.values({"eu-a": "2"})
            await others.values({"us-a": "2"})
        assert rows_of(europe, others) == [{"eu-a"}, {"us-a", "ap-1"}]


async def test_a_slow_consumer_gets_what_fits_into_the_window_and_later_the_rest(
    agent: AgentProcess, put: Any, store_name: str
) -> None:
    rows = [f"row{number}" for number in range(5 * WINDOW)]
    async with following(agent, store_name, answer=hold, capacity=4) as one:
        # What changes before that is read no faster than it is delivered.
        await until_it_hears(agent, store_name)
        await put(**dict.fromkeys(rows, "1"))
        group = await status_until(agent, store_name, lambda group: group["lag"] == len(rows))
        assert (group["last"], group["in_flight"]) == (WINDOW, 4)
        await one.until(lambda deliveries: len(deliveries) == 4)  # they are on their way before they are here
        for done in range(len(rows)):
            deliveries = await one.until(lambda deliveries, done=done: len(deliveries) > done)  # type: ignore[misc]
            deliveries[done].ack()
            assert len(one.deliveries) <= done + 4
        assert rows_of(one) == [set(rows)]


async def test_rejected_again_and_a_dead_letter(
    agent: AgentProcess, put: Any, shared_nats: NatsServer, store_name: str
) -> None:
    def answer(delivery: Delivery) -> None:
        if delivery.row_id == "bad":
            delivery.reject("it smells")
        else:
            delivery.ack()

    nc = await nats.connect(shared_nats.url)
    async with following(agent, store_name, poison_policy="dead-letter", answer=answer) as one:
        await put(bad="1", good="1")
        await one.values({"good": "1"})
        group = await status_until(agent, store_name, lambda group: group["counts"]["dead_lettered"] == 1)
        assert (group["cursor"], group["counts"]["rejected"], group["counts"]["acked"]) == (2, 2, 1)
        assert [delivery.attempt for delivery in one.deliveries if delivery.row_id == "bad"] == [1, 2]
        message = await nc.jetstream().get_last_msg(names.dead_stream(store_name), f"config.dead.{store_name}.list.*")
        assert message.data is not None
        letter = msgspec.json.decode(message.data, type=DeadLetter)
        assert (letter.row_id, letter.value, letter.tries) == ("bad", "1", 2)
        assert letter.error == f"group g of {store_name}/list: rejected by one: it smells"
        assert letter.worker_id.endswith("-list")
    await nc.close()


async def test_dropped(agent: AgentProcess, put: Any, store_name: str) -> None:
    async with following(agent, store_name, answer=Delivery.reject) as one:
        await put(bad="1")
        group = await status_until(agent, store_name, lambda group: group["counts"]["dropped"] == 1)
        assert (group["cursor"], group["lag"], len(one.deliveries)) == (1, 0, 2)


async def test_blocked_until_somebody_decides(agent: AgentProcess, put: Any, store_name: str) -> None:
    bad = {"bad"}

    def answer(delivery: Delivery) -> None:
        delivery.reject("not now") if delivery.row_id in bad else delivery.ack()

    place = (store_name, "list", "g")
    async with following(agent, store_name, poison_policy="block", answer=answer) as one:
        await put(bad="1")
        await status_until(agent, store_name, lambda group: group["blocked"])
        for value in "12":
            await put(bad=value, good=value)
            await one.values({"good": value})
        group = await status_until(agent, store_name, lambda group: (group["counts"]["acked"], group["lag"]) == (2, 2))
        assert group["cursor"] == 0
        assert group["blocked"] == [{"row_id": "bad", "offset": 1, "reason": "rejected by one: not now"}]
        assert not await one.consumer.resolve("good")
        assert await one.consumer.resolve("bad", discard=True)
        # Its newest change comes next.
        await status_until(agent, store_name, lambda group: group["blocked"] and group["cursor"] == 3)
        bad.clear()
        assert await one.consumer.resolve("bad")
        await status_until(agent, store_name, lambda group: group["cursor"] == 4)
        assert place == (store_name, "list", "g")
        await one.values({"bad": "2"})


async def test_a_group_that_stands_still_holds_nobody_up(agent: AgentProcess, put: Any, store_name: str) -> None:
    """Neither another group nor a subscriber of Dapr's API, whatever comes of the row that is blocked and of others."""

    def answer(delivery: Delivery) -> None:
        delivery.reject("no") if delivery.row_id == "hot" else None

    request = configuration_pb2.SubscribeConfigurationRequest(store_name=store_name, keys=["list"])
    async with (
        following(agent, store_name, "good", group="good") as good,
        following(agent, store_name, "bad", group="bad", poison_policy="block", answer=answer, capacity=4),
        grpc.aio.insecure_channel(agent.grpc_address) as channel,
    ):
        stream = dapr_pb2_grpc.DaprStub(channel).SubscribeConfiguration(
            request, metadata=(("dapr-api-token", agent.token),)
        )
        assert (await stream.read()).id
        await until_it_hears(agent, store_name, "bad")
        await put(hot="0")
        await status_until(agent, store_name, lambda group: group["group"] == "bad" and group["blocked"])
        rows = {f"row{number}": "1" for number in range(4 * WINDOW)}
        for number in range(4):
            await put(hot=str(number), **rows)
        await put(last="1")
        wanted: dict[str, str | None] = {**rows, "hot": "3", "last": "1"}
        await good.values(wanted)
        found: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            while found != wanted:  # each partition comes in its own time
                found |= {name: item.value for name, item in (await stream.read()).items.items()}
        group = await status_until(agent, store_name, lambda group: group["group"] == "bad")
        # One change a row, and one behind each that is blocked or with the consumer.
        assert (group["lag"], group["in_flight"]) == (len(rows) + 2 + 5, 4)
        stream.cancel()


async def test_a_row_that_kills_its_consumer_is_poison(agent: AgentProcess, put: Any, store_name: str) -> None:
    """However quickly a supervisor starts the consumer again."""
    lines: list[str] = []
    words = [sys.executable, *PROGRAM, agent.grpc_address, store_name, "victim", "hold"]
    await put(killer="1")
    # The group outlives a start that takes long, since it has another consumer.
    async with following(agent, store_name, "bystander", filters=["other*"]):
        for life in (1, 2):
            process = ManagedProcess("consumer", words, env={"DAPR_API_TOKEN": agent.token}, take_line=lines.append)
            try:
                await asyncio.to_thread(process.wait_until, lambda life=life: len(lines) == life)  # type: ignore[misc]
            finally:
                process.kill()
        # So the third life has it as the third attempt, of which this agent allows two.
        async with following(agent, store_name, "victim", changes_only=True):
            group = await status_until(agent, store_name, lambda group: group["counts"]["dropped"] == 1)
            assert (group["counts"]["deliveries"], group["lag"]) == (2, 0)


async def test_decisions_over_http(agent: AgentProcess, put: Any, store_name: str) -> None:
    def post(body: bytes, kind: str = "application/json") -> tuple[int, Any]:
        url = f"{agent.http_url}/ringcast/v1/resolve"
        headers = {"content-type": kind, "dapr-api-token": agent.token}
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, msgspec.json.decode(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, msgspec.json.decode(error.read())

    async def ask(**fields: Any) -> tuple[int, Any]:
        place = {"store": store_name, "key": "list", "group": "g"}
        return await asyncio.to_thread(post, msgspec.json.encode(place | fields))

    assert (await ask())[0] == 404
    async with following(agent, store_name, poison_policy="block", answer=Delivery.reject):
        await put(a="1", b="1", c="1")
        await status_until(agent, store_name, lambda group: len(group["blocked"]) == 3)
        assert await ask(row_ids=["a", "a", "x"], discard=True) == (200, {"resolved": ["a"], "not_blocked": ["x"]})
        assert await ask(row_ids=["a"]) == (200, {"resolved": [], "not_blocked": ["a"]})
        status, told = await ask(discard=True)
        assert (status, sorted(told["resolved"]), told["not_blocked"]) == (200, ["b", "c"], [])
        group = await status_until(agent, store_name, lambda group: group["cursor"] == 3)
        assert (group["counts"]["dropped"], group["blocked"]) == (3, [])
        for fields, said in (
            ({"row_ids": []}, "row_ids has 0 entries: 1 to 1000 are allowed"),
            ({"row_ids": ["r"] * 1001}, "row_ids has 1001 entries: 1 to 1000 are allowed"),
            ({"row_ids": "a"}, "Expected `array | null`, got `str` - at `$.row_ids`"),
            ({"rows": ["a"]}, "unknown field `rows`"),
        ):
            status, told = await ask(**fields)
            assert (status, told["errorCode"], said in told["message"]) == (400, "ERR_MALFORMED_REQUEST", True), told
        assert (await ask(row_ids=["x" * 512] * 1000))[0] == 200
        assert (await asyncio.to_thread(post, b"{}", "text/plain"))[0] == 415


async def test_a_consumer_that_is_killed(agent: AgentProcess, put: Any, store_name: str) -> None:
    """What it had goes to another, once it is evicted; what it answered does not."""
    rows = [f"row{number}" for number in range(WINDOW // 2)]
    lines: list[str] = []
    words = [sys.executable, *PROGRAM, agent.grpc_address, store_name, "victim", "hold"]
    await put(**dict.fromkeys(rows, "1"))
    process = ManagedProcess("consumer", words, env={"DAPR_API_TOKEN": agent.token}, take_line=lines.append)
    try:
        await asyncio.to_thread(process.wait_until, lambda: len(lines) == len(rows))
        async with following(agent, store_name, "heir", changes_only=True) as heir:
            process.kill()
            await heir.values(dict.fromkeys(rows, "1"))
            group = await status_until(agent, store_name, lambda group: group["cursor"] == len(rows))
            assert group["counts"]["evicted"] == len(rows)
            assert all(delivery.attempt == 2 for delivery in heir.deliveries)
    finally:
        process.kill()


async def test_one_that_hangs_is_evicted_and_comes_back(agent: AgentProcess, put: Any, store_name: str) -> None:
    lines: list[str] = []
    words = [sys.executable, *PROGRAM, agent.grpc_address, store_name, "sleepy", "answer"]
    process = ManagedProcess("consumer", words, env={"DAPR_API_TOKEN": agent.token}, take_line=lines.append)
    try:
        await asyncio.to_thread(process.wait_until, lambda: any(one["store"] == store_name for one in groups(agent)))
        async with following(agent, store_name, "awake") as awake:
            process.signal(signal.SIGSTOP)
            rows = [f"row{number}" for number in range(12)]
            await put(**dict.fromkeys(rows, "1"))
            await awake.values(dict.fromkeys(rows, "1"))
            process.signal(signal.SIGCONT)
            await status_until(agent, store_name, lambda group: len(group["consumers"]) == 2)
    finally:
        process.kill()


def groups(agent: AgentProcess) -> list[Any]:
    told: list[Any] = agent.status()["groups"]
    return told


async def test_a_connection_that_is_lost_for_a_moment_goes_on(agent: AgentProcess, put: Any, store_name: str) -> None:
    async with following(agent, store_name, answer=hold) as one:
        await put(a="1", b="1")
        a, b = await one.until(lambda deliveries: len(deliveries) == 2)
        break_connection(one.consumer)
        a.ack()
        b.reject("again")
        await told_once(agent, store_name, one, b)


async def test_answers_that_a_lost_connection_took_along_are_said_again(
    agent: AgentProcess, put: Any, store_name: str
) -> None:
    with TcpProxy(int(agent.grpc_address.rpartition(":")[2])) as network:
        async with following(agent, store_name, address=f"127.0.0.1:{network.port}", answer=hold) as one:
            await put(a="1", b="1")
            a, b = await one.until(lambda deliveries: len(deliveries) == 2)
            network.silence()
            a.ack()
            b.reject("again")
            await unconfirmed(one, 2)
            network.sever()
            network.resume()
            await told_once(agent, store_name, one, b)
            await unconfirmed(one, 0)


async def unconfirmed(one: Followed, count: int) -> None:
    """Waits until so many answers are said of which the consumer does not know that the agent has heard them."""
    await until(lambda: unconfirmed_answers(one.consumer) == count)


async def told_once(agent: AgentProcess, store_name: str, one: Followed, rejected: Delivery) -> None:
    """Of two deliveries, the rejected one comes a second time, and the other does not."""
    deliveries = await one.until(lambda deliveries: len(deliveries) >= 3)
    assert [(again.row_id, again.attempt) for again in deliveries[2:]] == [(rejected.row_id, 2)]
    deliveries[2].ack()
    group = await status_until(agent, store_name, lambda group: group["cursor"] == 2)
    assert (group["counts"]["evicted"], group["counts"]["deliveries"]) == (0, 3)


async def test_lossy(agent: AgentProcess, put: Any, store_name: str) -> None:
    await put(before="1")
    async with following(agent, store_name, mode="lossy", filters=["row*"]) as one:
        rows = [f"row{number}" for number in range(2 * WINDOW)]
        await put(**dict.fromkeys(rows, "1"), other="1")
        await one.values(dict.fromkeys(rows, "1"))
        assert rows_of(one) == [set(rows)]
        group = await status_until(agent, store_name, lambda group: group["counts"]["unmatched"] == 1)
        assert (group["mode"], group["counts"]["queued"]) == ("lossy", len(rows))
        for delivery in one.deliveries:
            delivery.ack()


async def test_what_is_refused(agent: AgentProcess, put: Any, store_name: str) -> None:
    await put(a="1")
    place: dict[str, Any] = {"store": store_name, "key": "list", "group": "g", "name": "one"}

    async def refused(**settings: Any) -> ConsumerError:
        with pytest.raises(ConsumerError) as caught:
            async with Consumer(agent.grpc_address, token=agent.token, **(place | settings)):
                pass
        return caught.value

    async with following(agent, store_name, "first", poison_policy="block"):
        for settings, code, said in (
            ({"store": "nosuch"}, "NOT_FOUND", "nosuch"),
            ({"group": "no spaces"}, "INVALID_ARGUMENT", "group 'no spaces' is not a valid name"),
            ({"name": ""}, "INVALID_ARGUMENT", "name '' is not a valid name"),
            ({"filters": [""]}, "INVALID_ARGUMENT", "filter length in bytes must be between 1 and 512, got 0"),
            ({"capacity": 2**21}, "INVALID_ARGUMENT", "capacity must be between 1 and 1048576, got 2097152"),
            ({"mode": "lossy"}, "FAILED_PRECONDITION", "group g is reliable, not lossy"),
            ({"poison_policy": "drop"}, "FAILED_PRECONDITION", "group g has the poison policy block, not drop"),
            ({"poison_policy": "eat"}, "INVALID_ARGUMENT", "poison_policy 'eat' is unknown: drop, dead-letter, block"),
        ):
            error = await refused(**settings)
            assert error.code is grpc.StatusCode[code]
            assert said in str(error)


async def test_a_registration_of_a_client_of_a_build_to_come_is_refused(agent: AgentProcess, store_name: str) -> None:
    """Its field may say what is to be delivered: a consumer gets nothing without it."""
    register = pb.Register(store=store_name, key="list", group="g", name="one").SerializeToString()
    asked = pb.ConsumeRequest(register=pb.Register.FromString(register + b"\xb8\x3e\x01"))  # field 999
    async with grpc.aio.insecure_channel(agent.grpc_address) as channel:
        call = DispatchStub(channel).Consume(metadata=(("dapr-api-token", agent.token),))
        await call.write(asked)
        with pytest.raises(grpc.aio.AioRpcError, match="a field that this heartbeat agent does not know") as told:
            await call.read()
        assert told.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_answers_whose_columns_do_not_match(agent: AgentProcess, put: Any, store_name: str) -> None:
    register = pb.Register(store=store_name, key="list", group="g", name="one")
    async with grpc.aio.insecure_channel(agent.grpc_address) as channel:
        call = DispatchStub(channel).Consume(metadata=(("dapr-api-token", agent.token),))
        await call.write(pb.ConsumeRequest(register=register))
        assert (await call.read()).registered.session
        await put(a="1", b="1")
        offsets: list[int] = []
        while len(offsets) < 2:
            offsets += [each.offset for each in (await call.read()).deliveries.deliveries]
        one = pb.Answer(offset=offsets[1], attempt=1)
        both = pb.Answers(done_offsets=offsets[:1], done_attempts=[1], answers=[one])
        await call.write(pb.ConsumeRequest(answers=both))
        await status_until(agent, store_name, lambda group: group["cursor"] == 2)
        await call.write(pb.ConsumeRequest(answers=pb.Answers(done_offsets=[1, 2], done_attempts=[1])))
        with pytest.raises(grpc.aio.AioRpcError, match="answers have 2 done_offsets and 1 done_attempts") as told:
            await call.read()
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_no_token_and_a_group_that_may_not_be_joined(
    tmp_path: Path, shared_nats: NatsServer, put: Any, store_name: str
) -> None:
    options = ("--api-token", "hush", "--max-consumers", "1", "--groups", "g,log-*")
    with AgentProcess(tmp_path, nats_url=shared_nats.url, options=options) as agent:
        with pytest.raises(ConsumerError, match="missing api token"):
            async with following(agent, store_name, token=""):
                pass
        async with following(agent, store_name) as one:
            await put(a="1")
            await one.values({"a": "1"})
            with pytest.raises(ConsumerError, match="group other may not be joined here: g, log-"):
                async with following(agent, store_name, group="other"):
                    pass
            with pytest.raises(ConsumerError, match="has 1 consumers: at most 1 are allowed"):
                async with following(agent, store_name, "two"):
                    pass
