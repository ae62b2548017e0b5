"""What ``ringcast doctor`` concludes: each check is a function of what was found, and gives findings."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from ringcast.fleet import KeyLag
from ringcast_client import StreamStatus
from ringcast_wire import Mode, Role

from ringcast_cli._diagnosis.doctor_model import Facts, Finding, Result

MAX_SKEW_S: Final = 5.0
"""A clock that differs by more is worth a warning: what is stamped by one host is compared with that of another."""
NEAR: Final = 0.9
"""From this share of a limit on."""
BEHIND_S: Final = 30.0
"""A worker that has not applied a change which is older lags."""
OLD_MS: Final = 180_000
"""What a config service knows of NATS, and has not looked at for longer, may not be so any more."""
EXPIRES_S: Final = 14 * 86_400.0
"""A certificate that ends sooner is to be replaced."""
_NOT_LISTED: Final = 20
"""Partitions, workers or ids that a sentence names."""

Check = Callable[[Facts], Iterator[Finding]]


def _ok(about: str, sentence: str) -> Finding:
    return Finding(Result.OK, about, sentence)


def _warning(about: str, sentence: str, todo: str, runbook: str = "") -> Finding:
    return Finding(Result.WARNING, about, sentence, todo, runbook)


def _failure(about: str, sentence: str, todo: str, runbook: str = "") -> Finding:
    return Finding(Result.FAILURE, about, sentence, todo, runbook)


def _unknown(about: str, why: str, todo: str = "") -> Finding:
    return Finding(Result.UNKNOWN, about, f"could not be checked: {why}", todo)


def some(items: Sequence[object]) -> str:
    """The first of them, with commas between."""
    shown = ", ".join(str(each) for each in items[:_NOT_LISTED])
    return shown + (f" and {len(items) - _NOT_LISTED} more" if len(items) > _NOT_LISTED else "")


_AS_ADMIN: Final = "call it as an admin of '*'"

# ---- config services


def services_answer(facts: Facts) -> Iterator[Finding]:
    """Each address has an instance that serves reads, writes and the bus."""
    if not facts.services:
        yield _failure("config services", facts.why("services"), "see whether they run", "ringcastservicedown")
    for seen in facts.services:
        about = f"config service {seen.address}"
        if not seen.reachable:
            todo = "start it, or name the right address with --service"
            yield _failure(about, seen.problem, todo, "ringcastservicedown")
        elif seen.refused:
            todo = "give this client a token or certificate that it lets in (RINGCAST_SERVICE_TOKEN_FILE, …)"
            yield _failure(about, f"it does not let this client in: {seen.problem}", todo)
        elif seen.status is None:
            yield _unknown(f"state of {about}", seen.problem, _AS_ADMIN)
        elif seen.status.not_served:
            parts = ", ".join(seen.status.not_served)
            todo = "look at its log for event=health.changed"
            yield _failure(about, f"it does not serve {parts}", todo, "ringcastservicedisconnected")
        else:
            yield _ok(about, f"it serves reads and writes, and reaches NATS; version {seen.status.version}")


def versions_agree(facts: Facts) -> Iterator[Finding]:
    """All instances, agents and workers are of one version."""
    found: dict[str, list[str]] = {}
    for seen in facts.services:
        if seen.status is not None:
            found.setdefault(seen.status.version, []).append(seen.address)
    for member in facts.members or ():
        if member.version:
            found.setdefault(member.version, []).append(f"{member.kind} {member.id}")
    for lag in _lags(facts):
        for worker in lag.workers:
            if worker.build and f"worker {worker.worker_id}" not in found.setdefault(worker.build, []):
                found[worker.build].append(f"worker {worker.worker_id}")
    if not found:
        yield _unknown("versions", "no process said its version")
    elif len(found) == 1:
        yield _ok("versions", f"all that answered have {next(iter(found))}")
    else:
        said = "; ".join(f"{version}: {some(who)}" for version, who in sorted(found.items()))
        yield _warning("versions", f"several are in use ({said})", "finish the upgrade")


def clocks_agree(facts: Facts) -> Iterator[Finding]:
    """The clocks of services and workers are close to this host's."""
    looked, far = 0, []
    for seen in facts.services:
        if seen.status is not None:
            looked += 1
            if abs(seen.clock_s) - seen.within_s > MAX_SKEW_S:
                far.append(f"config service {seen.address} by {seen.clock_s:+.0f} s")
    for lag in _lags(facts):
        at_s = facts.lags_at_s.get((lag.store, lag.key), facts.now_s)
        for worker in lag.workers:
            if worker.clock_s:
                looked += 1
                ahead_s = worker.clock_s - at_s
                if abs(ahead_s) - lag.took_s > MAX_SKEW_S:  # it answered while the answers were waited for
                    far.append(f"worker {worker.worker_id} by {ahead_s:+.0f} s")
    if not looked:
        yield _unknown("clocks", "no process said what time it has")
    elif far:
        todo = "set the clocks by NTP: ages, expiry of tokens and audit times are wrong"
        yield _warning("clocks", f"they differ from that of this host: {some(sorted(set(far)))}", todo)
    else:
        yield _ok("clocks", f"those of {looked} processes are close to that of this host")


