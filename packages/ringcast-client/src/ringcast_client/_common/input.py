"""What the client of the config service checks before it sends anything, and what it makes of gRPC's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ringcast_wire import InvalidInputError, check_idempotency_key, check_reason, check_row_id, limits, names, shown
from ringcast_wire.addresses import check_service_address

_MAX_JOB_ID_BYTES: Final = 100
"""The number of the batch has to fit behind it."""
_REFUSED: Final = re.compile(r"Connection refused|Name or service not known|No route to host|timed out", re.IGNORECASE)


def check_address(address: str) -> str:
    """Returns ``address`` if it is ``host:port``, or that with ``tls://`` before it.

    Raises:
        InvalidInputError: it is not.
    """
    return check_service_address(address)


def cause(details: str | None) -> str:
    """What gRPC says at length, in a few words where they are known."""
    text = " ".join((details or "no reason given").split())
    if "WRONG_VERSION_NUMBER" in text:
        return "what answers there has no TLS"
    found = _REFUSED.search(text)
    return found[0].lower() if found else text[:200]


def is_said(error: Any) -> bool:
    """Whether the service itself says why a call failed, so that nothing of it was done; else it broke on the way."""
    return any(key == names.GRPC_ERROR_KEY for key, _ in error.trailing_metadata() or ())


def where(store: str, key: str) -> dict[str, Any]:
    """The fields of a request that say which list it is about."""
    return {"store": names.check_name("store", store), "key": names.check_name("key", key)}


def check_mark(idempotency_key: str | None) -> str:
    """As the message has it: empty for none."""
    return "" if idempotency_key is None else check_idempotency_key(idempotency_key)


def check_why(reason: str | None) -> str:
    """As the message has it: empty for none."""
    return "" if reason is None else check_reason(reason)


def check_row_ids(row_ids: Sequence[str]) -> list[str]:
    """The row ids of a request, as a list.

    Raises:
        InvalidInputError: one is none, or they are a string, whose characters would be taken for ids.
    """
    if isinstance(row_ids, str):
        raise InvalidInputError(f"row_ids {shown(row_ids)} is a string: a list of row ids is wanted", field="row_ids")
    return [check_row_id(row_id) for row_id in row_ids]


def check_job_id(job_id: str | None) -> str:
    """As :class:`BatchBuilder` takes it: empty for none."""
    if job_id is None:
        return ""
    check_range("bytes of job_id", len(check_idempotency_key(job_id).encode()), 1, _MAX_JOB_ID_BYTES)
    return job_id


def check_limit(limit: int | None) -> int:
    """As the message has it: 0 for none."""
    return 0 if limit is None else check_range("limit", limit, 1, 2**63 - 1)


def check_partition(partition: int | None) -> int | None:
    """As the message has it: ``None`` for all."""
    return None if partition is None else names.check_partition(partition, limits.MAX_PARTITIONS)


def check_range(field: str, value: object, low: int, high: int) -> int:
    """Returns ``value`` if it is a whole number between both."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise InvalidInputError(f"{field} {shown(value)} is out of range: {low} to {high} is allowed", field=field)


def check_inline(value: object) -> int:
    """Returns ``value`` if values of so many bytes may travel in an event."""
    return check_range("inline_max_bytes", value, 0, limits.MAX_INLINE_BYTES)


def slices(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Pieces of ``size`` items."""
    return (items[start : start + size] for start in range(0, len(items), size))
