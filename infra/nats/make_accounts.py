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

from ringcast_wire import InvalidInputError, limits, names
from ringcast_wire.permissions import (
    API,
    WORKER_API,
    User,
    Worker,
    agent_names,
    agent_user,
    parse_workers,
    service_user,
    tools_user,
    worker_user,
)

# A reply of the config service has at most 64 MiB, in chunks of nearly 1 MiB each, and takes at most 30 s to begin.
RESPONSES = '{ max: 128, expires: "1m" }'
# A request with several answers is forgotten when none has come for so long. A pull request lives 30 s.
STREAMED = 'response_type: stream, response_threshold: "1m"'
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


def entry(user: User, variable: str, nkey: str | None) -> Iterator[str]:
    """A user, as the server reads it; ``variable``: what its password comes from."""
    yield f"# {user.why}"
    yield "{"
    if nkey:
        yield f"  nkey: {nkey}"
    else:
        yield f"  user: {user.name}"
        yield f"  password: ${variable}"
    yield "  permissions: {"
    yield from indented(4, ("publish: [", *(f'  "{subject}"' for subject in user.publish), "]"))
    yield from indented(4, ("subscribe: [", *(f'  "{subject}"' for subject in user.subscribe), "]"))
    if user.allow_responses:
        yield f"    allow_responses: {RESPONSES}"
    yield "  }"
    yield "}"


def variable_of(user: User, kind: str = "") -> str:
    """What the password of a user comes from."""
    return f"NATS_{kind}{re.sub('[^A-Z0-9]', '_', user.name.upper())}_PASSWORD"


def make(
    workers: Sequence[Worker], agents: Sequence[Worker], nkeys: Mapping[str, str], *, prefix: str, partitions: int
) -> Iterator[str]:
    """The lines of the accounts.

    Raises:
        InvalidInputError: a key is for nobody, or two workers would share an environment variable.
    """
    own, tools = service_user(), tools_user(sorted({name for worker in (*workers, *agents) for name in worker.stores}))
    found = {
        "WORKER_": [worker_user(worker, prefix=prefix, partitions=partitions) for worker in workers],
        "AGENT_": [agent_user(agent, prefix=prefix, partitions=partitions) for agent in agents],
    }
    theirs = [user for users_of_kind in found.values() for user in users_of_kind]
    answered = [worker.worker_id for worker in workers] + [name for agent in agents for name in agent_names(agent)]
    if twice := {name for name in answered if answered.count(name) > 1}:
        raise InvalidInputError(f"{min(twice)!r} would name two of the workers, the agents, and their workers")
    variables = {user.name: variable_of(user) for user in (own, tools)}
    variables |= {user.name: variable_of(user, kind) for kind, of_kind in found.items() for user in of_kind}
    named: dict[str, str] = {}
    for name, variable in variables.items():
        if (other := named.setdefault(variable, name)) != name:
            raise InvalidInputError(f"workers {other!r} and {name!r} would share the variable {variable}")
    if unknown := nkeys.keys() - {user.name for user in (own, tools, *theirs)}:
        raise InvalidInputError(f"nkey is given for {unknown.pop()!r}, which is no user here")
    inboxes = [f"{names.inbox_prefix(name)}.>" for name in answered]
    yield "accounts: {"
    yield "  RINGCAST: {"
    # Room is reserved for each stream: one without a limit could take that of the leases.
    yield "    jetstream: { max_bytes_required: true }"
    yield from indented(4, users([own], variables, nkeys))
    yield "    exports: ["
    for subject, more in EXPORTS.items():
        to = "WORKERS, TOOLS" if subject in FOR_TOOLS else "WORKERS"
        yield f'      {{ service: "{subject}", {more + ", " if more else ""}accounts: [{to}] }}'
    yield from (f'      {{ stream: "{subject}", accounts: [WORKERS] }}' for subject in (REPLAYS, *inboxes))
    yield "    ]"
    yield "  }"
    yield "  WORKERS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['WORKERS']} }}"
    yield from indented(4, users(theirs, variables, nkeys))
    yield "    imports: ["
    yield from map(imported, EXPORTS)
    yield from (f'      {{ stream: {{ account: RINGCAST, subject: "{each}" }} }}' for each in (REPLAYS, *inboxes))
    yield "    ]"
    yield "  }"
    yield "  TOOLS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['TOOLS']} }}"
    yield from indented(4, users([tools], variables, nkeys))
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


def users(some: Sequence[User], variables: Mapping[str, str], nkeys: Mapping[str, str]) -> Iterator[str]:
    """A list of users."""
    yield "users: ["
    for user in some:
        yield from indented(2, entry(user, variables[user.name], nkeys.get(user.name)))
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
