"""The workers that have registered with the agent: decisions only.

Time comes in as ticks of the agent's own, so that no pause of its own process looks like silence of a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ringcast import InUseError, LimitExceededError

TICK_S: Final = 0.25
SILENCE_S: Final = 10.0
"""After so long without an answer a worker is given up: a pause of 8 s costs nothing."""
RETURN_S: Final = 5.0
"""How long the workers of the agent before this one may take to come back."""
CLOSED: Final = "closed"
SILENT: Final = "silent"
NOT_BACK: Final = "not-back"
_REMEMBERED: Final = 16
"""Worker ids whose user is remembered, for each registration that may be."""


@dataclass(frozen=True, slots=True)
class Registration:
    """One worker of one store. ``since_ms``: wall clock."""

    worker_id: str
    incarnation: str
    pid: int
    store: str
    keys: tuple[str, ...]
    since_ms: int
    uid: int = 0
    """The user whose process it is, as the kernel says."""

    @property
    def process(self) -> tuple[str, int]:
        """What tells one process from another."""
        return self.incarnation, self.pid


@dataclass(slots=True, eq=False)
class RegisteredWorker:
    """A registration, and the stream that keeps it; None while the agent waits for a worker of its predecessor."""

    registration: Registration
    stream: object | None
    silent_ticks: int = field(default=0)


class WorkerRegistry:
    """The registrations of an agent, at most ``most`` of them, and at most ``most_of_user`` of one user.

    A worker id belongs to the user that was the first to register it; only root may have it, too.
    """

    def __init__(self, most: int, most_of_user: int | None = None) -> None:
        self.given_up: Counter[str] = Counter({CLOSED: 0, SILENT: 0, NOT_BACK: 0})
        """Workers that ended without saying so, by how that was seen."""
        self._most = most
        self._most_of_user = most if most_of_user is None else most_of_user
        self._users: dict[str, int] = {}
        self._workers: dict[tuple[str, str], RegisteredWorker] = {}
        self._by_id: dict[str, set[tuple[str, str]]] = {}
        self._grace_ticks = 0

    def __len__(self) -> int:
        return sum(worker.stream is not None for worker in self._workers.values())

    @property
    def waiting(self) -> bool:
        """Whether workers of the agent before this one may still come back."""
        return self._grace_ticks > 0

    @property
    def registrations(self) -> list[Registration]:
        """All that count, also those that are waited for."""
        return [worker.registration for worker in self._workers.values()]

    @property
    def stores(self) -> frozenset[str]:
        """Where they take part."""
        return frozenset(store for store, _ in self._workers)

    def workers(self) -> list[RegisteredWorker]:
        """All of them, with how they are."""
        return list(self._workers.values())

    @property
    def users(self) -> dict[str, int]:
        """The user that each worker id belongs to."""
        return dict(self._users)

    def restore(self, registrations: list[Registration], users: Mapping[str, int] = MappingProxyType({})) -> None:
        """Waits for the workers that the agent before this one knew; until they are back no records are deleted."""
        self._users = dict(list(users.items())[: self._most_users])
        for registration in registrations[: self._most]:
            self._add(RegisteredWorker(registration, None))
        self._grace_ticks = round(RETURN_S / TICK_S)

    def register(self, registration: Registration, stream: object) -> RegisteredWorker:
        """Takes a worker in. Of two streams of the same one, the later counts.

        Raises:
            InUseError: another process has the worker id; it lives, or may come back. Or it is another user's.
            LimitExceededError: there are too many, of all users or of this one.
        """
        owner = self._users.get(registration.worker_id, registration.uid)
        if registration.uid not in (owner, 0):
            raise InUseError(
                f"worker id {registration.worker_id!r} belongs to user {owner} on this host", field="worker_id"
            )
        for place in self._by_id.get(registration.worker_id, ()):
            other = self._workers[place].registration
            if other.process != registration.process:
                raise InUseError(
                    f"worker id {registration.worker_id!r} is in use by process {other.pid} on this host",
                    field="worker_id",
                )
        place = (registration.store, registration.worker_id)
        if place not in self._workers and len(self._workers) >= self._most:
            raise LimitExceededError(
                f"the agent holds {len(self._workers)} registrations: at most {self._most} are allowed"
            )
        count = sum(worker.registration.uid == registration.uid for worker in self._workers.values())
        if place not in self._workers and count >= self._most_of_user:
            raise LimitExceededError(
                f"user {registration.uid} has {count} registrations: at most {self._most_of_user} are allowed to one"
            )
        worker = RegisteredWorker(registration, stream)
        self._add(worker)
        self._bind(registration.worker_id, owner)
        return worker

    def seen(self, worker: RegisteredWorker) -> None:
        """A sign of life."""
        worker.silent_ticks = 0

    def left(self, worker: RegisteredWorker) -> None:
        """It has ended in order."""
        self._drop(worker)

    def closed(self, worker: RegisteredWorker) -> bool:
        """Its stream has ended. Returns whether that was the one which counts."""
        if not self._drop(worker):
            return False
        self.given_up[CLOSED] += 1
        return True

    def tick(self) -> list[RegisteredWorker]:
        """A tick has passed; returns the workers that are given up: silent for too long, or not back."""
        self._grace_ticks = max(0, self._grace_ticks - 1)
        gone = []
        for worker in list(self._workers.values()):
            worker.silent_ticks += 1
            if worker.silent_ticks * TICK_S >= (SILENCE_S if worker.stream is not None else RETURN_S):
                self._drop(worker)
                self.given_up[SILENT if worker.stream is not None else NOT_BACK] += 1
                gone.append(worker)
        return gone

    def living(self, store: str) -> frozenset[tuple[str, str]] | None:
        """Config key and id of each worker of a store; ``None`` while it is not known which live."""
        if self._grace_ticks:
            return None
        return frozenset(
            (key, worker.registration.worker_id)
            for place, worker in self._workers.items()
            if place[0] == store
            for key in worker.registration.keys
        )

    @property
    def _most_users(self) -> int:
        return _REMEMBERED * self._most

    def _bind(self, worker_id: str, uid: int) -> None:
        """Notes whose a worker id is. Of more than can be remembered those go that were not seen for longest."""
        self._users.pop(worker_id, None)
        self._users[worker_id] = uid
        while len(self._users) > self._most_users:
            del self._users[next(iter(self._users))]

    def _add(self, worker: RegisteredWorker) -> None:
        place = (worker.registration.store, worker.registration.worker_id)
        self._workers[place] = worker
        self._by_id.setdefault(worker.registration.worker_id, set()).add(place)

    def _drop(self, worker: RegisteredWorker) -> bool:
        place = (worker.registration.store, worker.registration.worker_id)
        if self._workers.get(place) is not worker:
            return False
        del self._workers[place]
        places = self._by_id[worker.registration.worker_id]
        places.discard(place)
        if not places:
            del self._by_id[worker.registration.worker_id]
        return True
