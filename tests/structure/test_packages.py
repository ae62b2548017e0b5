"""The metadata of each distribution: licence, authors, classifiers, versions that fit each other, docs that agree."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = sorted(ROOT.glob("*/*/pyproject.toml"))
RELEASING = ROOT / "docs/releasing.md"
RELEASES = ROOT / "build-support/releases.txt"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md")]
INTERNAL = "ringcast-testkit"
PYTHONS = ("3.11", "3.12", "3.13")

PERMISSIVE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "MIT-0", "PSF-2.0"}
"""Licences that allow commercial use and ask only for their notice."""

WRITTEN_OUT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
}
"""What metadata from before SPDX expressions says."""
READ = {("avro", "Apache Software License"): "Apache-2.0"}
"""Where it does not say which version: what the file LICENSE of the distribution is."""


@cache
def projects() -> dict[str, dict[str, Any]]:
    """The [project] table of each distribution by its name, with its version, and `directory`."""
    found = {}
    for manifest in MANIFESTS:
        project = tomllib.loads(manifest.read_text())["project"]
        if "version" not in project:  # maturin takes it from here
            project["version"] = tomllib.loads(manifest.with_name("Cargo.toml").read_text())["package"]["version"]
        found[project["name"]] = {**project, "directory": manifest.parent}
    return found


def dependencies(project: dict[str, Any]) -> list[Requirement]:
    """What it requires, with every extra."""
    extras = project.get("optional-dependencies", {}).values()
    lines = [*project.get("dependencies", ()), *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in lines]


def test_there_are_distributions() -> None:
    assert len(projects()) >= 13


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_the_metadata_is_whole(manifest: Path) -> None:
    project = tomllib.loads(manifest.read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"][0] == "LICENSE"
    assert project["authors"] == [{"name": "Ringcast contributors"}]
    assert project["readme"] == "README.md"
    assert project["description"]
    assert project["description"][-1] == "."
    assert len(project["keywords"]) >= 3
    assert {f"Programming Language :: Python :: {version}" for version in PYTHONS} <= set(project["classifiers"])
    assert "Typing :: Typed" in project["classifiers"]
    assert not [line for line in project["classifiers"] if line.startswith("License")], "the licence is an expression"
    assert project["requires-python"] == f">={PYTHONS[0]}"
    # An internal distribution must not get to an index by mistake; an index refuses this.
    assert ("Private :: Do Not Upload" in project["classifiers"]) == (project["name"] == INTERNAL)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)
def test_each_distribution_has_the_licence(manifest: Path) -> None:
    assert manifest.with_name("LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("name", projects())
def test_the_changelog_begins_with_this_version(name: str) -> None:
    project = projects()[name]
    heading = re.search(r"^## (.*)$", (project["directory"] / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading is not None
    version = re.escape(project["version"])
    assert re.fullmatch(rf"{version} \((unreleased|\d{{4}}-\d\d-\d\d)\)", heading[1]), heading[0]


def test_our_distributions_accept_each_other() -> None:
    pairs = [(name, need) for name, project in projects().items() for need in dependencies(project)]
    ours = [(name, need) for name, need in pairs if need.name in projects()]
    assert len(ours) >= 30
    for name, need in ours:
        assert need.specifier.contains(projects()[need.name]["version"]), f"{name} asks for {need}"


def works_with(project: dict[str, Any]) -> str:
    """Which versions of ours it takes, as the table has it."""
    ranges = {need.name: str(need.specifier) for need in dependencies(project) if need.name in projects()}
    return ", ".join(f"{name} {','.join(sorted(range_.split(','))[::-1])}" for name, range_ in sorted(ranges.items()))


def test_the_matrix_says_what_the_metadata_says() -> None:
    lines = ["| distribution | version | Python | works with |", "|---|---|---|---|"]
    for name, project in sorted(projects().items()):
        if name != INTERNAL:
            python = f"{PYTHONS[0]} to {PYTHONS[-1]}"
            lines.append(
                f"| `{name}` | {project['version']} | {python} | {works_with(project) or 'needs none of ours'} |"
            )
    table = "\n".join(lines)
    assert table in RELEASING.read_text(), f"docs/releasing.md must have\n{table}"


def documented_installations() -> list[tuple[str, str]]:
    """Page and requirement of each `pip install` in a shell block that names one of our distributions."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```(?:sh|console)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in re.findall(r"\bpip install (.*)$", block, re.MULTILINE):
                words = line.partition("  #")[0].replace("'", "").split()
                assert words[:2] == ["--find-links", "dist"], f"{page.name}: {line}: no index has our distributions"
                found += [(page.name, word) for word in words[2:]]
    return found


def test_what_pages_say_of_pip_install_is_there() -> None:
    found = documented_installations()
    assert len(found) >= 7
    for page, word in found:
        need = Requirement(word)
        assert need.name in projects(), f"{page}: {word}"
        assert need.extras <= projects()[need.name].get("optional-dependencies", {}).keys(), f"{page}: {word}"


def third_parties() -> set[str]:
    """Every distribution of others that those which are released need, with every extra, however indirectly."""
    waiting = [need for name, one in projects().items() if name != INTERNAL for need in dependencies(one)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        need = waiting.pop()
        key = (canonicalize_name(need.name), frozenset(need.extras))
        if need.name in projects() or key in seen:
            continue
        seen.add(key)
        lines = map(Requirement, requires(need.name) or ())
        extras = ("", *need.extras)
        waiting += [one for one in lines if not one.marker or any(one.marker.evaluate({"extra": e}) for e in extras)]
    return {name for name, _ in seen}


def licence_of(name: str) -> str:
    """The SPDX expression of an installed distribution, as far as its metadata tells."""
    about = metadata(name)
    told = [about["License-Expression"], about["License"]]
    told += [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or () if line.startswith("License ::")]
    text = next((one for one in told if one), "")
    return READ.get((name, text)) or WRITTEN_OUT.get(text, text)


def is_permissive(expression: str) -> bool:
    """Whether one of the alternatives of an expression has only licences that we may ship with."""
    return any(PERMISSIVE.issuperset(one.split(" AND ")) for one in expression.split(" OR "))


def test_whatever_is_installed_with_ours_may_be_used_commercially() -> None:
    found = {name: licence_of(name) for name in third_parties()}
    assert len(found) >= 30
    assert {name: licence for name, licence in found.items() if not is_permissive(licence)} == {}


@pytest.mark.parametrize("expression", ["GPL-3.0-or-later", "MIT AND LGPL-2.1-only", "", "Proprietary"])
def test_other_licences_are_noticed(expression: str) -> None:
    assert not is_permissive(expression)
    assert is_permissive(f"{expression} OR MIT")


def test_the_releases_that_are_kept_have_a_commit_each() -> None:
    lines = [line for line in RELEASES.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"(\S+) ([0-9a-f]{40})", line) for line in lines]
    assert found
    assert all(found), lines
    versions = [Version(match[1]) for match in found if match]
    assert versions == sorted(set(versions)), "the last one is the newest"
    assert versions[-1].release <= max(Version(project["version"]).release for project in projects().values())
