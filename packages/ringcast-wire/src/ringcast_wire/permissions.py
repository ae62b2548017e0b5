"""What each user of NATS may do: the config service, the tools, a worker and an agent.

``infra/nats/make_accounts.py`` prints it into a server's file, and the auth callout of the config service answers it
for a token: both take it from here. The streams are in an account of their own, and the accounts of workers and tools
have the JetStream API under another name (``WORKER_API``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ringcast_wire._common import limits, names
from ringcast_wire._common.errors import InvalidInputError
from ringcast_wire._messages.messages import StoreSettings

SERVICE: Final = "config-service"
TOOLS: Final = "tools"
CALLOUT: Final = "callout"
SYSTEM: Final = "sys"
CLUSTER_TOOLS: Final = "cluster-tools"
RESERVED: Final = frozenset({SERVICE, TOOLS, CALLOUT, SYSTEM, CLUSTER_TOOLS})
"""Names of users that no worker may have."""
CALLOUT_REQUESTS: Final = "$SYS.REQ.USER.AUTH"
"""Where a server asks what a client may do."""
CALLOUT_QUEUE: Final = "ringcast-callout"
CALLOUT_INBOX_PREFIX: Final = "_INBOX.callout"
CONNECTIONS_REQUESTS: Final = "$SYS.REQ.SERVER.*.CONNZ"
"""Where a server says which connections it has; with ``PING`` in place of its id, every server does."""
KICK_REQUESTS: Final = "$SYS.REQ.SERVER.*.KICK"
"""Where a server is asked to end one."""
API: Final = "$JS.API"
WORKER_API: Final = "JS.ringcast.API"
"""Where the accounts of workers and tools have the JetStream API: their setting ``jetstream_api``."""


@dataclass
class User:
    """One user, and what it may do."""

    name: str
    publish: list[str]
    subscribe: list[str]
    why: str
    allow_responses: bool = False


@dataclass
class Worker:
    """What was asked for one worker id, or for one agent."""

    worker_id: str
    stores: dict[str, list[str]] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The stores and keys in which it takes part."""
        return "; ".join(f"{store}/{','.join(keys)}" for store, keys in self.stores.items())


def service_user() -> User:
    """The config service: makes streams and buckets, removes those of purged stores, publishes events, answers, asks
    workers how far they are, removes dead letters, and says which workers are gone: leases, members and settings are in
    buckets that no message can be deleted from."""
    settings = (*StoreSettings.__struct_fields__, names.SETTING_HISTORY, names.META_DELETED, names.META_MIGRATION)
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
        # The purge of a key ends what operators want of it.
        f"$JS.API.DIRECT.GET.*.$KV.*.{names.wishes_key('*')}",
        f"$KV.*.{names.wishes_key('*')}",
        # Of a worker that an operator says is gone, the service deletes what it has said of itself.
        f"$KV.*.{names.state_key('*', '*')}",
        f"$JS.API.STREAM.MSG.GET.KV_{names.CLUSTER_BUCKET}",
        f"$KV.{names.CLUSTER_BUCKET}.services.*",
        f"$KV.{names.CLUSTER_BUCKET}.wishes.services.*",
        "config.notify.*.*.*",
        "config.replay.*.*",
        names.report_subject("*", "*"),
    ]
    fetches = f"{names.FETCH_SUBJECTS} {names.FETCH_QUEUE_GROUP}"
    subscribe = [fetches, names.FETCH_CANCELS, names.REPLAYED_SUBJECTS, f"{names.SERVICE_INBOX_PREFIX}.>"]
    subscribe.append(names.reported_subject("*", "*", "*", "*"))
    why = "The config service: streams, settings of stores, events, and the answers to fetches."
    return User(SERVICE, publish, subscribe, why, allow_responses=True)


def callout_user() -> User:
    """The auth callout of the config service: answers what workers may do, and ends connections of those that may not
    any more. It is in an account where nothing else is."""
    subscribe = [f"{CALLOUT_REQUESTS} {CALLOUT_QUEUE}", f"{CALLOUT_INBOX_PREFIX}.>"]
    why = "The auth callout of the config service: says what a worker with a token may do."
    return User(CALLOUT, [CONNECTIONS_REQUESTS, KICK_REQUESTS], subscribe, why, allow_responses=True)


