"""What is to be written to the cache of a worker, over all of its config keys."""

from __future__ import annotations

from dataclasses import dataclass

from ringcast._cache.pending import PendingSaves
from ringcast._protocol import snapshots
from ringcast._protocol.key import KeyMachine
from ringcast._protocol.snapshots import CachedPartition, Saving
from ringcast_wire import Row


@dataclass
class Key:
    """A key with partitions that the disk had at revision 1, with a row each."""

    machine: KeyMachine
    staleness_s: float = 0.0

    @classmethod
    def of(cls, name: str, partitions: int, *, saved: bool = True) -> Key:
        saving = Saving() if saved else None
        machine = KeyMachine("s", name, full=False, partition_count=8, random=lambda: 0.5, saving=saving)
        cached = [CachedPartition(number, 1, {"a": Row("a", "1", 1)}, {}, 0.0) for number in range(partitions)]
        machine.restore(cached, hand_over=False)
        return cls(machine)

    def change(self, *numbers: int) -> None:
        """These partitions are to be written whole."""
        assert self.machine.saving is not None
        self.machine.saving.rewrite([self.machine.partitions[number] for number in numbers])


def pending(**keys: Key) -> PendingSaves:
    return PendingSaves(keys)


def taken(saves: PendingSaves) -> dict[str, list[int]]:
    return {name: [save.number for save in found] for name, found in saves.take().items()}


def test_what_has_changed_is_taken_once() -> None:
    one, two = Key.of("one", 3), Key.of("two", 2)
    saves = pending(one=one, two=two)
    assert len(saves) == 0
    assert taken(saves) == {}
    one.change(0, 2)
    two.change(1)
    assert len(saves) == 3
    assert taken(saves) == {"one": [0, 2], "two": [1]}
    assert len(saves) == 0


def test_a_key_without_a_cache_is_passed_over() -> None:
    saves = pending(none=Key.of("none", 1, saved=False))
    saves.rewrite_all()
    assert (len(saves), taken(saves), saves.currency(0.0)[1]) == (0, {}, ["none"])


def test_one_write_takes_whole_partitions_up_to_a_number_of_rows() -> None:
    one, two = Key.of("one", 1), Key.of("two", 2)
    saves = pending(one=one, two=two)
    rows = {f"r{number}": Row(f"r{number}", "1", 1) for number in range(snapshots.MAX_WRITE_ROWS)}
    two.machine.partitions[0].rows = rows
    one.change(0)
    two.change(0, 1)
    assert taken(saves) == {"one": [0], "two": [0]}
    assert taken(saves) == {"two": [1]}


def test_what_was_not_written_is_taken_again() -> None:
    one = Key.of("one", 2)
    saves = pending(one=one)
    one.change(0, 1)
    failed = saves.take()
    one.machine.saving.lost(1)  # type: ignore[union-attr]
    saves.put_back(failed)
    assert len(saves) == 2
    assert sorted(taken(saves)["one"]) == [0, 1]


def test_a_new_file_gets_every_partition() -> None:
    one, two = Key.of("one", 2), Key.of("two", 1)
    one.machine.saving.lost(7)  # type: ignore[union-attr]
    saves = pending(one=one, two=two)
    saves.rewrite_all()
    assert taken(saves) == {"one": [0, 1], "two": [0]}


def test_a_key_is_current_when_nothing_is_late_and_nothing_waits() -> None:
    late, waits, current = Key.of("late", 1), Key.of("waits", 1), Key.of("current", 1)
    late.staleness_s = 2.5
    waits.change(0)
    saves = pending(late=late, waits=waits, current=current)
    as_of_ms, found = saves.currency(10_000.0)
    assert found == ["current"]
    assert as_of_ms == {"late": 7_500, "waits": 10_000, "current": 10_000}
