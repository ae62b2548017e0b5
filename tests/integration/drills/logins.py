"""Who may log in to the NATS of the drills: one account with a limit of its own, and a user for each process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ringcast_wire import names, permissions

ACCOUNT: Final = "RINGCAST"
OPERATOR: Final = "operator"
"""May do everything; what logs in without a name is this user."""
UNLIMITED: Final = -1


class Logins:
    """What the servers are configured with; changed by drills, and then to be reloaded.

    Workers have the permissions of the shipped accounts; the other processes may do everything, but what is denied.
    """

    def __init__(self, workers: Mapping[str, tuple[str, str]], others: tuple[str, ...], partitions: int) -> None:
        self._allowed: dict[str, dict[str, Any]] = {
            worker: _shipped(worker, store, key, partitions) for worker, (store, key) in workers.items()
        }
        self.passwords = {name: f"{name}-1" for name in (*workers, *others)}
        self.denied: dict[str, list[str]] = {}
        """What a user may not publish for now, of what it may."""
        self.limits: dict[str, int] = {}
        """Of the account at JetStream: ``max_file``, ``max_consumers``."""

    def settings(self) -> dict[str, Any]:
        """For the configuration of a server."""
        users: list[dict[str, Any]] = [{"user": OPERATOR, "password": OPERATOR}]
        users += [self._user(name) for name in self.passwords]
        accounts = {
            ACCOUNT: {"jetstream": self.limits or "enabled", "users": users},
            "SYS": {"users": [{"user": "sys", "password": "sys"}]},
        }
        return {"accounts": accounts, "system_account": "SYS", "no_auth_user": OPERATOR}

    def login(self, name: str) -> dict[str, str]:
        """How a process logs in."""
        return {"user": name, "password": f"{name}-1"}

    def options(self, name: str) -> tuple[str, ...]:
        """The same for a command."""
        return ("--nats-user", name, "--nats-password", f"{name}-1")

    def _user(self, name: str) -> dict[str, Any]:
        allowed = self._allowed.get(name, {"publish": {"allow": [">"]}, "subscribe": [">"]})
        publish = {**allowed["publish"], "deny": self.denied.get(name, [])}
        granted = {**allowed, "publish": publish}
        return {"user": name, "password": self.passwords[name], "permissions": granted}


def _shipped(worker: str, store: str, key: str, partitions: int) -> dict[str, Any]:
    """What the printed accounts let a worker do; here the streams are in its own account."""
    user = permissions.worker_user(permissions.Worker(worker, {store: [key]}), prefix="ringcast", partitions=partitions)
    publish = [subject.replace(permissions.WORKER_API, permissions.API) for subject in user.publish]
    return {"publish": {"allow": publish}, "subscribe": [f"{names.inbox_prefix(worker)}.>", *user.subscribe]}
