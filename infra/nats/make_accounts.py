#!/usr/bin/env python3
"""Print accounts.conf: who may do what on the NATS of a Ringcast installation.

Usage: make_accounts.py [--partitions N] [--consumer-prefix P] [--nkey NAME=PUBLIC_KEY]...
       [--agent AGENT_ID=STORE/KEY[,KEY...]]... WORKER=STORE/KEY[,KEY...]...

A worker or a heartbeat agent that takes part in several stores is named once for each. An agent has one user for all of
its workers; its --id must be that name. --partitions is the largest partition count of the stores; it says how
many consumers a worker may need. A user's password comes from the environment of the NATS server
(the output names the variables), unless --nkey names the public key that it logs in with. Needs the package
ringcast-wire.

The streams are in the account RINGCAST, the workers in WORKERS, the user of the tools in TOOLS. NATS checks who may
publish a request, and not who may publish to where its answer is to go; but an answer to another account stays in that
account. So neither a worker nor a tool can have the server put an answer into a stream for it.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ringcast_wire import InvalidInputError, StoreSettings, limits, names

SERVICE = "config-service"
TOOLS = "tools"
# A reply of the config service has at most 64 MiB, in chunks of nearly 1 MiB each, and takes at most 30 s to begin.
RESPONSES = '{ max: 128, expires: "1m" }'
# A request with several answers is forgotten when none has come for so long. A pull request lives 30 s.
STREAMED = 'response_type: stream, response_threshold: "1m"'
API = "$JS.API"
WORKER_API = "JS.ringcast.API"
"""Where the accounts of workers and tools have the JetStream API: their setting ``jetstream_api``."""
# What the account of the streams does for the workers' account; what each worker may ask for, its user says.
EXPORTS = {
    f"{API}.STREAM.INFO.*": "",
    f"{API}.DIRECT.GET.>": STREAMED,
    f"{API}.CONSUMER.CREATE.>": "",
    f"{API}.CONSUMER.DELETE.>": "",
    f"{API}.CONSUMER.MSG.NEXT.>": STREAMED,
    "$JS.ACK.>": "",
    "$KV.>": "",
    "config.fetch.>": STREAMED,
    "config.dead.>": "",
    "config.replayed.>": "",
}
REPLAYS = "config.replay.*.*"
"""What the config service says to workers, who hear it for their keys alone."""
MOST_CONNECTIONS = {"WORKERS": 9_000, "TOOLS": 100}
"""Of ``max_connections`` in nats.conf, so that there is always room for the config service."""
FOR_TOOLS = (f"{API}.STREAM.INFO.*", f"{API}.DIRECT.GET.>", "$KV.>", "config.fetch.>")
"""Those of them that the tools' account has, too."""


@dataclass
class User:
    """One user, and what it may do."""

    name: str
    publish: list[str]
    subscribe: list[str]
    why: str
    allow_responses: bool = False
    variable: str = ""

    def lines(self, nkey: str | None) -> Iterator[str]:
        """The entry, as the server reads it."""
        yield f"# {self.why}"
        yield "{"
        if nkey:
            yield f"  nkey: {nkey}"
        else:
            yield f"  user: {self.name}"
            yield f"  password: ${self.variable}"
        yield "  permissions: {"
        yield from indented(4, ("publish: [", *(f'  "{subject}"' for subject in self.publish), "]"))
        yield from indented(4, ("subscribe: [", *(f'  "{subject}"' for subject in self.subscribe), "]"))
        if self.allow_responses:
            yield f"    allow_responses: {RESPONSES}"
        yield "  }"
        yield "}"


@dataclass
class Worker:
    """What was asked for one worker id, or for one agent."""

    worker_id: str
    stores: dict[str, list[str]] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """Where it takes part."""
        return "; ".join(f"{store}/{','.join(keys)}" for store, keys in self.stores.items())

    def variable(self, kind: str) -> str:
        """What its password comes from."""
        return f"NATS_{kind}_{re.sub('[^A-Z0-9]', '_', self.worker_id.upper())}_PASSWORD"