def stores_are_provided_for(facts: Facts) -> Iterator[Finding]:
    """The service has made the streams and buckets of each store."""
    status = facts.status
    if status is None:
        yield _unknown("streams of stores", "no config service says")
        return
    for store, why in status.problems.items():
        todo = "do what the sentence says; the service tries again every half minute"
        yield _failure(f"store {store}", why, todo, "ringcaststorenotprovisioned")
    if not status.problems:
        yield _ok("streams of stores", "they are as the config service wants them")


# ---- NATS


def nats_answers(facts: Facts) -> Iterator[Finding]:
    """NATS takes the login of this command, and has JetStream."""
    if facts.bus is None:
        yield _unknown("NATS", facts.why("bus"))
    elif not facts.bus:
        todo = "start NATS, name it with --servers, or correct the login (RINGCAST_USER, RINGCAST_CREDENTIALS_FILE, …)"
        yield _failure("NATS", facts.why("bus"), todo, "ringcaststreamsilent")
    elif facts.leases is None:
        todo = "start a config service: it makes the buckets"
        yield _warning("NATS", "it answers, and has no bucket of leases", todo)
    else:
        yield _ok("NATS", f"it takes this login and has JetStream; {facts.leases} processes have a lease")


def streams_are_well(facts: Facts) -> Iterator[Finding]:
    """Each stream answers, and has the settings, the room and the copies that it should have."""
    streams, status = facts.streams, facts.status
    if streams is None or status is None:
        yield _unknown("streams", "no config service says how they are")
        return
    bad = 0
    for stream in streams:
        for finding in _of_stream(stream, status.replicas):
            bad += 1
            yield finding
    seen = {stream.store for stream in streams} | status.problems.keys()
    if unseen := [store.name for store in facts.stores or () if store.name not in seen]:
        bad += 1
        todo = "look again in half a minute: the service looks so often, if it reaches its database and NATS"
        yield _unknown(f"streams of {some(unseen)}", "the config service has not looked at them yet", todo)
    if not bad:
        yield _ok("streams", f"{len(streams)} have a leader, their copies, and the settings that they should have")


def _of_stream(stream: StreamStatus, replicas: int) -> Iterator[Finding]:
    about = f"stream {stream.name}"
    if stream.problem:
        make = _warning if stream.kind == "groups" else _failure  # a store is served without that one
        yield make(about, stream.problem, "start the servers of NATS that are away", "ringcaststreamsilent")
        return
    if stream.age_ms > OLD_MS:
        said = f"what is known of it is {stream.age_ms / 1_000:.0f} s old"
        todo = "see whether the config service reaches NATS and its database: it looks every half minute"
        yield _warning(about, said, todo, "ringcastjetstreamunseen")
    if stream.differs:
        todo = "look at the service's log for event=provision.failed"
        said = f"its settings {', '.join(stream.differs)} are not as they should be"
        yield _warning(about, said, todo, "ringcaststorenotprovisioned")
    elif stream.max_bytes < stream.wanted_bytes:
        said = f"it has {stream.max_bytes} bytes of room, and should have {stream.wanted_bytes}"
        yield _warning(about, said, "give JetStream more room", "ringcastjetstreamnearlyfull")
    if stream.replicas_behind:
        todo = "start the server of NATS that is away, or wait until it has caught up"
        said = f"{stream.replicas_behind} of its {stream.replicas} copies are away or not up to date"
        yield _warning(about, said, todo, "ringcaststreamreplicasbehind")
    if stream.replicas < replicas:
        said = f"it has {stream.replicas} copies, and the config service makes streams with {replicas}"
        yield _warning(about, said, "raise its number of replicas with a tool for NATS: the service does not")


