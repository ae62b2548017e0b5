"""Install each wheel of a directory by itself into an empty environment; import it and run its commands.

Usage: install_alone.py DIRECTORY [CYCLONEDX]. Our own distributions come from the directory, those of others from the
package index at the versions that the lock names. Wheels for other machines are left out. CYCLONEDX is the program
`cyclonedx-py`: with it this is for a release, the SBOM of each environment goes to DIRECTORY/sbom, and pip installs, as
the READMEs say. Without it uv does, which takes much less; where it can't, pip. Exit status 1 when a wheel lacks its
licence, has poor metadata, or can't be installed, imported or run.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "build-support/locks/default.txt"
FIELDS = (
    "Author",
    "Classifier",
    "Description-Content-Type",
    "Keywords",
    "License-Expression",
    "Requires-Python",
    "Summary",
)
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


def poor_metadata(wheel: Path) -> str | None:
    """What an index or a reader would miss in a wheel, or None."""
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    about = Parser().parsestr(archive.read(metadata).decode())
    missing = [field for field in FIELDS if not about[field]]
    if missing:
        return f"its metadata has no {', '.join(missing)}"
    if not str(about.get_payload()).strip():
        return "its metadata has no description"
    licence = f"{metadata.removesuffix('METADATA')}licenses/LICENSE"
    if licence not in archive.namelist() or archive.read(licence) != (ROOT / "LICENSE").read_bytes():
        return f"{licence} is not our licence"
    if f"{import_package(wheel)}/py.typed" not in archive.namelist():
        return "it has no py.typed"
    return None


def sbom(cyclonedx: str, python: str, wheel: Path) -> list[str]:
    """The command that writes down all that is installed beside a wheel; it checks its output against the schema."""
    name, version, *_ = wheel.name.split("-")
    target = wheel.parent / "sbom" / f"{name}-{version}.cdx.json"
    target.parent.mkdir(exist_ok=True)
    return [cyclonedx, "environment", "--output-reproducible", "--validate", "--output-file", str(target), python]


def distribution(wheel: Path) -> str:
    """The name of the distribution that a wheel holds."""
    return parse_wheel_filename(wheel.name)[0]


def other_than_built(wheels: Path, environment: Path) -> str | None:
    """Which of our distributions in an environment is not what its wheel in the directory holds, or None."""
    for installed in environment.glob("lib/*/site-packages/*.dist-info"):
        for wheel in wheels.glob(f"{installed.name.removesuffix('.dist-info')}-*.whl"):
            record = zipfile.ZipFile(wheel).read(f"{installed.name}/RECORD").decode()
            built = {line for line in record.splitlines() if not line.startswith(installed.name)}
            if not built <= set((installed / "RECORD").read_text().splitlines()):
                return f"what was installed of {wheel.name} is not what the wheel holds"
    return None


def constraints_for(wheels: list[Path]) -> str:
    """Ours and others' at the versions that are here and in the lock."""
    ours = [f"{distribution(wheel)}=={wheel.name.split('-')[1]}" for wheel in wheels]
    # Without the hashes: pip would ask for hashes of our own wheels too.
    others = [match[1] + (match[2] or "") for match in PINNED.finditer(LOCK.read_text())]
    return "\n".join([*ours, *others]) + "\n"


def install(wheel: Path, constraints: Path, cyclonedx: str | None) -> str | None:
    """Try one wheel; what went wrong, or None."""
    poor = poor_metadata(wheel)
    if poor is not None:
        return poor
    package = import_package(wheel)
    with tempfile.TemporaryDirectory() as directory:
        # Our own tools install into it: to bootstrap one there takes seconds.
        venv.create(directory, with_pip=False)
        scripts = Path(directory) / "bin"
        python = str(scripts / "python")
        pip = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
        uv = [str(Path(sys.executable).with_name("uv")), "pip"]
        # -f and not constraints by address: an address can't serve a requirement with an extra. Of what is installed,
        # little is imported, and compiled then.
        how = ["-f", str(wheel.parent), "--constraint", str(constraints), str(wheel)]
        by_pip = [[*pip, "install", "--no-compile", *how], [*pip, "check"]]
        # Of a wheel that was built anew under the same version uv installs the old one, from its cache.
        anew = [word for ours in wheel.parent.glob("*.whl") for word in ("--refresh-package", distribution(ours))]
        by_uv = [
            [*uv, "install", "--quiet", "--system-certs", "--python", python, *anew, *how],
            [*uv, "check", "--quiet", "--python", python],
        ]
        problem = None if cyclonedx else first_failure(by_uv, directory)
        if cyclonedx or problem:
            # uv does not read pip's settings, which on some machines name the only index that can be reached.
            problem = first_failure(by_pip, directory)
        problem = problem or other_than_built(wheel.parent, Path(directory))
        return problem or first_failure(
            [
                # Isolated, so that a checkout on the path can't hide what is missing.
                [python, "-I", "-c", f"import {package}; assert {package}.__file__.startswith({directory!r})"],
                *([str(scripts / name), "--help"] for name in commands(wheel)),
                *([sbom(cyclonedx, python, wheel)] if cyclonedx else []),
            ],
            directory,
        )


def first_failure(programs: list[list[str]], directory: str) -> str | None:
    """Run programs one after the other; what the first that fails says, or None."""
    for words in programs:
        run = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            return f"{' '.join(words)} ended with {run.returncode}:\n{run.stdout}{run.stderr}"
    return None


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.stderr.write("usage: install_alone.py DIRECTORY [CYCLONEDX]\n")
        return 2
    here = set(sys_tags())
    every = sorted(Path(sys.argv[1]).resolve().glob("*.whl"))
    wheels = [wheel for wheel in every if parse_wheel_filename(wheel.name)[3] & here]
    cyclonedx = str(Path(sys.argv[2]).resolve()) if len(sys.argv) == 3 else None
    if not wheels:
        sys.stderr.write(f"install_alone: no wheel in {sys.argv[1]}; run make wheels\n")
        return 1
    failed = 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(constraints_for(wheels))
        constraints.flush()
        for wheel in wheels:
            problem = install(wheel, Path(constraints.name), cyclonedx)
            failed += problem is not None
            sys.stdout.write(f"install_alone: {wheel.name}: {problem or 'installs and runs alone'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
