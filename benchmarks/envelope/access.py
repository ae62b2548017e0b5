"""How fast control answers: logins through the auth callout, revocations, many roles, another leader, and drains.

Logins have a peer in the same run: workers that are named in the server's files. So has a service with many roles.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import nats
from nats.aio.client import Client
from ringcast import Worker
from ringcast_client import ConfigServiceClient, RowWrite
from ringcast_meta import LocalCache, open_store
from ringcast_meta.cluster import MemberKind, MemberState, members_of, want_active, want_drain
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, NatsServer, PostgresServer, until, until_done
from ringcast_wire import Role, names

from benchmarks.envelope.control import credentials, put
from benchmarks.envelope.loops import run_coroutine
from benchmarks.envelope.processes import CpuMeter
from benchmarks.envelope.results import Figure, median_of
from benchmarks.envelope.run import Run
from tests.integration.callout_nats import SCOPE, CalloutNats

ACCESS: Final = "access"
_AT_ONCE: Final = 16
_STATIC: Final = "worker-0"
_KEY: Final = "blocklist"
_FLEET_S: Final = 60.0
_LOOK_S: Final = 0.1

Figures = dict[str, Figure]


def access(run: Run) -> None:
    """One case after the other, each with servers of its own."""
    fleet = {
        "workers": run.size(300, 6),
        "wave": run.size(20, 2),
        "most": run.size(100, 4),
        "partitions": run.size(1_024, 16),
    }
    cases: Sequence[
        tuple[str, Mapping[str, int], Callable[[Path, Mapping[str, int]], Coroutine[Any, Any, Figures]]]
    ] = (
        ("logins", {"rounds": run.size(5, 1), "logins": run.size(400, 20), "at_once": _AT_ONCE}, _logins),
        ("revocation", {"rounds": run.size(5, 1), "connections": run.size(100, 4)}, _revocation),
        ("fleet of one token", fleet, _fleet),
        ("many roles", {"rounds": run.size(16, 2), "roles": run.size(9_999, 50), "puts": run.size(500, 20)}, _roles),
        ("another leader", {"rounds": run.size(5, 1), "lease_s": run.size(15, 3)}, _leaders),
        ("drains", {"rounds": run.size(8, 1)}, _drains),
    )
    for name, params, measure in cases:
        with run.case(ACCESS, name, params) as case, run.directory() as directory:
            case.figures = run_coroutine(measure(directory, params))


async def _logins(directory: Path, params: Mapping[str, int]) -> Figures:
    """Workers with tokens, and workers of the server's files, by turns."""
    rates: dict[str, list[float]] = {"callout": [], "file": []}
    waits: dict[str, list[float]] = {"callout": [], "file": []}
    server = CalloutNats(directory, workers={"fleet-*": SCOPE}, static=(f"{_STATIC}={SCOPE}",))
    with server, server.service(directory):
        for turn in range(params["rounds"]):
            for kind in ("callout", "file") if turn % 2 else ("file", "callout"):
                users = [f"fleet-{n}" if kind == "callout" else _STATIC for n in range(params["logins"])]
                began = time.perf_counter()
                taken = await _log_in(server, users)
                rates[kind].append(len(users) / (time.perf_counter() - began))
                waits[kind].append(statistics.median(taken) * 1e3)
    over = [mine / other for mine, other in zip(waits["callout"], waits["file"], strict=True)]
    return {
        "logins/s, callout": median_of(rates["callout"], "1/s", smaller_is_better=False),
        "logins/s, file": median_of(rates["file"], "1/s", smaller_is_better=False),
        "p50, callout": median_of(waits["callout"], "ms"),
        "p50, callout over file": median_of(over, "times"),
    }


async def _log_in(server: CalloutNats, users: Sequence[str]) -> list[float]:
    """Logs all in, at most so many at once, and out again; the seconds of each."""
    turns, clients, taken = asyncio.Semaphore(_AT_ONCE), [], []

    async def one(user: str) -> None:
        async with turns:
            began = time.perf_counter()
            clients.append(await _connected(server, user))
            taken.append(time.perf_counter() - began)

    async with asyncio.TaskGroup() as tasks:
        for user in users:
            tasks.create_task(one(user))
    for client in clients:
        await client.close()
    return taken


