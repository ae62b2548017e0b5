"""The tests that the documentation names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_test_that_the_documentation_names_exists() -> None:
    named = {
        name: page.name
        for page in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"`(test_\w+)`", page.read_text())
    }
    found: set[str] = set()
    for folder in ("packages", "services", "tests"):
        for path in (ROOT / folder).rglob("test_*.py"):
            found.update(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert named.keys() <= found, {name: page for name, page in named.items() if name not in found}
    assert len(named) >= 15
