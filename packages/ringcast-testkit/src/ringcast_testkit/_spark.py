"""An installation of Spark that takes little where there is little to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ringcast_testkit.forks import forking

SHARED: Final = "RINGCAST_RUN_DIRECTORY"
"""The variable with a directory that the processes of a run share, where build-support/bin/run-tests runs them."""
_FRUGAL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xverify:none -Xlog:cds=off -Xlog:cds+dynamic=off"
_ARCHIVE: Final = "classes.jsa"
_ARCHIVE_S: Final = 60.0
_PROGRAMS: Final = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
_IMPORTS: Final = (
    *_PROGRAMS,
    "pyspark.worker",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_ringcast._batch.read",
    "pyspark_ringcast._batch.write",
    "pyspark_ringcast._stream.sink",
    "pyspark_ringcast._stream.source",
    "pandas",
)
_NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Else imports start some, and Spark's daemon imports nothing because of them."""


def frugal_jvm(home: Path) -> str:
    """Options of a JVM with little to do, of the Spark in that directory.

    Else most of its work is to make fast code, and to look at each of Spark's many classes, which come from a package
    with hashes. Where another process of the run has archived the classes, it does not even read them.
    """
    archive = home / _ARCHIVE
    return f"{_FRUGAL} -XX:SharedArchiveFile={archive}" if archive.exists() else _FRUGAL


class ClassArchive:
    """What the first session of a run does for the other JVMs: it keeps the classes that it has read.

    A quarter of what a JVM takes to start Spark, and to run a first query. Only those started later have it, from the
    same paths: in a ``SPARK_HOME`` that the processes of a run share. Without a directory of the run it does nothing.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / _ARCHIVE
        self._is_ours = SHARED in os.environ and shutil.which("jcmd") is not None and self._claim()

    @property
    def options(self) -> str:
        """Of the JVM that is to keep its classes."""
        return "-XX:+RecordDynamicDumpInfo" if self._is_ours else ""

    def keep(self, session: Any) -> None:
        """Has the JVM of a session write the archive, if that is its task. Without one all goes on, but slower."""
        if not self._is_ours:
            return
        session.range(4).groupBy("id").count().collect()  # what every query needs
        pid = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
        written = self._path.with_suffix(".part")
        command = ["jcmd", str(pid), "VM.cds", "dynamic_dump", str(written)]
        with suppress(FileNotFoundError, subprocess.TimeoutExpired):  # a Java of another version, or a busy machine
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=_ARCHIVE_S)
            written.rename(self._path)

    def _claim(self) -> bool:
        try:
            self._path.with_suffix(".claimed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def make_spark_home(directory: Path) -> Path:
    """Make a ``SPARK_HOME`` there, of links to the installed PySpark but without its ``python/lib/pyspark.zip``.

    Spark puts that archive before all else on the path of its Python workers. From an archive each worker compiles
    every module that it imports, and reads the archive's directory again for every package in it: seconds of CPU, while
    a worker does little in a test. Without it they import the same modules from where the driver does.

    Raises:
        ModuleNotFoundError: PySpark is not installed.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("PySpark is not installed")
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        with suppress(FileExistsError):  # another process of the run has made it
            (directory / name).symlink_to(Path(found.origin).parent / name)
    return directory


def spark_workers(executable: Path) -> AbstractContextManager[Path]:
    """A Python for ``PYSPARK_PYTHON``, made at that path, whose daemons are forked from a process with all imports.

    Spark's own daemon imports nothing, so that each worker imports pyarrow, pandas and the connector again, and
    collects the garbage among all their objects after each task: more CPU than the tasks of a test. Spark starts such a
    daemon for each kind of work, and again after each worker that died; nor can a setting choose the daemon of the
    workers that plan a read or write.
    """
    # As Spark has the seed for its workers: what is hashed in one is compared with what is hashed in another.
    env = {**_NO_THREADS, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return forking(executable, _PROGRAMS, _IMPORTS, **env)
