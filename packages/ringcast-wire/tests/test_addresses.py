"""What an address is."""

from __future__ import annotations

import pytest
from ringcast_wire import InvalidInputError
from ringcast_wire.addresses import (
    check_address,
    check_service_address,
    is_service_address,
    service_addresses,
    split_address,
)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("host:7420", ("host", 7420)),
        ("10.0.0.1:0", ("10.0.0.1", 0)),
        ("[fe80::1]:65535", ("fe80::1", 65535)),
        ("a_b-c.example:1", ("a_b-c.example", 1)),
    ],
)
def test_host_and_port(address: str, found: tuple[str, int]) -> None:
    assert split_address(address) == found


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:65536",
        "host:٣",
        "fe80::1:7420",
        "u:pw@h:1",
        "a:1,b:2",
        "h:1\n",
        "h h:1",
        "tls://h:1",
    ],
)
def test_what_is_no_address(address: str) -> None:
    assert split_address(address) is None


def test_of_a_service() -> None:
    assert is_service_address("h:1")
    assert is_service_address("tls://[::1]:7420")
    assert not is_service_address("h:0")
    assert not is_service_address("tls://tls://h:1")


def test_a_refusal_has_the_field_the_value_and_what_is_expected() -> None:
    assert check_address("h:0", "listen", min_port=0) == ("h", 0)
    assert check_address("[::1]:1", "endpoints") == ("::1", 1)
    assert check_service_address("tls://h:1") == "tls://h:1"
    for refused, sentence in (
        (
            lambda: check_address("h", "listen", min_port=0),
            "listen 'h' is not an address: host:port is expected",
        ),
        (lambda: check_address("h:1x", "listen", min_port=0), "with a port of 0 to 65535"),
        (lambda: check_address("h:0", "endpoints"), "endpoints 'h:0' is not an address: .*, with a port of 1 to 65535"),
        (lambda: check_service_address("http://h:1"), "service 'http://h:1' is not an address"),
        (lambda: check_service_address("u:hunter2@h:1"), "service 'h:1' is not an address"),
    ):
        with pytest.raises(InvalidInputError, match=sentence) as caught:
            refused()
        assert str(caught.value).startswith(f"{caught.value.field} ")
        assert "hunter2" not in str(caught.value)


def test_several_addresses_of_a_service() -> None:
    assert service_addresses("a:1, tls://b:2") == ["a:1", "tls://b:2"]
    assert service_addresses(["a:1"]) == ["a:1"]
    with pytest.raises(InvalidInputError, match="service '' is not an address"):
        service_addresses("a:1,")
    with pytest.raises(InvalidInputError, match="0 addresses: 1 to 64 are allowed"):
        service_addresses([])
    with pytest.raises(InvalidInputError, match="service has 65 addresses"):
        service_addresses(["h:1"] * 65)
