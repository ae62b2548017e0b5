"""The accounting of a group's window."""

from ringcast import Change
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession, size_of
from ringcast_heartbeat_agent.dispatch.intake import Intake
from ringcast_heartbeat_agent.dispatch.shares import Shares
from ringcast_heartbeat_agent.dispatch.window import Window
from ringcast_testkit.dispatch import OwnsAll


def change(row_id: str, value: str = "v") -> Change:
    return Change("s", "k", 0, row_id, value, 1)


def shares(*names: str) -> Shares:
    return Shares(ConsumerSession(number, name, (), 1, "stream") for number, name in enumerate(names))


def filled(window: Window, owner: str | None, count: int) -> int:
    """Adds messages of an owner while there is room; returns how many there was room for."""
    for number in range(count):
        if not window.has_room(owner):
            return number
        window.add(change(f"{owner}-{number}"), f"{owner}-{number}", owner)
    return count


def test_a_window_counts_messages_and_bytes() -> None:
    window = Window(10, 1_000_000)
    window.add(change("a"), "a", None)
    window.add(change("b", "v" * 100), "b", None)
    assert (window.last, window.offsets) == (2, {"a": 1, "b": 2})
    assert window.bytes == size_of(change("a")) + size_of(change("b", "v" * 100))
    window.replace(window.messages[1], change("a", "v" * 50))
    assert window.bytes == size_of(change("a", "v" * 50)) + size_of(change("b", "v" * 100))
    removed = window.remove(2)
    assert removed is not None
    assert (removed.change.row_id, window.offsets, window.remove(2)) == ("b", {"a": 1}, None)
    assert window.bytes == size_of(change("a", "v" * 50))
    window.clear()
    assert (window.bytes, window.messages, window.offsets, window.last) == (0, {}, {}, 2)


def test_one_consumer_may_fill_the_window() -> None:
    window = Window(8, 1_000_000)
    window.share(shares("one"))
    assert filled(window, "one", 20) == 8


def test_a_window_of_bytes_takes_one_message_of_any_size() -> None:
    window = Window(8, 10)
    assert filled(window, None, 20) == 1


def test_consumers_share_the_second_half() -> None:
    window = Window(16, 1_000_000)
    window.share(shares("one", "two"))
    assert filled(window, "one", 20) == 8, "half of the window is for any consumer, and is more than a share"
    assert filled(window, "two", 20) == 4, "a share of the other half"
    assert not window.has_room("one")


def test_messages_count_towards_their_new_owners() -> None:
    window = Window(16, 1_000_000)
    window.share(shares("one", "two"))
    filled(window, "one", 20)
    window.share(shares("two", "three"))
    owners = {message.owner for message in window.messages.values()}
    assert owners == {"two", "three"}
    assert window.has_room("one"), "nothing counts towards a consumer that is gone"
    window.share(shares("three"))
    assert filled(window, "three", 20) == 8


def test_no_change_takes_the_place_of_a_message_whose_partition_has_been_another_hosts() -> None:
    """It is let go when its turn comes, and the change with it."""
    intake = Intake(OwnsAll(), window=10, window_bytes=1_000_000)
    intake.take(change("a", "1"))
    intake.batch()
    intake.forget({1})
    intake.take(change("a", "2"))
    intake.forget({0})
    intake.take(change("a", "3"))
    assert [each.value for each in intake.changes()] == ["2", "3"]
    intake.settle(1)
    intake.batch()
    assert [(offset, message.change.value) for offset, message in intake.messages.items()] == [(2, "3")]
