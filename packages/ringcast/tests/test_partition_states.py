"""The states of a partition, and the ways from one to another."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import ringcast
from ringcast._protocol.partition import (
    MAX_RELEASES,
    TRANSITIONS,
    Partition,
    PartitionInput,
    PartitionState,
    TransitionError,
)
from ringcast_wire import Event

BEGIN = PartitionState.LOADING
WAYS = [(before, happened, after) for happened, found in TRANSITIONS.items() for before, after in found.items()]
IMPOSSIBLE = [
    (state, happened) for happened in PartitionInput for state in PartitionState if state not in TRANSITIONS[happened]
]


def _partition_in(wanted: PartitionState) -> Partition:
    """A partition that has come into a state by the shortest way."""
    ways: dict[PartitionState, tuple[PartitionInput, ...]] = {BEGIN: ()}
    for state in (reached := [BEGIN]):
        for before, happened, after in WAYS:
            if before is state and after not in ways:
                ways[after] = (*ways[state], happened)
                reached.append(after)
    partition = Partition(7, Random(1).random)
    for happened in ways[wanted]:
        partition.on(happened)
    assert partition.state is wanted
    return partition


def test_of_the_newest_events_of_releases_the_revisions_are_known() -> None:
    partition = Partition(7, Random(1).random)
    for number in range(1, MAX_RELEASES + 2):
        for _ in range(2):  # a redelivery changes nothing
            partition.note_release(Event(1, 10 * number, 10 * number + 3, 0, None, "", number))
    assert len(partition.releases) == MAX_RELEASES
    assert [partition.release_of(version) for version in (11, 13)] == [0, 0], "the oldest is forgotten"
    assert [partition.release_of(version) for version in (20, 21, 23, 24)] == [0, 2, 2, 0]


@pytest.mark.parametrize(("before", "happened", "after"), WAYS)
def test_every_way_of_the_table(before: PartitionState, happened: PartitionInput, after: PartitionState) -> None:
    partition = _partition_in(before)
    had = partition.live, partition.cached
    partition.on(happened)
    assert partition.state is after
    facts = partition.live, partition.cached, partition.replace, partition.dead
    match happened:
        case PartitionInput.RESTORED:
            assert facts == (False, True, False, False)
        case PartitionInput.INVALIDATED:
            assert facts == (*had, True, False), "what there is goes on being served until a whole fetch is applied"
        case PartitionInput.LOADED:
            assert facts == (True, False, False, False)
        case PartitionInput.REVOKED:
            assert facts == (False, False, False, True)


@pytest.mark.parametrize(("state", "happened"), IMPOSSIBLE)
def test_what_does_not_stand_in_the_table_is_refused(state: PartitionState, happened: PartitionInput) -> None:
    partition = _partition_in(state)
    with pytest.raises(TransitionError, match=f"partition 7 is {state.name}: it can't be {happened.name}"):
        partition.on(happened)
    assert partition.state is state


def test_a_revoked_partition_stays_one() -> None:
    assert [state for state, _ in IMPOSSIBLE].count(PartitionState.REVOKED) == len(PartitionInput)
    for state in PartitionState:
        if state is not PartitionState.REVOKED:
            assert TRANSITIONS[PartitionInput.REVOKED][state] is PartitionState.REVOKED, "any other can be lost"


def test_a_partition_is_served_from_one_place() -> None:
    for state in PartitionState:
        partition = _partition_in(state)
        assert partition.live + partition.cached + partition.dead <= 1


FLAGS = ("filtered", "silent", "grant", "served")
FACTS = ("live", "cached", "replace", "dead")
CHANGES: list[tuple[Callable[[Partition], None], tuple[bool, bool, int, bool]]] = [
    (Partition.confirm_filter, (True, False, 0, True)),
    (Partition.silence, (True, True, 0, False)),
    (lambda partition: partition.receive_grant(3), (True, True, 3, False)),
    (Partition.end_silence, (True, False, 3, False)),
    (Partition.mark_served, (True, False, 3, True)),
    (Partition.drop_grant, (True, False, 0, True)),
]
"""What changes the flags of a partition, and what they are then, one after the other."""


@pytest.mark.parametrize("state", PartitionState)
def test_the_flags_have_nothing_to_do_with_the_state(state: PartitionState) -> None:
    partition = _partition_in(state)
    facts = [getattr(partition, name) for name in FACTS]
    for change, flags in CHANGES:
        change(partition)
        assert tuple(getattr(partition, name) for name in FLAGS) == flags
        assert partition.state is state
        assert [getattr(partition, name) for name in FACTS] == facts
    for happened in PartitionInput:
        if state in TRANSITIONS[happened]:
            other = _partition_in(state)
            other.silence()
            other.receive_grant(4)
            other.on(happened)
            assert tuple(getattr(other, name) for name in FLAGS) == (False, True, 4, False)


def test_no_other_file_changes_the_state_of_a_partition() -> None:
    top = Path(ringcast.__file__).parent
    found = [
        f"{path.relative_to(top)}:{node.lineno}"
        for path in sorted(top.rglob("*.py"))
        if path != top / "_protocol/partition.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in (*FLAGS, *FACTS)
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")  # an attribute of another class
    ]
    assert found == []
