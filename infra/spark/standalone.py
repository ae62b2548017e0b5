"""A standalone Spark cluster on this machine: a master and two workers on loopback, of SPARK_HOME or the pip package.

Usage: standalone.py [--logs DIRECTORY] SCRIPT [ARGUMENT …]. Packs the connector, with its compiled core, into an
archive; starts the cluster; submits the script with the archive; stops everything, and exits with what the script
exited with. `ringcast-pipeline` is the script pyspark_ringcast/pipeline/__main__.py. Spark's own settings are those of
SPARK_CONF_DIR. With --logs, what the executors said is kept.

On the nodes of a real cluster Python needs pyspark, pyarrow, grpcio, protobuf, msgspec and nats-py; what is ours comes
with the job.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

OURS = ("ringcast_core", "ringcast_wire", "pyspark_ringcast")
MOUNT = "ringcast"
"""Where the archive is unpacked, in the working directory of each executor."""
_HOME = Path(os.environ.get("SPARK_HOME") or Path(str(pyspark.__file__)).parent)
_ENVIRONMENT = {"SPARK_HOME": str(_HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
_START_S = 180.0  # for what hangs: a machine with much else to do has needed over a minute
_STOP_S = 10.0
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MASTER = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_REGISTERED = re.compile(r"Successfully registered with master")


def pack(directory: Path) -> Path:
    """An archive of our packages as they are imported here; ``--py-files`` could not hold the compiled core."""
    tree = directory / "packed"
    for name in OURS:
        found = importlib.import_module(name).__file__
        assert found is not None
        shutil.copytree(Path(found).parent, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    if not list((tree / "ringcast_core").glob("_native*.so")):
        raise SystemExit("standalone: the core is not compiled here: run `make setup`")
    return Path(shutil.make_archive(str(directory / MOUNT), "zip", tree))


def _program(name: str) -> list[str]:
    """A program of Spark's package, which on Linux ends with us, even when we are killed."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), str(_HOME / "bin" / name)]


class _Daemon:
    """A JVM of the cluster, and what it says."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        command = [*_program("spark-class"), *words]
        self._process = subprocess.Popen(  # noqa: S603
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first match in what it says."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            found[:] = [match for line in self._lines if (match := pattern.search(line))]
            return bool(found) or self._process.poll() is not None

        with self._changed:
            self._changed.wait_for(look, _START_S)
        if not found:
            raise SystemExit("standalone: a part of the cluster did not start:\n" + "\n".join(self._lines[-20:]))
        return found[0]

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines = [*self._lines[-500:], line.rstrip()]
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


class Cluster:
    """A master, and workers of one core each that join it. Use as a context: nothing of it runs in the end.

    What workers and executors write is in ``directory``.
    """

    def __init__(self, directory: Path, *, workers: int = 2, memory: str = "700m") -> None:
        self._directory = directory
        self._sizes = workers, memory
        self._stack = ExitStack()
        self._workers: list[_Daemon] = []
        self.address = ""

    def __enter__(self) -> Self:
        self.address = self._start("master.Master").wait_for(_MASTER)[1]
        count, memory = self._sizes
        for number in range(count):
            work = str(self._directory / f"worker{number}")
            words = ("--cores", "1", "--memory", memory, "--work-dir", work, self.address)
            self._workers.append(self._start("worker.Worker", *words, host=_worker_host(number)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, archive: Path, script: Path, arguments: list[str]) -> int:
        """Submits a script and waits for its end; its exit code. Workers may join while it starts."""
        process = subprocess.Popen(  # noqa: S603
            [*_program("spark-submit"), *_settings(self.address, archive), str(script), *arguments],
            env={**os.environ, **_ENVIRONMENT},
        )
        try:
            for worker in self._workers:
                worker.wait_for(_REGISTERED)
            return process.wait()
        finally:
            process.terminate()
            process.wait()

    def _start(self, kind: str, *words: str, host: str = "127.0.0.1") -> _Daemon:
        listen = ("--host", host, "--port", "0", "--webui-port", "0")
        own = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": _SMALL, "SPARK_LOCAL_IP": host}
        daemon = _Daemon([f"org.apache.spark.deploy.{kind}", *listen, *words], {**os.environ, **_ENVIRONMENT, **own})
        self._stack.callback(daemon.stop)
        return daemon


def _worker_host(number: int) -> str:
    """An address of its own where all of 127.0.0.0/8 is loopback: Spark copies a slow task to another host only."""
    return f"127.0.0.{1 + number}" if sys.platform == "linux" else "127.0.0.1"


def _settings(address: str, archive: Path) -> list[str]:
    settings = {
        "spark.archives": f"{archive}#{MOUNT}",
        "spark.executorEnv.PYTHONPATH": MOUNT,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _SMALL,
        "spark.driver.extraJavaOptions": _SMALL,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    return ["--master", address, *(word for name, text in settings.items() for word in ("--conf", f"{name}={text}"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="keep the executors' working directories here")
    parser.add_argument("script", type=Path, help="what to run: a Python program that makes a SparkSession")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it gets")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left behind
    with tempfile.TemporaryDirectory(prefix="rc-spark-") as temporary:
        directory = Path(temporary)
        archive = pack(directory)
        with Cluster(given.logs.resolve() if given.logs else directory) as cluster:
            return cluster.run(archive, given.script, given.arguments)


if __name__ == "__main__":
    sys.exit(main())
