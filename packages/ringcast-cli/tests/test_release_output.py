"""What ``ringcast release publish`` says when somebody else changes the release while it waits."""

from __future__ import annotations

from typing import Any

import pytest
from ringcast_cli._app import run
from ringcast_cli._releases import release_commands, release_output
from ringcast_client import ConfigServiceClient, ReleaseInfo, ReleaseRowInfo
from ringcast_wire import ReleaseOutcome, ReleaseState


class Ending:
    """A client whose release ends in a state, as real servers don't let it end on demand."""

    def __init__(self, state: ReleaseState) -> None:
        counts: dict[str, Any] = {"rows": 4, "bytes": 53, "published": 2, "undone": 2, "skipped": 0}
        self._release = ReleaseInfo(
            store="s",
            number=1,
            state=state,
            **counts,
            keys=(),
            author="alice",
            reason="",
            staged_at_ms=0,
            changed_by="bob",
            change_reason="",
            changed_at_ms=0,
            rows_kept=True,
            problem="",
        )

    async def __aenter__(self) -> Ending:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def follow_release(self, store: str, number: int) -> ReleaseInfo:
        return self._release


async def accepted(*_: Any, **__: Any) -> None:
    pass


@pytest.mark.parametrize("command", ["publish", "undo", "drop"])
def test_a_release_that_ends_otherwise_is_a_failure(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"publish": ReleaseState.PUBLISHED, "undo": ReleaseState.UNDONE, "drop": ReleaseState.DROPPED}
    monkeypatch.setattr(ConfigServiceClient, f"{command}_release", accepted)
    for state in wanted.values():
        monkeypatch.setattr(release_commands, "service_client", lambda _, state=state: Ending(state))
        expected = state is wanted[command]
        assert run(["release", command, "s", "1"]) == (0 if expected else 1)
        said = capsys.readouterr()
        assert said.out.startswith(f"release 1 of s is {state}: 4 rows")
        assert said.err == ("" if expected else "ringcast: bob has changed the release meanwhile\n")


@pytest.mark.parametrize(
    ("value", "found_version", "conflict"), [("1", 7, False), ("1", 8, True), (None, 0, False), (None, 8, True)]
)
def test_a_published_row_that_was_written_since_is_marked(
    value: str | None, found_version: int, conflict: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ReleaseRowInfo(1, "k", 0, "a", value, {}, "0", {}, 3, found_version, ReleaseOutcome.PUBLISHED, 7, 0)
    assert row.conflict is conflict
    release_output.print_row(row)
    assert capsys.readouterr().out.endswith(" !\n") is conflict
