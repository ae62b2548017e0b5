#!/usr/bin/env python3
"""Print accounts.conf: who may do what on the NATS of a Ringcast installation.

Usage: make_accounts.py [--partitions N] [--consumer-prefix P] [--nkey NAME=PUBLIC_KEY[,PUBLIC_KEY]]...
       [--callout PUBLIC_KEY [--xkey PUBLIC_KEY] | --callout-from-environment] [--tools-store STORE]...
       [--agent AGENT_ID=STORE/KEY[,KEY...]]... WORKER=STORE/KEY[,KEY...]...
       make_accounts.py --new-keys DIRECTORY

A worker or a heartbeat agent that takes part in several stores is named once for each. An agent has one user for all of
its workers; its --id must be that name. --partitions is the largest partition count of the stores; it says how
many consumers a worker may need. A user's password comes from the environment of the NATS server
(the output names the variables), unless --nkey names the public key that it logs in with (or both, with a comma
between, while one is replaced). Needs the package ringcast-wire.

With --callout the server asks the config service what a worker may do whose name is not in this file: workers with a
token need no line here. PUBLIC_KEY is that of --callout-issuer of the config service, --xkey that of --callout-xkey.
--callout-from-environment leaves both to the variables NATS_CALLOUT_ISSUER and NATS_CALLOUT_XKEY of the server.
--new-keys makes both pairs, writes the seeds to issuer.seed and xkey.seed, and prints these two options; it needs the
package pynacl. The tools may read the stores of the workers named here, and of --tools-store.

The streams are in the account RINGCAST, the workers in WORKERS, the user of the tools in TOOLS. NATS checks who may
publish a request, and not who may publish to where its answer is to go; but an answer to another account stays in that
account. So neither a worker nor a tool can have the server put an answer into a stream for it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ringcast_wire import InvalidInputError, limits, names
from ringcast_wire.permissions import (
    API,
    CONNECTIONS_REQUESTS,
    KICK_REQUESTS,
    SYSTEM,
    WORKER_API,
    User,
    Worker,
    agent_names,
    agent_user,
    callout_user,
    cluster_tools_user,
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
    f"{API}.STREAM.MSG.GET.*": "",
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
REPORT_REQUESTS = "config.report.>"
REPORTS = "config.reported.>"
"""What the config service and the tools ask of workers, and what these answer: from account to account, since no
message passes through two imports. An answer goes to both accounts, whichever of them asked."""
ASKERS = ("RINGCAST", "TOOLS")
MOST_CONNECTIONS = {"WORKERS": 9_000, "TOOLS": 100}
"""Of ``max_connections`` in nats.conf, so that there is always room for the config service."""
DYNAMIC_INBOXES = "*.*"
"""With the auth callout: where consumers push to, below the inboxes of all workers. Their names are not known here, and
a wildcard stands for no part of one. Each worker may listen to its own only; no other subject there has two parts."""
CALLOUT_ACCOUNT = "AUTH"
CALLOUT_TIMEOUT_S = 1.5
"""How long a server waits for the answer. After 2 s it pings the client, and the Python client takes a ping in place of
an answer for a login that worked."""
SYSTEM_EXPORTS = {CONNECTIONS_REQUESTS: STREAMED, KICK_REQUESTS: ""}
"""What the system's account does for the callout's."""
FOR_TOOLS = (f"{API}.STREAM.INFO.*", f"{API}.STREAM.MSG.GET.*", f"{API}.DIRECT.GET.>", "$KV.>", "config.fetch.>")
"""Those of them that the tools' account has, too."""


