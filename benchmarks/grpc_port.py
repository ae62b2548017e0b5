"""Puts with a token beside clients without one: 2,000 connections that watch health, call, and send large requests.

Usage: python -m benchmarks.grpc_port [CONNECTIONS [SECONDS]]. Puts go out at a fixed rate whether they are answered or
not, to two instances at the same time: the connections are to one of them, the other is left alone. Each phase lasts
SECONDS. The clients without a token are a process of their own. What counts are the ratios within a run (of the phases,
and in each phase of the two instances, which have the machine in common) and the memory of the service: it exits with 1
where these miss their goals, or a put has failed.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringcast_client import ConfigServiceClient
from ringcast_testkit import ConfigServiceProcess, NatsServer
from ringcast_wire import RingcastError, limits
from ringcast_wire.grpc import SERVICE_NAME, ServiceLogin

TOKEN: Final = "a-token-of-more-than-sixteen-characters"
PUTS_PER_S: Final = 50
CALLS_PER_S: Final = 200
"""Of all clients without a token together; each tenth has a request as large as the service takes."""
MOST_OVER_QUIET: Final = 3.0
MOST_MEMORY_MIB: Final = 400e6 / 2**20
LARGE: Final = bytes(2 * limits.MAX_BATCH_BYTES - 1024)


@dataclass
class Phase:
    """What was measured while so many connections were open."""

    name: str
    latencies_s: list[float] = field(default_factory=list)
    other_s: list[float] = field(default_factory=list)
    """Of the instance that is left alone."""
    failures: int = 0
    memory_mib: float = 0.0
    """The most that the service had until the end of it."""

    def percentile_ms(self, share: float) -> float:
        """Milliseconds within which this share of the puts was answered."""
        return _percentile_ms(self.latencies_s, share)

    def ratio(self, share: float) -> float:
        """Of the percentile to that of the instance that is left alone, at the same time."""
        return _percentile_ms(self.latencies_s, share) / _percentile_ms(self.other_s, share)


def _percentile_ms(latencies_s: list[float], share: float) -> float:
    found = sorted(latencies_s)
    return found[min(len(found) - 1, int(len(found) * share))] * 1e3 if found else float("nan")


@dataclass
class Findings:
    """The phases, and what the clients without a token were told."""

    phases: list[Phase]
    told: str

    def ratio(self, share: float) -> float:
        """Of the percentile under load to that of the quiet phases together."""
        quiet = Phase("quiet", [one for phase in self.phases if phase.name == "quiet" for one in phase.latencies_s])
        (loaded,) = (phase for phase in self.phases if phase.name != "quiet")
        return loaded.percentile_ms(share) / quiet.percentile_ms(share)

    def missed(self) -> list[str]:
        """The goals that were not reached, a sentence for each."""
        found = []
        if failures := sum(phase.failures for phase in self.phases):
            found.append(f"{failures} puts failed")
        if (ratio := self.ratio(0.99)) > MOST_OVER_QUIET:
            found.append(f"p99 is {ratio:.2f} times that of the quiet phases: at most {MOST_OVER_QUIET:g} is the goal")
        if (memory := max(phase.memory_mib for phase in self.phases)) > MOST_MEMORY_MIB:
            found.append(f"the service took {memory:.0f} MiB: at most {MOST_MEMORY_MIB:.0f} is the goal")
        return found


def main() -> int:
    if sys.argv[1:2] == ["anonymous"]:
        print(asyncio.run(anonymous(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        return 0
    found = asyncio.run(measure(*map(int, sys.argv[1:3])))
    for phase in found.phases:
        print(
            f"{phase.name:>12}: {len(phase.latencies_s)} puts, {phase.failures} failed, "
            f"p50 {phase.percentile_ms(0.5):.1f} ms, p99 {phase.percentile_ms(0.99):.1f} ms, "
            f"{phase.ratio(0.5):.2f} and {phase.ratio(0.99):.2f} times the other instance, "
            f"memory of the service at most {phase.memory_mib:.0f} MiB"
        )
    print(f"without a token: {found.told}")
    print(f"p50 {found.ratio(0.5):.2f} and p99 {found.ratio(0.99):.2f} times that of the quiet phases")
    missed = found.missed()
    for sentence in missed:
        print(f"missed: {sentence}")
    return 1 if missed else 0


async def measure(connections: int = 2_000, seconds: int = 15) -> Findings:
    """Puts alone, beside the connections, and alone again."""
    allow_files()
    with tempfile.TemporaryDirectory() as name, NatsServer(Path(name) / "nats") as nats:
        directory = Path(name)
        authority = trustme.CA()
        cert = authority.issue_cert("127.0.0.1")
        files = {
            "ca": authority.cert_pem.bytes(),
            "cert": cert.cert_chain_pems[0].bytes(),
            "key": cert.private_key_pem.bytes(),
            "token": f"{TOKEN}\n".encode(),
        }
        for file, data in files.items():
            (directory / file).write_bytes(data)
        path = {file: str(directory / file) for file in files}
        options = ("--tls-cert", path["cert"], "--tls-key", path["key"], "--tokens", path["token"])
        login = ServiceLogin(tls_ca_file=path["ca"], token_file=path["token"])
        async with AsyncExitStack() as stack:
            services, clients = [], []
            for place in (directory / "0", directory / "1"):
                database = f"sqlite:{place / 'ringcast.db'}"
                process = ConfigServiceProcess(place, nats_url=nats.url, database=database, options=options)
                services.append(stack.enter_context(process))
                client = ConfigServiceClient(services[-1].address, login=login)
                clients.append(await stack.enter_async_context(client))
                await clients[-1].create_store(f"bench{len(clients)}", partition_count=64)
            await puts(clients, Phase("warm"), 2)
            phases = [await puts(clients, Phase("quiet"), seconds)]
            async with crowd(services[0].address, path["ca"], connections) as told:
                phases.append(await puts(clients, Phase(f"{connections} more"), seconds))
                phases[-1].memory_mib = peak_mib(services[0].process.pid)
            phases.append(await puts(clients, Phase("quiet"), seconds))
            phases[-1].memory_mib = peak_mib(services[0].process.pid)
    return Findings(phases, "".join(told))


async def puts(clients: list[ConfigServiceClient], phase: Phase, seconds: int) -> Phase:
    """Each runs from when it was due, so a stall counts for all that had to wait for it."""

    async def one(number: int, client: int, due_s: float) -> None:
        try:
            await clients[client].put(f"bench{client + 1}", "k", f"r{number % 1_000}", "v")
        except RingcastError:
            phase.failures += 1
        else:
            (phase.other_s if client else phase.latencies_s).append(time.perf_counter() - due_s)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(seconds * PUTS_PER_S):
            due_s = began_s + number / PUTS_PER_S
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            for client in range(len(clients)) if number % 2 else reversed(range(len(clients))):
                tasks.create_task(one(number, client, due_s))
    return phase


def peak_mib(pid: int) -> float:
    """The most memory that a process ever had."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@contextlib.asynccontextmanager
