"""Hold every distribution to the arrows of the design: who may import whom, and who may depend on whom.

Usage: structure.py [ROOT]. The one table is MAY_IMPORT in build-support/prelude.py, by which Pants goes as well. Here
it is compared with every import statement, wherever it stands in a file, and with every pyproject.toml; and each
distribution must have what a distribution has. ROOMS beside it says the same of the rooms within a distribution, where
an arrow leads to the rooms before it only; SEAMS names packages of others that one room alone may import. No modules
of a distribution may import each other in a circle. Exit status 1 with one line a finding, or when nothing was there to
check.
"""

from __future__ import annotations

import ast
import graphlib
import re
import runpy
import sys
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

REQUIRED_FILES = ("BUILD", "README.md", "CHANGELOG.md", "pyproject.toml")
TESTKIT = "packages/ringcast-testkit"
CORE = "crates/ringcast-core-py"

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements have statements."""


@dataclass(frozen=True)
class Distribution:
    """One directory with a pyproject.toml, and what the table says of it."""

    root: Path
    directory: str
    may_import: tuple[str, ...]
    may_launch: tuple[str, ...]
    rooms: Mapping[str, tuple[str, ...]]

    @property
    def path(self) -> Path:
        """Where it is on disk."""
        return self.root / self.directory

    @property
    def source_dir(self) -> Path:
        """The directory that holds its import package."""
        return self.path / ("python" if (self.path / "python").is_dir() else "src")

    @cached_property
    def project(self) -> Mapping[str, Any]:
        """The [project] table of its pyproject.toml."""
        project: Mapping[str, Any] = tomllib.loads((self.path / "pyproject.toml").read_text())["project"]
        return project

    @property
    def name(self) -> str:
        """The name that pip knows it by."""
        return str(self.project["name"])

    @cached_property
    def modules(self) -> frozenset[str]:
        """The names that it is imported by."""
        return frozenset(path.parent.name for path in self.source_dir.glob("*/__init__.py"))

    @property
    def dependencies(self) -> set[str]:
        """Names of the distributions that it needs, ours and others', normalised."""
        return {normalised(requirement) for requirement in self.project.get("dependencies", [])}

    @property
    def optional_dependencies(self) -> set[str]:
        """Names of the distributions that its extras need, normalised."""
        extras = self.project.get("optional-dependencies", {})
        return {normalised(requirement) for extra in extras.values() for requirement in extra}


def normalised(requirement: str) -> str:
    """The name in a requirement, as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


@cache  # several rules ask for them, and to read a tree of a file takes long
def imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and name of every absolute import in a file, in functions and type checking blocks too.

    ``from a import b`` counts as ``a.b``, since ``b`` may be a module.
    """
    return tuple(_imports_of(_statements(ast.parse(path.read_text(), filename=str(path)).body)))


