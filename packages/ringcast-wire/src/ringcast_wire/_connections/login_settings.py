"""What the settings of every login have in common: pairs of which one needs the other, and files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ringcast_wire._common.errors import InvalidInputError, shown_path

MAX_LOGIN_FILE_BYTES: Final = 64 * 1024


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


def text_lines(data: bytes) -> list[str]:
    """The lines of such a file, which an editor may have begun with a byte order mark."""
    return data.decode("utf-8-sig", "replace").splitlines()


def check_end(data: bytes) -> None:
    """Refuses a file of lines that is cut off, as one is that is still being written: what is left of a line may say
    something else than the line.

    Raises:
        InvalidInputError: its last line has no end.
    """
    if data and not data.endswith(b"\n"):
        raise InvalidInputError(
            f"line {len(text_lines(data))} is the last one and may be cut off: end it with a newline if it is whole"
        )


def read_login_file(name: str, path: str) -> bytes:
    """A file with a certificate, key, token or password.

    Raises:
        InvalidInputError: it can't be read, or is larger than 64 KiB.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_LOGIN_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"{name} {shown_path(path)} can't be read: {error.strerror}", field=name) from error
    if len(data) > MAX_LOGIN_FILE_BYTES:
        raise InvalidInputError(f"{name} {shown_path(path)} is larger than {MAX_LOGIN_FILE_BYTES} bytes", field=name)
    return data
