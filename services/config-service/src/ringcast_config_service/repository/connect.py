"""From a database address to the repository for it."""

from __future__ import annotations

from typing import Final

from ringcast_service import ConfigError
from ringcast_wire import shown

from ringcast_config_service.repository.base import DEFAULT_LOCK_TIMEOUT_MS, DEFAULT_WRITE_CONNECTIONS
from ringcast_config_service.repository.parts import Repository

_POSTGRES = ("postgresql://", "postgres://", "cockroachdb://")
_SNAPSHOTS: Final = 14
"""In SQLite: of eight lists, and of six large answers (two partitions, four whole keys)."""


def make_repository(
    database: str,
    *,
    lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
    write_connections: int = DEFAULT_WRITE_CONNECTIONS,
) -> Repository:
    """The repository for ``sqlite:PATH`` or ``postgresql://…``; it is not opened yet.

    ``lock_timeout_ms``: how long a write waits for a lock that another instance holds. ``write_connections``: how many
    writes run at a time. SQLite has no such locks, and one write at a time.

    Raises:
        ConfigError: the address is neither.
    """
    if database.startswith("sqlite:") and len(database) > len("sqlite:"):
        from ringcast_sqlite import Database

        from ringcast_config_service.repository.sqlite.repository import SqliteRepository

        return SqliteRepository(Database(database.removeprefix("sqlite:"), snapshots=_SNAPSHOTS))
    for scheme in _POSTGRES:
        if database.startswith(scheme):
            from ringcast_config_service.repository.postgres.repository import PostgresRepository

            return PostgresRepository(
                "postgresql://" + database.removeprefix(scheme),
                lock_timeout_ms=lock_timeout_ms,
                writes=write_connections,
            )
    # Not the whole of it: it may hold a password.
    raise ConfigError(
        f"database {shown(database.partition(':')[0])} is of no known kind: sqlite:PATH and postgresql://… are"
    )