def _imports_of(statements: Iterable[ast.stmt]) -> Iterator[tuple[int, str]]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    """All statements in these, not what is within one line: an expression holds no import."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        for name in _BLOCKS:
            yield from _statements(getattr(node, name, ()))


def module_name(path: Path) -> str:
    """What a file below a source directory is imported as."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def nearest(modules: Container[str], name: str) -> str:
    """The module that an imported name is, or is defined in; empty where it is none of these modules."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


class Structure:
    """The distributions of one tree, checked against its table."""

    def __init__(self, root: Path) -> None:
        table = runpy.run_path(str(root / "build-support/prelude.py"))
        launch = dict(table["MAY_LAUNCH"])
        rooms = {directory: dict(found) for directory, found in table.get("ROOMS", ())}
        self._seams: tuple[tuple[str, str, str], ...] = table.get("SEAMS", ())
        self._root = root
        # Some of the table is written before the distribution is.
        self._all = {
            directory: Distribution(root, directory, allowed, launch.get(directory, ()), rooms.get(directory, {}))
            for directory, allowed in table["MAY_IMPORT"]
            if (root / directory / "pyproject.toml").is_file()
        }
        self._owner = {module: item.directory for item in self._all.values() for module in item.modules}
        self._providers = packages_distributions()
        self.files_read = 0

    def problems(self) -> Iterator[str]:
        """Everything that is wrong, as sentences."""
        for manifest in sorted(self._root.glob("*/*/pyproject.toml")):
            directory = manifest.parent.relative_to(self._root).as_posix()
            if directory not in self._all:
                yield f"{directory}: has a pyproject.toml and is missing in MAY_IMPORT of build-support/prelude.py"
        for item in self._all.values():
            yield from self._missing_parts(item)
            yield from self._forbidden_dependencies(item)
            yield from self._forbidden_imports(item)
            yield from self._circles(item)
            if item.rooms:
                yield from self._wrong_rooms(item)
                yield from self._forbidden_ways(item)
        for directory, foreign, room in self._seams:
            yield from self._known_elsewhere(self._all[directory], foreign, room)

    def _missing_parts(self, item: Distribution) -> Iterator[str]:
        for name in REQUIRED_FILES:
            if not (item.path / name).is_file():
                yield f"{item.directory}: {name} is missing"
        for directory in (item.source_dir, item.path / "tests"):
            if not (directory / "BUILD").is_file():
                yield f"{directory.relative_to(self._root)}: BUILD is missing"
        for module in item.modules:
            if not (item.source_dir / module / "py.typed").is_file():
                yield f"{item.directory}: {module}/py.typed is missing"
        if len(item.modules) != 1:
            yield f"{item.directory}: ships {len(item.modules)} import packages, and 1 is wanted"
        if not any((item.path / "tests").rglob("test_*.py")):
            yield f"{item.directory}: has no test"

    def _forbidden_dependencies(self, item: Distribution) -> Iterator[str]:
        ours = {normalised(other.name): other.directory for other in self._all.values()}
        for names, allowed in (
            (item.dependencies, item.may_import),
            (item.optional_dependencies, (*item.may_import, *item.may_launch)),
        ):
            for name in sorted(names & ours.keys()):
                if ours[name] not in allowed:
                    yield f"{item.directory}/pyproject.toml: must not depend on {name}"

    def _forbidden_imports(self, item: Distribution) -> Iterator[str]:
        declared = item.dependencies | item.optional_dependencies
        for path in sorted(item.source_dir.rglob("*.py")):
            yield from self._problems_in(path, {item.directory, *item.may_import}, declared | {normalised(item.name)})
        for path in sorted((item.path / "tests").rglob("*.py")):
            yield from self._problems_in(path, {item.directory, CORE, TESTKIT, *item.may_import}, None)

    def _problems_in(self, path: Path, allowed: set[str], declared: set[str] | None) -> Iterator[str]:
        """Imports of one file that lead where they may not; `declared` None leaves other people's packages alone."""
        self.files_read += 1
        for line, module in sorted({(line, name.partition(".")[0]) for line, name in imports(path)}):
            where = f"{path.relative_to(self._root)}:{line}"
            owner = self._owner.get(module)
            if owner is not None and owner not in allowed:
                yield f"{where}: must not import {module}, which {owner} owns"
            if declared is None or module in sys.stdlib_module_names:
                continue
            providers = {normalised(self._all[owner].name)} if owner else self._providers_of(module)
            if not providers & declared:
                yield f"{where}: imports {module}, which no dependency in pyproject.toml provides"

    def _circles(self, item: Distribution) -> Iterator[str]:
        """Modules that import each other, directly or by way of others, in functions and type checking blocks too."""
        paths = {module_name(path.relative_to(item.source_dir)): path for path in item.source_dir.rglob("*.py")}
        arrows = {
            module: {nearest(paths, name) for _, name in imports(path)} - {module, ""} for module, path in paths.items()
        }
        try:
            graphlib.TopologicalSorter(arrows).prepare()
        except graphlib.CycleError as error:
            yield f"{item.directory}: modules import each other in a circle: {' -> '.join(reversed(error.args[1]))}"

    def _wrong_rooms(self, item: Distribution) -> Iterator[str]:
        """A room that the table forgot, or has twice, or from which an arrow leads up."""
        (package,) = item.modules
        for path in sorted((item.source_dir / package).iterdir()):
            if path.stem not in item.rooms and path.suffix == ".py" and path.match("_[!_]*"):
                yield f"{path.relative_to(self._root)}: is in no room"
            if path.name not in item.rooms and any(path.glob("*.py")):
                yield f"{path.relative_to(self._root)}: is missing in ROOMS of build-support/prelude.py"
        before: set[str] = set()
        for room, allowed in item.rooms.items():
            for other in allowed:
                if other not in before:
                    yield f"{item.directory}: ROOMS lets {room} import {other}, which does not stand before it"
            if not list((item.source_dir / package).glob(f"{room}*")):
                yield f"{item.directory}: ROOMS has {room}, which is not there"
            before.add(room)

    def _forbidden_ways(self, item: Distribution) -> Iterator[str]:
        """Imports from a room into one that it may not know."""
        (package,) = item.modules
        for path in sorted((item.source_dir / package).rglob("*.py")):
            room = path.relative_to(item.source_dir / package).parts[0].removesuffix(".py")
            if room not in item.rooms:
                continue  # a face
            for line, name in imports(path):
                top, _, rest = name.partition(".")
                other = rest.partition(".")[0]
                if top == package and other not in (room, *item.rooms[room]):
                    where = f"{path.relative_to(self._root)}:{line}"
                    yield f"{where}: {room} must not import {package}.{other}: see ROOMS in build-support/prelude.py"

    def _known_elsewhere(self, item: Distribution, foreign: str, room: str) -> Iterator[str]:
        """Imports of a package of others outside the one room that may know it."""
        (package,) = item.modules
        for path in sorted((item.source_dir / package).rglob("*.py")):
            if path.relative_to(item.source_dir / package).parts[0].removesuffix(".py") == room:
                continue
            for line, name in imports(path):
                if name.partition(".")[0] == foreign:
                    where = f"{path.relative_to(self._root)}:{line}"
                    yield f"{where}: only {room} may import {foreign}: see SEAMS in build-support/prelude.py"

    def _providers_of(self, module: str) -> set[str]:
        return {normalised(name) for name in self._providers.get(module, ())}


def main() -> int:
    structure = Structure(Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve())
    found = list(structure.problems())
    for problem in found:
        sys.stderr.write(f"structure: {problem}\n")
    if structure.files_read == 0:
        sys.stderr.write("structure: no source file was found to check\n")
        return 1
    if not found:
        sys.stdout.write(f"structure: the imports of {structure.files_read} files follow the arrows\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
