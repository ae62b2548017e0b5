"""A real Prometheus of the machine (Debian's package), on a free port of 127.0.0.1."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from ringcast_testkit import ManagedProcess, ManagedServer, ReservedPort

from tests.integration.needed_tools import needed_tool


class PrometheusServer(ManagedServer):
    """Scrapes ten times a second what :meth:`scrape` names. Its data outlives a restart."""

    def __init__(self, directory: Path) -> None:
        install = "build-support/bin/install-prometheus puts it there"
        self._binary = needed_tool("PROMETHEUS", "prometheus", install=install)
        self._data, self._config = directory / "data", directory / "prometheus.json"
        self._port = ReservedPort()
        self.scrape()

    @property
    def url(self) -> str:
        """Where it is asked; it stays the same over restarts."""
        return f"http://{self._port.address}"

    def scrape(self, **targets: str) -> None:
        """The address to scrape of each job, from the next start on."""
        jobs = [{"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()]
        words = {"scrape_interval": "100ms", "scrape_timeout": "100ms"}
        self._config.write_text(json.dumps({"global": words, "scrape_configs": jobs}))  # JSON is YAML

    def start(self) -> None:
        """Starts the server and returns once it serves."""
        words = [f"--config.file={self._config}", f"--storage.tsdb.path={self._data}"]
        words += [f"--web.listen-address={self._port.address}", f"--web.console.libraries={self._data}"]
        process = ManagedProcess("prometheus", [self._binary, *words, f"--web.console.templates={self._data}"])
        self._process = process
        process.wait_until(lambda: any("Server is ready to receive web requests" in line for line in [*process.log]))

    def ask(self, expression: str) -> list[str]:
        """The values of what it answers."""
        with urlopen(f"{self.url}/api/v1/query?{urlencode({'query': expression})}", timeout=10) as answer:
            return [sample["value"][1] for sample in json.load(answer)["data"]["result"]]
