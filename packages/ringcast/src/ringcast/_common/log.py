"""The log of a worker."""

from __future__ import annotations

import logging

from ringcast_wire import EventLog


def worker_log(logger: logging.Logger, **fields: object) -> EventLog:
    """A log whose records all have ``store``, ``key``, ``worker_id`` and ``partition`` (None where there is none)."""
    return EventLog(logger, **{"store": None, "key": None, "worker_id": None, "partition": None, **fields})