async def _connected(server: CalloutNats, user: str, ended: Callable[[], Awaitable[None]] | None = None) -> Client:
    login = server.login(user)
    return await nats.connect(
        server.url,
        allow_reconnect=False,
        connect_timeout=30,
        inbox_prefix=names.inbox_prefix(user),
        closed_cb=ended,
        error_cb=_unheard,
        **login,
    )


async def _unheard(_error: Exception) -> None:
    """The end of a connection is what is measured."""


async def _revocation(directory: Path, params: Mapping[str, int]) -> Figures:
    """From the moment at which the line of a token is gone to the end of the first and of the last connection."""
    first, last = [], []
    server = CalloutNats(directory, workers={"other": SCOPE, "fleet-*": SCOPE})
    with server, server.service(directory):
        for _ in range(params["rounds"]):
            ends: list[float] = []

            async def ended(ends: list[float] = ends) -> None:
                ends.append(time.perf_counter())

            clients = [await _connected(server, f"fleet-{number}", ended) for number in range(params["connections"])]
            began = time.perf_counter()
            server.remove("fleet-all")
            await until(partial(_are_as_many, ends, clients))
            first.append(ends[0] - began)
            last.append(ends[-1] - began)
            server.add("fleet-*", SCOPE)
            await until_done(
                partial(_log_in_again, server), nats.errors.Error
            )  # once the service has read the new token
    return {"until the first has ended": median_of(first, "s"), "until all have ended": median_of(last, "s")}


def _are_as_many(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other)


async def _log_in_again(server: CalloutNats) -> None:
    await (await _connected(server, "fleet-0")).close()


async def _fleet(directory: Path, params: Mapping[str, int]) -> Figures:
    """Workers come and go, for none of which a file of the server or the service says more than for the first.

    ``most``: so many are there at once, since all share a process, and each hears of the leases of all others.
    """
    partitions, wave_size = params["partitions"], params["wave"]
    server = CalloutNats(directory, workers={"fleet-*": SCOPE})
    with server, server.service(directory) as service:
        async with ConfigServiceClient(service.address) as client:
            await client.create_store("gateway", partition_count=partitions)
            rows = [RowWrite(f"row{number}", "v") for number in range(4 * partitions)]
            assert [batch async for batch in client.bulk_write("gateway", _KEY, rows)]
        waves = [
            [server.worker(f"fleet-{number}") for number in range(first, min(first + wave_size, params["workers"]))]
            for first in range(0, params["workers"], wave_size)
        ]
        joined_s, left_s = list[float](), list[float]()
        there: list[list[Worker]] = []
        gc.disable()  # as in a process of each: one heap of all of them would be looked through as often
        try:
            for wave in waves:
                if sum(map(len, there)) >= params["most"]:
                    left_s.append(await _leave(there, len(rows)))
                there.append(wave)
                began = time.perf_counter()
                await asyncio.gather(*(worker.start() for worker in wave))
                await _hold_all(there, len(rows))
                joined_s.append(time.perf_counter() - began)
            while len(there) > 1:
                left_s.append(await _leave(there, len(rows)))
        finally:
            gc.enable()
            await asyncio.gather(*(worker.stop() for wave in there for worker in wave))
        refused = server.violations()
        if refused:
            raise RuntimeError(f"the server refused {len(refused)} times, first: {refused[0]}")
    return {
        f"until {wave_size} more have joined": median_of(joined_s, "s"),
        f"until {wave_size} have left": median_of(left_s, "s"),
    }


async def _leave(there: list[list[Worker]], rows: int) -> float:
    """Ends the wave that came first; the seconds until the others hold every row."""
    began = time.perf_counter()
    await asyncio.gather(*(worker.stop() for worker in there.pop(0)))
    await _hold_all(there, rows)
    return time.perf_counter() - began


async def _hold_all(waves: Sequence[Sequence[Worker]], rows: int) -> None:
    """Waits until each is ready and all together hold every row once.

    Raises:
        TimeoutError: that takes too long.
    """
    workers = [worker for wave in waves for worker in wave]
    async with asyncio.timeout(_FLEET_S):
        while True:
            if all(worker.health().ready for worker in workers):
                held = [row.row_id for worker in workers for row in worker.rows(_KEY)]
                if len(held) == rows == len(set(held)):
                    return
            await asyncio.sleep(_LOOK_S)


