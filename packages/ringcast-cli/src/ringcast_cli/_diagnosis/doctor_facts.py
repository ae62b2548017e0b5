"""What ``ringcast doctor`` looks at. Nothing is written, and what can't be looked at is said."""

from __future__ import annotations

import asyncio
import ssl
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ringcast.fleet import FleetReader, KeyLag
from ringcast.login import resolve_login
from ringcast_client import ConfigServiceClient, StoreInfo
from ringcast_wire import NatsLogin, PermissionDeniedError, RingcastError, UnauthenticatedError, without_passwords

from ringcast_cli._common.client import service_client
from ringcast_cli._common.config import CliConfig
from ringcast_cli._common.services import found_services
from ringcast_cli._diagnosis.doctor import is_local, split_address
from ringcast_cli._diagnosis.doctor_model import Facts, SeenCertificate, SeenFile, SeenMember, SeenService, Waiting

T = TypeVar("T")

_SECRETS_OF_NATS: Final = ("password_file", "credentials_file", "nkey_seed_file", "tls_key_file")
_NATS_PORT: Final = 4222
"""Of an address of NATS that names none; that of a config service always does."""
_MOST_LETTERS: Final = 1_000
"""Dead letters that are counted where the service does not tell their number."""
_MOST_CERTIFICATES_BYTES: Final = 64 * 1024


async def gather(config: CliConfig, only: str | None, patience_s: float) -> Facts:
    """Looks at everything; ``only``: at this store alone. Raises nothing for what is down or not allowed."""
    problems: dict[str, str] = {}
    given, config = config, replace(config, key_ring="")  # nobody needs a value
    login = _login(problems)
    if not config.service:
        config = replace(config, service=await _tried("services", problems, lambda: _found(config)) or "")
    services = [await _service(config, address) for address in _addresses(config)]
    found = Facts(time.time(), tuple(services), problems=problems)
    found = await _of_stores(config, only, found)
    found = replace(found, **await _of_bus(config, login, problems))
    lags, lags_at_s = await _lags(config, found, patience_s)
    members = await _tried("members", problems, lambda: _members(config))
    return replace(
        found,
        lags=lags,
        lags_at_s=lags_at_s,
        members=members,
        files=tuple(_files(given, login)),
        certificates=tuple([each async for each in _certificates(config, login)]),
        clear=tuple(_clear(config, login)),
    )


async def _found(config: CliConfig) -> str:
    """Where the config services are that are registered in the cluster."""
    async with found_services(config) as addresses:
        return ",".join(addresses())


def _addresses(config: CliConfig) -> list[str]:
    return config.service.split(",") if config.service else []