def tools_user(stores: Sequence[str]) -> User:
    """`ringcast topology`, `groups`, `lag`, `why` and `cluster list`: reads the buckets of the stores and who is there,
    with requests alone, asks workers how far they are, and writes the seals of groups (`ringcast groups reset`) and
    what operators want of keys of exclusive ownership. It may read the last event of each partition. It can make
    nothing else on the server."""
    kinds = (names.meta_bucket, names.nodes_bucket, names.groups_bucket, names.owners_bucket, names.wishes_bucket)
    of_stores = [make(store) for make in kinds for store in stores]
    buckets = [names.LEASES_BUCKET, *of_stores]
    publish = [f"{WORKER_API}.{verb}.KV_{bucket}" for bucket in buckets for verb in ("STREAM.INFO", "DIRECT.GET")]
    publish += [f"{WORKER_API}.{verb}.KV_{names.CLUSTER_BUCKET}" for verb in ("STREAM.INFO", "STREAM.MSG.GET")]
    publish += [names.fetch_subject(store, "*", names.FETCH_HEADS) for store in stores]
    publish += [f"$KV.{names.groups_bucket(store)}.{names.seal_key('*', '*', '*')}" for store in stores]
    for store in stores:
        wishes = f"$KV.{names.wishes_bucket(store)}.{names.wishes_key('*')}"
        publish += [wishes, f"{WORKER_API}.DIRECT.GET.KV_{names.wishes_bucket(store)}.{wishes}"]
        publish.append(names.report_subject(store, "*"))
        events = names.notify_subject(store, "*", "*")
        publish.append(f"{WORKER_API}.DIRECT.GET.{names.notify_stream(store)}.{events}")
    why = "For `ringcast topology`, `groups` and `lag`: reads who takes part, resets groups, writes pins and drains."
    listen = [f"{names.TOOLS_INBOX_PREFIX}.>", *(names.reported_subject(store, "*", "*", "*") for store in stores)]
    return User(TOOLS, publish, listen, why)


def cluster_tools_user(stores: Sequence[str] = ()) -> User:
    """`ringcast cluster` and `top`: watches who is there, asks the workers of the stores how far they are, and writes
    which processes are to drain. It is in the account of the config service, whose streams only that account may
    watch."""
    bucket = names.CLUSTER_BUCKET
    publish = [f"{API}.{verb}.KV_{bucket}" for verb in ("STREAM.INFO", "STREAM.MSG.GET")]
    publish += [f"{API}.CONSUMER.CREATE.KV_{bucket}.*.$KV.{bucket}.>", f"{API}.CONSUMER.DELETE.KV_{bucket}.*"]
    publish += [f"$KV.{bucket}.wishes.>"]
    listen = [f"{names.TOOLS_INBOX_PREFIX}.>"]
    if stores:
        kinds = (names.meta_bucket, names.nodes_bucket, names.owners_bucket, names.wishes_bucket)
        buckets = [names.LEASES_BUCKET, *(make(store) for make in kinds for store in stores)]
        publish += [f"{API}.{verb}.KV_{each}" for each in buckets for verb in ("STREAM.INFO", "DIRECT.GET")]
        publish += [names.fetch_subject(store, "*", names.FETCH_HEADS) for store in stores]
        publish += [names.report_subject(store, "*") for store in stores]
        listen += [names.reported_subject(store, "*", "*", "*") for store in stores]
    why = "For `ringcast cluster` and `top`: reads who is there and how far it is, writes which are to drain."
    return User(CLUSTER_TOOLS, publish, listen, why)


def worker_user(worker: Worker, *, prefix: str, partitions: int) -> User:
    """A worker: its own lease, session, loads, records, consumers and inbox; slots, tables and fetches of its keys."""
    inbox = f"{names.inbox_prefix(worker.worker_id)}.>"
    publish = worker_subjects(worker, prefix=prefix, partitions=partitions)
    for store, keys in worker.stores.items():
        publish += owner_subjects(worker.worker_id, store, keys)
    listen = [inbox, *requests_to(worker)]
    return User(worker.worker_id, publish, listen, f"A worker of {worker.scope}.")


def agent_user(agent: Worker, *, prefix: str, partitions: int) -> User:
    """A heartbeat agent: what its workers may, one for each key, asking which keys a store has, keeping the lease of
    its host (for the workers that register with it, whose records it deletes when they die), the seals of groups of its
    keys, and its own record in the cluster."""
    publish = [f"{WORKER_API}.STREAM.INFO.{names.notify_stream(store)}" for store in agent.stores]
    publish += host_subjects(agent)
    publish += member_subjects(agent)
    for worker in agent_workers(agent):
        publish += worker_subjects(worker, prefix=prefix, partitions=partitions)
    inboxes = [f"{names.inbox_prefix(name)}.>" for name in agent_names(agent)]
    why = f"A heartbeat agent of {agent.scope}."
    listen = [*inboxes, *requests_to(agent)]
    return User(agent.worker_id, list(dict.fromkeys(publish)), listen, why)


