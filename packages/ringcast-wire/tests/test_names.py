from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_wire import InvalidInputError, ProtocolError, names

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
PARTITIONS = st.integers(0, 4095)


@given(NAMES, NAMES, PARTITIONS)
def test_notify_subjects_can_be_taken_apart(store: str, key: str, partition: int) -> None:
    parsed = names.parse_notify_subject(names.notify_subject(store, key, partition))
    assert (parsed.store, parsed.config_key, parsed.partition) == (store, key, partition)


@given(NAMES, NAMES, st.one_of(PARTITIONS, st.sampled_from(["batch", "full", "heads", "staged"])))
def test_fetch_subjects_can_be_taken_apart(store: str, key: str, what: int | str) -> None:
    parsed = names.parse_fetch_subject(names.fetch_subject(store, key, what))
    assert (parsed.store, parsed.config_key, parsed.what) == (store, key, what)


@given(NAMES, NAMES, PARTITIONS)
def test_keys_of_seals_can_be_taken_apart(key: str, group: str, partition: int) -> None:
    assert names.parse_seal_key(names.seal_key(key, group, partition)) == (key, group, partition)


@pytest.mark.parametrize("name", ["", "k.g", "k.g.p", "k.g.4096", "k.g.01", "k.g.1.2", ".g.1", "k..1", "k.g é.1"])
def test_any_other_key_of_a_seal_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        names.parse_seal_key(name)


@given(st.text(max_size=80))
def test_any_other_subject_is_refused_not_guessed(text: str) -> None:
    for parse in (names.parse_notify_subject, names.parse_fetch_subject):
        with pytest.raises(ProtocolError):
            parse(text)


@pytest.mark.parametrize("last", ["", "-1", "01", "4096", "99999", "1.2", "batch", "x", "٣", "1 "])
def test_a_partition_has_one_canonical_form(last: str) -> None:
    with pytest.raises(ProtocolError):
        names.parse_notify_subject(f"config.notify.s.k.{last}")


@pytest.mark.parametrize("value", ["", "a.b", "a b", "a*", ">", "é", "x" * 65, "a\n", None, 7, b"a"])
def test_a_wrong_name_is_refused_with_field_value_and_limit(value: object) -> None:
    with pytest.raises(InvalidInputError) as caught:
        names.check_name("store", value)
    message = str(caught.value)
    assert message.startswith("store ")
    assert "1 to 64 characters of A-Z a-z 0-9 _ -" in message
    assert caught.value.field == "store"
    assert len(message) < 250


def test_a_name_of_64_characters_is_fine() -> None:
    assert names.check_name("key", "k" * 64) == "k" * 64


@pytest.mark.parametrize("value", [0, -1, 4097, 1.0, "256", True, None])
def test_a_wrong_partition_count_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"partition_count .* 1 to 4096"):
        names.check_partition_count(value)


def test_the_limits_of_partition_counts_are_allowed() -> None:
    assert [names.check_partition_count(count) for count in (1, 4096)] == [1, 4096]


@pytest.mark.parametrize("value", [-1, 256, True, "0"])
def test_a_partition_outside_the_store_is_refused(value: object) -> None:
    with pytest.raises(InvalidInputError, match="partitions 0 to 255"):
        names.check_partition(value, 256)


def test_the_members_of_a_key_are_told_from_its_slot_claims_by_their_depth() -> None:
    assert names.node_key("list", "w1").count(".") == 1
    assert names.slot_key("list", 3).count(".") == 2


def test_consumers_past_the_filter_limit_get_names_of_their_own() -> None:
    assert [names.consumer_name("ringcast", "w1", index) for index in range(2)] == ["ringcast-w1", "ringcast-w1~1"]


def test_no_two_workers_share_a_name_on_the_bus() -> None:
    """Ids that continue one another are the case: `w` and `w-1`, stores `a` and `a-w`."""
    workers = [(store, worker) for store in ("a", "a-w") for worker in ("w", "w-1", "w-w", "w-w-1")]
    consumers = [names.consumer_name("p", worker, index) for worker in ("w", "w-1", "w-1-1") for index in range(3)]
    assert len(set(consumers)) == len(consumers)
    assert len({names.watch_name(*worker) for worker in workers}) == len(workers)
    inboxes = [names.inbox_prefix("config-service"), names.inbox_prefix("tools"), names.SERVICE_INBOX_PREFIX]
    inboxes.append(names.TOOLS_INBOX_PREFIX)
    assert not any(one != other and f"{one}.".startswith(f"{other}.") for one in inboxes for other in inboxes)


def test_answers_go_to_inboxes_only() -> None:
    for inbox in (f"{names.inbox_prefix('w1')}.x.1", f"{names.SERVICE_INBOX_PREFIX}.x", "_INBOX.x", "_R_.a.b"):
        assert names.is_inbox(inbox)
    for other in ("config.notify.s.k.0", "$KV.config_leases.w1", "_INBOXES", ""):
        assert not names.is_inbox(other)


def test_no_config_key_has_a_session_among_its_records() -> None:
    """A worker watches ``<key>.>`` in the bucket of owners, and is not to hear of each refresh."""
    assert not names.session_key("w").startswith(tuple("abcXYZ019_-"))
    assert not names.load_key("w").startswith(tuple("abcXYZ019_-"))
    with pytest.raises(InvalidInputError):
        names.check_name("key", names.session_key("w").partition(".")[0])
    keys = (
        names.term_key("k"),
        names.table_key("k"),
        names.state_key("k", "lead"),
        names.session_key("k"),
        names.load_key("k"),
        names.gone_key("k", "lead"),
    )
    assert len(set(keys)) == len(keys)
    assert names.wishes_key("k").partition(".")[0] == "k", "a watch of the wishes is by config key, too"


def test_the_message_id_of_an_event_says_revision_and_history() -> None:
    msg_id = names.event_msg_id("gateway", "block-list", 7, 2**62, "9f")
    assert names.parse_event_msg_id(msg_id) == (2**62, "9f")
    assert msg_id != names.event_msg_id("gateway", "block-list", 7, 2**62, "a0")


@pytest.mark.parametrize("msg_id", ["", "a.b.0.1", "a.b.0.x.h", "a.b.0.-1.h", "a.b.0.1.h.i", "a.b.0.²."])
def test_another_message_id_is_refused(msg_id: str) -> None:
    with pytest.raises(ProtocolError, match="is not of the form"):
        names.parse_event_msg_id(msg_id)
