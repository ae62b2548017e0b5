"""Labels of workers: by them a release chooses the workers that get it first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ringcast_wire._common import limits
from ringcast_wire._common.errors import InvalidInputError, LimitExceededError, shown

_PART: Final = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.MAX_LABEL_PART_CHARS - 1}}}"
LABEL_PATTERN: Final = rf"\A{_PART}={_PART}\Z"
_LABEL: Final = re.compile(LABEL_PATTERN, re.ASCII)


def check_label(field: str, value: object) -> str:
    """Returns ``value`` if it may be a label of a worker.

    Raises:
        InvalidInputError: it is not ``name=value``, each as a label may have it.
    """
    if isinstance(value, str) and _LABEL.fullmatch(value):
        return value
    raise InvalidInputError(
        f"{field} {shown(value)} is not a label: name=value is, each of 1 to {limits.MAX_LABEL_PART_CHARS} characters "
        "of A-Z a-z 0-9 . _ - that begin with a letter or digit",
        field=field,
    )


def check_labels(field: str, values: Sequence[str]) -> tuple[str, ...]:
    """Returns ``values`` in their order by name if a worker may have them together.

    Raises:
        InvalidInputError: one is no label, or a name comes twice.
        LimitExceededError: there are too many.
    """
    if len(values) > limits.MAX_LABELS:
        raise LimitExceededError(
            f"{field} has {len(values)} entries: at most {limits.MAX_LABELS} are allowed", field=field
        )
    found = sorted(check_label(field, value) for value in values)
    taken = [label.partition("=")[0] for label in found]
    for name in taken:
        if taken.count(name) > 1:
            raise InvalidInputError(f"{field} has the name {name!r} twice: each name has one value", field=field)
    return tuple(found)
