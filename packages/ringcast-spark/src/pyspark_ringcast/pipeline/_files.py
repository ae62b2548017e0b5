"""Small files beside the Parquet that Spark writes, on local disks and in what Arrow knows of object storage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ringcast_wire import InvalidInputError, shown_path

if TYPE_CHECKING:
    from pyarrow import fs


def absolute(path: str, directory: Path | None = None) -> str:
    """A path that means the same to Python and to the JVM, which may have another working directory."""
    return path if "://" in path else str((directory or Path.cwd()) / path)


def _place(path: str) -> tuple[fs.FileSystem, str]:
    from pyarrow import fs

    return fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)


def check_free(field: str, path: str) -> None:
    """Makes sure that nothing is at ``path``, and that its parent can be made.

    Raises:
        InvalidInputError: something is there, or the path can't be used.
    """
    from pyarrow import fs

    try:
        system, place = _place(path)
        kind = system.get_file_info(place).type
        if kind == fs.FileType.NotFound:
            system.create_dir(place, recursive=True)
            system.delete_dir(place)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _refusal(field, path, error) from None
    if kind != fs.FileType.NotFound:
        raise InvalidInputError(f"{field} {shown_path(path)} exists: give a path that does not exist", field=field)


def write_file(field: str, path: str, data: bytes) -> None:
    """Writes a file; its directory is there.

    Raises:
        InvalidInputError: it can't be written.
    """
    try:
        system, place = _place(path)
        with system.open_output_stream(place) as stream:
            stream.write(data)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _refusal(field, path, error) from None


def read_file(field: str, path: str, max_bytes: int) -> bytes:
    """A file of at most ``max_bytes``.

    Raises:
        InvalidInputError: it is not there, can't be read or is larger.
    """
    try:
        system, place = _place(path)
        with system.open_input_stream(place) as stream:
            data: bytes = stream.read(max_bytes + 1)
    except (OSError, ValueError, NotImplementedError) as error:
        raise _refusal(field, path, error) from None
    if len(data) > max_bytes:
        raise InvalidInputError(f"{field} {shown_path(path)} has more than {max_bytes} bytes", field=field)
    return data


def _refusal(field: str, path: str, error: Exception) -> InvalidInputError:
    why = "there is no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
    return InvalidInputError(f"{field} {shown_path(path)} can't be used: {why}", field=field)