def nothing_is_nearly_full(facts: Facts) -> Iterator[Finding]:
    """No bucket that refuses what does not fit, and no limit of consumers or room, is almost reached."""
    streams, status = facts.streams, facts.status
    if streams is None or status is None:
        yield _unknown("room of NATS", "no config service says how full it is")
        return
    found = []
    for stream in streams:
        if stream.refuses and stream.max_bytes and stream.bytes >= NEAR * stream.max_bytes:
            said = f"it has {stream.bytes} of {stream.max_bytes} bytes, and refuses what does not fit"
            todo = "raise its size at the config service"
            found.append(_warning(f"stream {stream.name}", said, todo, "ringcaststreamnearlyfull"))
        if stream.consumers >= NEAR * stream.consumer_limit:
            make = _failure if stream.consumers >= stream.consumer_limit else _warning
            said = f"it has {stream.consumers} of {stream.consumer_limit} consumers: the next workers get none"
            todo = "raise default_max_consumers in the block jetstream of every server"
            found.append(make(f"stream {stream.name}", said, todo, "ringcastconsumersnearlimit"))
    account = status.jetstream
    if account is None:
        yield _unknown("room of the account at NATS", status.jetstream_problem)
    else:
        for what, used, limit, runbook in (
            ("bytes of disk are reserved", account.disk_reserved, account.disk_limit, "ringcastjetstreamnearlyfull"),
            ("bytes of memory are used", account.memory_used, account.memory_limit, "ringcastjetstreamnearlyfull"),
            ("consumers are there", account.consumers, account.consumer_limit, "ringcastaccountconsumersnearlimit"),
            ("streams are there", account.streams, account.stream_limit, "ringcaststorenotprovisioned"),
        ):
            if limit and used >= NEAR * limit:
                said = f"{used} of {limit} {what}"
                found.append(_warning("account at NATS", said, "raise the limit of the account", runbook))
        if status.jetstream_problem:
            found.append(_unknown("room of the account at NATS", status.jetstream_problem))
    yield from found
    if not found and account is not None:
        yield _ok("room of NATS", "no bucket and no limit that NATS tells of is 90 % full; it does not tell its disk")


# ---- stores and workers


def _lags(facts: Facts) -> list[KeyLag]:
    return [lag for lag in facts.lags.values() if isinstance(lag, KeyLag)]


def stores_can_be_read(facts: Facts) -> Iterator[Finding]:
    """It is known which stores and keys there are."""
    if facts.stores is None:
        yield _unknown("stores, workers and dead letters", facts.why("stores"))
    elif not facts.stores:
        yield _ok("stores", "there is none that this client may read")


def workers_are_well(facts: Facts) -> Iterator[Finding]:
    """Every worker answers, each partition has an owner, nothing lags or is blocked."""
    for (store, key), lag in facts.lags.items():
        about = f"workers of {store}/{key}"
        if isinstance(lag, str):
            yield _unknown(about, lag)
            continue
        found = list(_of_key(about, lag))
        yield from found
        if not found:
            yield _ok(about, f"{len(lag.workers)} have all partitions, and lack {lag.behind or 0} revisions")


