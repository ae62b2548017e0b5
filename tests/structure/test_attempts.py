"""The table of docs/security.md has each attempt that a test declares, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/security.md"
FOLDERS = ("services/config-service/tests", "services/heartbeat-agent/tests", "packages/*/tests", "tests/integration")


class Attempt(NamedTuple):
    """What ``ringcast_testkit.attempt`` says of a test in a file."""

    who: str
    tries: str
    happens: str
    test: str
    file: str

    @property
    def line(self) -> str:
        """Its line of the table."""
        return f"| {self.who} | {self.tries} | {self.happens} | [`{self.test}`](../{self.file}) |"


def attempts() -> Iterator[Attempt]:
    """Those that tests declare, in the order of the files and of the tests in them."""
    for path in sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from declared(node, path.relative_to(ROOT).as_posix())


def declared(test: ast.FunctionDef | ast.AsyncFunctionDef, file: str) -> Iterator[Attempt]:
    """The attempts of a test: the arguments of its decorators."""
    for decorator in test.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="attempt"), args=arguments, keywords=[]):
                texts = [str(each.value) for each in arguments if isinstance(each, ast.Constant)]
                assert len(texts) == len(arguments) == 3, f"{file}: {test.name}: three literals are needed"
                assert test.name.startswith("test_"), f"{file}: {test.name} is no test"
                yield Attempt(texts[0], texts[1], texts[2], test.name, file)


def test_the_page_lists_what_tests_try() -> None:
    found = list(attempts())
    assert len(found) > 30
    head = "| who | tries to | what happens | shown by |\n|---|---|---|---|"
    wanted = "\n".join([head, *(each.line for each in found)])
    page = PAGE.read_text()
    tables = re.findall(r"^\| who \| tries to .*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert tables == [wanted + "\n"], f"this table is to stand in {PAGE.name}:\n{wanted}"


def test_each_attempt_says_who_tries_what_and_what_happens() -> None:
    for each in attempts():
        for text in each[:3]:
            assert text == text.strip(), each
            assert text, each
            assert "|" not in text, each
            assert "\n" not in text, each
