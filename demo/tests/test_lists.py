from __future__ import annotations

import json
from pathlib import Path

from demo.lists import write_lists


def test_the_lists_are_the_real_ones(tmp_path: Path) -> None:
    blocklist, suffixes = write_lists(tmp_path)
    domains = blocklist.path.read_text().split()
    assert len(domains) == len(set(domains)) == blocklist.rows
    assert blocklist.rows > 8_000
    assert "mailinator.com" in domains

    rules = [json.loads(line) for line in suffixes.path.read_text().splitlines()]
    assert len({rule["row_id"] for rule in rules}) == suffixes.rows > 8_000
    assert {rule["value"] for rule in rules} == {"icann", "private"}
    assert {"row_id": "co.uk", "value": "icann"} in rules