def _of_key(about: str, lag: KeyLag) -> Iterator[Finding]:
    workers = [each for each in lag.workers if each.kind != "observer"]
    if not workers:
        todo = "start workers, or delete the key if nobody needs it"
        yield _warning(about, "there is none: changes reach nobody", todo, "ringcastnoworkers")
        return
    if lag.unowned and lag.settings.mode is Mode.PARTITIONED:
        said = f"no worker that answered owns {len(lag.unowned)} of {lag.settings.partition_count} partitions"
        todo = "wait 12 s if a worker has just ended; else restart the workers that don't answer or have a problem"
        yield _failure(about, said, todo, "ringcastpartitionswithoutowner")
    for worker in lag.workers:
        one = f"worker {worker.worker_id} of {lag.store}/{lag.key}"
        if worker.problem:
            place = f" (process {worker.pid} on {worker.host})" if worker.pid is not None else ""
            yield _failure(one, worker.problem + place, "look at its log and its host", "ringcastkeyfailing")
        if worker.blocked:
            said = f"it holds {worker.blocked} rows back; the last error was {worker.last_error or 'not said'}"
            yield _failure(one, said, "mend its handler, then call Worker.unblock", "ringcastrowsblocked")
        if worker.oldest_s > BEHIND_S:
            said = f"a change has waited {worker.oldest_s:.0f} s, and it lacks {worker.behind} revisions"
            yield _failure(one, said, "see what its handler waits for", "ringcastchangeslate")
        if worker.stale_s > BEHIND_S:
            said = f"it may have missed the changes of {worker.stale_s:.0f} s"
            yield _failure(one, said, "see whether it reaches NATS and the config service", "ringcastworkerstale")
    for worker_id, why in lag.unreadable.items():
        todo = "bring it to the version of the others"
        yield _failure(f"worker {worker_id} of {lag.store}/{lag.key}", f"its answer can't be read: {why}", todo)
    if lag.left_out:
        said = f"{lag.left_out} answers came twice: two processes may have one worker id"
        yield _failure(about, said, "give each process an id of its own", "ringcastworkerlost")
    if lag.behind is None:
        yield _unknown(about, "no config service says which revisions there are, or a worker has not answered")


def histories_agree(facts: Facts) -> Iterator[Finding]:
    """Workers have the history of their key that the service has."""
    looked, agree = 0, True
    for lag in _lags(facts):
        for worker in lag.workers:
            if not worker.history or not lag.history:
                continue
            looked += 1
            if worker.history != lag.history:
                agree = False
                todo = "wait until it has fetched all rows again; if it refuses to, see max_delete_share"
                about = f"worker {worker.worker_id} of {lag.store}/{lag.key}"
                said = "it has another history of the key than the config service"
                yield _failure(about, said, todo, "ringcasthistoryrefused")
    if looked and agree:
        yield _ok("histories", f"{looked} workers have that of the config service")
    elif not looked and facts.stores:
        yield _unknown("histories", "no worker, or no config service, said which history it has")


def no_dead_letters_wait(facts: Facts) -> Iterator[Finding]:
    """No change was given up that nobody has looked after."""
    for store, count in facts.dead_letters.items():
        if isinstance(count, str):
            yield _unknown(f"dead letters of {store}", count)
        elif count.count:
            todo = f"see ringcast dead-letters list {store}, mend the handler, then replay them"
            yield _warning(f"dead letters of {store}", f"{count} wait", todo, "ringcastchangesdropped")
        else:
            yield _ok(f"dead letters of {store}", "none waits")


def migrations_are_finished(facts: Facts) -> Iterator[Finding]:
    """No store stands in the middle of a migration."""
    for store in facts.stores or ():
        step = store.migration
        if step is not None and step.stage not in ("off", "finish"):
            todo = f"see ringcast store migrate {store.name} --status, then take the next step or go back"
            yield _warning(f"store {store.name}", f"it stands at stage {step.stage} of its migration", todo)


def members_report(facts: Facts) -> Iterator[Finding]:
    """Services and agents that are registered in the cluster report."""
    if facts.members is None:
        yield _unknown("agents and other config services", facts.why("members"), "name it with --cluster-store")
        return
    bad = [each for each in facts.members if each.silent_s is not None or each.problem]
    for each in bad:
        runbook = "ringcastagentdown" if each.kind == "agent" else "ringcastservicedown"
        said = each.problem or f"it has not reported for {each.silent_s:.0f} s"
        yield _failure(f"{each.kind} {each.id}", said, "see whether its process runs and is not halted", runbook)
    if not bad:
        yield _ok("cluster", f"all {len(facts.members)} services and agents report")


