"""The ``ringcast`` command as a process of its own, the way a person or a script runs it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ringcast_cli
from ringcast_testkit import PATIENCE_S, ConfigServiceProcess, ManagedProcess, NatsServer, WarmProgram

COMMAND = (sys.executable, "-m", "ringcast_cli")
_FILES = Path(ringcast_cli.__file__).parent.glob("*/*_command*.py")
_COMMANDS = sorted(f"{path.parent.name}.{path.stem}" for path in _FILES)
MODULES = tuple(f"ringcast_cli.{name}" for name in ("_app", "_common.client", *_COMMANDS))
_PROGRAM = WarmProgram("ringcast_cli", MODULES, hides_aiohttp=True)


@dataclass(frozen=True)
class Result:
    """What a command has left."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def documents(self) -> list[Any]:
        """A JSON document a line."""
        return [json.loads(line) for line in self.out.splitlines()]


class Cli:
    """Runs commands with an environment of their own; ``home`` keeps the user's own settings out."""

    def __init__(self, home: Path, **settings: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGCAST_")}
        named = {f"RINGCAST_{name.upper()}": value for name, value in settings.items()}
        self.env = {**inherited, "HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": "", **named}

    def __call__(self, *words: object, stdin: str | bytes = b"") -> Result:
        """Runs a command to its end."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = _PROGRAM.run([*map(str, words)], stdin=data, env=self.env, timeout_s=PATIENCE_S)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def ok(self, *words: object, stdin: str | bytes = b"") -> Result:
        """Runs a command that must succeed."""
        result = self(*words, stdin=stdin)
        assert result.code == 0, result
        return result

    def rows(self, store: str) -> dict[str, str]:
        """What the key `list` of a store has."""
        return {row["row_id"]: row["value"] for row in self.ok("list", store, "list", "--json").documents}

    def refused(self, *words: object, stdin: str | bytes = b"", code: int = 1) -> str:
        """Runs a command that must fail with one clear sentence, which is returned."""
        result = self(*words, stdin=stdin)
        assert result.code == code, result
        assert "Traceback" not in result.err
        (line,) = result.err.splitlines()
        assert line.startswith("ringcast: "), line
        return line.removeprefix("ringcast: ")

    def start(self, *words: object) -> ManagedProcess:
        """Starts a command that goes on; whoever starts it ends it."""
        return ManagedProcess("ringcast", [*map(str, words)], env=self.env, program=_PROGRAM)


class Servers:
    """A NATS server and a config service on SQLite, for a whole file of tests. ``options`` are the service's."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.nats = NatsServer(directory / "nats")
        self._directory = directory
        self._options = options
        self._service: ConfigServiceProcess | None = None

    @property
    def service(self) -> ConfigServiceProcess:
        assert self._service is not None
        return self._service

    def __enter__(self) -> Servers:
        self.nats.start()
        database = f"sqlite:{self._directory / 'ringcast.db'}"
        self._service = ConfigServiceProcess(
            self._directory, nats_url=self.nats.url, database=database, options=self._options
        )
        try:
            self._service.start()
        except BaseException:
            self.nats.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.service.kill()
        self.nats.kill()

    def cli(self, home: Path) -> Cli:
        """The command, told where these servers are."""
        return Cli(home, servers=self.nats.url, service=self.service.address)
