"""The heartbeat agent as its own process, the way a user runs it."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ringcast_testkit._ports import ReservedPort
from ringcast_testkit._process import ManagedProcess, ManagedServer
from ringcast_testkit._warm import WarmProgram


class AgentProcess(ManagedServer):
    """One agent; ``options`` are further command-line words, ``env`` further variables, ``prefix`` a command to run it.

    Its token is in a file of its directory, unless the options say otherwise.
    """

    program: ClassVar = WarmProgram("ringcast_heartbeat_agent", ("ringcast_heartbeat_agent.__main__", "encodings.idna"))
    """What an agent runs."""

    def __init__(
        self,
        directory: Path,
        *,
        nats_url: str,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ready_file = directory / f"agent-{os.getpid()}-{id(self):x}.json"
        self._listen = {name: ReservedPort() for name in ("grpc", "http", "metrics")}
        self._words = ["--nats", nats_url, "--ready-file", str(self._ready_file), *options]
        self.token = (env or {}).get("DAPR_API_TOKEN", "")
        """What callers must send."""
        if "--api-token" in options:
            self.token = options[options.index("--api-token") + 1]
        elif not self.token and "--token-file" not in options:
            self._words += ["--token-file", str(directory / "agent.token")]
        self.env = env or {}
        self._prefix = prefix

    @property
    def grpc_address(self) -> str:
        """``127.0.0.1:<port>`` of Dapr's API over gRPC; it stays the same over restarts."""
        return self._listen["grpc"].address

    @property
    def http_url(self) -> str:
        """``http://127.0.0.1:<port>`` of Dapr's API over HTTP; it stays the same over restarts."""
        return f"http://{self._listen['http'].address}"

    def status(self, token: str = "") -> Any:
        """What it tells of itself: workers, groups, consumers."""
        headers = {"dapr-api-token": token or self.token}
        request = urllib.request.Request(f"{self.http_url}/ringcast/v1/status", headers=headers)
        with urllib.request.urlopen(request, timeout=15) as response:
            return json.load(response)

    @property
    def metrics_url(self) -> str:
        """Where its metrics are."""
        return f"http://{self._listen['metrics'].address}/metrics"

    def start(self) -> None:
        """Starts the agent and returns once it serves."""
        self._ready_file.unlink(missing_ok=True)
        listen = [word for name, port in self._listen.items() for word in (f"--{name}-listen", port.address)]
        words = [*listen, *self._words]
        if self._prefix:
            process = ManagedProcess("heartbeat-agent", [*self._prefix, *self.program.command, *words], env=self.env)
        else:
            process = ManagedProcess("heartbeat-agent", words, env=self.env, program=self.program)
        self._process = process
        process.wait_until(self._ready_file.exists)
        ready = json.loads(self._ready_file.read_text())
        if "token_file" in ready:
            self.token = Path(ready["token_file"]).read_text()
