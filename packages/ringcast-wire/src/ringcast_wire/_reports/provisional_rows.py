"""Provisional rows: in a store of mode FULL the workers of a canary lay what a release has staged over what they hold.

The request travels in that for a report, and so does the answer. The rows are fetched page by page, as for a dry wave.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from ringcast_wire._common.labels import LABEL_PATTERN
from ringcast_wire._reports.dry_waves import MAX_DRY_REASON, DryRefusal

MAX_PROVISIONAL_REFUSALS: Final = 4
"""Rows that an answer names of those that the handler has refused."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class ProvisionalState(StrEnum):
    """How far a worker is with the provisional rows of a release."""

    LAYING = "laying"
    LAID = "laid"
    """All of them are laid over, and have been through the handler."""
    FAILED = "failed"
    """It has not got them, or has dropped them; it tries again."""


class ProvisionalRequest(msgspec.Struct, frozen=True, array_like=True):
    """Has the workers with ``label`` lay over what ``release`` has staged, and says how far they are.

    ``again``: the release may have ended, so those that have laid its rows over are to ask the service at once.
    """

    release: _Number
    label: Annotated[str, msgspec.Meta(pattern=LABEL_PATTERN)]
    again: bool = False


class ProvisionalReport(msgspec.Struct, frozen=True, array_like=True):
    """How far a worker is: ``rows`` of the key are laid over, and ``refused`` of them its handler did not take."""

    release: _Number
    state: ProvisionalState
    rows: _Count = 0
    refused: _Count = 0
    refusals: Annotated[list[DryRefusal], msgspec.Meta(max_length=MAX_PROVISIONAL_REFUSALS)] = []
    why: Annotated[str, msgspec.Meta(max_length=MAX_DRY_REASON)] = ""
    """Why it has not got them."""
