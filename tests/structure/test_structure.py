"""The arrows of the design hold in this tree, and a planted violation of each kind is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "build-support/checks/structure.py"

PRELUDE = """\
MAY_IMPORT = (("packages/low", ()), ("packages/high", ("packages/low",)), ("packages/app", ()))
MAY_LAUNCH = (("packages/app", ("packages/high",)),)
"""


def check(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CHECK), str(root)], capture_output=True, text=True, check=False)


def add_distribution(root: Path, directory: str, dependencies: str = "", extras: str = "") -> Path:
    """Write a whole small distribution; returns the directory of its modules."""
    path = root / directory
    name = path.name
    package = path / "src" / name
    package.mkdir(parents=True)
    (path / "tests").mkdir()
    for file in ("BUILD", "src/BUILD", "tests/BUILD", "README.md", "CHANGELOG.md", f"src/{name}/py.typed"):
        (path / file).touch()
    project = f'[project]\nname = "{name}"\ndependencies = [{dependencies}]\n'
    (path / "pyproject.toml").write_text(f"{project}[project.optional-dependencies]\nx = [{extras}]\n")
    (package / "__init__.py").write_text("import os\n")
    (path / "tests" / "test_it.py").write_text(f"import {name}\n")
    return package


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "build-support").mkdir()
    (tmp_path / "build-support/prelude.py").write_text(PRELUDE)
    add_distribution(tmp_path, "packages/low")
    high = add_distribution(tmp_path, "packages/high", '"low>=1", "msgspec>=0.20"')
    (high / "more.py").write_text("import low\nimport msgspec\n")
    add_distribution(tmp_path, "packages/app", extras='"high"')
    return tmp_path


def test_this_repository_follows_the_arrows() -> None:
    result = check(ROOT)
    assert result.returncode == 0, result.stderr
    assert "follow the arrows" in result.stdout


def test_a_tree_that_follows_the_arrows_passes(tree: Path) -> None:
    result = check(tree)
    assert (result.returncode, result.stderr) == (0, "")
    assert "the imports of 7 files" in result.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import high",
        "from high.more import x",
        "def f():\n    import high",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from high import x",
        "try:\n    pass\nexcept OSError:\n    import high",
        "for x in ():\n    pass\nelse:\n    with x:\n        import high",
        "class C:\n    async def f(self):\n        try:\n            pass\n        finally:\n            import high",
        "match 1:\n    case 1:\n        import high",
    ],
)
def test_an_import_against_the_arrows_is_refused(tree: Path, statement: str) -> None:
    (tree / "packages/low/src/low/planted.py").write_text(statement + "\n")
    result = check(tree)
    assert result.returncode == 1
    assert "packages/low/src/low/planted.py" in result.stderr
    assert "must not import high, which packages/high owns" in result.stderr


@pytest.fixture
def rooms(tree: Path) -> Path:
    """A distribution of two rooms and a face."""
    prelude = tree / "build-support/prelude.py"
    prelude.write_text(PRELUDE + 'ROOMS = (("packages/high", (("_ground", ()), ("_upper", ("_ground",)))),)\n')
    package = tree / "packages/high/src/high"
    (package / "more.py").write_text("import low\nimport msgspec\nfrom high._upper import x\n")
    for room, words in (("_ground", "import os\n"), ("_upper", "from high._ground.y import z\nimport low\n")):
        (package / room).mkdir()
        (package / room / "__init__.py").write_text("")
        (package / room / "x.py").write_text(words)
    return tree


def test_rooms_that_follow_their_arrows_pass(rooms: Path) -> None:
    result = check(rooms)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("statement", "other"),
    [
        ("from high._upper.x import z", "_upper"),
        ("import high._upper.x", "_upper"),
        ("from high import _upper", "_upper"),
        ("from high.more import z", "more"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from high._upper import z", "_upper"),
    ],
)
def test_a_way_that_no_room_has_is_refused(rooms: Path, statement: str, other: str) -> None:
    (rooms / "packages/high/src/high/_ground/planted.py").write_text(statement + "\n")
    result = check(rooms)
    assert result.returncode == 1
    assert f"planted.py:{statement.count(chr(10)) + 1}: _ground must not import high.{other}" in result.stderr


def test_rooms_and_their_table_agree(rooms: Path) -> None:
    package = rooms / "packages/high/src/high"
    (package / "_attic").mkdir()
    (package / "_attic/things.py").write_text("")
    (package / "_alone.py").write_text("")
    prelude = rooms / "build-support/prelude.py"
    prelude.write_text(prelude.read_text().replace('("_ground", ())', '("_ground", ("_upper",)), ("_cellar", ())'))
    told = check(rooms).stderr
    assert "high/_attic: is missing in ROOMS" in told
    assert "high/_alone.py: is in no room" in told
    assert "ROOMS lets _ground import _upper, which does not stand before it" in told
    assert "ROOMS has _cellar, which is not there" in told


@pytest.mark.parametrize("where", ["more.py", "_ground/x.py"])
def test_a_package_that_one_room_alone_may_know_is_refused_elsewhere(rooms: Path, where: str) -> None:
    prelude = rooms / "build-support/prelude.py"
    prelude.write_text(prelude.read_text() + 'SEAMS = (("packages/high", "msgspec", "_upper"),)\n')
    package = rooms / "packages/high/src/high"
    (package / "more.py").write_text("import low\n")
    (package / "_upper/x.py").write_text("import low\nimport msgspec\n")
    assert check(rooms).stderr == ""
    (package / where).write_text("from msgspec import Struct\n")
    assert f"{where}:1: only _upper may import msgspec" in check(rooms).stderr


def test_modules_that_import_each_other_are_refused(tree: Path) -> None:
    package = tree / "packages/low/src/low"
    for module, other in (("a", "b"), ("b", "c")):
        (package / f"{module}.py").write_text(f"from low.{other} import thing\n")
    (package / "c.py").write_text("")
    assert check(tree).stderr == ""
    (package / "c.py").write_text("def late() -> None:\n    from low import a\n")
    result = check(tree)
    assert result.returncode == 1
    found = re.search(r"packages/low: modules import each other in a circle: (.*)", result.stderr)
    assert found is not None
    *way, last = found[1].split(" -> ")
    assert sorted(way) == ["low.a", "low.b", "low.c"]
    assert last == way[0]
    assert (way * 2)[way.index("low.a") + 1] == "low.b"  # in the direction of the imports


def test_what_may_be_launched_may_not_be_imported(tree: Path) -> None:
    (tree / "packages/app/src/app/planted.py").write_text("import high\n")
    assert "must not import high" in check(tree).stderr


def test_a_test_may_not_import_against_the_arrows(tree: Path) -> None:
    (tree / "packages/low/tests/test_planted.py").write_text("import high\n")
    assert "packages/low/tests/test_planted.py:1: must not import high" in check(tree).stderr


def test_a_dependency_against_the_arrows_is_refused(tree: Path) -> None:
    (tree / "packages/low/pyproject.toml").write_text('[project]\nname = "low"\ndependencies = ["high>=1"]\n')
    result = check(tree)
    assert result.returncode == 1
    assert "packages/low/pyproject.toml: must not depend on high" in result.stderr


def test_an_import_that_no_dependency_provides_is_refused(tree: Path) -> None:
    (tree / "packages/low/src/low/planted.py").write_text("import msgspec\n")
    result = check(tree)
    assert result.returncode == 1
    assert "planted.py:1: imports msgspec, which no dependency in pyproject.toml provides" in result.stderr


def test_a_distribution_that_the_table_does_not_know_is_refused(tree: Path) -> None:
    add_distribution(tree, "services/new")
    result = check(tree)
    assert result.returncode == 1
    assert "services/new: has a pyproject.toml and is missing in MAY_IMPORT" in result.stderr


def test_a_distribution_without_tests_is_refused(tree: Path) -> None:
    (tree / "packages/low/tests/test_it.py").unlink()
    assert "packages/low: has no test" in check(tree).stderr


def test_a_tree_with_nothing_to_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "build-support").mkdir()
    (tmp_path / "build-support/prelude.py").write_text(PRELUDE)
    result = check(tmp_path)
    assert result.returncode == 1
    assert "no source file was found" in result.stderr