async def _tried(name: str, problems: dict[str, str], look: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await look()
    except RingcastError as error:
        problems[name] = str(error)
        return None


def _login(problems: dict[str, str]) -> NatsLogin | None:
    try:
        return resolve_login()
    except RingcastError as error:
        problems["bus"] = str(error)
        return None


async def _service(config: CliConfig, address: str) -> SeenService:
    """Asks one address what it is."""
    try:
        async with service_client(replace(config, service=address)) as client:
            await client.who_am_i()  # connects, and is refused to nobody who is let in
            asked_at_s = time.time()
            try:
                status = await client.service_status()
            except PermissionDeniedError as error:
                return SeenService(address, True, problem=str(error))
            took_s = time.time() - asked_at_s
    except UnauthenticatedError as error:
        return SeenService(address, True, problem=str(error), refused=True)
    except RingcastError as error:
        return SeenService(address, False, problem=str(error))
    clock_s = status.now_ms / 1000 - (asked_at_s + took_s / 2)
    return SeenService(address, True, status, "", clock_s, took_s / 2)


async def _of_stores(config: CliConfig, only: str | None, found: Facts) -> Facts:
    """What the config service says of stores, roles and dead letters."""
    problems: Any = found.problems

    async def stores(client: ConfigServiceClient) -> tuple[StoreInfo, ...]:
        return (await client.get_store(only),) if only is not None else tuple(await client.list_stores())

    try:
        async with service_client(config) as client:
            me = await _tried("me", problems, client.who_am_i)
            named = await _tried("stores", problems, lambda: stores(client))
            roles = await _tried("roles", problems, client.list_roles)
            letters: dict[str, Waiting | str] = {}
            for store in named or ():
                try:
                    letters[store.name] = await _waiting(client, store.name, found)
                except RingcastError as error:
                    letters[store.name] = str(error)
    except RingcastError as error:  # the login does not go with the address
        for name in ("me", "stores", "roles"):
            problems.setdefault(name, str(error))
        return found
    return replace(
        found,
        me=me,
        stores=named,
        roles=None if roles is None else tuple(roles),
        dead_letters=letters,
    )


async def _waiting(client: ConfigServiceClient, store: str, found: Facts) -> Waiting:
    """How many dead letters wait."""
    for stream in found.streams or ():
        if (stream.store, stream.kind, stream.problem) == (store, "dead_letters", ""):
            return Waiting(stream.messages)  # half a minute old at most
    count = len([letter async for letter in client.dead_letters(store, limit=_MOST_LETTERS)])
    return Waiting(count, more=count == _MOST_LETTERS)


async def _of_bus(config: CliConfig, login: NatsLogin | None, problems: dict[str, str]) -> dict[str, Any]:
    """Whether NATS answers."""
    if login is None:
        return {"bus": None}
    try:
        async with FleetReader.open(config.servers, timeout_s=config.timeout_s) as reader:
            return {"bus": True, "leases": await reader.leases()}
    except RingcastError as error:
        problems["bus"] = str(error)
        return {"bus": False}


async def _lags(
    config: CliConfig, found: Facts, patience_s: float
) -> tuple[dict[tuple[str, str], KeyLag | str], dict[tuple[str, str], float]]:
    """How far the workers of each key are, and when they said so."""
    places = [(store.name, key.name) for store in found.stores or () for key in store.keys if key.deletion is None]
    lags: dict[tuple[str, str], KeyLag | str] = {}
    at_s: dict[tuple[str, str], float] = {}
    if not found.bus:
        return dict.fromkeys(places, found.why("bus")), at_s
    try:
        async with FleetReader.open(config.servers, timeout_s=config.timeout_s) as reader:
            for place in places:
                try:
                    lags[place] = await reader.lag(*place, patience_s=patience_s)
                    at_s[place] = time.time()
                except RingcastError as error:
                    lags[place] = str(error)
    except RingcastError as error:
        return dict.fromkeys(places, str(error)) | lags, at_s
    return lags, at_s


async def _members(config: CliConfig) -> tuple[SeenMember, ...]:
    from ringcast_meta.cluster import members_of

    from ringcast_cli._fleet.members import read_cluster

    return tuple(
        SeenMember(
            str(member.kind),
            member.id,
            member.record.version if member.record is not None else "",
            member.report_age_s if member.stale and member.record is not None else None,
            member.problem,
        )
        for member in members_of(await read_cluster(config))
    )


# ---- this host


def _files(config: CliConfig, login: NatsLogin | None) -> Iterator[SeenFile]:
    named = {
        "service_token_file": config.service_token_file,
        "service_tls_key_file": config.service_tls_key_file,
        "key_ring": config.key_ring,
        "agent_token_file": config.agent_token_file,
        "etcd_password_file": config.etcd_password_file,
        "etcd_tls_key_file": config.etcd_tls_key_file,
    }
    if login is not None:
        named |= {f"nats {name}": getattr(login, name) for name in _SECRETS_OF_NATS}
    for setting, path in named.items():
        if path:
            try:
                yield SeenFile(setting, path, stat.S_IMODE(Path(path).stat().st_mode))
            except OSError as error:
                yield SeenFile(setting, path, None, error.strerror or str(error))


def _clear(config: CliConfig, login: NatsLogin | None) -> Iterator[str]:
    service_tls = bool(config.service_tls_ca_file or config.service_tls_cert_file)
    for address in _addresses(config):
        if not (service_tls or address.startswith("tls://") or is_local(address)):
            yield f"config service {address}"
    nats_tls = login is not None and bool(login.tls_ca_file or login.tls_cert_file)
    for server in config.servers:
        if not (nats_tls or server.startswith(("tls://", "wss://")) or is_local(server)):
            yield f"NATS {without_passwords([server])}"


async def _certificates(config: CliConfig, login: NatsLogin | None) -> Any:
    """Those that servers show, and our own."""
    service = (config.service_tls_ca_file, config.service_tls_cert_file, config.service_tls_key_file)
    for address in _addresses(config):
        if any(service) or address.startswith("tls://"):
            yield await _shown(f"certificate of config service {address}", address, service, config.timeout_s, ["h2"])
    if login is not None:
        nats = (login.tls_ca_file, login.tls_cert_file, login.tls_key_file)
        for server in config.servers:
            if any(nats) or server.startswith("tls://"):
                about = f"certificate of NATS {without_passwords([server])}"
                yield await _shown(about, server, nats, config.timeout_s, [])
    own = {"service_tls_cert_file": config.service_tls_cert_file}
    if login is not None:
        own["nats tls_cert_file"] = login.tls_cert_file
    for setting, path in own.items():
        if path:
            yield _own(f"{setting} {path}", path)


async def _shown(
    about: str, address: str, files: tuple[str, str, str], timeout_s: float, protocols: list[str]
) -> SeenCertificate:
    """When the certificate ends that a server shows, once it is found to be good."""
    ca, cert, key = files
    try:
        place = split_address(address)
        context = ssl.create_default_context(cafile=ca or None)
        if protocols:
            context.set_alpn_protocols(protocols)
        if cert:
            context.load_cert_chain(cert, key)
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(place.hostname, place.port or _NATS_PORT, ssl=context)
        shown = writer.get_extra_info("peercert")
        writer.transport.abort()
    except ssl.SSLCertVerificationError as error:
        return SeenCertificate(about, None, f"it does not hold: {error.verify_message}", bad=True)
    except (OSError, ValueError, TimeoutError) as error:
        return SeenCertificate(about, None, str(error) or "no answer in time")
    return SeenCertificate(about, ssl.cert_time_to_seconds(shown["notAfter"]))


def _own(about: str, path: str) -> SeenCertificate:
    from cryptography import x509  # takes time to load

    try:
        with Path(path).open("rb") as file:
            found = x509.load_pem_x509_certificates(file.read(_MOST_CERTIFICATES_BYTES))
    except (OSError, ValueError) as error:
        return SeenCertificate(about, None, str(error))
    return SeenCertificate(about, min(each.not_valid_after_utc.timestamp() for each in found))
