"""The rows of gRPC messages, and the terms on which they are to be written."""

from __future__ import annotations

import math

from ringcast_service import Context
from ringcast_wire import check_condition, check_reason
from ringcast_wire.grpc import pb

from ringcast_config_service.caller import Caller
from ringcast_config_service.grpc.callers import caller_of
from ringcast_config_service.permits import clock_s
from ringcast_config_service.repository import Authorship
from ringcast_config_service.writes.batches import Rejected, RowInput
from ringcast_config_service.writes.terms import KeyedRow, Terms


def row_input(row: pb.RowChange | pb.RowWrite) -> RowInput:
    """A row of a stream or of a commit.

    Raises:
        InvalidInputError: its condition is none.
    """
    condition = None
    if row.if_absent or row.HasField("if_version"):
        version = row.if_version if row.HasField("if_version") else None
        condition = check_condition(version, row.if_absent, delete=row.delete)
    return RowInput(row.row_id, None if row.delete else row.value, None if row.delete else row.metadata, condition)


def rejected_message(row: Rejected) -> pb.RejectedRow:
    """A row of a batch that was left out."""
    return pb.RejectedRow(index=row.index, row_id=row.row_id, reason=row.reason, code=row.code, field=row.field or "")


def put_input(request: pb.PutRequest) -> RowInput:
    """The row of a put."""
    version = request.if_version if request.HasField("if_version") else None
    return RowInput(request.row_id, request.value, request.metadata, check_condition(version, request.if_absent))


def delete_input(request: pb.DeleteRequest) -> RowInput:
    """The row of a delete."""
    version = request.if_version if request.HasField("if_version") else None
    return RowInput(request.row_id, None, None, check_condition(version, if_absent=False))


def keyed_rows(request: pb.CommitRequest) -> list[KeyedRow]:
    """The rows of a commit."""
    return [KeyedRow(write.key, row_input(write.row)) for write in request.writes]


def call_terms(
    context: Context, traceparent: str | None, request: pb.PutRequest | pb.DeleteRequest | pb.CommitRequest
) -> Terms:
    """The terms of a call: it expires when its client no longer waits.

    Raises:
        InvalidInputError: its reason is none.
    """
    left_s: float | None = context.time_remaining()  # None without a deadline, whatever its type says
    expires_s = math.inf if left_s is None else clock_s() + left_s
    return Terms(traceparent, request.idempotency_key, expires_s, authorship(caller_of(context), request.reason))


def change_terms(change: pb.RowChange, traceparent: str | None, caller: Caller) -> Terms:
    """The terms of one change of a stream; raises as :func:`call_terms`."""
    expires_s = change.expires_ms / 1000 if change.expires_ms else math.inf
    return Terms(traceparent, change.idempotency_key, expires_s, authorship(caller, change.reason))


def batch_terms(batch: pb.WriteBatch, traceparent: str | None, caller: Caller) -> Terms:
    """The terms of a batch of a bulk write; raises as :func:`call_terms`."""
    return Terms(traceparent, batch.idempotency_key, by=authorship(caller, batch.reason))


def authorship(caller: Caller, reason: str = "") -> Authorship:
    """What the history and the audit log say of a call; the reason of the whole call counts where there is no other.

    Raises:
        InvalidInputError: the reason is too long, or more than a line.
    """
    return Authorship(caller.principal, check_reason(reason) if reason else caller.reason)
