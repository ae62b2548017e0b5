"""What the README says is so."""

from __future__ import annotations

from pathlib import Path

from ringcast_meta import limits
from ringcast_testkit import run_readme_examples

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_run() -> None:
    assert run_readme_examples(README) == 1


def test_the_limits_are_those_of_the_code() -> None:
    text = README.read_text()
    assert f"1 to {limits.MAX_KEY_CHARS} characters" in text
    assert f"| value | {limits.MAX_VALUE_BYTES // 1024} KiB |" in text
    assert f"{limits.MAX_ENTRIES:,} entries, {limits.MAX_SNAPSHOT_BYTES // 2**20} MiB" in text
    assert limits.MAX_WATCHES == limits.MAX_LEASES
    assert f"| {limits.MAX_WATCHES} each |" in text
    assert f"| entries of one lease | {limits.MAX_LEASED_ENTRIES} |" in text
    assert f"{limits.MIN_LEASE_TTL_S} to {limits.MAX_LEASE_TTL_S} s" in text
