"""A real Prometheus of the machine (Debian's package), on a free port of 127.0.0.1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from ringcast_testkit import ManagedProcess, ManagedServer, ReservedPort

from tests.integration.needed_tools import needed_tool


class PrometheusServer(ManagedServer):
    """Runs a ``configuration``; without one it scrapes ten times a second what :meth:`scrape` names.

    Its data outlives a restart. ``flags`` are further words of its command.
    """

    def __init__(
        self, directory: Path, configuration: Mapping[str, Any] | None = None, *, flags: tuple[str, ...] = ()
    ) -> None:
        install = "build-support/bin/install-prometheus puts it there"
        self._binary = needed_tool("PROMETHEUS", "prometheus", install=install)
        self._data, self._config = directory / "data", directory / "prometheus.json"
        self._flags = flags
        self._port = ReservedPort()
        if configuration is None:
            self.scrape()
        else:
            self._config.write_text(json.dumps(configuration))  # JSON is YAML

    @property
    def url(self) -> str:
        """Where it is asked; it stays the same over restarts."""
        return f"http://{self._port.address}"

    def scrape(self, **targets: str) -> None:
        """The address to scrape of each job, from the next start on."""
        jobs = [{"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()]
        words = {"scrape_interval": "100ms", "scrape_timeout": "100ms"}
        self._config.write_text(json.dumps({"global": words, "scrape_configs": jobs}))

    def start(self) -> None:
        """Starts the server and returns once it serves."""
        words = [f"--config.file={self._config}", f"--storage.tsdb.path={self._data}", *self._flags]
        words += [f"--web.listen-address={self._port.address}", f"--web.console.libraries={self._data}"]
        process = ManagedProcess("prometheus", [self._binary, *words, f"--web.console.templates={self._data}"])
        self._process = process
        process.wait_until(lambda: any("Server is ready to receive web requests" in line for line in [*process.log]))

    def ask(self, expression: str) -> list[str]:
        """The values of what it answers."""
        return [sample["value"][1] for sample in self.samples(expression)]

    def samples(self, expression: str) -> Any:
        """What it answers, with labels."""
        return self.get("query", query=expression)["result"]

    def get(self, path: str, **words: str) -> Any:
        """The data of an answer of its API."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(words)}", timeout=10) as answer:
            return json.load(answer)["data"]
