"""Every block of shell commands of the pages is run by a test, or says beside it why none does."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "packages/*/*.md", "services/*/*.md", "crates/*/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
CONSOLE = "tests/integration/test_cli_readme.py"
"""It runs each ``console`` block of the pages that it names, and compares what is printed."""
_FENCE = re.compile(r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"run by (?P<file>\S+\.py): (?P<test>test_\w+)")
_NOT_RUN = re.compile(r"not run: \S+(?: \S+){2,}")
_FIRST_LINE = re.compile(r"^```(\w*)\n([^\n]*)\n", re.MULTILINE)
_COMMAND = re.compile(
    r"(\$ |\.venv/bin/|build-support/bin/|\./pants )|(make|ringcast|python3?|pip|git|kubectl|helm|nats|cargo) [a-z-]"
)


@dataclass(frozen=True)
class Block:
    """Commands on a page, and what stands in the comment right before them."""

    page: Path
    line: int
    kind: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["kind"] in ("sh", "bash", "shell", "console"):
                line = text.count("\n", 0, match.start("text"))
                found.append(Block(page, line, match["kind"], match["mark"] or "", match["text"]))
    return found


BLOCKS = blocks()


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 45
    assert {block.kind for block in BLOCKS} == {"sh", "console"}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    if block.kind == "console":
        assert f'"{block.page.relative_to(ROOT)}"' in (ROOT / CONSOLE).read_text(), f"{CONSOLE} runs no block of it"
        return
    if (run := _RUN.fullmatch(block.mark)) is None:
        assert _NOT_RUN.fullmatch(block.mark), (
            "write before it <!-- run by FILE: TEST -->, or <!-- not run: WHY --> with a reason"
        )
        return
    source = (ROOT / run["file"]).read_text()
    assert re.search(rf"^(async )?def {run['test']}\(", source, re.MULTILINE), f"{run['file']} has no such test"
    assert block.page.name in source, f"{run['file']} does not read the page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_stand_in_blocks_that_are_looked_at(page: Path) -> None:
    first_lines = [first for kind, first in _FIRST_LINE.findall(page.read_text()) if kind not in ("sh", "console")]
    assert not [first for first in first_lines if _COMMAND.match(first)], (
        "its block is of no kind: write ```sh before it"
    )


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "sh"], ids=str)
def test_a_shell_can_read_it(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "sh"], ids=str)
def test_the_files_that_it_names_are_there(block: Block) -> None:
    named = re.findall(r"(?<![\w/.-])((?:infra|benchmarks|build-support|demo|packages|services)/[\w./-]+)", block.text)
    for name in named:
        assert (ROOT / name).exists(), name
