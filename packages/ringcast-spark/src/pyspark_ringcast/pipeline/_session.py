"""The Spark session of the command line, and what becomes of Spark's errors."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ringcast_wire import ErrorCode, InvalidInputError, RingcastError, error_from_code

from pyspark_ringcast._common.guards import OverwriteRefusedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS: Final = re.compile(r"^(?:ringcast_wire|pyspark_ringcast)[\w.]*\.(\w+Error): (.+)$", re.MULTILINE)
_MAX_CHARS: Final = 1_000
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has its own idea of the master."""


@contextmanager
def spark_session(master: str | None, *, progress: bool) -> Iterator[SparkSession]:
    """The session that spark-submit or a notebook made, or one of our own, which is stopped at the end.

    Raises:
        InvalidInputError: PySpark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise InvalidInputError(
            "PySpark is not installed: install ringcast-spark[spark], or run this by spark-submit"
        ) from None
    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("ringcast-pipeline")
    if master is None and _GATEWAY not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    builder = builder.config("spark.ui.showConsoleProgress", str(progress).lower())
    if (master or "").startswith("local"):  # no other machine is to reach it
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def clear_error(error: BaseException) -> RingcastError | None:
    """The error of ours inside one of Spark's, which holds it as a traceback; or Spark's first line."""
    if isinstance(error, RingcastError):
        return error
    module = type(error).__module__
    if not module.startswith(("pyspark.", "py4j.")):
        return None
    text = str(error)
    if found := _OURS.findall(text):
        kind, sentence = found[-1]
        return error_from_code(_CODES.get(kind, ErrorCode.UNAVAILABLE), sentence[:_MAX_CHARS])
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return error_from_code(ErrorCode.INTERNAL, f"Spark: {first[:_MAX_CHARS]}")


_KINDS: Final[tuple[type[RingcastError], ...]] = (*RingcastError.__subclasses__(), OverwriteRefusedError)
"""Not all of our own are imported by now: those that a task may raise are named."""
_CODES: Final = {kind.__name__: kind.code for kind in _KINDS}
