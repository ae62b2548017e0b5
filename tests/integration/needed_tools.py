"""Programs that a test needs, and that not every machine has."""

from __future__ import annotations

import os
import shutil
from typing import Final

import pytest

KUBERNETES_TOOLS: Final = "build-support/bin/install-kubernetes-tools brings it"
"""Where kubectl and helm come from."""


def needed_tool(requirement: str, *programs: str, install: str) -> str:
    """The path of the first of these programs that is on PATH.

    Without any the test is skipped, with ``install`` as what to do; it fails where RINGCAST_REQUIRE_<requirement>=1.
    """
    for program in programs:
        if (found := shutil.which(program)) is not None:
            return found
    why = f"{' or '.join(programs)} is not on PATH: {install}"
    if os.environ.get(f"RINGCAST_REQUIRE_{requirement}") == "1":
        pytest.fail(why)
    pytest.skip(why)