def requests_to(worker: Worker) -> list[str]:
    """Where it is asked to hand rows of dead letters over again, and how far it is."""
    subjects = (names.replay_subject, names.report_subject)
    return [subject(store, key) for store, keys in worker.stores.items() for key in keys for subject in subjects]


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
    """What an agent publishes for the workers of its host, and for how far its groups have come.

    Of exclusive ownership it writes in its own name which processes it has seen end, and nothing else.
    """
    lease = f"$KV.{names.LEASES_BUCKET}.{agent.worker_id}.*"
    yield lease
    yield f"{WORKER_API}.DIRECT.GET.KV_{names.LEASES_BUCKET}.{lease}"
    for store, keys in agent.stores.items():
        nodes = names.nodes_bucket(store)
        for verb in ("CREATE", "DELETE"):
            yield f"{WORKER_API}.CONSUMER.{verb}.KV_{nodes}.{names.watch_name(store, agent.worker_id)}"
        yield from (f"$KV.{nodes}.{names.node_key(key, '*')}" for key in keys)
        owners = names.owners_bucket(store)
        for gone in (f"$KV.{owners}.{names.gone_key(key, agent.worker_id)}" for key in keys):
            yield gone
            yield f"{WORKER_API}.DIRECT.GET.KV_{owners}.{gone}"
        groups = names.groups_bucket(store)
        yield from (f"{WORKER_API}.{verb}.KV_{groups}" for verb in ("STREAM.INFO", "DIRECT.GET"))
        yield from (f"$KV.{groups}.{names.seal_key(key, '*', '*')}" for key in keys)


def member_subjects(agent: Worker) -> Iterator[str]:
    """What an agent publishes to register in the cluster. It reads all that stands there: who is there, and who is to
    drain."""
    bucket = names.CLUSTER_BUCKET
    yield from (f"{WORKER_API}.{verb}.KV_{bucket}" for verb in ("STREAM.INFO", "STREAM.MSG.GET"))
    yield f"$KV.{bucket}.agents.{agent.worker_id}"


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
    # The step of a migration is read from the server that takes writes in: the others may lag behind.
    yield f"{WORKER_API}.STREAM.MSG.GET.KV_{meta}"
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
        yield names.reported_subject(store, key, worker_id, "*")
    # One more than it can fill: a starting worker deletes old consumers until there is none.
    filled = -(-partitions * len(keys) // limits.MAX_FILTERS_PER_CONSUMER)
    for index in range(filled + 1):
        consumer = names.consumer_name(prefix, worker_id, index)
        for verb in ("CREATE", "DELETE", "MSG.NEXT"):
            yield f"{WORKER_API}.CONSUMER.{verb}.{stream}.{consumer}"
        yield f"$JS.ACK.{stream}.{consumer}.>"


def owner_subjects(worker_id: str, store: str, keys: Sequence[str]) -> Iterator[str]:
    """What a worker publishes for exclusive ownership, where the store has it: a permission does not know that.

    Any worker may become the leader of a key, so each may write the term and the table of its keys; ``docs/sticky.md``
    says what harm that can do.
    """
    owners, wishes = names.owners_bucket(store), names.wishes_bucket(store)
    yield f"{WORKER_API}.DIRECT.GET.KV_{owners}"
    for bucket in (owners, wishes):
        for verb in ("CREATE", "DELETE"):
            yield f"{WORKER_API}.CONSUMER.{verb}.KV_{bucket}.{names.watch_name(store, worker_id)}"
    own = [names.session_key(worker_id), names.load_key(worker_id)]
    for key in keys:
        own += [names.state_key(key, worker_id), names.term_key(key), names.table_key(key)]
    for name in own:
        yield f"$KV.{owners}.{name}"
        yield f"{WORKER_API}.DIRECT.GET.KV_{owners}.$KV.{owners}.{name}"


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
    if taken := RESERVED & workers.keys():
        raise InvalidInputError(f"worker {min(taken)!r} has the name of a user that is no worker")
    return list(workers.values())
