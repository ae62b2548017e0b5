"""What a write is refused with whose condition does not hold."""

from __future__ import annotations

from ringcast_wire import ConditionFailedError, shown


def condition_failed(place: str, row_id: str, wanted: int, found: int) -> ConditionFailedError:
    """Of a row that should have the version ``wanted`` and has ``found``; 0 in either: no live row."""
    if not found:
        said = f"{place} has no row {shown(row_id)}: version {wanted} was expected, nothing was written"
    else:
        expected = f"version {wanted}" if wanted else "no row"
        said = f"{place} has row {shown(row_id)} at version {found}: {expected} was expected, nothing was written"
    return ConditionFailedError(said, field="if_version" if wanted else "if_absent", found_version=found)
