"""What the settings of every login have in common: pairs of which one needs the other, and files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ringcast_wire._errors import InvalidInputError, shown_path


def check_login_settings(login: object, *, pairs: Iterable[tuple[str, str]], files: Iterable[str]) -> None:
    """Looks whether the settings of a login make sense together, and whether the files are there.

    Args:
        login: has the settings as attributes; an empty one is not given.
        pairs: names of two settings that are given together or not at all.
        files: names of settings that are paths.

    Raises:
        InvalidInputError: they don't; the message names the setting, and never its value but for a path.
    """
    for pair in pairs:
        for one, other in (pair, pair[::-1]):
            if getattr(login, one) and not getattr(login, other):
                raise InvalidInputError(f"{one} is given without {other}: both are needed", field=other)
    for name in files:
        path = getattr(login, name)
        if path and not Path(path).is_file():
            raise InvalidInputError(f"{name} {shown_path(path)} is not a file", field=name)
