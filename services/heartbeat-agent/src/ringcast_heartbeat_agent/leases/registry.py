"""Who has registered with the agent: decisions only.

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
class Held:
    """A registration that is kept. ``stream`` is what it is held by; ``None`` while a former one is waited for."""

    registration: Registration
    stream: object | None
    silent_ticks: int = field(default=0)


class Roster:
    """The registrations of an agent, at most ``most`` of them, and at most ``most_of_user`` of one user.

    A worker id belongs to the user who was the first to register it; only root may have it, too.
    """

    def __init__(self, most: int, most_of_user: int | None = None) -> None:
        self.given_up: Counter[str] = Counter({CLOSED: 0, SILENT: 0, NOT_BACK: 0})
        """Workers that ended without saying so, by how that was seen."""
        self._most = most
        self._most_of_user = most if most_of_user is None else most_of_user
        self._users: dict[str, int] = {}
        self._held: dict[tuple[str, str], Held] = {}
        self._by_id: dict[str, set[tuple[str, str]]] = {}
        self._grace_ticks = 0

    def __len__(self) -> int:
        return sum(held.stream is not None for held in self._held.values())

    @property
    def waiting(self) -> bool:
        """Whether workers of the agent before this one may still come back."""
        return self._grace_ticks > 0

    @property
    def registrations(self) -> list[Registration]:
        """All that count, also those that are waited for."""
        return [held.registration for held in self._held.values()]

    @property
    def stores(self) -> frozenset[str]:
        """Where they take part."""
        return frozenset(store for store, _ in self._held)

    def held(self) -> list[Held]:
        """All of them, with how they are."""
        return list(self._held.values())

    @property
    def users(self) -> dict[str, int]:
        """The user that each worker id belongs to."""
        return dict(self._users)

    def restore(self, registrations: list[Registration], users: Mapping[str, int] = MappingProxyType({})) -> None:
        """Waits for the workers that the agent before this one knew; until they are back nobody's records go."""
        self._users = dict(list(users.items())[: self._most_users])
        for registration in registrations[: self._most]:
            self._add(Held(registration, None))
        self._grace_ticks = round(RETURN_S / TICK_S)

    def register(self, registration: Registration, stream: object) -> Held:
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
            other = self._held[place].registration
            if other.process != registration.process:
                raise InUseError(
                    f"worker id {registration.worker_id!r} is in use by process {other.pid} on this host",
                    field="worker_id",
                )
        place = (registration.store, registration.worker_id)
        if place not in self._held and len(self._held) >= self._most:
            raise LimitExceededError(
                f"the agent holds {len(self._held)} registrations: at most {self._most} are allowed"
            )
        count = sum(held.registration.uid == registration.uid for held in self._held.values())
        if place not in self._held and count >= self._most_of_user:
            raise LimitExceededError(
                f"user {registration.uid} has {count} registrations: at most {self._most_of_user} are allowed to one"
            )
        held = Held(registration, stream)
        self._add(held)
        self._bind(registration.worker_id, owner)
        return held

    def heard(self, held: Held) -> None:
        """A sign of life."""
        held.silent_ticks = 0

    def left(self, held: Held) -> None:
        """It has ended in order."""
        self._drop(held)

    def closed(self, held: Held) -> bool:
        """Its stream has ended. Returns whether that was the one which counts."""
        if not self._drop(held):
            return False
        self.given_up[CLOSED] += 1
        return True

    def tick(self) -> list[Held]:
        """A tick has passed; returns who is given up: silent for too long, or not back."""
        self._grace_ticks = max(0, self._grace_ticks - 1)
        gone = []
        for held in list(self._held.values()):
            held.silent_ticks += 1
            if held.silent_ticks * TICK_S >= (SILENCE_S if held.stream is not None else RETURN_S):
                self._drop(held)
                self.given_up[SILENT if held.stream is not None else NOT_BACK] += 1
                gone.append(held)
        return gone

    def living(self, store: str) -> frozenset[tuple[str, str]] | None:
        """Config key and id of each worker of a store; ``None`` while it is not known who lives."""
        if self._grace_ticks:
            return None
        return frozenset(
            (key, held.registration.worker_id)
            for place, held in self._held.items()
            if place[0] == store
            for key in held.registration.keys
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

    def _add(self, held: Held) -> None:
        place = (held.registration.store, held.registration.worker_id)
        self._held[place] = held
        self._by_id.setdefault(held.registration.worker_id, set()).add(place)

    def _drop(self, held: Held) -> bool:
        place = (held.registration.store, held.registration.worker_id)
        if self._held.get(place) is not held:
            return False
        del self._held[place]
        places = self._by_id[held.registration.worker_id]
        places.discard(place)
        if not places:
            del self._by_id[held.registration.worker_id]
        return True