async def _roles(directory: Path, params: Mapping[str, int]) -> Figures:
    """Puts into a service that many have roles in, beside one with none but the caller's."""
    tls, login = credentials(directory)
    cpu_us: dict[str, list[float]] = {"few": [], "many": []}
    async with AsyncExitStack() as stack:
        server = stack.enter_context(NatsServer(directory / "nats"))
        clients, pids = {}, {}
        for kind in cpu_us:
            service = stack.enter_context(
                ConfigServiceProcess(
                    directory / kind, nats_url=server.url, options=(*tls, "--tokens", login.token_file)
                )
            )
            client = await stack.enter_async_context(ConfigServiceClient(service.address, login=login))
            me = (await client.who_am_i()).principal
            await client.grant_role(me, "*", Role.ADMIN)
            await client.create_store("gateway", partition_count=64)
            clients[kind], pids[kind] = client, [service.process.pid]
        began = time.perf_counter()
        for number in range(params["roles"]):
            await clients["many"].grant_role(f"token:other-{number}", "gateway", Role.READER)
        granted_s = time.perf_counter() - began
        for client in clients.values():
            await put(client, params["puts"])
        for turn in range(params["rounds"]):
            for kind in ("few", "many") if turn % 2 else ("many", "few"):
                meter = CpuMeter({kind: pids[kind]})
                await put(clients[kind], params["puts"])
                cpu_us[kind].append(meter.seconds()[kind] / params["puts"] * 1e6)
        began = time.perf_counter()
        assert len(await clients["many"].list_roles()) == params["roles"] + 1
        listed_s = time.perf_counter() - began
    over = [mine / other for mine, other in zip(cpu_us["many"], cpu_us["few"], strict=True)]
    return {
        "cpu of a put, many over few": median_of(over, "times"),
        "granted": Figure(params["roles"] / granted_s, "1/s", smaller_is_better=False),
        "all are listed in": Figure(listed_s, "s"),
    }


async def _leaders(directory: Path, params: Mapping[str, int]) -> Figures:
    """From SIGKILL to the instance that leads maintenance until the other does."""
    taken = []
    with NatsServer(directory / "nats") as server, PostgresServer() as postgres:
        words = {"nats_url": server.url, "database": postgres.create_database()}
        options = ("--maintenance-lease", f"{params['lease_s']}s")
        instances = [ConfigServiceProcess(directory / name, **words, options=options) for name in ("a", "b")]
        with instances[0], instances[1]:
            for _ in range(params["rounds"]):
                await until(lambda: any(map(_leads, instances)))
                leader, other = sorted(instances, key=_leads, reverse=True)
                began = time.perf_counter()
                leader.kill()
                await until(partial(_leads, other))
                taken.append(time.perf_counter() - began)
                leader.start()
    return {"until the other leads": median_of(taken, "s")}


def _leads(service: ConfigServiceProcess) -> bool:
    with urllib.request.urlopen(service.metrics_url) as answer:
        return "\nconfig_service_maintenance_leader 1.0\n" in answer.read().decode()


async def _drains(directory: Path, params: Mapping[str, int]) -> Figures:
    """From the wish that an instance drains, which writes all the time, until it says that it is, and back."""
    drained, active = [], []
    with NatsServer(directory / "nats") as server:
        where = f"{server.url}/config_cluster"
        options = ("--cluster-store", where)
        with ConfigServiceProcess(directory / "a", nats_url=server.url, options=options) as service:
            async with open_store(where, create=True) as store, LocalCache(store) as cache:
                await cache.wait_until(lambda: bool(members_of(cache.entries())), PATIENCE_S)
                (member,) = members_of(cache.entries())

                async def state_is(state: MemberState) -> None:
                    def found() -> bool:
                        (now,) = members_of(cache.entries())
                        return now.record is not None and now.record.state is state

                    await cache.wait_until(found, PATIENCE_S)

                async with ConfigServiceClient(service.address) as client:
                    await client.create_store("gateway", partition_count=64)
                    for _ in range(params["rounds"]):
                        await state_is(MemberState.ACTIVE)
                        await put(client, 100)
                        began = time.perf_counter()
                        await want_drain(store, MemberKind.SERVICE, member.id, "")
                        await state_is(MemberState.DRAINED)
                        drained.append(time.perf_counter() - began)
                        began = time.perf_counter()
                        await want_active(store, MemberKind.SERVICE, member.id)
                        await state_is(MemberState.ACTIVE)
                        active.append(time.perf_counter() - began)
    return {"until it is drained": median_of(drained, "s"), "until it is active again": median_of(active, "s")}
