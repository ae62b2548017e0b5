"""What ``ringcast doctor`` finds, and what it concludes from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ringcast.fleet import KeyLag
from ringcast_client import RoleGrant, ServiceStatus, StoreInfo, StreamStatus, WhoAmI


class Result(StrEnum):
    """What came of a check. ``UNKNOWN``: it could not be made, which is not to say that all is well."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """``about``: which part of the deployment; ``todo``: what to do, empty where nothing is to be done; ``runbook``: an
    anchor of docs/runbooks.md that says more."""

    result: Result
    about: str
    sentence: str
    todo: str = ""
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class SeenService:
    """One address of the config service. ``status`` is ``None`` where it did not say, and ``problem`` says why;
    ``reachable``: it answered; ``refused``: it does not let this client in. ``clock_s``: how far its clock is ahead of
    this host's, ``within_s``: give or take."""

    address: str
    reachable: bool
    status: ServiceStatus | None = None
    problem: str = ""
    clock_s: float = 0.0
    within_s: float = 0.0
    refused: bool = False


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file that should be a secret. ``mode`` is ``None`` where it can't be looked at, and ``problem`` says why."""

    setting: str
    path: str
    mode: int | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SeenCertificate:
    """``ends_s``: when it ends (Unix); ``None`` where it can't be looked at, and ``problem`` says why. ``bad``: it was
    looked at, and does not hold."""

    about: str
    ends_s: float | None
    problem: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """How many dead letters of a store wait; ``more``: the count was ended there, and there may be more."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"at least {self.count}" if self.more else str(self.count)


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A service or agent that is registered in the cluster."""

    kind: str
    id: str
    version: str
    silent_s: float | None
    """For how long it has not reported; ``None``: it reports."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was found. Where a part is ``None``, ``problems`` says why, by the name of the field."""

    now_s: float
    services: tuple[SeenService, ...] = ()
    leases: int | None = None
    bus: bool | None = None
    """Whether NATS answered with this login; ``None``: it was not asked."""
    stores: tuple[StoreInfo, ...] | None = None
    me: WhoAmI | None = None
    roles: tuple[RoleGrant, ...] | None = None
    lags: Mapping[tuple[str, str], KeyLag | str] = field(default_factory=dict)
    """By store and key; a sentence where it can't be said."""
    lags_at_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """When (Unix) they said so, by the clock of this host."""
    dead_letters: Mapping[str, Waiting | str] = field(default_factory=dict)
    """By store, how many wait; a sentence where it can't be said."""
    members: tuple[SeenMember, ...] | None = None
    files: tuple[SeenFile, ...] = ()
    certificates: tuple[SeenCertificate, ...] = ()
    clear: tuple[str, ...] = ()
    """Addresses that are used without TLS."""
    problems: Mapping[str, str] = field(default_factory=dict)

    def why(self, name: str) -> str:
        """Why a part is not there."""
        return self.problems.get(name) or "it was not looked at"

    @property
    def streams(self) -> Sequence[StreamStatus] | None:
        """The streams, by the first instance that says."""
        return next((each.status.streams for each in self.services if each.status is not None), None)

    @property
    def status(self) -> ServiceStatus | None:
        """What the first instance says that says anything."""
        return next((each.status for each in self.services if each.status is not None), None)
