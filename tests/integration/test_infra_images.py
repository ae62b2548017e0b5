"""The images install exactly what their programs need, by the lock, and listen where the manifests say.

No container engine runs here; what can be held against the code is.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
DOCKERFILE = INFRA / "docker/Dockerfile"
IMAGES = {"config-service": "SERVICE", "heartbeat-agent": "AGENT"}
"""Of each image the argument that names what it installs from the lock."""


def picked(argument: str) -> set[str]:
    """The distributions that the Dockerfile takes from the lock for an argument."""
    match = re.search(rf'^ARG {argument}="(.+)"$', DOCKERFILE.read_text(), re.MULTILINE)
    assert match is not None
    return set(match[1].split("|"))


@cache
def projects() -> dict[str, dict[str, Any]]:
    """The tables of our distributions, as they stand in the tree."""
    files = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
    files.append(ROOT / "crates/ringcast-core-py/pyproject.toml")
    found = [tomllib.loads(file.read_text())["project"] for file in files]
    return {project["name"]: project for project in found}


def required(name: str, extras: frozenset[str]) -> list[str]:
    """What a distribution requires, as lines."""
    if (project := projects().get(name)) is not None:
        optional = project.get("optional-dependencies", {})
        return [*project.get("dependencies", []), *(line for extra in extras for line in optional[extra])]
    try:
        return requires(name) or []
    except PackageNotFoundError:
        pytest.fail(f"{name} is not installed")


def needs(name: str) -> set[str]:
    """Everything that a distribution requires, however indirectly."""
    done: set[tuple[str, frozenset[str]]] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    while waiting:
        current, with_extras = waiting.pop()
        for requirement in map(Requirement, required(current, with_extras)):
            environments = [{"extra": extra} for extra in with_extras] or [{"extra": ""}]
            wanted = requirement.marker is None or any(map(requirement.marker.evaluate, environments))
            found = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if wanted and found not in done:
                done.add(found)
                waiting.append(found)
    return {found for found, _ in done}


def stage(name: str) -> str:
    """The part of the Dockerfile that makes an image."""
    stages: list[tuple[str, str]] = re.findall(
        r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE.read_text(), re.MULTILINE | re.DOTALL
    )
    return dict(stages)[name]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_exactly_what_its_program_needs(image: str) -> None:
    everything = needs(f"ringcast-{image}")
    ours = everything & projects().keys()
    assert {"ringcast-core", "ringcast-wire", "ringcast-service"} <= ours
    assert picked(IMAGES[image]) == everything - ours
    built = set(re.findall(r"packages/([\w-]+)", stage("wheels")))
    assert ours - {"ringcast-core"} <= built
    assert f"--find-links /wheels ringcast-{image}" in stage(image)
    assert f"from=wheels,source=/{image}.txt" in stage(image)


def test_nothing_is_built_that_no_image_needs() -> None:
    built = set(re.findall(r"packages/([\w-]+)", stage("wheels")))
    assert built == set.union(*(needs(f"ringcast-{image}") for image in IMAGES)) & projects().keys() - {"ringcast-core"}
    seen = (INFRA / "docker/Dockerfile.dockerignore").read_text().splitlines()
    assert {line for line in seen if "packages/" in line} == {f"!packages/{name}" for name in built}
    assert {f"!services/{image}" for image in IMAGES} <= set(seen)


def test_the_tools_and_everything_else_are_in_the_lock() -> None:
    lock = (ROOT / "build-support/locks/default.txt").read_text()
    locked = set(re.findall(r"^([a-z0-9._-]+)==", lock, re.MULTILINE))
    assert picked("TOOLS").union(*map(picked, IMAGES.values())) <= locked
    assert picked("TOOLS") == {"hatchling", "maturin"} | needs("hatchling") | needs("maturin")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_listens_where_the_manifests_say(image: str) -> None:
    objects = yaml.safe_load_all((INFRA / f"kubernetes/{image}.yaml").read_text())
    (pod,) = [one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})]
    (container,) = pod["containers"]
    match = re.search(r"^EXPOSE (.+)$", stage(image), re.MULTILINE)
    assert match is not None
    assert sorted(map(int, match[1].split())) == sorted(port["containerPort"] for port in container["ports"])
    (program,) = json.loads(stage(image).rpartition("ENTRYPOINT ")[2])
    assert program == f"/opt/ringcast/bin/ringcast-{image}"
    scripts = tomllib.loads((ROOT / f"services/{image}/pyproject.toml").read_text())["project"]["scripts"]
    assert Path(program).name in scripts
    assert "USER 1000:1000" in stage(image)
    assert pod["securityContext"]["runAsUser"] == 1000
