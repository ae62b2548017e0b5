"""A metadata store, as the commands open it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final

from ringcast_wire import InvalidInputError, names

from ringcast_cli._common.config import CliConfig

if TYPE_CHECKING:
    from ringcast_meta import MetadataStore
    from ringcast_meta.etcd import EtcdLogin
    from ringcast_wire import NatsLogin

_MAX_CALL_S: Final = 60.0


@asynccontextmanager
async def opened_store(config: CliConfig, address: str) -> AsyncIterator[MetadataStore]:
    """The store of an address, with the login that the settings name.

    Raises:
        InvalidInputError: the address is none, or the login does not go with it.
        UnavailableError, UnauthenticatedError: it can't be reached, or refuses the login.
    """
    from ringcast.login import resolve_jetstream_api
    from ringcast_meta import StoreOptions, open_store

    scheme = address.partition("://")[0]
    if address == "memory:":
        raise InvalidInputError("address memory: is of one process: there is nothing to look at", field="address")
    logging.getLogger("ringcast.meta").addFilter(_is_not_printed_anyway)
    login = _login(config, scheme)
    options = StoreOptions(call_timeout_s=min(config.timeout_s, _MAX_CALL_S))
    async with open_store(
        address,
        login=login,
        options=options,
        jetstream_api=resolve_jetstream_api(),
        inbox_prefix=names.TOOLS_INBOX_PREFIX,
    ) as store:
        yield store


def _login(config: CliConfig, scheme: str) -> NatsLogin | EtcdLogin | None:
    if scheme in ("nats", "tls"):
        from ringcast.login import resolve_login

        return resolve_login()
    if not scheme.startswith("etcd"):
        return None
    try:
        from ringcast_meta.etcd import EtcdLogin
        from ringcast_wire.grpc import read_login_file
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"an address of etcd needs the package {error.name}: pip install 'ringcast-cli[etcd]'", field="address"
        ) from error
    file = config.etcd_password_file
    return EtcdLogin(
        user=config.etcd_user,
        password=read_login_file("etcd_password_file", file).decode("utf-8", "replace").strip() if file else "",
        tls_ca_file=config.etcd_tls_ca_file,
        tls_cert_file=config.etcd_tls_cert_file,
        tls_key_file=config.etcd_tls_key_file,
    )


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end the body, in good order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        yield
    except asyncio.CancelledError:
        if not stopped or task.uncancel():
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _is_not_printed_anyway(record: logging.LogRecord) -> bool:
    """A watch that breaks is worth a line. One that has ended is the error of the command."""
    return record.levelno < logging.ERROR
