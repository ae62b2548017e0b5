"""What a call to NATS that fails means to a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import nats.errors
from nats.js.errors import APIError
from ringcast_wire import UnavailableError, field_text


@contextmanager
def nats_calls(before: str, after: str = "") -> Iterator[None]:
    """Turns what NATS fails with into a sentence: what is said before the reason and after it.

    Raises:
        UnavailableError: NATS does not answer, or refuses.
    """
    try:
        yield
    except (nats.errors.Error, APIError, TimeoutError, OSError) as error:
        raise UnavailableError(f"{before} ({field_text(error)}){after}") from error
