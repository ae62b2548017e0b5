"""The file of workers' tokens: what a line may say, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest
from ringcast_wire import InvalidInputError
from ringcast_wire.tokens import digest, make_token
from ringcast_wire.worker_tokens import MAX_FILE_BYTES, MAX_KEYS, read_worker_tokens, worker_token_line

TOO_MANY = ",".join(f"k{number}" for number in range(MAX_KEYS + 1))
DIGEST = f"sha256:{'0' * 64}"


def written(directory: Path, *lines: str) -> str:
    path = directory / "tokens"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_a_line_is_read_as_it_was_made(tmp_path: Path) -> None:
    secret = make_token()
    line = worker_token_line("fleet", secret, "worker=fleet-* gateway/blocklist,suffixes other/k gateway/third")
    (token,) = read_worker_tokens(written(tmp_path, "# fleets", "", line))
    assert (token.principal, token.digest, token.agent) == ("fleet", digest(secret), False)
    assert token.stores == (("gateway", ("blocklist", "suffixes", "third")), ("other", ("k",)))
    assert token.allows("fleet-1")
    assert not token.allows("flee-1")
    assert token.worker("fleet-1").stores == {"gateway": ["blocklist", "suffixes", "third"], "other": ["k"]}
    assert secret not in line


def test_the_tag_is_another_after_each_change() -> None:
    def tag(secret: str, scope: str) -> str:
        line = worker_token_line("w", secret, scope)
        return line.partition(" ")[2]

    assert len({tag("a" * 20, "worker=w s/k"), tag("b" * 20, "worker=w s/k"), tag("a" * 20, "worker=w s/k,l")}) == 3


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("w", "it is not NAME sha256:DIGEST"),
        (f"w {DIGEST} worker=w", "it is not NAME sha256:DIGEST"),
        ("w sha256:xyz worker=w s/k", "it is not NAME sha256:DIGEST"),
        (f"w! {DIGEST} worker=w s/k", "its name is not 1 to 64 characters"),
        (f"w {DIGEST} host=w s/k", "'host=w' is neither worker=ID nor agent=ID"),
        (f"w {DIGEST} worker=* s/k", "worker '' is not a valid name"),
        (f"w {DIGEST} worker=a*b s/k", "worker 'a*b' is not a valid name"),
        (f"w {DIGEST} worker=a.> s/k", "worker 'a.>' is not a valid name"),
        (f"w {DIGEST} worker=w s/*", "key '*' is not a valid name"),
        (f"w {DIGEST} worker=w s", "is not of the form WORKER=STORE/KEY,KEY"),
        (f"w {DIGEST} worker=config-service s/k", "has the name of a user that is no worker"),
        (f"w {DIGEST} worker=conf* s/k", "has the name of a user that is no worker"),
        (
            f"w {DIGEST} worker=w s/{TOO_MANY}",
            "it is for 33 keys, the limit is 32",
        ),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused_by_its_number(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_worker_tokens(written(tmp_path, "# first", line))
    assert "line 2: " in str(refused.value)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ("worker=a", "worker=b", True),
        ("worker=a", "worker=a", False),
        ("worker=a*", "worker=ab", False),
        ("worker=ab*", "worker=a*", False),
        ("worker=a-*", "worker=ab", True),
        ("worker=a-*", "worker=b-*", True),
        ("agent=h", "worker=h-s-k", False),
        ("agent=h", "worker=h-s-other", True),
        ("agent=h-*", "worker=h-1-s-k", False),
    ],
)
def test_two_names_may_not_allow_one_id(tmp_path: Path, first: str, second: str, apart: bool) -> None:
    between = f"z {DIGEST} worker=zz s/k"
    file = written(tmp_path, f"one {DIGEST} {first} s/k", between, f"two {DIGEST} {second} s/k")
    if apart:
        assert len(read_worker_tokens(file)) == 3
    else:
        with pytest.raises(InvalidInputError, match="lines 1 and 3 allow the same id to different names"):
            read_worker_tokens(file)
    # One principal may have several, as while a token is replaced.
    assert len(read_worker_tokens(written(tmp_path, f"one {DIGEST} {first} s/k", f"one {DIGEST} {second} s/k"))) == 2


@pytest.mark.parametrize("text", ["", "\n", "# fleets", "# fleets\n"])
def test_an_empty_file_withdraws_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="it holds no token; a file that is to have none says none"):
        read_worker_tokens(str(path))
    path.write_text(f"{text.strip()}\nnone\n")
    assert read_worker_tokens(str(path)) == []
    path.write_text(f"none\nw {DIGEST} worker=w s/k\n")
    with pytest.raises(InvalidInputError, match="line 1: it is not NAME"):
        read_worker_tokens(str(path))


def test_a_file_that_is_cut_off_is_refused_wherever_that_is(tmp_path: Path) -> None:
    """But at the end of a line, which nothing shows."""
    whole = f"w {DIGEST} worker=w-* s/key,another t/key\nx {DIGEST[:-1]}1 worker=x s/key\n"
    path = tmp_path / "tokens"
    for length in range(len(whole)):
        path.write_text(whole[:length])
        if whole[:length].endswith("\n"):
            assert len(read_worker_tokens(str(path))) == 1
        else:
            with pytest.raises(InvalidInputError):
                read_worker_tokens(str(path))


def test_a_file_may_not_be_large(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is larger than 1048576 bytes"):
        read_worker_tokens(written(tmp_path, "#" * (MAX_FILE_BYTES + 1)))
    with pytest.raises(InvalidInputError, match="can't be read"):
        read_worker_tokens(str(tmp_path / "missing"))
