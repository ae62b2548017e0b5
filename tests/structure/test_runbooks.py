"""The runbooks that `ringcast doctor` names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_runbook_of_the_doctor_is_there() -> None:
    sections = {name.lower() for name in re.findall(r"^### (\w+)$", (ROOT / "docs/runbooks.md").read_text(), re.M)}
    source = (ROOT / "packages/ringcast-cli/src/ringcast_cli/_diagnosis/doctor.py").read_text()
    named = set(re.findall(r'"(ringcast[a-z]+)"', source))
    assert len(named) >= 15
    assert named <= sections
