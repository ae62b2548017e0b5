"""The daemon that forks Spark's Python workers, with what they need imported before.

Spark's own daemon imports nothing, so that each worker imports pyarrow, pandas and the connector again, and collects
the garbage among all their objects after each task: more CPU than the tasks of a test. Nor can a setting choose the
daemon of the workers that plan a read or write. A session has this one for all where :func:`executable` is its Python.
"""

from __future__ import annotations

import gc
import importlib
import os
import shlex
import sys
from pathlib import Path

_MODULES = (
    "pyspark_ringcast._batch.read",
    "pyspark_ringcast._batch.write",
    "pyspark_ringcast._stream.sink",
    "pyspark_ringcast._stream.source",
)
_OF_TASKS = "pyspark.worker"
_MODULES_OF_TASKS = ("pandas",)
"""What planning never needs: half of the time that the imports take."""


_EXECUTABLE = """#!/bin/sh
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m ringcast_testkit.spark_daemon "$@"
fi
exec {python} "$@"
"""


def executable(directory: Path) -> Path:
    """A Python for ``PYSPARK_PYTHON`` that has this daemon in place of Spark's own; made in a directory.

    Its workers find this package by ``spark.executorEnv.PYTHONPATH``.
    """
    path = directory / "python"
    path.write_text(_EXECUTABLE.format(python=shlex.quote(sys.executable)))
    path.chmod(0o755)
    return path


def main() -> None:
    """Import, and serve as Spark's own daemon does, until Spark closes its input.

    Raises:
        SystemExit: An import started a thread. A forked process has only the thread that forked, and the locks of the
            others as they were: this is why Spark's daemon imports nothing.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for module in (sys.argv[1], *_MODULES, *(_MODULES_OF_TASKS if sys.argv[1] == _OF_TASKS else ())):
        importlib.import_module(module)
    threads = Path("/proc/self/task")
    if threads.exists() and len(names := [(task / "comm").read_text() for task in threads.iterdir()]) > 1:
        raise SystemExit(f"spark_daemon: an import started a thread before a fork: {names}")
    gc.collect()
    gc.freeze()
    importlib.import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
