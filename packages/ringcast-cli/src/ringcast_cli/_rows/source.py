"""Where an import reads from: a file or standard input, in bounded lines."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ringcast_wire import InvalidInputError, shown_path
from ringcast_wire.csv_reader import MAX_LINE_BYTES

_BOM: Final = b"\xef\xbb\xbf"
STANDARD_INPUT: Final = "-"


class InputError(InvalidInputError):
    """The input as a whole can't be read: there is no going on."""


class BadLineError(InvalidInputError):
    """One line (or row, in Parquet) is malformed; the next may be good."""

    def __init__(self, line: int, reason: str, *, unit: str = "line") -> None:
        super().__init__(f"{unit} {line}: {reason}", field=unit)
        self.line = line


class Source:
    """An open input. ``size`` is in bytes, ``None`` where it is not known."""

    def __init__(self, name: str, file: BinaryIO, size: int | None) -> None:
        self.name = name
        self.file = file
        self.size = size
        self.read_bytes = 0

    def lines(self) -> Iterator[tuple[int, bytes | BadLineError]]:
        """The lines, but for a byte order mark as they are, numbered from 1. A line past 4 MiB is a bad one."""
        number = 0
        while data := self._readline():
            number += 1
            if number == 1:
                data = data.removeprefix(_BOM)
            if len(data) > MAX_LINE_BYTES:
                self._skip_rest()
                yield number, BadLineError(number, f"is too long: at most {MAX_LINE_BYTES} bytes are allowed")
            else:
                yield number, data

    def _readline(self) -> bytes:
        try:
            data = self.file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise InputError(f"file {self.name} can't be read: {error.strerror}", field="file") from None
        self.read_bytes += len(data)
        return data

    def _skip_rest(self) -> None:
        while (data := self._readline()) and not data.endswith(b"\n"):
            pass


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Opens a file, or standard input for ``-``.

    Raises:
        InputError: there is no such file, it is a directory, or it can't be opened.
    """
    if path == STANDARD_INPUT:
        # Not sys.stdin: the interpreter closes that at its end, and aborts when a thread still waits for input there.
        yield Source("standard input", open(0, "rb", closefd=False), None)  # noqa: SIM115
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115  # closed below; the errors of opening are told apart here
    except FileNotFoundError:
        raise InputError(f"file {shown_path(path)} does not exist", field="file") from None
    except IsADirectoryError:
        raise InputError(f"file {shown_path(path)} is a directory", field="file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"file {shown_path(path)} can't be opened: {reason}", field="file") from None
    with file:
        status = os.fstat(file.fileno())
        yield Source(path, file, status.st_size if stat.S_ISREG(status.st_mode) else None)


def decode(line: int, data: bytes) -> str:
    """The text of a line.

    Raises:
        BadLineError: it is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadLineError(
            line, f"is not UTF-8: byte 0x{data[error.start]:02x} at position {error.start + 1}"
        ) from None
