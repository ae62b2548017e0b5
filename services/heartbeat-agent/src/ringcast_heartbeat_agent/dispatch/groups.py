"""Key-shared dispatch: registers consumers with groups of config keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ringcast import InvalidInputError, LimitExceededError, MismatchError, PoisonPolicy, UnavailableError
from ringcast_wire import names, shown

from ringcast_heartbeat_agent.clients import check_share
from ringcast_heartbeat_agent.config import POLICIES, Config
from ringcast_heartbeat_agent.dispatch.best_effort import BestEffortGroup
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.dead_letters import GroupDeadLetters
from ringcast_heartbeat_agent.dispatch.group import LOSSY, RELIABLE, Group, GroupContext, total
from ringcast_heartbeat_agent.dispatch.key_follower import KeyFollower, KeyFollowers
from ringcast_heartbeat_agent.dispatch.key_shared import KeySharedGroup
from ringcast_heartbeat_agent.dispatch.progress import History
from ringcast_heartbeat_agent.dispatch.routing import Routing, routing_of
from ringcast_heartbeat_agent.dispatch.seal_service import SealService
from ringcast_heartbeat_agent.errors import StoppingError

_STOPPING: Final = "the agent is stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a consumer asks for; see the .proto file."""

    store: str
    key: str
    group: str
    name: str
    filters: Sequence[str] = ()
    capacity: int = 0
    mode: str = RELIABLE
    poison_policy: str = ""
    routing_key: str = ""
    changes_only: bool = False
    session: str = ""
    api: str = "stream"


class Dispatch:
    """The groups of all config keys."""

    def __init__(
        self,
        config: Config,
        followers: KeyFollowers,
        tasks: asyncio.TaskGroup,
        dead_letters: GroupDeadLetters,
        history: History | None = None,
        seals: SealService | None = None,
    ) -> None:
        self._config = config
        self._followers = followers
        self._dead_letters = dead_letters
        self._context = GroupContext(config, tasks.create_task, dead_letters, history, seals)
        self.stopping = False
        self._refuses = ""

    def refuse(self, why: str) -> None:
        """Takes no consumers in, because of ``why``; empty: it does again."""
        self._refuses = why

    async def join(self, registration: Registration) -> tuple[Group, ConsumerSession, bool]:
        """Lets a consumer take part; says also whether it goes on where it was.

        Raises:
            InvalidInputError: a name, a filter, the capacity, the policy or the routing key breaks a rule.
            MismatchError: the group has another mode, policy or routing key.
            AlreadyExistsError: a consumer of that name is connected.
            LimitExceededError: there are as many consumers, or keys that are followed, as may be.
            UnavailableError: the agent stops or drains, or the key can't be followed now.
            UnknownStoreError: there is no such store.
        """
        for field in ("store", "key", "group", "name"):
            names.check_name(field, getattr(registration, field))
        if not self._config.may_join(registration.group):
            allowed = ", ".join(self._config.groups)
            raise InvalidInputError(f"group {registration.group} may not be joined here: {allowed} may", field="group")
        policy, routing = self._policy(registration), routing_of(registration.routing_key)
        async with self._followers.ready(registration.store, registration.key) as follower:
            # Nothing is waited for from here on: a consumer that joins misses no change.
            self._check_room()
            group = follower.groups.get(registration.group)
            if group is None or group.closed:
                group = self._make(follower, registration, policy, routing)
            elif group.routing.setting != routing.setting:
                raise MismatchError(
                    f"group {registration.group} has the routing key {group.routing.setting}, not {routing.setting}",
                    field="routing_key",
                )
            elif group.mode != registration.mode:
                raise MismatchError(
                    f"group {registration.group} is {group.mode}, not {registration.mode}", field="mode"
                )
            elif registration.poison_policy and group.policy != policy:
                raise MismatchError(
                    f"group {registration.group} has the poison policy {group.policy}, not {policy}",
                    field="poison_policy",
                )
            consumer, resumed = group.join(
                registration.name,
                registration.filters,
                capacity=registration.capacity,
                changes_only=registration.changes_only,
                session=registration.session,
                api=registration.api,
            )
            return group, consumer, resumed

    def group(self, store: str, key: str, name: str) -> Group | None:
        """A group, if there is one of that name."""
        found = (
            each for each in self.groups() if (each.source.store, each.source.key, each.name) == (store, key, name)
        )
        return next(found, None)

    def groups(self) -> Iterator[Group]:
        """The groups there are."""
        return (group for follower in self._followers for group in list(follower.groups.values()) if not group.closed)

    def counts(self) -> Counter[str]:
        """What happened in all groups since the start."""
        return total((self._followers.forgotten, *(group.counts() for group in self.groups())))

    def sum_of(self, mode: str, what: str) -> int:
        """The sum of one of the figures of all groups of a mode."""
        return sum(getattr(group.figures(), what) for group in self.groups() if group.mode == mode)

    @property
    def unread_s(self) -> dict[str, float]:
        """For how long groups could not read what they missed, by store and key."""
        found: dict[str, float] = {}
        for group in self.groups():
            if seconds := group.figures().unread_s:
                place = f"{group.source.store}/{group.source.key}"
                found[place] = max(seconds, found.get(place, 0.0))
        return found

    def status(self) -> list[dict[str, Any]]:
        """How each group stands."""
        return [group.status() for group in self.groups()]

    async def drain(self) -> None:
        """Ends all groups, for good: see :meth:`give_up`."""
        self.stopping = True
        await self.give_up(_STOPPING)
        self.stop()

    async def give_up(self, why: str) -> None:
        """Delivers nothing new, and waits for answers to what is in flight, for a time; then ends every stream.

        Cancelled, it ends them at once.
        """
        groups = list(self.groups())
        connected = [consumer for group in groups for consumer in group.sessions if consumer.connected]
        for group in groups:
            group.drain(why)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.drain_timeout_s):
                    for consumer in connected:
                        await consumer.over.wait()
        finally:
            for group in groups:
                group.close(StoppingError(why))

    def stop(self) -> None:
        """Ends every stream with an error. Calling it again is harmless."""
        self.stopping = True
        for group in list(self.groups()):
            group.close(StoppingError(_STOPPING))

    def _make(self, follower: KeyFollower, registration: Registration, policy: str, routing: Routing) -> Group:
        if registration.mode == LOSSY:
            group: Group = BestEffortGroup(follower, registration.group, self._context, routing)
        else:
            group = KeySharedGroup(follower, registration.group, self._context, policy, routing)
        follower.groups[registration.group] = group
        return group

    def _policy(self, registration: Registration) -> str:
        if not registration.poison_policy:
            return self._config.poison_policy
        try:
            return PoisonPolicy(registration.poison_policy)
        except ValueError:
            raise InvalidInputError(
                f"poison_policy {shown(registration.poison_policy)} is unknown: {', '.join(POLICIES)} are known",
                field="poison_policy",
            ) from None

    def _check_room(self) -> None:
        if why := _STOPPING if self.stopping else self._refuses:
            raise UnavailableError(why)
        sessions = [consumer for group in self.groups() for consumer in group.sessions]
        most = self._config.max_consumers
        if len(sessions) >= most:
            raise LimitExceededError(f"the agent has {len(sessions)} consumers: at most {most} are allowed")
        check_share("consumers", (consumer.client for consumer in sessions), most, self._config.client_share)