def service_user() -> User:
    """The config service: makes streams and buckets, removes those of purged stores, publishes events, answers, and
    removes dead letters: leases, members and settings are in buckets that no message can be deleted from."""
    settings = (*StoreSettings.__struct_fields__, names.SETTING_HISTORY, names.META_DELETED)
    publish = [
        "$JS.API.INFO",
        "$JS.API.STREAM.INFO.*",
        "$JS.API.STREAM.CREATE.*",
        "$JS.API.STREAM.UPDATE.*",
        "$JS.API.STREAM.DELETE.*",
        "$JS.API.STREAM.MSG.DELETE.*",
        "$JS.API.DIRECT.GET.*",
        *(f"$JS.API.CONSUMER.{verb}" for verb in ("CREATE.*", "CREATE.*.>", "INFO.*.*", "MSG.NEXT.*.*", "DELETE.*.*")),
        *(f"$JS.API.DIRECT.GET.*.$KV.*.{setting}" for setting in settings),
        *(f"$KV.*.{setting}" for setting in settings),
        "config.notify.*.*.*",
        "config.replay.*.*",
    ]
    fetches = f"{names.FETCH_SUBJECTS} {names.FETCH_QUEUE_GROUP}"
    subscribe = [fetches, names.FETCH_CANCELS, names.REPLAYED_SUBJECTS, f"{names.SERVICE_INBOX_PREFIX}.>"]
    why = "The config service: streams, settings of stores, events, and the answers to fetches."
    return User(SERVICE, publish, subscribe, why, True, "NATS_CONFIG_SERVICE_PASSWORD")


def tools_user(stores: Sequence[str]) -> User:
    """`ringcast topology` and `groups`: reads the buckets of the stores, with requests alone, and writes the seals of
    groups: `ringcast groups reset`. It can make nothing else on the server."""
    of_stores = [
        make(store) for make in (names.meta_bucket, names.nodes_bucket, names.groups_bucket) for store in stores
    ]
    buckets = [names.LEASES_BUCKET, *of_stores]
    publish = [f"{WORKER_API}.{verb}.KV_{bucket}" for bucket in buckets for verb in ("STREAM.INFO", "DIRECT.GET")]
    publish += [names.fetch_subject(store, "*", names.FETCH_HEADS) for store in stores]
    publish += [f"$KV.{names.groups_bucket(store)}.{names.seal_key('*', '*', '*')}" for store in stores]
    why = "For `ringcast topology` and `groups`: reads who takes part, resets groups."
    return User(TOOLS, publish, [f"{names.TOOLS_INBOX_PREFIX}.>"], why, variable="NATS_TOOLS_PASSWORD")


def worker_user(worker: Worker, *, prefix: str, partitions: int) -> User:
    """A worker: its own lease, records, consumers and inbox; slots and fetches of its keys."""
    inbox = f"{names.inbox_prefix(worker.worker_id)}.>"
    publish = worker_subjects(worker, prefix=prefix, partitions=partitions)
    listen = [inbox, *replays_of(worker)]
    return User(worker.worker_id, publish, listen, f"A worker of {worker.told}.", variable=worker.variable("WORKER"))


def agent_user(agent: Worker, *, prefix: str, partitions: int) -> User:
    """A heartbeat agent: what its workers may, one for each key, asking which keys a store has, keeping the lease of
    its host (for the workers that register with it, whose records it deletes when they die), and the seals of groups
    of its keys."""
    publish = [f"{WORKER_API}.STREAM.INFO.{names.notify_stream(store)}" for store in agent.stores]
    publish += host_subjects(agent)
    for worker in agent_workers(agent):
        publish += worker_subjects(worker, prefix=prefix, partitions=partitions)
    inboxes = [f"{names.inbox_prefix(name)}.>" for name in agent_names(agent)]
    why = f"A heartbeat agent of {agent.told}."
    listen = [*inboxes, *replays_of(agent)]
    return User(agent.worker_id, list(dict.fromkeys(publish)), listen, why, variable=agent.variable("AGENT"))


def replays_of(worker: Worker) -> list[str]:
    """Where it is asked to hand rows of dead letters over again."""
    return [names.replay_subject(store, key) for store, keys in worker.stores.items() for key in keys]


def agent_workers(agent: Worker) -> list[Worker]:
    """The workers of an agent: for each key one that takes part, and one that observes all of it."""
    workers: dict[str, Worker] = {}
    for store, keys in agent.stores.items():
        for key in keys:
            for make in (names.agent_worker_id, names.agent_observer_id):
                name = make(agent.worker_id, store, key)
                workers.setdefault(name, Worker(name)).stores[store] = [key]
    return list(workers.values())


