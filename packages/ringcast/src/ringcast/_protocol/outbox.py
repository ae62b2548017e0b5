"""What the parts of a key's machine have decided and its session has not carried out yet."""

from __future__ import annotations

from collections.abc import Callable

from ringcast._protocol.actions import Ack, Action
from ringcast._protocol.partition import Token


class Outbox:
    """Actions in the order in which they were decided, and the numbers of requests and jobs, which only rise."""

    __slots__ = ("_actions", "last_number", "put")

    def __init__(self) -> None:
        self.last_number = 0
        self._actions: list[Action] = []
        self.put: Callable[[Action], None] = self._actions.append  # every event comes by here: no call around it
        """Adds an action."""

    def ack(self, tokens: list[Token]) -> None:
        """Has deliveries acknowledged, if there are any."""
        if tokens:
            self.put(Ack(tokens))

    def number(self) -> int:
        """The number of the next request or job."""
        self.last_number += 1
        return self.last_number

    def drain(self) -> list[Action]:
        """All actions since the last call; each is given once."""
        actions = self._actions.copy()
        self._actions.clear()
        return actions