def entry(user: User, variable: str, nkey: str | None) -> Iterator[str]:
    """A user, as the server reads it; ``variable``: what its password comes from. Once for each of several keys."""
    if nkey and "," in nkey:
        for key in nkey.split(","):
            yield from entry(user, variable, key)
        return
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
    workers: Sequence[Worker],
    agents: Sequence[Worker],
    nkeys: Mapping[str, str],
    *,
    prefix: str,
    partitions: int,
    callout: str = "",
    xkey: str = "",
    tools_stores: Sequence[str] = (),
    cluster_tools: bool = False,
) -> Iterator[str]:
    """The lines of the accounts.

    Raises:
        InvalidInputError: a key is for nobody, or two workers would share an environment variable.
    """
    stores = sorted({*tools_stores, *(name for worker in (*workers, *agents) for name in worker.stores)})
    own, tools = service_user(), tools_user(stores)
    answers = [callout_user()] if callout else []
    found = {
        "WORKER_": [worker_user(worker, prefix=prefix, partitions=partitions) for worker in workers],
        "AGENT_": [agent_user(agent, prefix=prefix, partitions=partitions) for agent in agents],
    }
    theirs = [user for users_of_kind in found.values() for user in users_of_kind]
    answered = [worker.worker_id for worker in workers] + [name for agent in agents for name in agent_names(agent)]
    if twice := {name for name in answered if answered.count(name) > 1}:
        raise InvalidInputError(f"{min(twice)!r} would name two of the workers, the agents, and their workers")
    of_service = [own, cluster_tools_user(stores)] if cluster_tools else [own]
    variables = {user.name: variable_of(user) for user in (*of_service, tools, *answers)}
    variables |= {user.name: variable_of(user, kind) for kind, of_kind in found.items() for user in of_kind}
    named: dict[str, str] = {}
    for name, variable in variables.items():
        if (other := named.setdefault(variable, name)) != name:
            raise InvalidInputError(f"workers {other!r} and {name!r} would share the variable {variable}")
    if unknown := nkeys.keys() - variables.keys():
        raise InvalidInputError(f"nkey is given for {unknown.pop()!r}, which is no user here")
    inboxes = [DYNAMIC_INBOXES] if callout else [f"{names.inbox_prefix(name)}.>" for name in answered]
    yield "accounts: {"
    yield "  RINGCAST: {"
    # Room is reserved for each stream: one without a limit could take that of the leases.
    yield "    jetstream: { max_bytes_required: true }"
    yield from indented(4, users(of_service, variables, nkeys))
    yield "    exports: ["
    for subject, more in EXPORTS.items():
        to = "WORKERS, TOOLS" if subject in FOR_TOOLS else "WORKERS"
        yield f'      {{ service: "{subject}", {more + ", " if more else ""}accounts: [{to}] }}'
    yield f'      {{ service: "{REPORTS}", accounts: [WORKERS] }}'
    yield from (f'      {{ stream: "{subject}", accounts: [WORKERS] }}' for subject in (REPLAYS, *inboxes))
    yield "    ]"
    yield f'    imports: [ {{ service: {{ account: WORKERS, subject: "{REPORT_REQUESTS}" }} }} ]'
    yield "  }"
    yield "  WORKERS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['WORKERS']} }}"
    yield from indented(4, users(theirs, variables, nkeys))
    yield "    imports: ["
    yield from map(imported, EXPORTS)
    yield from (f'      {{ stream: {{ account: RINGCAST, subject: "{each}" }} }}' for each in (REPLAYS, *inboxes))
    yield from (f'      {{ service: {{ account: {asker}, subject: "{REPORTS}" }} }}' for asker in ASKERS)
    yield "    ]"
    yield f'    exports: [ {{ service: "{REPORT_REQUESTS}", accounts: [{", ".join(ASKERS)}] }} ]'
    yield "  }"
    yield "  TOOLS: {"
    yield f"    limits: {{ max_connections: {MOST_CONNECTIONS['TOOLS']} }}"
    yield from indented(4, users([tools], variables, nkeys))
    yield "    imports: ["
    yield from map(imported, FOR_TOOLS)
    yield f'      {{ service: {{ account: WORKERS, subject: "{REPORT_REQUESTS}" }} }}'
    yield "    ]"
    yield f'    exports: [ {{ service: "{REPORTS}", accounts: [WORKERS] }} ]'
    yield "  }"
    if not callout:
        yield f"  SYS: {{ users: [ {{ user: {SYSTEM}, password: $NATS_SYS_PASSWORD }} ] }}"
        yield "}"
        yield "system_account: SYS"
        return
    yield from indented(2, callout_accounts(answers, variables, nkeys))
    yield "}"
    yield "system_account: SYS"
    logins = (*of_service, tools, *answers, *theirs)
    known = [key for user in logins for key in nkeys.get(user.name, user.name).split(",")]
    yield "# Users that are not named here are those that the config service lets in. A change takes a restart."
    yield "authorization: {"
    yield f"  timeout: {CALLOUT_TIMEOUT_S}"
    yield "  auth_callout: {"
    yield f"    issuer: {callout}"
    yield f"    account: {CALLOUT_ACCOUNT}"
    yield f"    auth_users: [{', '.join((*known, SYSTEM))}]"
    if xkey:
        yield f"    xkey: {xkey}"
    yield "  }"
    yield "}"


