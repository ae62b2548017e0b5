"""The generated gRPC API (``ringcast.config.v1``), and how Ringcast errors travel over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from ringcast_wire._common.errors import (
    ConditionFailedError,
    ErrorCode,
    RingcastError,
    UnavailableError,
    error_from_code,
)
from ringcast_wire._common.names import (
    GRPC_ELSEWHERE_KEY,
    GRPC_ERROR_KEY,
    GRPC_FIELD_KEY,
    GRPC_FOUND_VERSION_KEY,
    GRPC_RETRY_AFTER_KEY,
)
from ringcast_wire._connections.login_settings import read_login_file
from ringcast_wire._connections.service_login import ServiceLogin, read_tokens
from ringcast_wire._messages.messages import Mode, Role, Strategy
from ringcast_wire._ownership.migration import Stage
from ringcast_wire._proto import config_pb2 as pb
from ringcast_wire._proto import retry_info_pb2
from ringcast_wire._proto.config_pb2_grpc import (
    ConfigServiceServicer,
    ConfigServiceStub,
    add_ConfigServiceServicer_to_server,
)
from ringcast_wire._schemas.kinds import SchemaCompatibility, SchemaKind, SchemaMode
from ringcast_wire._stores.releases import ReleaseOutcome, ReleaseState
from ringcast_wire.addresses import TLS_PREFIX

MODES: Final[Mapping[Mode, pb.Mode]] = {mode: getattr(pb, f"MODE_{mode.name}") for mode in Mode}
"""The number that each mode has in protobuf, under the same name."""
STRATEGIES: Final[Mapping[Strategy, pb.Strategy]] = {
    strategy: getattr(pb, f"STRATEGY_{strategy.name}") for strategy in Strategy
}
"""The number that each strategy has in protobuf, under the same name."""

STAGES: Final[Mapping[Stage, pb.MigrationStage]] = {
    stage: getattr(pb, f"MIGRATION_STAGE_{stage.name}") for stage in Stage
}
"""The number that each stage of a migration has in protobuf, under the same name."""

ROLES: Final[Mapping[Role, pb.Role]] = {role: getattr(pb, f"ROLE_{role.name}") for role in Role}
"""The number that each role has in protobuf, under the same name."""

RELEASE_STATES: Final[Mapping[ReleaseState, pb.ReleaseState]] = {
    state: getattr(pb, f"RELEASE_STATE_{state.name}") for state in ReleaseState
}
"""The number that each state of a release has in protobuf, under the same name."""

RELEASE_OUTCOMES: Final[Mapping[ReleaseOutcome, pb.ReleaseOutcome]] = {
    outcome: getattr(pb, f"RELEASE_OUTCOME_{outcome.name}") for outcome in ReleaseOutcome
}
"""The number that each outcome of a row of a release has in protobuf, under the same name."""

SCHEMA_KINDS: Final[Mapping[SchemaKind, pb.SchemaKind]] = {
    kind: getattr(pb, f"SCHEMA_KIND_{kind.name}") for kind in SchemaKind
}
"""The number that each kind of schema has in protobuf, under the same name."""

SCHEMA_COMPATIBILITIES: Final[Mapping[SchemaCompatibility, pb.SchemaCompatibility]] = {
    each: getattr(pb, f"SCHEMA_COMPATIBILITY_{each.name}") for each in SchemaCompatibility
}
"""The number that each compatibility has in protobuf, under the same name."""

SCHEMA_MODES: Final[Mapping[SchemaMode, pb.SchemaMode]] = {
    mode: getattr(pb, f"SCHEMA_MODE_{mode.name}") for mode in SchemaMode
}
"""The number that each mode of a schema has in protobuf, under the same name."""

SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ConfigService"].full_name

STATUS: Final[dict[ErrorCode, grpc.StatusCode]] = {
    ErrorCode.INVALID_INPUT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNKNOWN_STORE: grpc.StatusCode.NOT_FOUND,
    ErrorCode.UNKNOWN_KEY: grpc.StatusCode.NOT_FOUND,
    ErrorCode.STORE_DELETED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.KEY_DELETED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.ALREADY_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    ErrorCode.MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.LIMIT_EXCEEDED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.IN_USE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.CONDITION_FAILED: grpc.StatusCode.ABORTED,
    ErrorCode.REVISION_GONE: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.OUTCOME_UNKNOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.PROTOCOL: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ErrorCode.VALUE_SEALED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
}
"""The gRPC status of each error code."""

_UNREACHABLE: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)


def error_trailers(error: RingcastError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata that carries an error's code and field to the caller."""
    trailers = [(GRPC_ERROR_KEY, str(error.code))]
    if error.field:
        trailers.append((GRPC_FIELD_KEY, error.field))
    if isinstance(error, ConditionFailedError):
        trailers.append((GRPC_FOUND_VERSION_KEY, str(error.found_version)))
    if isinstance(error, UnavailableError) and error.elsewhere:
        trailers.append((GRPC_ELSEWHERE_KEY, "1"))
    if error.retry_after_s is not None:
        trailers.append((GRPC_RETRY_AFTER_KEY, str(round(error.retry_after_s * 1_000))))
    return tuple(trailers)


