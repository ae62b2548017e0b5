"""An installation of Spark that takes little where there is little to do."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

FRUGAL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xverify:none"
"""Options of a JVM with little to do. Else most of its work is to make fast code, and to look at each of Spark's many
classes, which come from a package with hashes."""


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
    directory.mkdir(parents=True)
    for name in ("bin", "jars", "sbin"):
        (directory / name).symlink_to(Path(found.origin).parent / name)
    return directory
