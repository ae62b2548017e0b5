"""Sealed values: what opens, what does not, what the file may be, and what a change of it does."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ringcast_testkit import attempt
from ringcast_wire import InvalidInputError, ValueSealedError, check_row, limits
from ringcast_wire.key_ring import (
    ALGORITHM,
    ALGORITHM_FIELD,
    KEY_ID_FIELD,
    KeyRing,
    KeyRingDocument,
    check_not_sealed,
    make_key,
    read_key_ring,
    write_key_ring,
)

K1, K2 = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)
ROW_IDS = TEXT.filter(bool)


def _ring(**changes: Any) -> KeyRing:
    return KeyRing(KeyRingDocument(**{"active": "k1", "keys": {"k1": K1}, "encrypt": ["gateway/*"], **changes}))


@given(ROW_IDS, TEXT, st.dictionaries(ROW_IDS, TEXT, max_size=3))
def test_what_is_sealed_opens_again_and_the_same_gives_the_same_bytes(
    row_id: str, value: str, metadata: dict[str, str]
) -> None:
    keys = _ring().of("gateway", "list")
    sealed = keys.seal(row_id, value, metadata)
    assert keys.open(row_id, *sealed) == (value, metadata or None)
    assert sealed == _ring().of("gateway", "list").seal(row_id, value, metadata)
    assert sealed.metadata == {**metadata, ALGORITHM_FIELD: ALGORITHM, KEY_ID_FIELD: "k1"}
    assert check_row(row_id, *sealed)
    if len(value) > 3:
        assert value not in sealed.value


def test_a_known_value() -> None:
    """Another build must open what this one has sealed: this never changes under the same name of the algorithm."""
    assert _ring().of("gateway", "list").seal("a", "secret").value == KNOWN


KNOWN = "qzsjomB+XwhAKqQe6s8ADLbqRS98VV2C69Hw6E7afXOZVQ=="


@given(st.sets(st.tuples(st.sampled_from(["a", "b", "ab"]), st.sampled_from(["", "b", "c", "bc"])), min_size=2))
def test_no_two_rows_share_a_nonce(pairs: set[tuple[str, str]]) -> None:
    keys = _ring().of("gateway", "list")
    nonces = {base64.b64decode(keys.seal(row_id, value).value)[:12] for row_id, value in pairs}
    assert len(nonces) == len(pairs)


def test_it_opens_in_its_own_row_list_and_store_only() -> None:
    ring = _ring(encrypt=["*/*"])
    sealed = ring.of("gateway", "list").seal("a", "secret")
    for store, key, row_id in (("gateway", "list", "b"), ("gateway", "other", "a"), ("other", "list", "a")):
        with pytest.raises(ValueSealedError, match=f"row '{row_id}' of {store}/{key} does not open with key 'k1'"):
            ring.of(store, key).open(row_id, *sealed)


def test_every_changed_character_is_noticed() -> None:
    keys = _ring().of("gateway", "list")
    value, metadata = keys.seal("a", "secret")
    for place, letter in enumerate(value):
        changed = value[:place] + ("A" if letter != "A" else "B") + value[place + 1 :]
        with pytest.raises(ValueSealedError, match="does not open"):
            keys.open("a", changed, metadata)
    for other in ("", "secret", "ü", value[:-4], value + "AAAA", "\ud800"):
        with pytest.raises(ValueSealedError, match="does not open"):
            keys.open("a", other, metadata)


def test_metadata_can_not_be_changed_without_the_key() -> None:
    keys = _ring().of("gateway", "list")
    value, metadata = keys.seal("a", "secret", {"enabled": "false", "owner": "b"})
    assert metadata is not None
    for entries in ({"enabled": "true", "owner": "b"}, {"enabled": "false"}, {"enabled": "falseowner", "": "b"}, {}):
        changed = {**entries, ALGORITHM_FIELD: ALGORITHM, KEY_ID_FIELD: "k1"}
        with pytest.raises(ValueSealedError, match="value or metadata was changed"):
            keys.open("a", value, changed)
    assert keys.open("a", value, dict(sorted(metadata.items(), reverse=True))).value == "secret"
    plain = keys.seal("a", "secret")
    with pytest.raises(ValueSealedError):
        keys.open("a", plain.value, metadata)
    assert base64.b64decode(plain.value)[:12] != base64.b64decode(value)[:12]


def test_an_id_can_not_pass_for_one_with_metadata() -> None:
    keys = _ring().of("gateway", "list")
    value, _ = keys.seal("a", "secret", {"m": "1"})
    with pytest.raises(ValueSealedError):
        keys.open("a\0\0\0\0\1m\0\0\0\1" + "1", value, keys.seal("a", "secret").metadata)


def test_another_key_of_the_same_id_an_unknown_id_and_an_unknown_algorithm() -> None:
    sealed = _ring().of("gateway", "list").seal("a", "secret")
    assert sealed.metadata is not None
    other = _ring(keys={"k1": K2}).of("gateway", "list")
    with pytest.raises(ValueSealedError, match="or the key ring has another key of that id than its writer"):
        other.open("a", *sealed)
    unknown = _ring(active="k2", keys={"k2": K2}).of("gateway", "list")
    with pytest.raises(ValueSealedError, match="is sealed with key 'k1', and the key ring has only k2"):
        unknown.open("a", *sealed)
    for field, value in ((ALGORITHM_FIELD, "ROT13"), (ALGORITHM_FIELD, None), (KEY_ID_FIELD, None)):
        metadata = {name: entry for name, entry in sealed.metadata.items() if name != field}
        with pytest.raises(ValueSealedError, match="A256GCM-HS256 and the id of a key are expected"):
            _ring().of("gateway", "list").open(
                "a", sealed.value, metadata if value is None else {**metadata, field: value}
            )
    with pytest.raises(ValueSealedError, match="is sealed with key 'k1', and there is no key ring to open it"):
        check_not_sealed("gateway", "list", "a", sealed.metadata)
    check_not_sealed("gateway", "list", "a", {"owner": "abuse"})


def test_no_error_has_the_value_or_a_key() -> None:
    sealed = _ring().of("gateway", "list").seal("a", "secret")
    for ring in (_ring(keys={"k1": K2}), _ring(active="k2", keys={"k2": K2})):
        with pytest.raises(ValueSealedError) as error:
            ring.of("gateway", "list").open("a", *sealed)
        assert not any(word in str(error.value) for word in ("secret", sealed.value, K1, K2))
        assert K2 not in repr(ring)


def test_clear_text_is_refused_in_an_encrypted_list_unless_it_may_be_there() -> None:
    for metadata in (None, {}, {"owner": "abuse"}):
        with pytest.raises(ValueSealedError, match="row 'a' of gateway/list is clear text, and the key ring says"):
            _ring().of("gateway", "list").open("a", "clear", metadata)
        assert _ring(accept_clear=["gateway/l*"]).of("gateway", "list").open("a", "clear", metadata) == (
            "clear",
            metadata,
        )
        assert _ring().of("other", "list").open("a", "clear", metadata) == ("clear", metadata)
    with pytest.raises(ValueSealedError):
        _ring(accept_clear=["gateway/other"]).of("gateway", "list").open("a", "clear")


def test_a_list_that_is_no_longer_encrypted_still_opens() -> None:
    sealed = _ring().of("gateway", "list").seal("a", "secret")
    keys = _ring(encrypt=[]).of("gateway", "list")
    assert keys.open("a", *sealed) == ("secret", None)
    assert keys.seal("a", "secret") == ("secret", None)
    assert (keys.is_current(sealed.metadata), keys.is_current(None)) == (False, True)


def test_which_lists_a_pattern_means() -> None:
    ring = _ring(encrypt=["gateway/secret*", "*/tokens"])
    means = {name: ring.of(*name.split("/")).encrypted for name in ("gateway/secrets", "gateway/s", "x/tokens", "x/t")}
    assert means == {"gateway/secrets": True, "gateway/s": False, "x/tokens": True, "x/t": False}


def test_limits_count_the_sealed_row() -> None:
    keys = _ring().of("gateway", "list")
    fits = (limits.MAX_ROW_BYTES - 1 - 29) // 4 * 3 - 28
    assert check_row("a", *keys.seal("a", "x" * fits)) <= limits.MAX_ROW_BYTES
    with pytest.raises(
        InvalidInputError, match=r"has 786\d\d\d bytes, and 10485\d\d once .* the limit is 1048576"
    ) as error:
        keys.seal("a", "x" * (fits + 3))
    assert error.value.field == "value"
    entries = {str(number): "" for number in range(limits.MAX_METADATA_ENTRIES - 1)}
    with pytest.raises(InvalidInputError, match="metadata has 63 entries: at most 62 are allowed where"):
        keys.seal("a", "", entries)
    with pytest.raises(InvalidInputError, match="with the two entries of encryption: at most 16384 are allowed"):
        keys.seal("a", "", {"m": "x" * (limits.MAX_METADATA_BYTES - 1)})
    for name in (ALGORITHM_FIELD, KEY_ID_FIELD):
        with pytest.raises(InvalidInputError, match="which only encryption sets"):
            keys.seal("a", "", {name: "k1"})


# ---- the file


def _write(path: Path, content: object, mode: int = 0o600) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return str(path)


GOOD: dict[str, Any] = {"active": "k1", "keys": {"k1": K1}, "encrypt": ["gateway/*"]}


def test_a_file_is_written_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "ring.json")
    document = KeyRingDocument(active="k1", keys={"k1": make_key()}, encrypt=["gateway/*"])
    write_key_ring(path, document, replace=False)
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert read_key_ring(path)[0] == document
    with pytest.raises(InvalidInputError, match="exists already"):
        write_key_ring(path, document, replace=False)
    assert len(set(document.with_key("k2").fingerprints().values())) == 2
    write_key_ring(path, document.with_key("k2").with_active("k2"), replace=True)
    assert (read_key_ring(path)[0].active, sorted(read_key_ring(path)[0].keys)) == ("k2", ["k1", "k2"])
    assert os.listdir(tmp_path) == ["ring.json"]
    with pytest.raises(InvalidInputError, match="'k1' is in the key ring already"):
        document.with_key("k1")
    with pytest.raises(InvalidInputError, match="'k9' is not in the key ring, which has k1"):
        document.with_active("k9")
    with pytest.raises(InvalidInputError, match="can't be written: No such file or directory"):
        write_key_ring(str(tmp_path / "none" / "ring.json"), document, replace=False)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o620, 0o644, 0o666])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(
        InvalidInputError, match=rf"has the mode 0{mode:o}: others may not read it, nor the group write"
    ):
        KeyRing.from_file(_write(tmp_path / "ring.json", GOOD, mode))


def test_its_group_may_read_it(tmp_path: Path) -> None:
    """As a secret of Kubernetes is mounted for a process that is not root."""
    KeyRing.from_file(_write(tmp_path / "ring.json", GOOD, 0o440))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "is no key ring: JSON is malformed"),
        ("[" * 30_000, "is no key ring"),
        ({**GOOD, "extra": 1}, "unknown field"),
        ({**GOOD, "active": 5}, "Expected `str`, got `int`"),
        ({"active": "k1", "keys": {"k1": K1}}, "missing required field `encrypt`"),
        ({**GOOD, "active": "k2"}, "active is not the id of one of the keys"),
        ({**GOOD, "keys": {}}, "keys has 0 entries: 1 to 64 are allowed"),
        ({**GOOD, "keys": {f"k{number}": K1 for number in range(65)}}, "keys has 65 entries: 1 to 64"),
        ({**GOOD, "keys": {"k1": "c2hvcnQ="}}, "key 'k1' is not 32 bytes in base64"),
        ({**GOOD, "keys": {"k1": "!" * 44}}, "key 'k1' is not 32 bytes in base64"),
        ({**GOOD, "keys": {K1: "k1"}}, "has a key id that is not 1 to 64 characters"),
        ({**GOOD, "encrypt": ["gateway"]}, "encrypt 'gateway' is not STORE/KEY"),
        ({**GOOD, "encrypt": ["a/[b]"]}, "is not STORE/KEY"),
        ({**GOOD, "accept_clear": ["a/b"] * 257}, "accept_clear has 257 patterns: at most 256"),
        ("x" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence_without_its_keys(tmp_path: Path, content: object, said: str) -> None:
    path = _write(tmp_path / "ring.json", content)
    with pytest.raises(InvalidInputError) as error:
        KeyRing.from_file(path)
    assert said in str(error.value)
    assert "ring.json" in str(error.value)
    assert K1 not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="can't be read: No such file or directory"):
        KeyRing.from_file(str(tmp_path / "none.json"))
    with pytest.raises(InvalidInputError, match="can't be read"):
        KeyRing.from_file(str(tmp_path))


def test_the_environment_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGCAST_KEY_RING", raising=False)
    assert KeyRing.from_environment() is None
    monkeypatch.setenv("RINGCAST_KEY_RING", _write(tmp_path / "ring.json", GOOD))
    ring = KeyRing.from_environment()
    assert ring is not None
    assert ring.document.active == "k1"


# ---- another version of the file


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock by which the file is looked at again."""
    now = [1_000.0]
    monkeypatch.setattr("ringcast_wire.key_ring.time.monotonic", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_a_running_process_takes_new_keys(tmp_path: Path, later: Callable[[float], None]) -> None:
    path = _write(tmp_path / "ring.json", GOOD)
    reader, writer = (KeyRing.from_file(path).of("gateway", "list") for _ in range(2))
    assert writer.is_current(writer.seal("a", "1").metadata)
    document = read_key_ring(path)[0].with_key("k2").with_active("k2")
    write_key_ring(path, document, replace=True)
    sealed = KeyRing(document).of("gateway", "list").seal("a", "2")
    assert reader.open("a", *sealed) == ("2", None), "an unknown key id has the file read at once"
    assert writer.seal("a", "3")[1] == {ALGORITHM_FIELD: ALGORITHM, KEY_ID_FIELD: "k1"}, "it looked just now"
    later(1.0)
    assert writer.seal("a", "3")[1] == {ALGORITHM_FIELD: ALGORITHM, KEY_ID_FIELD: "k2"}


@attempt(
    "a person with a key that was removed from the key ring, who can write to the database",
    "slip values in to readers that have run since before",
    "the readers refuse them a second after their file was replaced",
)
def test_a_key_that_was_removed_opens_nothing_more(tmp_path: Path, later: Callable[[float], None]) -> None:
    path = _write(tmp_path / "ring.json", GOOD)
    reader = KeyRing.from_file(path).of("gateway", "list")
    stolen = KeyRing.from_file(path).of("gateway", "list").seal("a", "forged")
    document = read_key_ring(path)[0].with_key("k2").with_active("k2")
    write_key_ring(path, document, replace=True)
    assert reader.open("a", *KeyRing(document).of("gateway", "list").seal("a", "2")) == ("2", None)
    assert reader.open("a", *stolen) == ("forged", None)
    write_key_ring(path, document.without_key("k1"), replace=True)
    later(1.0)
    with pytest.raises(ValueSealedError, match=r"is sealed with key 'k1', and the key ring has only k2$"):
        reader.open("a", *stolen)


@attempt(
    "a person who can write to the database",
    "slip clear text in to readers that have run since it was accepted",
    "the readers refuse it a second after `accept_clear` was taken out of their file",
)
def test_clear_text_is_refused_once_the_file_no_longer_accepts_it(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    path = _write(tmp_path / "ring.json", {**GOOD, "accept_clear": ["gateway/list"]})
    reader = KeyRing.from_file(path).of("gateway", "list")
    assert reader.open("a", "1") == ("1", None)
    write_key_ring(path, KeyRingDocument(**GOOD), replace=True)
    later(1.0)
    with pytest.raises(ValueSealedError, match="is clear text, and the key ring says that this list is encrypted"):
        reader.open("a", "1")


def test_a_key_that_was_wrong_may_be_set_right(tmp_path: Path, later: Callable[[float], None]) -> None:
    path = _write(tmp_path / "ring.json", GOOD)
    reader = KeyRing.from_file(path).of("gateway", "list")
    right = KeyRingDocument(**{**GOOD, "keys": {"k1": make_key()}})
    sealed = KeyRing(right).of("gateway", "list").seal("a", "1")
    with pytest.raises(ValueSealedError, match="another key of that id"):
        reader.open("a", *sealed)
    write_key_ring(path, right, replace=True)
    later(1.0)
    assert reader.open("a", *sealed) == ("1", None)


def test_a_refusal_says_that_a_newer_file_is_not_used(tmp_path: Path, later: Callable[[float], None]) -> None:
    path = _write(tmp_path / "ring.json", GOOD)
    reader = KeyRing.from_file(path).of("gateway", "list")
    document = KeyRingDocument(**GOOD).with_key("k2").with_active("k2")
    sealed = KeyRing(document).of("gateway", "list").seal("a", "1")
    write_key_ring(path, document, replace=True)
    Path(path).chmod(0o644)
    with pytest.raises(ValueSealedError, match=r"has only k1; the file as it is now is not used: .* mode 0644"):
        reader.open("a", *sealed)
    Path(path).unlink()
    with pytest.raises(ValueSealedError, match=r"not used: key_ring .*ring.json' can't be read: No such file"):
        reader.open("a", *sealed)
    write_key_ring(path, document, replace=True)
    assert reader.open("a", *sealed) == ("1", None)


def test_a_file_that_has_become_bad_leaves_the_keys_as_they_were(
    tmp_path: Path, later: Callable[[float], None]
) -> None:
    path = _write(tmp_path / "ring.json", GOOD)
    keys = KeyRing.from_file(path).of("gateway", "list")
    first = keys.seal("a", "1")
    for spoil in (lambda: _write(tmp_path / "ring.json", "{"), lambda: Path(path).unlink()):
        spoil()
        later(1.0)
        assert keys.seal("a", "1") == first
        assert keys.open("a", *first) == ("1", None)


def test_without_cryptography_a_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ringcast_wire._encryption.sealing", None)
    with pytest.raises(InvalidInputError, match="key_ring needs the package cryptography: install the extra"):
        _ring().of("gateway", "list").seal("a", "1")
    assert _ring().of("other", "list").seal("a", "1") == ("1", None)
