"""Tokens of issuers: which are accepted, by which keys, and what they prove. At a service: test_oidc_logins.py."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from ringcast_config_service.caller import LoginRefusedError
from ringcast_config_service.config import Config
from ringcast_config_service.oidc.issuers import MAX_ISSUERS, read_issuers
from ringcast_config_service.oidc.keys import MAX_KEY_SET_BYTES, MAX_KEYS, read_key_set
from ringcast_config_service.oidc.settings import OidcSettings
from ringcast_config_service.oidc.verifier import Verifier
from ringcast_service import ConfigError
from ringcast_testkit import attempt
from ringcast_testkit.issuer import (
    EC,
    EDWARDS,
    ISSUER,
    OTHER_RSA,
    RSA,
    issuers_file,
    key_set,
    public,
    signed,
)
from ringcast_wire import InvalidInputError


def verifier_of(directory: Path, *keys: dict[str, Any], leeway_s: float = 0.0, **words: Any) -> Verifier:
    """One whose keys are in a file."""
    path = directory / "keys.json"
    path.write_bytes(key_set(*keys))
    return Verifier(OidcSettings(issuers_file=issuers_file(directory, str(path), **words), leeway_s=leeway_s))


def refusal(verifier: Verifier, token: str) -> str:
    with pytest.raises(LoginRefusedError) as refused:
        verifier.login(token)
    assert token not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA, name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC, "ES256"),
        (EDWARDS, "EdDSA"),
    ],
)
def test_a_token_proves_principal_and_groups(tmp_path: Path, key: Any, algorithm: str) -> None:
    verifier = verifier_of(tmp_path, public(key, "one"), algorithms=[algorithm], groups_claim="groups")
    found = verifier.login(signed(key, algorithm, groups=["ops", "ops", "dev"], exp=4_000_000_000))
    assert found == (
        f"oidc:{ISSUER}#alice",
        (f"oidc-group:{ISSUER}#ops", f"oidc-group:{ISSUER}#dev"),
        4_000_000_000,
    )


def _public_pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def _with_hmac() -> str:
    """A token that is signed with the public key of the issuer, as if it were a shared secret."""
    head, claims, _ = signed().split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"one"}').rstrip(b"=").decode()
    mac = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(
        f"{head}.{claims}".encode(), _public_pem(RSA)
    )
    return f"{head}.{claims}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _spoiled() -> str:
    """A token whose claims were changed after it was signed."""
    head, _, signature = signed().split(".")
    return ".".join((head, signed(sub="root").split(".")[1], signature))


@pytest.mark.parametrize(
    ("token_of", "sentence"),
    [
        (lambda: signed(exp=int(time.time()) - 5), "the token has expired"),
        (lambda: signed(nbf=int(time.time()) + 3_600), "the token does not count yet"),
        (lambda: signed(iat=int(time.time()) + 3_600), "the token does not count yet"),
        (lambda: signed(exp=None), "the token has no claim exp"),
        (lambda: signed(exp="soon"), "the token can't be read"),
        (lambda: signed(exp=float("inf")), "the token can't be read"),
        (lambda: signed(exp=10**400), "the token expires after the year 9999"),
        (lambda: signed(exp=1e30), "the token expires after the year 9999"),
        (lambda: signed(nbf=10**400), "the token does not count yet"),
        (lambda: signed(aud="others"), "the token is for another audience"),
        (lambda: signed(aud=["others", "more"]), "the token is for another audience"),
        (lambda: signed(aud={"ringcast": 1}), "the token is for another audience"),
        (lambda: signed(aud=None), "the token has no claim aud"),
        (lambda: signed(sub=None), "the token has no claim sub"),
        (lambda: signed(sub=7), "the token can't be read"),
        (lambda: signed(sub=""), "the token has no claim sub"),
        (
            lambda: signed(iss="https://evil.example.org"),
            "is of the issuer 'https://evil.example.org', which is not among",
        ),
        (lambda: signed(iss=None), "is of the issuer None, which is not among"),
        (lambda: signed(OTHER_RSA), "the token has a signature that is not its issuer's"),
        (_spoiled, "the token has a signature that is not its issuer's"),
        (lambda: signed(headers={"kid": "two"}), "is signed with the key 'two', which its issuer does not have"),
        (lambda: signed(headers={"kid": None}), "the token does not name its key (kid)"),
        (lambda: signed(EC, "ES256"), "is signed with 'ES256', which is not among the algorithms of its issuer"),
        (lambda: signed("", "none"), "is signed with 'none', which is not among the algorithms of its issuer"),
        (_with_hmac, "is signed with 'HS256', which is not among the algorithms of its issuer"),
        (lambda: signed(headers={"typ": "logout+jwt"}), "the token is not a token for a login"),
        (lambda: signed(headers={"crit": ["exp"]}), "the token "),
        (lambda: "a.b.c", "the token can't be read"),
        (lambda: "..", "the token can't be read"),
        (lambda: signed(groups=["a", 7]), "the token has groups that are no list of names"),
        (lambda: signed(groups={"a": 1}), "the token has groups that are no list of names"),
    ],
)
@attempt(
    "a client with a token that is expired, changed, for another audience, of another issuer, key or kind, without a "
    "signature (`none`), or signed with the public key as if it were a secret",
    "log in",
    "`UNAUTHENTICATED`, saying why, without the token",
)
def test_a_token_that_does_not_hold_is_refused(tmp_path: Path, token_of: Callable[[], str], sentence: str) -> None:
    """Tokens are made here, since what is made when the tests are collected may expire before they run."""
    verifier = verifier_of(tmp_path, public(RSA, "one"), algorithms=["RS256"], groups_claim="groups")
    verifier.login(signed(sub="another", aud=["others", "ringcast"]))
    assert sentence in refusal(verifier, token_of())


def test_clocks_may_differ_by_the_leeway(tmp_path: Path) -> None:
    verifier = verifier_of(tmp_path, public(RSA, "one"), leeway_s=60)
    exp = int(time.time()) - 30
    assert verifier.login(signed(exp=exp, nbf=exp + 60)).expires_at_s == exp + 60
    assert refusal(verifier, signed(exp=exp - 60)) == "the token has expired"
    assert refusal(verifier, signed(nbf=exp + 120)) == "the token does not count yet"


def test_a_token_that_was_verified_expires_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, now = verifier_of(tmp_path, public(RSA, "one")), time.time()
    token = signed(exp=int(now) + 300)
    assert verifier.login(token) is verifier.login(token)
    monkeypatch.setattr("time.time", lambda: now + 301)
    assert refusal(verifier, token) == "the token has expired"


@attempt(
    "an issuer that names people with line ends, spaces, `#` or 300 characters",
    "have one pass for another",
    "they are different principals of one line",
)
def test_names_are_one_line_and_different_for_different_names(tmp_path: Path) -> None:
    verifier = verifier_of(tmp_path, public(RSA, "one"))
    subjects = (
        "a#b",
        "two\nlines",
        "x" * 300 + "1",
        "x" * 300 + "2",
        "J\N{LATIN SMALL LETTER O WITH DIAERESIS}rg",
        "a ",
    )
    found = [verifier.login(signed(sub=subject)).principal for subject in subjects]
    assert len(set(found)) == len(found)
    assert all(name.isprintable() and len(name) <= 400 and name.strip() == name for name in found)
    assert found[0] == f"oidc:{ISSUER}#a#b"


@attempt(
    "a client with an email that its issuer has not verified",
    "log in as the owner of the email",
    "`UNAUTHENTICATED`",
)
def test_another_claim_may_name_the_principal_and_groups_may_lie_deeper(tmp_path: Path) -> None:
    claims: dict[str, Any] = {"principal_claim": "email", "groups_claim": ["realm_access", "roles"]}
    verifier = verifier_of(tmp_path, public(RSA, "one"), **claims)
    words: dict[str, Any] = {"email": "a@example.org", "realm_access": {"roles": ["ops"]}}
    assert refusal(verifier, signed(**words)) == "the token has an email that its issuer has not verified"
    assert refusal(verifier, signed(**words, email_verified="true")).endswith("has not verified")
    found = verifier.login(signed(**words, email_verified=True))
    assert found[:2] == (f"oidc:{ISSUER}#a@example.org", (f"oidc-group:{ISSUER}#ops",))
    assert verifier.login(signed(email="b@example.org", email_verified=True)).groups == ()


def test_keys_and_issuers_in_files_may_be_replaced(tmp_path: Path) -> None:
    verifier = verifier_of(tmp_path, public(RSA, "one"))
    old, new = signed(), signed(OTHER_RSA, headers={"kid": "two"})
    verifier.login(old)
    (tmp_path / "new.json").write_bytes(key_set(public(OTHER_RSA, "two")))
    (tmp_path / "new.json").replace(tmp_path / "keys.json")
    verifier.login(new)
    assert "which its issuer does not have" in refusal(verifier, old)  # though it was verified before
    issuers_file(tmp_path, str(tmp_path / "keys.json"), audiences=["others"])
    assert refusal(verifier, new) == "the token is for another audience"


# --- the key set ------------------------------------------------------------------------------------------------------


@attempt(
    "an issuer whose key set has private, shared, short or other keys",
    "have them used",
    "they are left out",
)
def test_keys_that_must_not_be_used_are_left_out() -> None:
    small = rsa.generate_private_key(65_537, 1_024)
    private = jwt.algorithms.RSAAlgorithm.to_jwk(RSA, as_dict=True)
    good = public(RSA, "good", alg="RS256")
    found = read_key_set(
        key_set(
            good,
            public(small, "small"),
            {**private, "kid": "private"},
            {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXM", "kid": "shared", "alg": "RS256"},
            public(RSA, "for encryption", use="enc"),
            public(RSA, "to sign", key_ops=["sign"]),
            public(RSA, ""),
            public(EC, "curve", crv="P-999"),
            public(EC, "another algorithm", alg="ES384"),
            {"kid": "nothing"},
        ),
        ("RS256", "PS256", "ES256"),
    )
    assert {name: sorted(keys) for name, keys in found.keys.items()} == {"good": ["RS256"]}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not JSON with a list of keys"),
        (b"[]", "is not JSON with a list of keys"),
        (b'{"keys": 7}', "is not JSON with a list of keys"),
        (b"[" * 100_000, "is not JSON with a list of keys"),
        (b'{"keys": []}', "has no key with an id for RS256"),
        (b" " * (MAX_KEY_SET_BYTES + 1), "is larger than 262144 bytes"),
        (key_set(*[{"kid": "a"}] * (MAX_KEYS + 1)), "has 129 keys, the limit is 128"),
    ],
)
def test_what_is_no_key_set_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(InvalidInputError, match=sentence):
        read_key_set(data, ("RS256",))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@attempt(
    "a client with random bytes in each part of a token",
    "bring the service down, or log in",
    "`UNAUTHENTICATED`",
)
def test_no_token_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    verifier = verifier_of(tmp_path_factory.mktemp("fuzz"), public(RSA, "one"))
    head, claims, signature = signed().split(".")
    part = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    for token in (
        data.decode("latin-1"),
        f"{part}.{claims}.{signature}",
        f"{head}.{part}.{signature}",
        f"{head}.{claims}.{part}",
    ):
        with pytest.raises(LoginRefusedError):
            verifier.login(token)


# --- the file of issuers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"issuer": "has a space"}, "has the issuer 'has a space': 1 to 128 visible ASCII"),
        ({"issuer": "https://a#b"}, "visible ASCII characters without # are allowed"),
        ({"audiences": []}, "has 0 audiences"),
        ({"algorithms": ["HS256"]}, "that are not of RS256"),
        ({"algorithms": ["none"]}, "that are not of RS256"),
        ({"algorithms": []}, "that are not of RS256"),
        ({"keys": "http://login.example.org/keys"}, "a path, https://, or http:// at a loopback address is allowed"),
        ({"keys": "http://127.0.0.1.example.org/keys"}, "at a loopback address is allowed"),
        ({"keys": "https://user:password@login.example.org/keys"}, "without a login in it"),
        ({"keys": "ftp://login.example.org/keys"}, "a path, https://"),
        ({"keys": "https://"}, "a path, https://"),
        ({"keys": ""}, "has a text of 0 characters"),
        ({"groups_claim": ""}, "has a text of 0 characters"),
        ({"principal_claim": "x" * 513}, "has a text of 513 characters"),
        ({"ca_file": "ca.pem"}, "whose keys are not read over https"),
        ({"keyz": "a"}, "unknown field `keyz`"),
        ({"audiences": "ringcast"}, "Expected `array`"),
    ],
)
def test_an_issuer_that_makes_no_sense_is_refused(tmp_path: Path, words: dict[str, Any], sentence: str) -> None:
    path = issuers_file(tmp_path, **{"keys": "keys.json", **words})
    with pytest.raises(ConfigError, match="oidc_issuers: ") as refused:
        OidcSettings(issuers_file=path).check(uses_tls=True)
    assert sentence in str(refused.value)


def test_a_file_has_one_issuer_or_more_each_once(tmp_path: Path) -> None:
    path = tmp_path / "issuers.toml"
    one = Path(issuers_file(tmp_path, "https://login.example.org:8443/keys", ca_file="ca.pem")).read_text()
    for text, sentence in (
        ("", "has 0 tables"),
        (one * 2, "twice"),
        (one * (MAX_ISSUERS + 1), "has 17 tables"),
        ("=", "TOML"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidInputError) as refused:
            read_issuers(str(path))
        assert sentence in str(refused.value) or sentence == "TOML"
    path.write_text(one)
    assert [issuer.issuer for issuer in read_issuers(str(path))] == [ISSUER]


def test_tokens_of_issuers_need_tls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="oidc_issuers is given without tls_cert: it needs TLS"):
        Config(database="sqlite:x", oidc=OidcSettings(issuers_file=issuers_file(tmp_path, "keys.json")))