def host_subjects(agent: Worker) -> Iterator[str]:
    """What an agent publishes for the workers of its host, and for how far its groups have come."""
    lease = f"$KV.{names.LEASES_BUCKET}.{agent.worker_id}.*"
    yield lease
    yield f"{WORKER_API}.DIRECT.GET.KV_{names.LEASES_BUCKET}.{lease}"
    for store, keys in agent.stores.items():
        nodes = names.nodes_bucket(store)
        for verb in ("CREATE", "DELETE"):
            yield f"{WORKER_API}.CONSUMER.{verb}.KV_{nodes}.{names.watch_name(store, agent.worker_id)}"
        yield from (f"$KV.{nodes}.{names.node_key(key, '*')}" for key in keys)
        groups = names.groups_bucket(store)
        yield from (f"{WORKER_API}.{verb}.KV_{groups}" for verb in ("STREAM.INFO", "DIRECT.GET"))
        yield from (f"$KV.{groups}.{names.seal_key(key, '*', '*')}" for key in keys)


def agent_names(agent: Worker) -> list[str]:
    """Whom answers to an agent go to: itself, and its workers."""
    return [agent.worker_id, *(worker.worker_id for worker in agent_workers(agent))]


def worker_subjects(worker: Worker, *, prefix: str, partitions: int) -> list[str]:
    """What a worker publishes."""
    worker_id = worker.worker_id
    publish = [
        f"{WORKER_API}.DIRECT.GET.KV_{names.LEASES_BUCKET}",
        f"{WORKER_API}.DIRECT.GET.KV_{names.LEASES_BUCKET}.$KV.{names.LEASES_BUCKET}.{worker_id}",
        f"$KV.{names.LEASES_BUCKET}.{worker_id}",
    ]
    for store, keys in worker.stores.items():
        publish += store_subjects(worker_id, store, keys, prefix=prefix, partitions=partitions)
    return publish


