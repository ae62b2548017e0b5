"""Settings of the command line: a flag, then ``RINGCAST_PIPELINE_<NAME>``, then the TOML file, then the default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from pyspark_ringcast.pipeline._files import absolute
from pyspark_ringcast.pipeline._target import LOGIN_FILES

ENV_PREFIX: Final = "RINGCAST_PIPELINE"
F = TypeVar("F", bound=Callable[..., Any])

_SPEC_OPTIONS: Final = {
    "store": ("target", "The store, instead of the specification's."),
    "key": ("target", "The config key, instead of the specification's."),
    "mode": ("target", "replace: what the input lacks is deleted; merge: it stays."),
    "servers": ("target", "NATS servers, with commas between. [default: RINGCAST_SERVERS]"),
    "service": ("target", "host:port of the config service. [default: RINGCAST_SERVICE]"),
    "timeout_s": ("target", "How long one request is tried again, in seconds."),
    "user": ("target", "User at NATS; RINGCAST_PASSWORD has the password."),
    "password_file": ("target", "Login at NATS: a file whose first line is the user's password."),
    "credentials_file": ("target", "Login at NATS: a credentials file (JWT)."),
    "nkey_seed_file": ("target", "Login at NATS: a file with an nkey's seed."),
    "tls_ca_file": ("target", "Certificates that may sign the NATS server's."),
    "tls_cert_file": ("target", "A certificate of our own for NATS."),
    "tls_key_file": ("target", "Its key."),
    "service_tls_ca_file": ("target", "CA certificates that sign that of the config service."),
    "service_tls_cert_file": ("target", "A certificate of our own for the config service."),
    "service_tls_key_file": ("target", "Its key."),
    "service_token_file": ("target", "A file whose first line is the token for the config service."),
    "key_ring": ("target", "A key ring, which opens and encrypts the values. [default: RINGCAST_KEY_RING]"),
    "format": ("source", "Format of the input: csv, json, parquet or text."),
    "max_delete_share": ("guards", "Refuse to delete more of the live rows, 0 to 1. [default: 0.1]"),
    "max_rejected_share": ("guards", "Refuse an input of which more was rejected, 0 to 1. [default: 0.01]"),
}
_KINDS: Final[dict[str, type]] = {"timeout_s": float, "max_delete_share": float, "max_rejected_share": float}


def variable(name: str) -> str:
    """The environment variable of an option."""
    return f"{ENV_PREFIX}_{name.upper()}"


def spec_options(*names: str) -> Callable[[F], F]:
    """Options that win over what the specification says."""

    def add(command: F) -> F:
        for name in reversed(names):
            flag, kind = f"--{name.replace('_', '-')}", _KINDS.get(name, str)
            command = click.option(flag, type=kind, envvar=variable(name), help=_SPEC_OPTIONS[name][1])(command)
        return command

    return add


ALL: Final = tuple(_SPEC_OPTIONS)
PLACE: Final = ("servers", "service", "timeout_s", "user", *LOGIN_FILES)
"""Where a store is, and how to log in: of use with a saved plan too."""


def overrides(given: dict[str, Any], paths: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """What flags and the environment say, by table of the specification."""
    found: dict[str, dict[str, Any]] = {}
    for name, (table, _) in _SPEC_OPTIONS.items():
        if given.get(name) is not None:
            # Files that the specification names are relative to its directory, these to ours.
            value = absolute(given[name]) if name in LOGIN_FILES else given[name]
            found.setdefault(table, {})[name] = value
    if given.get("allow_empty"):
        found.setdefault("guards", {})["allow_empty"] = True
    if paths:
        found.setdefault("source", {})["paths"] = [absolute(path) for path in paths]
    return found
