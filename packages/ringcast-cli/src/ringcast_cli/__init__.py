"""The ``ringcast`` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line and ends the process with its exit code."""
    from ringcast_cli._app import run

    sys.exit(run(sys.argv[1:]))
