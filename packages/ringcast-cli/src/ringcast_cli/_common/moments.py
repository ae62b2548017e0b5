"""How commands read moments, and states of a key."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

from ringcast_client import AsOf
from ringcast_wire import InvalidInputError, shown

_AGO: Final = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_RELEASE: Final = re.compile(r"\d{1,18}", re.ASCII)
_NOW: Final = "now"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def since_ms(text: str) -> int:
    """Unix time in ms of ``2h`` ago, or of an ISO 8601 time (UTC unless it says otherwise).

    Raises:
        InvalidInputError: it is neither.
    """
    if (at := _moment(text)) is None:
        raise InvalidInputError(
            f"since {shown(text)} is not a time: it must be like 30m, 2h, 7d or 2026-11-22T14:30", field="since"
        )
    return max(0, (at - _EPOCH) // timedelta(milliseconds=1))


def as_of_time(text: str) -> datetime:
    """The same as a datetime, for ``--as-of-time``.

    Raises:
        InvalidInputError: it is neither.
    """
    if (at := _moment(text)) is None:
        raise InvalidInputError(
            f"as_of_time {shown(text)} is not a time: it must be like 30m, 2h, 7d or 2026-11-22T14:30",
            field="as_of_time",
        )
    return at


def state(text: str, field: str) -> AsOf:
    """A state of a key: the number of a release, a moment, or ``now``.

    Raises:
        InvalidInputError: it is none of these.
    """
    if text == _NOW:
        return None
    if _RELEASE.fullmatch(text):
        return int(text)
    if (at := _moment(text)) is None:
        raise InvalidInputError(
            f"{field} {shown(text)} is no state: it must be the number of a release, now, or a time like 30m, 2h, 7d "
            "or 2026-11-22T14:30",
            field=field,
        )
    return at


def _moment(text: str) -> datetime | None:
    if match := _AGO.fullmatch(text):
        seconds = int(match[1]) * _SECONDS[match[2]]
        return _EPOCH + timedelta(seconds=max(0.0, time.time() - seconds))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
