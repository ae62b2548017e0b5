"""Install each wheel of a directory by itself, with pip into an empty environment; import it and run its commands.

Usage: install_alone.py DIRECTORY. Our own distributions come from the directory, those of others from the package
index at the versions that the lock names. Exit status 1 when one of them can't be installed, imported or run.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "build-support/locks/default.txt"
PINNED = re.compile(r"^([A-Za-z0-9._-]+==[^ ;\\]+)(\s*;[^\\]*)?", re.MULTILINE)


def import_package(wheel: Path) -> str:
    """The one package at the top of a wheel."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    packages = sorted(name for name in names if name.isidentifier())
    if len(packages) != 1:
        raise SystemExit(f"install_alone: {wheel.name} has {packages} at its top, and one package is wanted")
    return packages[0]


def commands(wheel: Path) -> list[str]:
    """The names of the console scripts in a wheel."""
    archive = zipfile.ZipFile(wheel)
    parser = configparser.ConfigParser()
    for name in archive.namelist():
        if name.endswith(".dist-info/entry_points.txt"):
            parser.read_string(archive.read(name).decode())
    return list(parser["console_scripts"]) if parser.has_section("console_scripts") else []


def constraints_for(wheels: list[Path]) -> str:
    """Ours and others' at the versions that are here and in the lock."""
    ours = ["{}=={}".format(*wheel.name.split("-")[:2]).replace("_", "-") for wheel in wheels]
    # Without the hashes: pip would ask for hashes of our own wheels too.
    others = [match[1] + (match[2] or "") for match in PINNED.finditer(LOCK.read_text())]
    return "\n".join([*ours, *others]) + "\n"


def install(wheel: Path, constraints: Path) -> str | None:
    """Try one wheel; what went wrong, or None."""
    package = import_package(wheel)
    with tempfile.TemporaryDirectory() as directory:
        # Our own pip installs into it: to bootstrap one there takes seconds.
        venv.create(directory, with_pip=False)
        scripts = Path(directory) / "bin"
        python = str(scripts / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
        # -f and not constraints by address: an address can't serve a requirement with an extra. Of what is installed,
        # little is imported, and compiled then.
        how = ["--no-compile", "-f", str(wheel.parent), "--constraint", str(constraints)]
        for words in (
            [*pip, "install", *how, str(wheel)],
            [*pip, "check"],
            # Isolated, so that a checkout on the path can't hide what is missing.
            [python, "-I", "-c", f"import {package}; assert {package}.__file__.startswith({directory!r})"],
            *([str(scripts / name), "--help"] for name in commands(wheel)),
        ):
            run = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                return f"{' '.join(words)} ended with {run.returncode}:\n{run.stdout}{run.stderr}"
    return None


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: install_alone.py DIRECTORY\n")
        return 2
    wheels = sorted(Path(sys.argv[1]).resolve().glob("*.whl"))
    if not wheels:
        sys.stderr.write(f"install_alone: no wheel in {sys.argv[1]}; run make wheels\n")
        return 1
    failed = 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(constraints_for(wheels))
        constraints.flush()
        for wheel in wheels:
            problem = install(wheel, Path(constraints.name))
            failed += problem is not None
            sys.stdout.write(f"install_alone: {wheel.name}: {problem or 'installs and runs alone'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