def store_subjects(worker_id: str, store: str, keys: Sequence[str], *, prefix: str, partitions: int) -> Iterator[str]:
    """What a worker publishes for one store."""
    meta, nodes, stream = names.meta_bucket(store), names.nodes_bucket(store), names.notify_stream(store)
    yield f"{WORKER_API}.STREAM.INFO.KV_{meta}"
    yield f"{WORKER_API}.DIRECT.GET.KV_{meta}.$KV.{meta}.*"
    for verb in ("CREATE", "DELETE"):
        yield f"{WORKER_API}.CONSUMER.{verb}.KV_{nodes}.{names.watch_name(store, worker_id)}"
    yield f"$KV.{nodes}.{names.ended_key(worker_id)}"
    for key in keys:
        for name in (names.node_key(key, worker_id), f"{key}.slot.*"):
            yield f"$KV.{nodes}.{name}"
            yield f"{WORKER_API}.DIRECT.GET.KV_{nodes}.$KV.{nodes}.{name}"
        yield names.fetch_subject(store, key, "*")
        yield names.dead_key_subjects(store, key)
        yield names.replayed_subject(store, key, worker_id)
    # One more than it can fill: a starting worker deletes old consumers until there is none.
    filled = -(-partitions * len(keys) // limits.MAX_FILTERS_PER_CONSUMER)
    for index in range(filled + 1):
        consumer = names.consumer_name(prefix, worker_id, index)
        for verb in ("CREATE", "DELETE", "MSG.NEXT"):
            yield f"{WORKER_API}.CONSUMER.{verb}.{stream}.{consumer}"
        yield f"$JS.ACK.{stream}.{consumer}.>"


def parse_workers(specs: Sequence[str]) -> list[Worker]:
    """Reads ``WORKER=STORE/KEY,KEY``.

    Raises:
        InvalidInputError: one is malformed, or two workers would share an environment variable or a user name.
    """
    workers: dict[str, Worker] = {}
    for spec in specs:
        worker_id, equals, place = spec.partition("=")
        store, slash, keys = place.partition("/")
        if not equals or not slash:
            raise InvalidInputError(f"worker {spec!r} is not of the form WORKER=STORE/KEY,KEY")
        names.check_name("worker", worker_id)
        names.check_name("store", store)
        held = workers.setdefault(worker_id, Worker(worker_id)).stores.setdefault(store, [])
        held += [key for key in (names.check_name("key", key) for key in keys.split(",")) if key not in held]
    if taken := {SERVICE, TOOLS} & workers.keys():
        raise InvalidInputError(f"worker {taken.pop()!r} has the name of a user that is no worker")
    return list(workers.values())


def make(
    workers: Sequence[Worker], agents: Sequence[Worker], nkeys: Mapping[str, str], *, prefix: str, partitions: int
) -> Iterator[str]:
    """The lines of the accounts.

    Raises:
        InvalidInputError: a key is for nobody, or two workers would share an environment variable.
    """
    own, tools = service_user(), tools_user(sorted({name for worker in (*workers, *agents) for name in worker.stores}))
    theirs = [
        *(worker_user(worker, prefix=prefix, partitions=partitions) for worker in workers),
        *(agent_user(agent, prefix=prefix, partitions=partitions) for agent in agents),
    ]
    answered = [worker.worker_id for worker in workers] + [name for agent in agents for name in agent_names(agent)]
    if twice := {name for name in answered if answered.count(name) > 1}:
        raise InvalidInputError(f"{min(twice)!r} would name two of the workers, the agents, and their workers")
    variables: dict[str, str] = {}
    for user in (own, tools, *theirs):
        other = variables.setdefault(user.variable, user.name)
        if other != user.name:
            raise InvalidInputError(f"workers {other!r} and {user.name!r} would share the variable {user.variable}")
    if unknown := nkeys.keys() - {user.name for user in (own, tools, *theirs)}:
        raise InvalidInputError(f"nkey is given for {unknown.pop()!r}, which is no user here")
    inboxes = [f"{names.inbox_prefix(name)}.>" for name in answered]
    yield "accounts: {"
    yield "  RINGCAST: {"
    # Room is reserved for each stream: one without a limit could take that of the leases.
    yield "    jetstream: { max_bytes_required: true }"
    yield from indented(4, users([own], nkeys))
    yield "    exports: ["
    for subject, more in EXPORTS.items():
        to = "WORKERS, TOOLS" if subject in FOR_TOOLS else "WORKERS"
        yield f'      {{ service: "{subject}", {more + ", " if more else ""}accounts: [{to}] }}'
    yield from (f'      {{ stream: "{subject}", accounts: [WORKERS] }}' for subject in (REPLAYS, *inboxes))
    yield "    ]"
    yield "  }"
    yield "  WORKERS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['WORKERS']} }}"
    yield from indented(4, users(theirs, nkeys))
    yield "    imports: ["
    yield from map(imported, EXPORTS)
    yield from (f'      {{ stream: {{ account: RINGCAST, subject: "{each}" }} }}' for each in (REPLAYS, *inboxes))
    yield "    ]"
    yield "  }"
    yield "  TOOLS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['TOOLS']} }}"
    yield from indented(4, users([tools], nkeys))
    yield "    imports: ["
    yield from map(imported, FOR_TOOLS)
    yield "    ]"
    yield "  }"
    yield "  SYS: { users: [ { user: sys, password: $NATS_SYS_PASSWORD } ] }"
    yield "}"
    yield "system_account: SYS"


def imported(subject: str) -> str:
    """One line of an account's imports."""
    # In an account without streams the server itself answers below its own name of the API.
    to = f', to: "{subject.replace(API, WORKER_API)}"' if subject.startswith(API) else ""
    # Whose a fetch is, so that none takes the turns of all others.
    share = ", share: true" if subject.startswith("config.fetch.") else ""
    return f'      {{ service: {{ account: RINGCAST, subject: "{subject}" }}{to}{share} }}'


def users(some: Sequence[User], nkeys: Mapping[str, str]) -> Iterator[str]:
    """A list of users."""
    yield "users: ["
    for user in some:
        yield from indented(2, user.lines(nkeys.get(user.name)))
    yield "]"


def indented(by: int, lines: Iterable[str]) -> Iterator[str]:
    """The lines, further to the right."""
    return (" " * by + line for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", nargs="*", metavar="WORKER=STORE/KEY[,KEY...]")
    parser.add_argument("--partitions", type=int, default=limits.MAX_PARTITIONS)
    parser.add_argument("--consumer-prefix", default="ringcast")
    parser.add_argument("--agent", action="append", default=[], metavar="AGENT_ID=STORE/KEY[,KEY...]")
    parser.add_argument("--nkey", action="append", default=[], metavar="NAME=PUBLIC_KEY")
    arguments = parser.parse_args()
    if not arguments.workers and not arguments.agent:
        parser.error("no worker and no agent is named")
    try:
        names.check_partition_count(arguments.partitions)
        prefix = names.check_name("consumer-prefix", arguments.consumer_prefix)
        nkeys = dict(nkey.partition("=")[::2] for nkey in arguments.nkey)
        workers, agents = parse_workers(arguments.workers), parse_workers(arguments.agent)
        lines = list(make(workers, agents, nkeys, prefix=prefix, partitions=arguments.partitions))
    except InvalidInputError as error:
        sys.stderr.write(f"make_accounts: {error}\n")
        return 2
    sys.stdout.write("\n".join([f"# Printed by: make_accounts.py {shlex.join(sys.argv[1:])}", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
