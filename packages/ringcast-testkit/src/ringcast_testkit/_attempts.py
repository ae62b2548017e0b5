"""What tests try that must not succeed, as docs/security.md lists it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def attempt(who: str, tries: str, happens: str) -> Callable[[F], F]:
    """Says of a test who tries what in it, and what happens: a line of the table in docs/security.md.

    ``tests/structure/test_attempts.py`` compares these lines, which are read from the sources, with the page. So all
    three are literals of one line.
    """

    def declared(test: F) -> F:
        test.__doc__ = f"{who} {tries}: {happens}.\n\n{test.__doc__ or ''}".rstrip()
        return test

    return declared
