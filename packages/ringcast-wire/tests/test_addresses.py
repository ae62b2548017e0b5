"""What an address is."""

from __future__ import annotations

import pytest
from ringcast_wire.addresses import is_service_address, split_address


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
