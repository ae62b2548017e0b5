"""The tests and files that the documentation names are there."""

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


def test_each_file_of_code_that_the_map_names_exists() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:ringcast\w*|pyspark_ringcast|crates)/[\w/-]+\.(?:py|rs))`", page))
    there = {path.as_posix() for path in (ROOT / "crates").rglob("*.rs")}
    for folder in ("packages", "services"):
        there.update(path.as_posix() for path in (ROOT / folder).glob("*/src/**/*.py"))
    missing = {name for name in named if not any(path.endswith(f"/{name}") for path in there)}
    assert missing == set()
    assert len(named) >= 15


def test_each_file_that_a_recipe_names_exists() -> None:
    """Whole paths as they are; a name of a file, or its last folders, somewhere in the tree."""
    recipes = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes")[1]
    named = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|rs|md|json|proto)))`", recipes))
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("packages", "services", "crates", "tests", "docs", "infra")
        for path in (ROOT / folder).rglob("*")
    }
    missing = {
        name
        for name in named
        if not any(path == name.rstrip("/") or path.endswith(f"/{name.rstrip('/')}") for path in there)
    }
    assert missing == set()
    assert len(named) >= 15
