"""Settings of the command line: flag, then environment (RINGCAST_*), then file (TOML), then default."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringcast_wire import InvalidInputError, check_reason, names, shown
from ringcast_wire.addresses import service_addresses

ENV_PREFIX: Final = "RINGCAST_"
CONFIG_FILE_VARIABLE: Final = "RINGCAST_CLI_CONFIG_FILE"
"""Not ``RINGCAST_CONFIG_FILE``, which names the file of the workers."""
_MAX_FILE_BYTES: Final = 64 * 1024
_MAX_SERVERS: Final = 64
_MAX_TIMEOUT_S: Final = 3600.0
_MAX_USER_CHARS: Final = 256
_MAX_STORE_CHARS: Final = 2048


DEFAULT_SERVICE: Final = "127.0.0.1:7420"
"""Where ``ringcast up`` has the config service."""


@dataclass(frozen=True, slots=True)
class CliConfig:
    """Every setting, resolved."""

    servers: tuple[str, ...]
    service: str
    """Addresses with commas between; empty: those that are registered in ``cluster_store``."""
    service_tls_ca_file: str
    service_tls_cert_file: str
    service_tls_key_file: str
    service_token_file: str
    reason: str
    key_ring: str
    agent_url: str
    agent_token_file: str
    cluster_store: str
    etcd_user: str
    etcd_password_file: str
    etcd_tls_ca_file: str
    etcd_tls_cert_file: str
    etcd_tls_key_file: str
    timeout_s: float
    json: bool
    data_dir: Path
    nats_port: int
    grpc_port: int
    worker_id: str | None


@dataclass(frozen=True, slots=True)
class _Setting:
    parse: Callable[[str, Any], Any]
    default: Callable[[Mapping[str, str]], Any]


def resolve(flags: Mapping[str, Any], env: Mapping[str, str] | None = None) -> CliConfig:
    """Resolves all settings. ``flags`` holds what the command line gave; ``config_file`` in it names the file.

    Raises:
        InvalidInputError: a value breaks a rule (the message says where it came from), or the file can't be read.
    """
    env = os.environ if env is None else env
    path, in_file = _read_file(flags, env)
    resolved: dict[str, Any] = {}
    by_default = set()
    for name, setting in _SETTINGS.items():
        variable = ENV_PREFIX + name.upper()
        if flags.get(name) is not None:
            raw, source = flags[name], None
        elif env.get(variable):
            raw, source = env[variable], f"environment variable {variable}"
        elif name in in_file:
            raw, source = in_file[name], f"file {path}"
        else:
            raw, source = setting.default(env), None
            by_default.add(name)
        try:
            resolved[name] = setting.parse(name, raw)
        except InvalidInputError as error:
            where = f" ({source})" if source else ""
            raise InvalidInputError(f"{error}{where}", field=name) from None
    if "service" in by_default and resolved["cluster_store"]:
        resolved["service"] = ""  # an address that was given counts, wherever the store was named
    return CliConfig(**resolved)


def default_config_path(env: Mapping[str, str]) -> Path:
    """``~/.config/ringcast/config.toml``, or what XDG_CONFIG_HOME says."""
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home(env) / ".config") / "ringcast" / "config.toml"


def default_data_dir(env: Mapping[str, str]) -> Path:
    """``~/.local/share/ringcast``, or what XDG_DATA_HOME says: the same wherever ``ringcast up`` is called from."""
    base = env.get("XDG_DATA_HOME")
    return (Path(base) if base else _home(env) / ".local" / "share") / "ringcast"


def _home(env: Mapping[str, str]) -> Path:
    return Path(env["HOME"]) if env.get("HOME") else Path.home()


def _read_file(flags: Mapping[str, Any], env: Mapping[str, str]) -> tuple[Path, dict[str, Any]]:
    named = flags.get("config_file") or env.get(CONFIG_FILE_VARIABLE)
    path = Path(named) if named else default_config_path(env)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        if named:
            raise InvalidInputError(f"config {path} does not exist", field="config_file") from None
        return path, {}
    except OSError as error:
        raise InvalidInputError(f"config {path} can't be read: {error.strerror}", field="config_file") from None
    if len(data) > _MAX_FILE_BYTES:
        raise InvalidInputError(f"config {path} is larger than {_MAX_FILE_BYTES} bytes", field="config_file")
    try:
        settings = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"config {path} is not valid TOML: {error}", field="config_file") from None
    for name in settings:
        if name not in _SETTINGS:
            known = ", ".join(_SETTINGS)
            raise InvalidInputError(f"config {path} has the unknown setting {name!r}: known are {known}", field=name)
    return path, settings


def _servers(name: str, raw: Any) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise InvalidInputError(f"{name} {shown(raw)} is not a list of addresses", field=name)
    servers = tuple(part.strip() for part in parts if part.strip())
    if not 1 <= len(servers) <= _MAX_SERVERS:
        raise InvalidInputError(f"{name} has {len(servers)} addresses: 1 to {_MAX_SERVERS} are allowed", field=name)
    for server in servers:
        if not server.startswith(("nats://", "tls://", "ws://", "wss://")):
            raise InvalidInputError(f"{name} {shown(server)} is not a NATS address like nats://host:4222", field=name)
    return servers


def _service(name: str, raw: Any) -> str:
    return ",".join(service_addresses(str(raw), name))


def _agent_url(name: str, raw: Any) -> str:
    host, _, port = str(raw).removeprefix("http://").removesuffix("/").rpartition(":")
    if isinstance(raw, str) and raw.startswith("http://") and host and "/" not in host and port.isdecimal():
        return raw.removesuffix("/")
    raise InvalidInputError(f"{name} {shown(raw)} is not an address like http://127.0.0.1:3500", field=name)


def _timeout(name: str, raw: Any) -> float:
    try:
        value = float(raw)
    except (TypeError, ValueError):
        value = -1.0
    if isinstance(raw, bool) or not 0 < value <= _MAX_TIMEOUT_S:
        raise InvalidInputError(
            f"{name} {shown(raw)} is out of range: a number of seconds above 0 and up to {_MAX_TIMEOUT_S:g} is allowed",
            field=name,
        )
    return value


def _port(name: str, raw: Any) -> int:
    text = str(raw)
    if isinstance(raw, bool) or not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise InvalidInputError(f"{name} {shown(raw)} is out of range: 0 to 65535 is allowed (0: any free)", field=name)
    return int(text)


def _boolean(name: str, raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(raw, str) and raw.lower() in known:
        return known[raw.lower()]
    raise InvalidInputError(f"{name} {shown(raw)} is neither true nor false", field=name)


def _path(name: str, raw: Any) -> Path:
    if isinstance(raw, (str, Path)) and str(raw) and "\0" not in str(raw):
        return Path(raw).expanduser()
    raise InvalidInputError(f"{name} {shown(raw)} is not a path", field=name)


def _file(name: str, raw: Any) -> str:
    return str(_path(name, raw)) if raw != "" else ""


def _cluster_store(name: str, raw: Any) -> str:
    if isinstance(raw, str) and len(raw) <= _MAX_STORE_CHARS and raw.isprintable():
        return raw
    raise InvalidInputError(f"{name} is not an address of up to {_MAX_STORE_CHARS} printable characters", field=name)


def _user(name: str, raw: Any) -> str:
    if isinstance(raw, str) and len(raw) <= _MAX_USER_CHARS and raw.isprintable():
        return raw
    raise InvalidInputError(
        f"{name} {shown(raw)} is not a name: up to {_MAX_USER_CHARS} printable characters are allowed", field=name
    )


def _reason(_name: str, raw: Any) -> str:
    return check_reason(raw)


def _worker_id(name: str, raw: Any) -> str | None:
    return None if raw is None else names.check_name(name, raw)


_SETTINGS: Final = {
    "servers": _Setting(_servers, lambda _: "nats://127.0.0.1:4222"),
    "service": _Setting(_service, lambda _: DEFAULT_SERVICE),
    "service_tls_ca_file": _Setting(_file, lambda _: ""),
    "service_tls_cert_file": _Setting(_file, lambda _: ""),
    "service_tls_key_file": _Setting(_file, lambda _: ""),
    "service_token_file": _Setting(_file, lambda _: ""),
    "reason": _Setting(_reason, lambda _: ""),
    "key_ring": _Setting(_file, lambda _: ""),
    "agent_url": _Setting(_agent_url, lambda _: "http://127.0.0.1:3500"),
    "agent_token_file": _Setting(_file, lambda _: ""),
    "cluster_store": _Setting(_cluster_store, lambda _: ""),
    "etcd_user": _Setting(_user, lambda _: ""),
    "etcd_password_file": _Setting(_file, lambda _: ""),
    "etcd_tls_ca_file": _Setting(_file, lambda _: ""),
    "etcd_tls_cert_file": _Setting(_file, lambda _: ""),
    "etcd_tls_key_file": _Setting(_file, lambda _: ""),
    "timeout_s": _Setting(_timeout, lambda _: 10.0),
    "json": _Setting(_boolean, lambda _: False),
    "data_dir": _Setting(_path, default_data_dir),
    "nats_port": _Setting(_port, lambda _: 4222),
    "grpc_port": _Setting(_port, lambda _: 7420),
    "worker_id": _Setting(_worker_id, lambda _: None),
}
