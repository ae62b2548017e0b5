"""What users read has plain words: pages, help of commands, errors, log lines, and docstrings of public names.

Comments and docstrings of private code may have others, and so may change logs, which say what was.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Say which component: "another client", "an operator"; and "again" or "a new one".
REFUSED = re.compile(
    r"\b(whoever|somebody|anew|(?:go|goes|went|gone)\s+(?:on\s+)?by\s+(?:itself|themselves)|time\s+and\s+again)\b",
    re.IGNORECASE,
)
PAGES = ("*.md", "docs/*.md", "packages/*/README.md", "services/*/README.md", "crates/*/README.md")
# Read as they are: what programs show of them, and what is read by those that deploy or call us.
TEXTS = ("infra/**/*.yaml", "infra/**/*.yml", "infra/**/*.json", "packages/*/src/**/*.proto")
RUST = ("crates/*/src/**/*.rs",)
SOURCES = ("packages/*/src", "services/*/src", "crates/*/python")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def found(text: str, first_line: int = 1) -> list[tuple[int, str]]:
    """The refused words of a text, with their lines."""
    return [(first_line + text.count("\n", 0, match.start()), match[0]) for match in REFUSED.finditer(text)]


def texts(node: ast.AST) -> Iterator[ast.Constant]:
    """All texts in a node."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each


def public_names(tree: ast.Module) -> set[str]:
    """The names in ``__all__``, as far as they stand there."""
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return {str(each.value) for each in texts(value)}
    return set()


def is_command(node: Definition) -> bool:
    """Whether the docstring is the help of a command, as click takes it."""
    return any(re.search(r"\.(command|group)\b", ast.unparse(decorator)) for decorator in node.decorator_list)


def shown(tree: ast.Module, public: set[str]) -> set[ast.Constant]:
    """The texts of a module that users see: all but what documents private code.

    Private are names that are not in ``public``, and members that begin with an underscore.
    """
    documentation: set[ast.Constant] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                documentation.add(text)
    seen = {text for text in texts(tree) if text not in documentation}

    def see(node: Definition) -> None:
        for statement in node.body:
            if isinstance(statement, Definition):
                if not statement.name.startswith("_"):
                    see(statement)
            elif isinstance(statement, ast.Expr):
                seen.update(texts(statement))

    for node in ast.walk(tree):
        if isinstance(node, Definition) and is_command(node):
            seen.update(texts(node.body[0]))
    for statement in tree.body:
        if isinstance(statement, Definition) and statement.name in public:
            see(statement)
    return seen


def words_of(code: str, public: set[str], *, is_public: bool = False) -> list[tuple[int, str]]:
    """The refused words that users see of a module of Python, with their lines."""
    tree = ast.parse(code)
    seen = shown(tree, public)
    if is_public:
        seen |= {*texts(tree.body[0])} if tree.body else set()
    return sorted(place for text in seen for place in found(str(text.value), text.lineno))


def paths(patterns: tuple[str, ...]) -> list[Path]:
    """The files of the tree that fit; there are some for each pattern."""
    each = [sorted(ROOT.glob(pattern)) for pattern in patterns]
    assert all(each), patterns
    return [path for some in each for path in some if path.name != "CHANGELOG.md"]


def complaints(path: Path, places: list[tuple[int, str]]) -> list[str]:
    """As a reader jumps to them."""
    return [f"{path.relative_to(ROOT)}:{line}: {word}" for line, word in places]


@pytest.mark.parametrize("patterns", [PAGES, TEXTS, RUST], ids=["pages", "texts", "rust"])
def test_texts_have_plain_words(patterns: tuple[str, ...]) -> None:
    assert [line for path in paths(patterns) for line in complaints(path, found(path.read_text()))] == []


@pytest.mark.parametrize("pattern", SOURCES)
def test_what_users_see_of_python_has_plain_words(pattern: str) -> None:
    wrong, commands = [], 0
    for source in sorted(ROOT.glob(pattern)):
        modules = {
            path: path.read_text() for path in sorted(source.rglob("*.py")) if not path.stem.endswith(("_pb2", "_grpc"))
        }
        faces = {path for path in modules if not re.search(r"/_[a-z]", str(path.relative_to(source)))}
        public = set[str]().union(*(public_names(ast.parse(modules[path])) for path in faces))
        for path, code in modules.items():
            commands += ".command(" in code
            wrong += complaints(path, words_of(code, public, is_public=path in faces))
    assert wrong == []
    if pattern == "packages/*/src":
        assert commands > 20


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('somebody else wrote it')",
        "note(f'{x} was changed by somebody')",
        "log.info('a.b', why='it goes by itself')",
        "x = setting('', 'File that is read anew.')",
        "@cli.command('show')\ndef show():\n    '''Show whoever has it.'''",
        "class Public:\n    '''Of whoever has it.'''",
        "class Public:\n    x: int\n    '''Made anew.'''",
        "class Public:\n    def get(self):\n        '''Time\n        and again.'''",
        "def public():\n    '''Goes on by itself.'''",
    ],
)
def test_each_text_that_users_see_is_looked_at(code: str) -> None:
    assert len(words_of(code, {"Public", "public"})) == 1


@pytest.mark.parametrize(
    "code",
    [
        "x = 1  # of somebody else",
        "'''Of whoever imports it.'''",
        "def _own():\n    '''Made anew.'''",
        "class Other:\n    '''Made anew.'''",
        "class Public:\n    def _own(self):\n        '''Made anew.'''",
        "raise ValueError('renewed for another client, which went by')",
    ],
)
def test_private_notes_and_other_words_are_left_alone(code: str) -> None:
    assert words_of(code, {"Public"}) == []


def test_a_docstring_of_a_public_module_is_looked_at() -> None:
    assert words_of("'''Of whoever imports it.'''", set(), is_public=True) == [(1, "whoever")]
