"""What a drill is: a fault that is really done to the deployment, and the alerts that have to fire by it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tests.integration.drills.site import Shape, Site

Fault = Callable[[Site], AsyncGenerator[None, None]]


@dataclass(frozen=True)
class Drill:
    """One fault. ``alerts`` must fire while it lasts, and end after it; ``companions`` may.

    ``cause`` and ``end`` are sentences: what is done, and how it is ended. ``shape``: of the deployment that it needs.
    """

    name: str
    alerts: tuple[str, ...]
    companions: tuple[str, ...]
    cause: str
    end: str
    fault: Callable[[Site], AbstractAsyncContextManager[None]]
    shape: Shape


DRILLS: dict[str, Drill] = {}


def drill(*alerts: str, companions: tuple[str, ...] = (), shape: Shape = Shape.WHOLE) -> Callable[[Fault], Fault]:
    """Registers a fault under the name of its function. Its docstring has two paragraphs: the cause, and the end."""

    def register(fault: Fault) -> Fault:
        cause, end = (" ".join(part.split()) for part in (inspect.getdoc(fault) or "").split("\n\n"))
        name = fault.__name__.replace("_", "-")
        DRILLS[name] = Drill(name, alerts, companions, cause, end, asynccontextmanager(fault), shape)
        return fault

    return register
