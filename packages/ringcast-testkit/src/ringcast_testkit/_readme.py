"""Runs the Python examples of a README, so that they can't rot."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_readme_examples(readme: Path) -> int:
    """Executes every ``python`` block in order, in one namespace, and returns how many there were.

    Raises:
        ValueError: there was none.
    """
    text = readme.read_text()
    namespace: dict[str, Any] = {"__name__": "__readme__"}
    examples = list(_EXAMPLE.finditer(text))
    if not examples:
        raise ValueError(f"{readme.name} has no Python example")
    for match in examples:
        # Blank lines in front keep the line numbers of a traceback those of the README.
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], str(readme), "exec"), namespace)
    return len(examples)
