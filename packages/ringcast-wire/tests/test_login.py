"""What a login refuses, and that it never tells a password. That it opens a connection is tested with a real server."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from ringcast_wire import InvalidInputError, LoginRefusals, NatsLogin, login_refusal, without_passwords


@pytest.mark.parametrize(
    ("login", "sentence", "field"),
    [
        (NatsLogin(user="u"), "user is given without password", "password"),
        (NatsLogin(password="secret"), "password is given without user", "user"),
        (NatsLogin(user="u", password="secret", password_file="x"), "password and password_file", "password_file"),
        (NatsLogin(password_file="test_login.py"), "password_file is given without user", "user"),
        (NatsLogin(user="u", password_file="none"), "password_file 'none' is not a file", "password_file"),
        (NatsLogin(user="u", password="secret", nkey_seed_file="x"), "user and nkey_seed_file", "nkey_seed_file"),
        (NatsLogin(tls_cert_file="x"), "tls_cert_file is given without tls_key_file", "tls_key_file"),
        (NatsLogin(tls_key_file="x"), "tls_key_file is given without tls_cert_file", "tls_cert_file"),
        (
            NatsLogin(credentials_file="none.creds"),
            "credentials_file 'none.creds' is not a",
            "credentials_file",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(login: NatsLogin, sentence: str, field: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence) as refused:
        login.check_login()
    assert refused.value.field == field
    assert "secret" not in str(refused.value)


def test_the_password_is_not_shown() -> None:
    login = NatsLogin(user="u", password="secret")
    assert "secret" not in f"{login} {login!r}"
    assert "user='u'" in repr(login)
    assert without_passwords(["nats://u:secret@a:1", "tls://b:2", "u:s@ecret@c"]) == "nats://a:1, tls://b:2, c"


def test_without_settings_nothing_is_asked_of_the_client() -> None:
    NatsLogin().check_login()
    assert NatsLogin().connect_options(["nats://a:1"]) == {}


def test_tls_begins_with_the_handshake() -> None:
    """Otherwise whoever is in between could say that the server has no TLS, and read the password."""
    options = NatsLogin(user="u", password="p").connect_options(["tls://a:1"])
    assert options["tls_handshake_first"] is True
    assert options["tls"].check_hostname
    assert (options["user"], options["password"]) == ("u", "p")


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    with pytest.raises(InvalidInputError, match="holds no certificates"):
        NatsLogin(tls_ca_file=str(file)).connect_options([])


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (b"", "begins with an empty line"),
        (b"\nsecret\n", "begins with an empty line"),
        (b"\xff\n", "is no UTF-8"),
        (b"x" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_file_without_a_password_is_refused(tmp_path: Path, held: bytes, sentence: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(held)
    with pytest.raises(InvalidInputError, match=sentence) as refused:
        NatsLogin(user="u", password_file=str(file)).check_login()
    assert refused.value.field == "password_file"
    assert "secret" not in str(refused.value)


def test_the_password_of_a_file_is_the_one_that_it_holds_when_a_client_connects(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first \r\nnot this\n")
    password = NatsLogin(user="u", password_file=str(file)).connect_options([])["password"]
    assert password() == "first "
    file.write_text("second")
    assert password() == "second"
    file.unlink()
    with pytest.raises(OSError, match=r"password_file .* can't be read: No such file"):
        password()  # the client tries again after it


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Exception("nats: 'Authorization Violation'"), "Authorization Violation"),
        (Exception("nats: authorization failed"), "authorization failed"),
        (Exception("nats: 'User Authentication Expired'"), "User Authentication Expired"),
        (Exception("nats: 'Permissions Violation for Publish to \"a\"'"), ""),
        (Exception("nats: 'maximum connections exceeded'"), ""),
        (ConnectionResetError("Connection lost"), ""),
        (ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"), "alert"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), ""),
    ],
)
def test_which_errors_of_a_client_say_that_a_login_is_refused(error: Exception, words: str) -> None:
    assert words in login_refusal(error)
    assert bool(words) is bool(login_refusal(error))


REFUSED = Exception("nats: 'Authorization Violation'")
AWAY = ConnectionRefusedError("Connect call failed")


def test_of_several_servers_one_that_is_away_takes_no_refusal_back() -> None:
    login = LoginRefusals()
    assert login.note(AWAY, 2) == ""
    assert login.note(REFUSED, 2) == login.words == "Authorization Violation"
    for error in (AWAY, REFUSED, TimeoutError(), ConnectionResetError("a server that refused"), REFUSED, AWAY):
        login.note(error, 2)
        assert login.words
    login.note(AWAY, 2)
    assert login.words == "", "none of them listens any more"


def test_a_refusal_ends_when_the_login_is_accepted_or_the_only_server_goes() -> None:
    login = LoginRefusals()
    login.note(REFUSED, 1)
    login.note(ConnectionResetError(), 1)
    assert login.words
    login.note(OSError("Multiple exceptions: [Errno 111] Connect call failed"), 1)
    assert login.words == ""
    login.note(REFUSED, 1)
    login.accepted()
    assert login.words == ""
