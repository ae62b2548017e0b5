"""Check what a release would upload: the wheels and source distributions of a directory.

Usage: release.py DIRECTORY --tools BIN [--tag NAME-VERSION]. BIN has twine and cyclonedx-py. Checked are, in this
order: the tag (its distribution has this version, and a dated changelog), `twine check --strict`, that each source
distribution builds again to the same wheel, that each wheel installs and runs alone (install_alone.py, which leaves
SBOMs in DIRECTORY/sbom), and that the `pip install` lines of the READMEs work as they stand. Exit status 1 with the
first failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPILED = (".so", ".dist-info/RECORD", ".cyclonedx.json")
"""What a compiler makes, and what lists its hash: the same only with the same compiler."""


class WrongError(Exception):
    """Something that must not be released, as one sentence."""


def run(words: list[str], directory: Path = ROOT, **variables: str) -> None:
    """Run a command; WrongError with all it said where it fails."""
    done = subprocess.run(
        words, cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise WrongError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def content(wheel: Path) -> dict[str, bytes]:
    """The files in a wheel, but for what only a compiler repeats."""
    archive = zipfile.ZipFile(wheel)
    native = any(name.endswith(".so") for name in archive.namelist())
    left_out = COMPILED if native else ()
    return {name: archive.read(name) for name in archive.namelist() if not name.endswith(left_out)}


def wheel_for(sdist: Path) -> Path:
    """A wheel of the same name and version beside a source distribution."""
    wheels = sorted(sdist.parent.glob(f"{sdist.name.removesuffix('.tar.gz')}-*.whl"))
    if not wheels:
        raise WrongError(f"{sdist.name} has no wheel beside it: run make wheels")
    return wheels[0]


def build_again(sdist: Path) -> None:
    """Build a wheel from a source distribution alone, and compare it with the one beside it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with tarfile.open(sdist) as archive:
            members = archive.getnames()
            archive.extractall(directory, filter="data")
        (source,) = [path for path in directory.iterdir() if path.is_dir()]
        if f"{source.name}/LICENSE" not in members:
            raise WrongError(f"{sdist.name} has no LICENSE")
        backend = tomllib.loads((source / "pyproject.toml").read_text())["build-system"]["build-backend"]
        out = directory / "again"
        if backend == "maturin":
            words = ["maturin", "build", "--quiet", "--release", "--locked", "--strip", "-o", str(out)]
            run(words, source, CARGO_TARGET_DIR=str(ROOT / "target/make"))
        else:
            run(["hatchling", "build", "-t", "wheel", "-d", str(out)], source)
        (again,) = out.glob("*.whl")
        first, second = content(wheel_for(sdist)), content(again)
        different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        # The tag of the platform is maturin's choice.
        if backend == "maturin":
            different = [name for name in different if not name.endswith(".dist-info/WHEEL")]
        if different:
            raise WrongError(f"{sdist.name} builds a wheel that differs in {', '.join(different[:5])}")


def documented() -> list[str]:
    """The `pip install` lines of the READMEs of the distributions."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("*/*/README.md"))]
    return [
        line.partition("  #")[0].strip()
        for page in pages
        for line in re.findall(r"^pip install .*$", page.read_text(), re.MULTILINE)
    ]


def install_as_documented(line: str, directory: Path) -> None:
    """Type one line of a README in a new environment, where `dist` is."""
    with tempfile.TemporaryDirectory() as name:
        venv.create(name, with_pip=True)
        (Path(name) / "dist").symlink_to(directory)
        path = f"{name}/bin:{os.environ['PATH']}"
        run(["sh", "-c", line], Path(name), PATH=path, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_COMPILE="1")
        run([f"{name}/bin/pip", "check"], Path(name))


def check_tag(tag: str, directory: Path) -> None:
    """NAME-VERSION names a distribution as it is in the tree, ready to be uploaded."""
    name, _, version = tag.rpartition("-")
    for manifest in ROOT.glob("*/*/pyproject.toml"):
        if tomllib.loads(manifest.read_text())["project"]["name"] == name:
            break
    else:
        raise WrongError(f"tag {tag}: there is no distribution {name!r}")
    if not list(directory.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
        raise WrongError(f"tag {tag}: {directory.name} has no wheel of {name} {version}")
    heading = re.search(r"^## (.*)$", manifest.with_name("CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading[1]):
        raise WrongError(f"tag {tag}: the changelog of {name} has to begin with '## {version} (YYYY-MM-DD)'")
    if not tomllib.loads(manifest.read_text())["project"].get("urls"):
        raise WrongError(f"tag {tag}: [project.urls] of {name} is missing: readers of an index find no source")


def check(directory: Path, tools: Path) -> Iterator[str]:
    """All but the tag; a line for each thing that holds."""
    sdists, wheels = sorted(directory.glob("*.tar.gz")), sorted(directory.glob("*.whl"))
    if not sdists or not wheels:
        raise WrongError(f"{directory} has no wheel or no source distribution")
    run([str(tools / "twine"), "check", "--strict", *map(str, [*sdists, *wheels])])
    yield f"twine finds nothing wrong with {len(sdists)} source distributions and {len(wheels)} wheels"
    for sdist in sdists:
        build_again(sdist)
        yield f"{sdist.name} builds the same wheel again"
    alone = Path(__file__).with_name("install_alone.py")
    run([sys.executable, str(alone), str(directory), str(tools / "cyclonedx-py")])
    yield f"each wheel installs and runs alone; {len(list(directory.glob('sbom/*')))} SBOMs are in sbom/"
    lines = documented()
    if not lines:
        raise WrongError("no README has a pip install line")
    for line in lines:
        install_as_documented(line, directory)
        yield f"works as documented: {line}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Check what a release would upload.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--tag")
    given = parser.parse_args()
    directory = given.directory.resolve()
    try:
        if given.tag:
            check_tag(given.tag, directory)
        for line in check(directory, given.tools.resolve()):
            sys.stdout.write(f"release-check: {line}\n")
            sys.stdout.flush()
    except WrongError as error:
        sys.stderr.write(f"release-check: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
