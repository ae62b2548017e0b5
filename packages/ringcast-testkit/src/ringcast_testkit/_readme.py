"""Runs the Python examples of a README, so that they can't rot."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_readme_examples(readme: Path) -> int:
    """Executes every ``python`` block in order, in one namespace, and returns how many there were.

    Raises:
        ValueError: there was none.
    """
    text = readme.read_text()
    module = ModuleType("__readme__")  # where classes of the examples find what their annotations name
    module.__file__ = str(readme)
    examples = list(_EXAMPLE.finditer(text))
    if not examples:
        raise ValueError(f"{readme.name} has no Python example")
    with patch.dict(sys.modules, {module.__name__: module}):
        _run(examples, text, module)
    return len(examples)


def _run(examples: list[re.Match[str]], text: str, module: ModuleType) -> None:
    for match in examples:
        # Blank lines in front keep the line numbers of a traceback those of the README.
        line = text[: match.start(1)].count("\n")
        exec(compile("\n" * line + match[1], module.__file__ or "", "exec"), module.__dict__)
