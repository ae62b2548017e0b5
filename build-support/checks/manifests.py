"""Hold the Kubernetes manifests against the schemas of Kubernetes: the base, and the chart with each example of values.

Usage: manifests.py. kubectl or kustomize, and helm, are taken from PATH; what is missing is said, and not checked,
unless RINGCAST_REQUIRE_KUBECTL=1 or RINGCAST_REQUIRE_HELM=1. kubernetes-validate has to be in this interpreter's
environment. Exit status 1 with the first thing that a schema refuses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
VERSIONS = ("1.30", "1.37")
"""Of Kubernetes: the oldest that the manifests are for, and a new one."""
OF_OPERATORS = "apiVersion: monitoring.coreos.com/"
"""Kinds that Kubernetes itself does not know."""


class NotCheckedError(Exception):
    """A program is not there."""


def tool(requirement: str, *programs: str) -> str:
    for program in programs:
        if (found := shutil.which(program)) is not None:
            return found
    why = f"{' or '.join(programs)} is not on PATH"
    if os.environ.get(f"RINGCAST_REQUIRE_{requirement}") == "1":
        raise SystemExit(f"manifests: {why}")
    raise NotCheckedError(why)


def printed(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"manifests: {' '.join(map(str, words))}:\n{done.stderr}")
    return done.stdout


def kustomized(folder: Path) -> str:
    found = tool("KUBECTL", "kubectl", "kustomize")
    return printed(found, "kustomize" if Path(found).name == "kubectl" else "build", folder)


def charted(*words: str | Path) -> str:
    chart = INFRA / "helm/ringcast"
    return printed(tool("HELM", "helm"), "template", "ringcast", chart, "--namespace", "ringcast", *words)


def sources() -> Iterator[tuple[str, str]]:
    """The name of each set of objects, and the objects as YAML."""
    yield "worker.example.yaml", (INFRA / "kubernetes/worker.example.yaml").read_text()
    yield "secrets.example.yaml", (INFRA / "kubernetes/secrets.example.yaml").read_text()
    missing: set[str] = set()
    try:
        yield "the kustomize base", kustomized(INFRA / "kubernetes")
    except NotCheckedError as error:
        missing.add(str(error))
    try:
        yield "the chart", charted()
        for values in sorted((INFRA / "helm/examples").glob("*.yaml")):
            yield f"the chart with {values.name}", charted("--values", values)
    except NotCheckedError as error:
        missing.add(str(error))
    for why in sorted(missing):
        sys.stderr.write(f"manifests: WARNING: {why}: not everything was checked\n")


def main() -> int:
    validate = Path(sys.executable).with_name("kubernetes-validate")
    with tempfile.TemporaryDirectory() as name:
        for what, text in sources():
            documents = [part for part in text.split("\n---\n") if OF_OPERATORS not in part]
            file = Path(name) / "objects.yaml"
            file.write_text("\n---\n".join(documents))
            for version in VERSIONS:
                words = [str(validate), "--strict", "--quiet", "--kubernetes-version", version, str(file)]
                done = subprocess.run(words, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.stderr.write(f"manifests: {what}, Kubernetes {version}:\n{done.stdout}{done.stderr}")
                    return 1
            sys.stdout.write(f"manifests: {what}: {len(documents)} objects fit Kubernetes {' and '.join(VERSIONS)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