async def crowd(address: str, ca: str, connections: int) -> AsyncIterator[list[str]]:
    """Clients without a token, in a process of their own, all connected; what they were told comes at the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.grpc_port", "anonymous", address, ca, str(connections)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    told: list[str] = []
    try:
        await process.stdout.readline()  # all are connected
        yield told
        told.append((await process.communicate(b"\n"))[0].decode().strip())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def anonymous(address: str, ca: str, connections: int) -> str:
    """Watches health on every connection and makes calls until a line comes in; returns what they ended with."""
    allow_files()
    credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())  # noqa: ASYNC240  # once, at the start
    options = (("grpc.use_local_subchannel_pool", 1),)
    channels = [grpc.aio.secure_channel(address, credentials, options) for _ in range(connections)]
    seen: collections.Counter[str] = collections.Counter()
    watches = []
    for channel in channels:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watches.append(watch := health.Watch(health_pb2.HealthCheckRequest()))
        try:
            await watch.read()
            seen["watches open"] += 1
        except grpc.aio.AioRpcError as error:
            seen[f"watches {error.code().name}"] += 1
    print("connected", flush=True)
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    calls: set[asyncio.Task[None]] = set()
    turns = itertools.cycle(channels)
    began_s = time.perf_counter()
    for number in itertools.count():
        if stop.done():
            break
        calls.add(task := asyncio.create_task(call(next(turns), LARGE if number % 10 == 0 else b"", seen)))
        task.add_done_callback(calls.discard)
        await asyncio.sleep(max(0.0, began_s + number / CALLS_PER_S - time.perf_counter()))
    for channel in channels:
        await channel.close()
    return ", ".join(f"{count} {what}" for what, count in sorted(seen.items()))


async def call(channel: grpc.aio.Channel, request: bytes, seen: collections.Counter[str]) -> None:
    put: Any = channel.unary_unary(f"/{SERVICE_NAME}/Put")
    try:
        await put(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        seen[f"calls {error.code().name}"] += 1


def allow_files() -> None:
    """As many open files as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main())