def retry_after_s(error: grpc.aio.AioRpcError) -> float | None:
    """After how many seconds a failed call may be tried again, if the other side says so; 0: it does not say when.

    It does by our own trailing metadata, by ``google.rpc.RetryInfo`` in the details of the status, as proxies do, or by
    a bare RESOURCE_EXHAUSTED, which our services never give for what can't be cured by waiting.
    """
    trailers = dict(error.trailing_metadata() or ())
    said = str(trailers.get(GRPC_RETRY_AFTER_KEY, ""))
    if said.isascii() and said.isdigit():
        return int(said) / 1_000
    if isinstance(details := trailers.get(_DETAILS_KEY), bytes) and (found := _retry_info(details)) is not None:
        return found
    exhausted = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and GRPC_ERROR_KEY not in trailers
    return 0.0 if exhausted and "larger than max" not in (error.details() or "") else None


_DETAILS_KEY: Final = "grpc-status-details-bin"


def _retry_info(details: bytes) -> float | None:
    try:
        for one in retry_info_pb2.StatusDetails.FromString(details).details:
            if one.type_url.rpartition("/")[2] == "google.rpc.RetryInfo":
                delay = retry_info_pb2.RetryInfo.FromString(one.value).retry_delay
                return max(0.0, delay.seconds + delay.nanos / 1e9)
    except DecodeError:
        pass  # whatever it is, it tells nothing about trying again
    return None


def says_elsewhere(error: grpc.aio.AioRpcError) -> bool:
    """Whether the service has done nothing of a call, and says that another instance may."""
    return any(key == GRPC_ELSEWHERE_KEY for key, _ in error.trailing_metadata() or ())


def error_from_rpc(error: grpc.aio.AioRpcError) -> RingcastError:
    """The exception that the service raised, from what the call failed with."""
    found = _error_from_rpc(error)
    found.retry_after_s = retry_after_s(error)
    if isinstance(found, UnavailableError):
        found.elsewhere = says_elsewhere(error)
    return found


def _error_from_rpc(error: grpc.aio.AioRpcError) -> RingcastError:
    trailers = {str(key): str(value) for key, value in (error.trailing_metadata() or ())}
    message = error.details() or error.code().name
    if GRPC_ERROR_KEY in trailers:
        found = trailers.get(GRPC_FOUND_VERSION_KEY, "0")
        return error_from_code(
            trailers[GRPC_ERROR_KEY],
            message,
            field=trailers.get(GRPC_FIELD_KEY),
            found_version=int(found) if found.isascii() and found.isdigit() else 0,
        )
    # grpc.aio says INTERNAL with these words when the connection breaks while it sends.
    broken = error.code() is grpc.StatusCode.INTERNAL and "execute_batch" in message
    if error.code() in _UNREACHABLE or broken:
        return UnavailableError(f"the config service did not answer: {message}")
    return error_from_code(ErrorCode.INTERNAL, f"{error.code().name}: {message}")


__all__ = [
    "ConfigServiceServicer",
    "ConfigServiceStub",
    "MODES",
    "RELEASE_OUTCOMES",
    "RELEASE_STATES",
    "SCHEMA_COMPATIBILITIES",
    "SCHEMA_KINDS",
    "SCHEMA_MODES",
    "ROLES",
    "SERVICE_NAME",
    "STAGES",
    "STATUS",
    "STRATEGIES",
    "ServiceLogin",
    "TLS_PREFIX",
    "add_ConfigServiceServicer_to_server",
    "error_from_rpc",
    "error_trailers",
    "pb",
    "read_login_file",
    "read_tokens",
    "retry_after_s",
    "says_elsewhere",
]
