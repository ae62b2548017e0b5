"""The call about the instance itself."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.metadata import version

from ringcast_wire.grpc import pb

from ringcast_config_service.broker_state import AccountState, StreamState
from ringcast_config_service.nats.broker import AccountWatch
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.telemetry import Measures


class StatusCalls:
    """What this instance says of itself, and of NATS."""

    def __init__(
        self, instance_id: str, provisioner: Provisioner, account: AccountWatch, measures: Measures, *, replicas: int
    ) -> None:
        self._instance_id = instance_id
        self._provisioner = provisioner
        self._account = account
        self._measures = measures
        self._replicas = replicas

    def status(self) -> pb.ServiceStatus:
        """As it is now. It only reads what is in memory."""
        account = self._account.state
        return pb.ServiceStatus(
            instance_id=self._instance_id,
            version=version("ringcast-config-service"),
            now_ms=time.time_ns() // 1_000_000,
            not_served=[part for part, serving in self._measures.serving.items() if not serving],
            problems=[
                pb.StoreProblem(store=store, problem=why) for store, why in sorted(self._provisioner.problems.items())
            ],
            replicas=self._replicas,
            streams=[_stream(state) for state in self._provisioner.states()],
            jetstream=None if account is None else _jetstream(account),
            jetstream_problem=self._account.problem,
        )


def _stream(state: StreamState) -> pb.StreamStatus:
    fields = asdict(state)
    found_at_s = fields.pop("found_at_s")
    age_ms = -1 if found_at_s is None else int((time.monotonic() - found_at_s) * 1_000)
    return pb.StreamStatus(**fields, age_ms=age_ms)


def _jetstream(account: AccountState) -> pb.JetStreamStatus:
    limits = account.limits
    return pb.JetStreamStatus(
        disk_used=account.storage,
        disk_reserved=account.reserved_storage,
        disk_limit=max(limits.max_storage, 0),
        memory_used=account.memory,
        memory_reserved=account.reserved_memory,
        memory_limit=max(limits.max_memory, 0),
        consumers=account.consumers,
        consumer_limit=max(limits.max_consumers, 0),
        streams=account.streams,
        stream_limit=max(limits.max_streams, 0),
    )
