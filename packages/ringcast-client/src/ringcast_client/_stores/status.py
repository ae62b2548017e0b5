"""The call about an instance of the service itself."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast_wire.grpc import pb

from ringcast_client._calls.calls import Calls


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream or bucket of NATS, as the service found it last; ``store`` is empty for the bucket of leases.

    ``kind``: events, dead_letters, settings, members, groups, owners, wishes or leases. ``wanted_bytes``: the room that
    it should have. ``refuses``: when it is full; else it throws its oldest away. ``differs``: settings that are not as
    they should be. ``problem``: why nothing can be written to it, or known of it; empty where it is well. ``age_ms``:
    how long ago NATS said so; -1 where it never has.
    """

    name: str
    store: str
    kind: str
    bytes: int
    max_bytes: int
    wanted_bytes: int
    refuses: bool
    messages: int
    consumers: int
    consumer_limit: int
    replicas: int
    replicas_behind: int
    differs: tuple[str, ...]
    problem: str
    age_ms: int


@dataclass(frozen=True, slots=True)
class JetStreamStatus:
    """The account of the service: bytes, and what is reserved of them for its streams. A limit of 0: none but the
    servers' own."""

    disk_used: int
    disk_reserved: int
    disk_limit: int
    memory_used: int
    memory_reserved: int
    memory_limit: int
    consumers: int
    consumer_limit: int
    streams: int
    stream_limit: int


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What one instance says of itself.

    ``now_ms``: its clock (Unix). ``not_served``: of ``reads``, ``writes`` and ``bus``. ``problems``: by store, why it
    is not provided for on NATS. ``jetstream``: ``None`` if it was never read; ``jetstream_problem``: why it can't be.
    """

    instance_id: str
    version: str
    now_ms: int
    not_served: tuple[str, ...]
    problems: dict[str, str]
    replicas: int
    streams: tuple[StreamStatus, ...]
    jetstream: JetStreamStatus | None
    jetstream_problem: str


class StatusCalls:
    """A part of the client of the config service."""

    _calls: Calls

    async def service_status(self) -> ServiceStatus:
        """Version, clock and state of the instance that answers, and of NATS as it sees it.

        Raises:
            PermissionDeniedError: this client is no ADMIN of all stores.
        """
        reply = await self._calls.unary(self._calls.rpc.GetServiceStatus, pb.GetServiceStatusRequest())
        return ServiceStatus(
            reply.instance_id,
            reply.version,
            reply.now_ms,
            tuple(reply.not_served),
            {each.store: each.problem for each in reply.problems},
            reply.replicas,
            tuple(_stream(each) for each in reply.streams),
            _jetstream(reply.jetstream) if reply.HasField("jetstream") else None,
            reply.jetstream_problem,
        )


def _stream(found: pb.StreamStatus) -> StreamStatus:
    fields = {name: getattr(found, name) for name in StreamStatus.__dataclass_fields__}
    return StreamStatus(**{**fields, "differs": tuple(found.differs)})


def _jetstream(found: pb.JetStreamStatus) -> JetStreamStatus:
    return JetStreamStatus(**{name: getattr(found, name) for name in JetStreamStatus.__dataclass_fields__})
