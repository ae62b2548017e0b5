"""What every test of the repository shares, under Pants and under plain pytest alike."""

from __future__ import annotations

import gc
import os
import sys
import tomllib
from pathlib import Path

pytest_plugins = ["ringcast_testkit.fixtures"]

ROOT = Path(__file__).resolve().parent
# Pants starts pytest in a directory that it throws away, and names the source roots here.
PANTS_VARIABLES = ("PEX_EXTRA_SYS_PATH", "__PEX_EXTRA_SYS_PATH__")


def _write_metadata(target: Path) -> None:
    """Record name and version of our distributions, which Pants runs from their sources, as pip would on installing."""
    for manifest in ROOT.glob("*/*/pyproject.toml"):
        project = tomllib.loads(manifest.read_text())["project"]
        # The native one is installed, as the wheel that maturin built; its version comes from Cargo.toml.
        if "version" in project:
            directory = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
            directory.mkdir(parents=True, exist_ok=True)
            text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
            (directory / "METADATA").write_text(text)


def _link_compiled(run_directory: Path) -> None:
    """Have our modules there as build-support/bin/run-tests has compiled them: all sandboxes have the same sources."""
    compiled = run_directory / "compiled"
    for directory in compiled.glob("*/*/*/**/"):
        here = ROOT / directory.relative_to(compiled)
        if here.is_dir() and not (here / "__pycache__").exists():
            (here / "__pycache__").symlink_to(directory)


def _settle_in_sandbox() -> None:
    """Make a sandbox look installed, to tests that change directory and to the processes that they start.

    The source roots that Pants gives are relative to the sandbox, and it installs no metadata.
    """
    metadata = ROOT / ".metadata"
    _write_metadata(metadata)
    sys.path[:] = [str(Path(entry).resolve()) if entry else entry for entry in [*sys.path, str(metadata)]]
    for variable in PANTS_VARIABLES:
        if roots := os.environ.get(variable):
            paths = [*roots.split(os.pathsep), str(metadata)]
            os.environ[variable] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    if run_directory := os.environ.get("RINGCAST_RUN_DIRECTORY"):
        _link_compiled(Path(run_directory))


if any(variable in os.environ for variable in PANTS_VARIABLES):
    _settle_in_sandbox()

# Workers that come and go wait for others that do, a second each time. Tests that are about that say so.
os.environ.setdefault("RINGCAST_STABILISATION_S", "0")


def pytest_collection_finish() -> None:
    """Have the collector of garbage leave alone what was imported: it would look at all of it again and again.

    And look for new garbage less often: it comes after 700 objects else, which takes the simulation a sixth to a third.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
