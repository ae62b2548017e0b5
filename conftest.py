"""What every test of the repository shares, under Pants and under plain pytest alike."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

pytest_plugins = ["ringcast_testkit.fixtures"]

ROOT = Path(__file__).resolve().parent
# Pants starts pytest in a directory that it throws away, and names the source roots here.
PANTS_VARIABLES = ("PEX_EXTRA_SYS_PATH", "__PEX_EXTRA_SYS_PATH__")


def _link_compiled(run_directory: Path) -> None:
    """Have our modules there as build-support/bin/run-tests has compiled them: all sandboxes have the same sources."""
    compiled = run_directory / "compiled"
    for directory in compiled.glob("*/*/*/**/"):
        here = ROOT / directory.relative_to(compiled)
        if here.is_dir() and not (here / "__pycache__").exists():
            (here / "__pycache__").symlink_to(directory)


def _link_native(venv: Path) -> None:
    """Have the native core there as `make setup` has built it, beside its sources in Python."""
    package = Path("crates/ringcast-core-py/python/ringcast_core")
    for library in (venv.resolve().parent / package).glob("_native.*.so"):
        if (ROOT / package).is_dir():
            (ROOT / package / library.name).symlink_to(library)


def _settle_in_sandbox() -> None:
    """Make a sandbox look installed, to tests that change directory and to the processes that they start.

    The source roots that Pants gives are relative to the sandbox. All else is in .venv: packages of others, what they
    have in bin, and name and version of our distributions. The sources that .venv points to are not seen from here, so
    that a test has no file that it does not depend on.
    """
    venv = Path(os.environ["RINGCAST_VENV"])
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if not packages.is_dir():
        raise RuntimeError(f"{packages} is missing: run `make setup` first, with the interpreter that Pants uses")
    _link_native(venv)
    sys.path[:] = [*(str(Path(entry).resolve()) if entry else entry for entry in sys.path), str(packages)]
    for variable in PANTS_VARIABLES:
        if roots := os.environ.get(variable):
            paths = [*roots.split(os.pathsep), str(packages)]
            os.environ[variable] = os.pathsep.join(str(Path(path).resolve()) for path in paths)
    os.environ["PATH"] = os.pathsep.join([f"{sys.prefix}/bin", f"{venv}/bin", os.environ["PATH"]])
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
