"""From a database address to the repository for it."""

from __future__ import annotations

from ringcast_wire import shown

from ringcast_config_service.errors import ConfigError
from ringcast_config_service.repository.base import Repository

_POSTGRES = ("postgresql://", "postgres://", "cockroachdb://")


def make_repository(database: str) -> Repository:
    """The repository for ``sqlite:PATH`` or ``postgresql://…``; it is not opened yet.

    Raises:
        ConfigError: the address is neither.
    """
    if database.startswith("sqlite:") and len(database) > len("sqlite:"):
        from ringcast_config_service.repository.sqlite import SqliteRepository

        return SqliteRepository(database.removeprefix("sqlite:"))
    for scheme in _POSTGRES:
        if database.startswith(scheme):
            from ringcast_config_service.repository.postgres import PostgresRepository

            return PostgresRepository("postgresql://" + database.removeprefix(scheme))
    # Not the whole of it: it may hold a password.
    raise ConfigError(
        f"database {shown(database.partition(':')[0])} is of no known kind: sqlite:PATH and postgresql://… are"
    )
