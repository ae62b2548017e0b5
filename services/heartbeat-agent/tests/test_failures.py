"""Why messages of a group failed, and their dead letters."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from ringcast import Change
from ringcast_heartbeat_agent.dispatch.failures import Failures
from ringcast_heartbeat_agent.dispatch.replays import GroupReplays
from ringcast_wire import WIRE_VERSION, ReplayAnswer, ReplayOutcome, ReplayRequest

CHANGE = Change("s", "k", 3, "row", "v", 7)
REQUEST = ReplayRequest(WIRE_VERSION, "0" * 32, 3, "row", 7, "h", "", "g", 0, 0)


class Published:
    """A publisher of dead letters that keeps them."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    async def publish(self, change: Change, **facts: Any) -> None:
        assert change is CHANGE
        self.found.append(facts)


def make(published: Published | None = None, replays: GroupReplays | None = None) -> Failures:
    return Failures("g", "group g of s/k", "worker", cast(Any, published), replays or GroupReplays())


def test_a_rejection_that_does_not_count_leaves_the_reason_before() -> None:
    failures = make()
    failures.time_out(1, 2.5)
    before = failures.reject("c", [(1, "first"), (2, "x" * 1000)])
    assert failures.reason(1) == "rejected by c: first"
    assert failures.reason(2) == "rejected by c: " + "x" * 512
    for offset, reason in before.items():
        failures.restore(offset, reason)
    assert failures.reasons == {1: "not answered within 2.5 s"}
    failures.forget(1)
    assert (failures.reason(1), failures.reason(1, "rejected")) == ("", "rejected")


@pytest.mark.parametrize("what", ["dropped", "blocked"])
def test_a_message_that_failed_for_good_is_logged_without_its_row_id(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    failures = make()
    with caplog.at_level(logging.ERROR):
        (failures.drop if what == "dropped" else failures.block)(1, CHANGE, 4, "max_tries")
    (record,) = caplog.records
    text = record.getMessage()
    assert f"message.{what}" in text
    assert "max_tries" in text
    assert "row_id" not in text


async def test_a_dead_letter_says_why_and_answers_the_replay() -> None:
    published, replays = Published(), GroupReplays()
    answers: list[ReplayAnswer] = []
    assert replays.add(REQUEST, CHANGE, answers.append)
    failures = make(published, replays)
    failures.reject("c", [(1, "no such column")])
    await failures.publish(1, CHANGE, 4, "max_tries")
    (facts,) = published.found
    assert facts == {
        "group": "g",
        "worker_id": "worker",
        "why": "group g of s/k: rejected by c: no such column",
        "tries": 4,
        "replayed": REQUEST,
    }
    assert [(each.outcome, each.version) for each in answers] == [(ReplayOutcome.FAILED_AGAIN, 7)]
