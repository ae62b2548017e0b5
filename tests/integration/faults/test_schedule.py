"""The schedule of a long run does every kind, and nothing beside one that has to be alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from ringcast_wire import Strategy

from tests.integration.faults.arena import Shape
from tests.integration.faults.kinds import KINDS
from tests.integration.faults.run import possible, schedule

SHAPES = (
    Shape(small_disk=True, releases=True),
    Shape(cluster=True, releases=True),
    Shape(sqlite=True, services=1, token=True, releases=True),
)


@pytest.mark.parametrize(("strategy", "others"), [(Strategy.JUMP, "sticky"), (Strategy.STICKY, "peer")])
def test_every_kind_is_done_before_any_is_done_again_where_a_system_allows_it(strategy: Strategy, others: str) -> None:
    done: Counter[str] = Counter()
    for seed, shape in enumerate(replace(each, strategy=strategy) for each in SHAPES):
        kinds = possible(sorted(KINDS), shape)
        turns = schedule(seed, len(kinds), kinds, overlap=0.3, done=done)
        assert sum(map(len, turns)) == len(kinds)
        missing = {kind.name for kind in kinds} - set(done)
        done.update(kind.name for turn in turns for kind in turn)
        assert missing <= set(done)
    assert set(done) == {name for name, kind in KINDS.items() if kind.only != "dispatch" and kind.strategy != others}


def test_a_seed_gives_one_schedule_in_which_some_faults_are_alone() -> None:
    kinds = possible(sorted(KINDS), SHAPES[0])
    turns = schedule(1, 200, kinds, overlap=0.9)
    assert turns == schedule(1, 200, kinds, overlap=0.9)
    assert max(map(len, turns)) > 2
    assert {len(turn) for turn in turns if any(kind.alone for kind in turn)} == {1}
    assert all(len({kind.group for kind in turn}) == len(turn) for turn in turns)
