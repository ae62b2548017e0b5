"""Packages that import their names when these are first used: type checkers know the same names, and no others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAZY = sorted(
    path
    for folder in ("packages", "services")
    for path in (ROOT / folder).glob("*/src/**/__init__.py")
    if "def __getattr__(" in path.read_text()
)


def imported(statements: list[ast.stmt]) -> set[str]:
    """The names that imports among these statements bind."""
    return {
        alias.asname or alias.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def public(module: ast.Module) -> set[str]:
    """The names in ``__all__``."""
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
    raise AssertionError("there is no __all__")


def test_there_are_some() -> None:
    assert [path.parent.name for path in LAZY] == ["ringcast", "ringcast_client", "pyspark_ringcast", "pipeline"]


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_type_checkers_know_the_public_names_and_no_others(path: Path) -> None:
    """A ``__getattr__`` that they see has any name, also a misspelt one."""
    module = ast.parse(path.read_text())
    known = imported(module.body)
    for statement in module.body:
        assert not (isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__")
        match statement:
            case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body):
                known |= imported(body)

    assert public(module) <= known
