"""What a page has one type, and what it says that is printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_BLOCK = re.compile(r"(?:^<!-- file: (\S+) -->\n)?^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples_of(page: Path) -> list[tuple[str, str]]:
    """Each command and what it prints, standard error included.

    Python runs as a program of its own, or is written to the file that the comment before it names.
    """
    examples: list[tuple[str, str]] = []
    for file, language, block in _BLOCK.findall(page.read_text()):
        if file:
            examples.append((f"printf %s {shlex.quote(block)} > {file}", ""))
        elif language == "python":
            examples.append((f"python -c {shlex.quote(block)}", ""))
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            examples.append((command, output))
    return examples


def is_printed(wanted: str, got: str) -> bool:
    """Whether the output is as written; ``...`` stands for anything within a line, a line ``[...]`` for any lines."""
    lines = [r"(?:.*\n)*" if line == "[...]\n" else _pattern(line) for line in wanted.splitlines(keepends=True)]
    return re.fullmatch("".join(lines), got) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))
