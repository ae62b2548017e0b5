"""This tree as a build to come: one that reads and writes wire version 3 beside those of this tree."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import ringcast_config_service
import ringcast_wire

from tests.integration.rolling.system import Build

VERSION = 3


def next_build(directory: Path, *, look_s: float) -> Build:
    """``look_s``: how often the leader of maintenance looks what the processes read."""
    wire = _copied(ringcast_wire, directory) / "_common/versions.py"
    _replace(
        wire, "WIRE_VERSIONS: Final[tuple[int, ...]] = (WIRE_VERSION,)", f"WIRE_VERSIONS = (WIRE_VERSION, {VERSION})"
    )
    pins = _copied(ringcast_config_service, directory) / "wire_pins.py"
    _replace(pins, "LOOK_S: Final = 5.0", f"LOOK_S = {look_s}")
    return Build("next", directory, is_whole=False)


def _copied(package: ModuleType, directory: Path) -> Path:
    assert package.__file__ is not None
    # With what is compiled already: a process would compile all of it at its start.
    return Path(shutil.copytree(Path(package.__file__).parent, directory / package.__name__))


def _replace(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text, f"{file} has not {before!r}"
    file.write_text(text.replace(before, after))
    # A run of all tests compiles once, and has no process look whether a source is newer.
    for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        stale.unlink()
