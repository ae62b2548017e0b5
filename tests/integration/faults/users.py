"""Who may log in to NATS: the first workers by a password each, with the shipped permissions; or all by a token.

With passwords, whoever gives none (services, workers that join later, the faults themselves) may do everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringcast_wire import permissions

_ANYONE = "anyone"


class Users:
    """What the servers are configured with; changed by faults, and then to be reloaded."""

    def __init__(
        self, store: str, keys: Sequence[str], workers: Sequence[str], partitions: int, *, token: bool
    ) -> None:
        self.token = "token-1" if token else ""
        self.passwords = {} if token else {worker: f"{worker}-1" for worker in workers}
        self.service_options: tuple[str, ...] = ()
        """What the services are started with."""
        self.denied: dict[str, list[str]] = {}
        """What a user may not publish for now, of what it may."""
        self._shipped = {worker: _shipped(worker, store, keys, partitions) for worker in self.passwords}

    def settings(self) -> dict[str, Any]:
        """For the configuration of a server."""
        if self.token:
            return {"authorization": {"token": self.token}}
        users = [{"user": _ANYONE, "password": _ANYONE}]
        users += [self._user(worker) for worker in self.passwords]
        return {"authorization": {"users": users}, "no_auth_user": _ANYONE}

    def login(self, worker: str) -> dict[str, Any]:
        """How a worker logs in, as arguments of its own or of ``nats.connect``."""
        return {"user": worker, "password": self.passwords[worker]} if worker in self.passwords else {}

    def anyone(self) -> dict[str, Any]:
        """How whoever may do everything logs in, as arguments of ``nats.connect``."""
        return {"token": self.token} if self.token else {}

    def worker_settings(self) -> dict[str, Any]:
        """What every worker needs to know."""
        return {}

    def address(self, port: int, of: str = "") -> str:  # as of users that the services know
        """Of a server, for a worker; or for whoever has no login of its own."""
        return f"nats://{self.token}@127.0.0.1:{port}" if self.token else f"nats://127.0.0.1:{port}"

    def _user(self, worker: str) -> dict[str, Any]:
        may = self._shipped[worker]
        publish = {"allow": may.publish, "deny": self.denied.get(worker, [])}
        rights = {"publish": publish, "subscribe": may.subscribe}
        return {"user": worker, "password": self.passwords[worker], "permissions": rights}


def _shipped(worker: str, store: str, keys: Sequence[str], partitions: int) -> permissions.User:
    """What the printed accounts let a worker do; here the streams are in its own account."""
    who = permissions.Worker(worker, {store: list(keys)})
    user = permissions.worker_user(who, prefix="ringcast", partitions=partitions)
    user.publish = [subject.replace(permissions.WORKER_API, permissions.API) for subject in user.publish]
    return user
