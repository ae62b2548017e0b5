"""The command line itself: help, usage, completion, and what it does not load."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
import ringcast_cli
from ringcast_cli import _app
from ringcast_cli._app import run
from ringcast_cli._common import exit_codes
from ringcast_cli._common.output import visible
from ringcast_cli._fleet.topology_command import held_down, ranges
from ringcast_wire.tokens import KnownToken, digest, read_known_tokens, token_line
from ringcast_wire.worker_tokens import read_worker_tokens

README = Path(__file__).parent.parent / "README.md"


def _commands() -> dict[str, click.Command]:
    context = click.Context(_app.cli)
    found = {name: _app.cli.get_command(context, name) for name in _app.cli.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def _paths() -> list[tuple[str, ...]]:
    """The words of every command, groups' own commands included."""
    paths: list[tuple[str, ...]] = []
    for name, command in _commands().items():
        paths.append((name,))
        if isinstance(command, click.Group):
            paths += [(name, inner) for inner in command.commands]
    return paths


def test_public_names() -> None:
    assert ringcast_cli.__all__ == ["main"]


def test_help_and_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    for name in (
        "up",
        "store",
        "put",
        "get",
        "delete",
        "commit",
        "list",
        "history",
        "diff",
        "import",
        "watch",
        "topology",
        "plan",
        "doctor",
        "lag",
        "top",
        "why",
        "drain",
        "undrain",
        "pin",
        "unpin",
        "pins",
        "balance",
        "groups",
        "agent",
        "dead-letters",
        "cluster",
        "meta",
        "whoami",
        "role",
        "token",
        "keyring",
        "audit",
        "completion",
    ):
        assert f"  {name} " in out
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done, with remarks" in " ".join(out.split())
    versions = {"ringcast-cli": "1.2.3"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == "ringcast 1.2.3\n"


@pytest.mark.parametrize("path", _paths(), ids=" ".join)
def test_every_command_explains_itself_and_takes_json(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*path, "-h"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: ringcast {' '.join(path)}" in out
    if path != ("completion",):
        assert "--json" in out
        assert "--config-file" in out


def test_the_summaries_of_the_group_are_those_of_the_commands() -> None:
    """The group does not load the commands for its help, so it has a copy of their first sentences."""
    for name, command in _commands().items():
        summary = _app._COMMANDS[name][1].removesuffix(".").split()[0]
        assert (command.help or "").split()[0] == summary, name


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["put"],
        ["put", "s", "k", "a"],
        ["put", "s", "k", "a", "1", "-m", "no-equals-sign"],
        ["put", "s", "k", "a", "1", "--file", "-"],
        ["get", "s", "k"],
        ["list", "s", "k", "--limit", "0"],
        ["store", "create", "s", "--mode", "half"],
        ["store", "create", "s", "--partitions", "many"],
        ["completion", "powershell"],
        ["watch", "s"],
        ["drain"],
        ["drain", "w", "--key", "k"],
        ["drain", "w", "--wait", "--patience", "0"],
        ["pin", "s", "k", "one", "w"],
        ["unpin", "s", "k"],
        ["agent", "nonsense"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == exit_codes.USAGE
    assert "Usage: ringcast" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "spared"),
    [
        (["--help"], {"grpc", "nats", "rich", "pyarrow", "google"}),
        # What speaks to the config service alone takes a quarter of a second less without NATS.
        *((["store", name, "--help"], {"nats", "rich", "pyarrow"}) for name in ("create", "list", "migrate")),
        (["put", "--help"], {"nats", "rich", "pyarrow"}),
    ],
    ids=str,
)
def test_a_command_loads_only_what_it_needs(words: list[str], spared: set[str]) -> None:
    code = (
        f"import sys; from ringcast_cli._app import run; run({words}); "
        f"print(sorted({spared} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_bad_settings_are_an_error_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RINGCAST_SERVICE", "nonsense")
    assert run(["store", "list"]) == exit_codes.FAILED
    assert capsys.readouterr().err == (
        "ringcast: service 'nonsense' is not an address: host:port is expected, with a port of 1 to 65535 "
        "(environment variable RINGCAST_SERVICE)\n"
    )


def test_an_error_that_nobody_foresaw_is_one_sentence_unless_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("ringcast_cli._local.completion_command.get_completion_class", fail)
    assert run(["completion", "fish"]) == exit_codes.FAILED
    assert capsys.readouterr().err == (
        "ringcast: internal error: ZeroDivisionError: on purpose (RINGCAST_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("RINGCAST_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run(["completion", "fish"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_RINGCAST_COMPLETE={shell}_complete" in script
    if (program := shutil.which(shell)) is not None:
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([program, "-n", file], check=True)


def test_completion_of_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_RINGCAST_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "ringcast store s")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out == "plain,show\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ✓", "plain ✓"),
        ("two\nlines\tand", "two\\nlines\\tand"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\u202eback", "\\u202eback"),
        ("\\n", "\\n"),
    ],
)
def test_nothing_in_a_row_can_steer_a_terminal(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_processes_that_hold_the_wire_version_down_are_named() -> None:
    assert held_down({}) == held_down({"worker a": 3, "worker b": 3}) == []
    assert held_down({"worker b": 1, "worker c": 3, "service a": 1}) == [
        "events are of wire version 1 at most, though others read 3: service a, worker b read no newer one"
    ]
    (line,) = held_down({**{f"worker {number}": 1 for number in range(7)}, "worker \ax": 3, "worker \a": 1})
    assert line.endswith(r"3: worker \x07, worker 0, worker 1, worker 2, worker 3 and 3 more read no newer one")


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [((), ""), ((4,), "4"), ((0, 1, 2, 7, 9, 10), "0-2,7,9-10"), (tuple(range(4096)), "0-4095"), ((0, 2), "0,2")],
)
def test_ranges(numbers: tuple[int, ...], shown: str) -> None:
    assert ranges(numbers) == shown


def test_the_readme_tells_the_exit_codes_and_every_command() -> None:
    text = README.read_text()
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    assert codes == {0, 1, 2, 3, 130}
    for code in codes:
        assert f"| {code} |" in text
    for name in _commands():
        assert f"`{name}" in text, name


@pytest.mark.parametrize(
    "words", [(), ("3", "--all"), ("3", "--key", "list"), ("--all", "--since", "1h"), ("0",), ("x",), ("-1",)]
)
@pytest.mark.parametrize("command", ["discard", "replay"])
def test_dead_letters_are_chosen_in_one_way(
    command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dead-letters", command, "gateway", *words]) == exit_codes.USAGE
    assert f"Usage: ringcast dead-letters {command}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--since", "soon"), "since 'soon' is not a time: it must be like 30m, 2h, 7d or 2026-11-22T14:30"),
        (("--row", "a"), "row_id is given without a key: a row is one of a key"),
        (("--key", "a.b"), "key 'a.b' is not a valid name"),
        (("--partition", "4096"), "partition 4096 is out of range"),
    ],
)
def test_a_choice_that_makes_no_sense_is_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["dead-letters", "list", "gateway", *words]) == exit_codes.FAILED
    assert f"ringcast: {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["worker", "agent"])