# ---- access


def roles_are_granted(facts: Facts) -> Iterator[Finding]:
    """There is an admin, and nothing is open to everybody."""
    if facts.me is None:
        yield _unknown("roles", facts.why("me"))
        return
    if facts.me.unrestricted:
        if all(is_local(each.address) for each in facts.services):
            yield _ok("roles", "none is granted, and only this machine reaches the config service at these addresses")
        else:
            todo = "grant yourself the first: ringcast role grant PRINCIPAL admin '*'"
            yield _warning("roles", "none is granted: everybody who is let in may do everything", todo)
        return
    if facts.roles is None:
        yield _unknown("roles", facts.why("roles"), _AS_ADMIN)
        return
    admins = [each for each in facts.roles if each.role is Role.ADMIN and each.store == "*"]
    wide = [each for each in facts.roles if each.principal == "*" and each.role is not Role.READER]
    for each in wide:
        todo = f"ringcast role revoke '*' {each.role} '{each.store}'"
        yield _failure("roles", f"everybody who is let in is {each.role} of {each.store}", todo)
    if not admins:
        yield _unknown("roles", "this client is no admin of '*', and sees no one who is", _AS_ADMIN)
    elif not wide:
        yield _ok("roles", f"{len(admins)} principals are admin of '*', and nobody is writer by being let in")


def nothing_goes_in_the_clear(facts: Facts) -> Iterator[Finding]:
    """Addresses of other machines are used with TLS."""
    for address in facts.clear:
        todo = "use TLS: begin the address with tls:// and see docs/deployment.md"
        yield _warning(address, "it is another machine, and is used without TLS", todo)
    if not facts.clear:
        yield _ok("TLS", "it is used with every address of another machine")


def secrets_are_kept(facts: Facts) -> Iterator[Finding]:
    """Files with keys, tokens and passwords are for their owner alone."""
    for file in facts.files:
        about = f"{file.setting} {file.path}"
        if file.mode is None:
            yield _unknown(about, file.problem)
        elif file.mode & 0o077:
            make = _failure if file.mode & 0o007 else _warning
            who = "everybody" if file.mode & 0o007 else "its group"
            yield make(about, f"it is open to {who} on this host (mode {file.mode:04o})", f"chmod 600 {file.path}")
        else:
            yield _ok(about, "only its owner can read it")


def certificates_last(facts: Facts) -> Iterator[Finding]:
    """No certificate ends soon."""
    for certificate in facts.certificates:
        about, ends_s = certificate.about, certificate.ends_s
        todo = "replace it: see docs/deployment.md, section TLS"
        if ends_s is None and certificate.bad:
            yield _failure(about, certificate.problem, todo)
        elif ends_s is None:
            yield _unknown(about, certificate.problem)
        elif ends_s <= facts.now_s:
            yield _failure(about, "it has expired", todo)
        elif ends_s <= facts.now_s + EXPIRES_S:
            yield _warning(about, f"it ends in {(ends_s - facts.now_s) / 86_400:.1f} days", todo)
        else:
            yield _ok(about, f"it is good for {(ends_s - facts.now_s) / 86_400:.0f} days")


CHECKS: Final[tuple[Check, ...]] = (
    *(services_answer, versions_agree, clocks_agree, stores_are_provided_for),
    *(nats_answers, streams_are_well, nothing_is_nearly_full),
    *(stores_can_be_read, workers_are_well, histories_agree, no_dead_letters_wait, migrations_are_finished),
    *(members_report, roles_are_granted, nothing_goes_in_the_clear, secrets_are_kept, certificates_last),
)


def diagnose(facts: Facts) -> list[tuple[str, Finding]]:
    """Every finding of every check, with the name of the check."""
    return [(check.__name__, finding) for check in CHECKS for finding in check(facts)]


def is_local(address: str) -> bool:
    """Whether an address, a URL or HOST:PORT, is of this machine."""
    try:
        host = split_address(address).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> SplitResult:
    """The parts of a URL or HOST:PORT.

    Raises:
        ValueError: it is neither.
    """
    return urlsplit(address if "://" in address else f"//{address}")
