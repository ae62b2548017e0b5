"""The file of tokens: what it accepts, what it refuses, and that no refusal shows a secret."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from ringcast_wire import InvalidInputError
from ringcast_wire.tokens import KnownToken, check_principal, make_token, read_known_tokens, token_line

TOKEN = "a-token-of-more-than-sixteen-characters"
SHA = hashlib.sha256(TOKEN.encode()).digest()


def read(directory: Path, text: str) -> list[KnownToken]:
    path = directory / "tokens"
    path.write_text(text)
    return read_known_tokens(str(path))


def test_a_new_token_is_found_by_its_line(tmp_path: Path) -> None:
    token = make_token()
    assert token != make_token()
    line = token_line("deploy@ci.example.org", token)
    assert token not in line
    found = read(tmp_path, f"# the pipeline\n\n{line}\n")
    assert found == [KnownToken("deploy@ci.example.org", hashlib.sha256(token.encode()).digest())]


def test_a_plain_token_has_a_name_that_does_not_show_it(tmp_path: Path) -> None:
    (found,) = read(tmp_path, f"{TOKEN}\n")
    assert found == KnownToken(f"token-{SHA.hex()[:8]}", SHA)


def test_a_token_has_one_name_and_one_time(tmp_path: Path) -> None:
    """Else the last line would count, and the audit log name the wrong one, or the token outlive its expiry."""
    line = token_line("deploy", TOKEN)
    assert [each.principal for each in read(tmp_path, f"{line}\n\n{line}\n")] == ["deploy"]
    for other in (token_line("desk", TOKEN), token_line("deploy", TOKEN, 4_000_000_000), TOKEN):
        with pytest.raises(InvalidInputError, match="lines 2 and 3 have the same token with different names or times"):
            read(tmp_path, f"# deploy\n{line}\n{other}\n")


@pytest.mark.parametrize("before", ["", token_line("desk", f"{TOKEN}-2") + "\n"])
def test_a_file_that_is_cut_off_is_refused_wherever_that_is(tmp_path: Path, before: str) -> None:
    """A name that is left is no token, and a token without its expiry none that never expires."""
    line = token_line("deploy@ci.example.org", TOKEN, 4_000_000_000) + "\n"
    for length in range(1, len(line)):
        with pytest.raises(InvalidInputError) as refused:
            read(tmp_path, before + line[:length])
        assert line[:17] not in str(refused.value)
    with pytest.raises(InvalidInputError, match=r"line . is the last one and may be cut off: end it with a newline if"):
        read(tmp_path, f"{before}deploy@ci.example.org")
    assert len(read(tmp_path, before + line)) == 1 + bool(before)


def test_an_editor_of_windows_may_have_written_it(tmp_path: Path) -> None:
    assert read(tmp_path, f"\ufeff{token_line('deploy', TOKEN)}\r\n") == [KnownToken("deploy", SHA)]
    assert [each.digest for each in read(tmp_path, f"\ufeff{TOKEN}\r\n")] == [SHA]


def test_a_principal_may_have_several_tokens(tmp_path: Path) -> None:
    lines = [token_line("deploy", TOKEN), token_line("deploy", f"{TOKEN}-2"), token_line("audit", f"{TOKEN}-3")]
    assert [known.principal for known in read(tmp_path, "\n".join([*lines, ""]))] == ["deploy", "deploy", "audit"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no token"),
        ("# only a comment", "holds no token"),
        ("short", "line 1 is neither NAME sha256:DIGEST nor a token of 16 to 4096 visible ASCII characters"),
        (f"sha256:{SHA.hex()}", "line 1 is neither"),
        (f"{TOKEN}\nSECRET of three words", "line 2 is not NAME sha256:DIGEST"),
        (f"deploy SECRET-{TOKEN}", "line 1 is not NAME sha256:DIGEST"),
        (f"deploy sha256:{SHA.hex().upper()}", "line 1 is not NAME sha256:DIGEST with a digest of 64 hexadecimal"),
        (f"deploy sha256:{SHA.hex()[1:]}", "line 1 is not NAME sha256:DIGEST"),
        (f"SECRET/{TOKEN} sha256:{SHA.hex()}", "line 1 has a name that is not 1 to 64 characters"),
        (f"local sha256:{SHA.hex()}", "line 1 has a name"),
        ("x" * 70_000, "larger than 65536 bytes"),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as refused:
        read(tmp_path, text)
    assert TOKEN not in str(refused.value)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "-x", "a b", "a:b", "host:1", "x" * 65, "jörg", "local", "anonymous", "a\n"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"is not a valid name: 1 to 64 characters"):
        check_principal("name", name)


@pytest.mark.parametrize("name", ["a", "x" * 64, "deploy@ci.example.org", "Team_1.prod-2"])
def test_what_is_a_name_is_returned(name: str) -> None:
    assert check_principal("name", name) == name