def test_a_token_for_nats_is_printed_once_with_its_line(
    kind: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["token", kind, "fleet", "fleet-*", "gateway/a,b", "other/c", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["token"] not in made["line"]
    file = tmp_path / "tokens"
    file.write_text(f"{made['line']}\n")
    (known,) = read_worker_tokens(str(file))
    assert (known.principal, known.digest) == ("fleet", digest(made["token"]))
    assert known.scope == f"{kind}=fleet-* gateway/a,b other/c"
    assert run(["token", kind, "fleet", "a*b", "gateway/a"]) == exit_codes.FAILED
    assert f"{kind} 'a*b' is not a valid name" in capsys.readouterr().err


def test_a_token_is_printed_once_with_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["token", "create", "deploy", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["name"] == "deploy"
    assert made["token"] not in made["line"]
    file = tmp_path / "tokens"
    file.write_text(f"{made['line']}\n")
    assert read_known_tokens(str(file)) == [KnownToken("deploy", digest(made["token"]))]
    assert run(["token", "create", "deploy"]) == 0
    labels, values = zip(*(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()), strict=True)
    assert labels == ("token", "line")
    assert values[1] == token_line("deploy", values[0])
    assert run(["token", "create", "deploy", "--expires", "24h", "--json"]) == 0
    file.write_text(f"{json.loads(capsys.readouterr().out)['line']}\n")
    (known,) = read_known_tokens(str(file))
    assert 86_000 < (known.expires_at_s or 0) - time.time() <= 86_400
    assert run(["token", "create", "no name"]) == exit_codes.FAILED
    assert "name 'no name' is not a valid name" in capsys.readouterr().err
