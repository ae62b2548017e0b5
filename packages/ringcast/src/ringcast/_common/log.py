"""Structured logging: a constant sentence, and the facts as fields of the record."""

from __future__ import annotations

import logging


class Log:
    """A logger with fields bound to it. Every record has ``store``, ``key``, ``worker_id`` and ``partition``."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, logger: logging.Logger, **fields: object) -> None:
        self._logger = logger
        self._fields = {"store": None, "key": None, "worker_id": None, "partition": None, **fields}

    def bind(self, **fields: object) -> Log:
        """The same logger with more fields."""
        return Log(self._logger, **{**self._fields, **fields})

    def debug(self, message: str, **fields: object) -> None:
        """For whoever looks into a worker."""
        self._emit(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: object) -> None:
        """Something normal and rare."""
        self._emit(logging.INFO, message, fields)

    def warning(self, message: str, **fields: object) -> None:
        """Something failed that is tried again."""
        self._emit(logging.WARNING, message, fields)

    def error(self, message: str, **fields: object) -> None:
        """Something failed for good."""
        self._emit(logging.ERROR, message, fields)

    def critical(self, message: str, **fields: object) -> None:
        """What others do may be wrong now because of it."""
        self._emit(logging.CRITICAL, message, fields)

    def _emit(self, level: int, message: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, extra={**self._fields, **fields}, stacklevel=3)