def callout_accounts(answers: Sequence[User], variables: Mapping[str, str], nkeys: Mapping[str, str]) -> Iterator[str]:
    """The account of the callout, and the system's, which ends connections for it."""
    yield f"{CALLOUT_ACCOUNT}: {{"
    yield "  limits: { max_connections: 16 }"
    yield from indented(2, users(answers, variables, nkeys))
    yield "  imports: ["
    yield from (f'    {{ service: {{ account: SYS, subject: "{subject}" }} }}' for subject in SYSTEM_EXPORTS)
    yield "  ]"
    yield "}"
    yield "SYS: {"
    yield f"  users: [ {{ user: {SYSTEM}, password: $NATS_SYS_PASSWORD }} ]"
    yield "  exports: ["
    for subject, more in SYSTEM_EXPORTS.items():
        yield f'    {{ service: "{subject}", {more + ", " if more else ""}accounts: [{CALLOUT_ACCOUNT}] }}'
    yield "  ]"
    yield "}"


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


def new_keys(directory: Path) -> int:
    """Makes the keys of the auth callout; none that is there is written over."""
    from nacl.public import PrivateKey
    from nacl.signing import SigningKey
    from ringcast_wire.nats_keys import ACCOUNT, CURVE, encode_key, encode_seed

    signing, curve = SigningKey.generate(), PrivateKey.generate()
    pairs = (
        ("issuer", "--callout", ACCOUNT, bytes(signing), bytes(signing.verify_key)),
        ("xkey", "--xkey", CURVE, bytes(curve), bytes(curve.public_key)),
    )
    options = []
    for name, option, kind, seed, public in pairs:
        path = directory / f"{name}.seed"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(encode_seed(kind, seed) + "\n")
        except OSError as error:
            sys.stderr.write(f"make_accounts: {path} can't be written: {error.strerror}\n")
            return 2
        options.append(f"{option} {encode_key(kind, public)}")
    sys.stdout.write(" ".join(options) + "\n")
    return 0


def check_callout(issuer: str, xkey: str) -> None:
    """Looks whether both are public keys, where they are given.

    Raises:
        InvalidInputError: one is none.
    """
    for name, letter, key in (("callout", "A", issuer), ("xkey", "X", xkey)):
        if key and re.fullmatch(f"{letter}[A-Z2-7]{{55}}", key) is None:
            raise InvalidInputError(f"{name} {key!r} is no public key of NATS: 56 letters, the first {letter}")
    if xkey and not issuer:
        raise InvalidInputError("xkey is given without callout: it encrypts for the callout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workers", nargs="*", metavar="WORKER=STORE/KEY[,KEY...]")
    parser.add_argument("--partitions", type=int, default=limits.MAX_PARTITIONS)
    parser.add_argument("--consumer-prefix", default="ringcast")
    parser.add_argument("--agent", action="append", default=[], metavar="AGENT_ID=STORE/KEY[,KEY...]")
    parser.add_argument("--nkey", action="append", default=[], metavar="NAME=PUBLIC_KEY")
    parser.add_argument("--callout", default="", metavar="PUBLIC_KEY")
    parser.add_argument("--callout-from-environment", action="store_true")
    parser.add_argument("--xkey", default="", metavar="PUBLIC_KEY")
    parser.add_argument("--tools-store", action="append", default=[], metavar="STORE")
    parser.add_argument("--cluster-tools", action="store_true")
    parser.add_argument("--new-keys", type=Path, metavar="DIRECTORY")
    arguments = parser.parse_args()
    if arguments.new_keys is not None:
        return new_keys(arguments.new_keys)
    from_environment = arguments.callout_from_environment
    if from_environment and (arguments.callout or arguments.xkey):
        parser.error("--callout-from-environment is given, and --callout or --xkey too: one way is allowed")
    if not arguments.workers and not arguments.agent and not arguments.callout and not from_environment:
        parser.error("no worker and no agent is named")
    try:
        check_callout(arguments.callout, arguments.xkey)
        names.check_partition_count(arguments.partitions)
        prefix = names.check_name("consumer-prefix", arguments.consumer_prefix)
        nkeys = dict(nkey.partition("=")[::2] for nkey in arguments.nkey)
        workers, agents = parse_workers(arguments.workers), parse_workers(arguments.agent)
        lines = list(
            make(
                workers,
                agents,
                nkeys,
                prefix=prefix,
                partitions=arguments.partitions,
                callout="$NATS_CALLOUT_ISSUER" if from_environment else arguments.callout,
                xkey="$NATS_CALLOUT_XKEY" if from_environment else arguments.xkey,
                tools_stores=[names.check_name("tools-store", store) for store in arguments.tools_store],
                cluster_tools=arguments.cluster_tools,
            )
        )
    except InvalidInputError as error:
        sys.stderr.write(f"make_accounts: {error}\n")
        return 2
    sys.stdout.write("\n".join([f"# Printed by: make_accounts.py {shlex.join(sys.argv[1:])}", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
