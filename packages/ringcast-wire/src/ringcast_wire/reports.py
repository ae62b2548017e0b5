"""The report round: whoever wants to know how far the workers of a key are sends one request, and each of them answers.

:class:`ReportAsker` sends the request and collects the answers. It works on any connection that publishes and
subscribes, such as a client of NATS. A worker answers from memory, whatever state it is in.
"""

from __future__ import annotations

from ringcast_wire._report_messages import (
    MAX_REFUSAL_TEXT,
    MAX_REFUSALS,
    MAX_REPORT_BYTES,
    MAX_REPORT_TEXT,
    Refusal,
    ReportRequest,
    RowFailure,
    RowReport,
    WorkerKind,
    WorkerReport,
    assignment_digest,
    clipped,
    decode_report,
    decode_report_request,
    encode_report,
    ranges_of,
    spans_of,
)
from ringcast_wire._report_round import (
    JOIN_WITHIN_S,
    MAX_ANSWERS,
    MAX_MESSAGES,
    MAX_ROUND_BYTES,
    MAX_ROUNDS,
    ReportAsker,
    ReportBus,
    ReportRound,
)

__all__ = [
    "JOIN_WITHIN_S",
    "MAX_ANSWERS",
    "MAX_MESSAGES",
    "MAX_REFUSALS",
    "MAX_REFUSAL_TEXT",
    "MAX_REPORT_BYTES",
    "MAX_REPORT_TEXT",
    "MAX_ROUNDS",
    "MAX_ROUND_BYTES",
    "Refusal",
    "ReportAsker",
    "ReportBus",
    "ReportRequest",
    "ReportRound",
    "RowFailure",
    "RowReport",
    "WorkerKind",
    "WorkerReport",
    "assignment_digest",
    "clipped",
    "decode_report",
    "decode_report_request",
    "encode_report",
    "ranges_of",
    "spans_of",
]
