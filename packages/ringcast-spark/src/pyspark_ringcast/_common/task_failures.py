"""The final errors of tasks, kept on a node: a further attempt of the task raises its error without the work before it.

Spark runs a failed task of a source in Python ``spark.task.maxFailures`` times (4), and nothing that the task says ends
that: the JVM sees every error of Python as one kind, and a task that reads has no way back to the driver. So an attempt
leaves such an error in the directory that Spark keeps for the application on this node, and removes with it. A further
attempt of the task on this node finds it there and raises it at once. On another node it does the work again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from pyspark import SparkFiles, TaskContext
from ringcast_wire import ErrorCode, InternalError, ProtocolError, RingcastError, UnavailableError, error_from_code

from pyspark_ringcast._common.offsets import ChangesLostError

T = TypeVar("T")

CURABLE: Final = (UnavailableError, ProtocolError, InternalError)
"""What another attempt may not meet."""
MAX_NOTES: Final = 100
_MAX_CHARS: Final = 10_000
_PREFIX: Final = "ringcast-failure-"


class _Note(msgspec.Struct):
    """An error as it travels everywhere: a code, and a sentence."""

    code: ErrorCode
    sentence: str


def raise_known_failure(read: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What ``read`` gives, in a task that reads.

    Raises:
        RingcastError: what ``read`` raises. Where an attempt before met what no attempt can cure, that is raised, and
            ``read`` is not called.
    """
    context = TaskContext.get()
    if context is None:
        yield from read()
        return
    path = _path(context)
    if context.attemptNumber() and (error := _found(path)):
        raise error
    try:
        yield from read()
    except RingcastError as error:
        if _is_final(error):
            _leave(path, error)
        raise


def _is_final(error: RingcastError) -> bool:
    curable = isinstance(error, CURABLE) and not isinstance(error, ChangesLostError)
    return not curable and error.retry_after_s is None


def _path(context: TaskContext) -> Path:
    """Where the error of this task is: a stage has a number that no other of the application has."""
    return Path(SparkFiles.getRootDirectory()) / f"{_PREFIX}{context.stageId()}-{context.partitionId()}.json"


def _found(path: Path) -> RingcastError | None:
    try:
        note = msgspec.json.decode(path.read_bytes(), type=_Note)
    except (OSError, msgspec.MsgspecError):
        return None
    if note.code is ChangesLostError.code:
        return ChangesLostError(note.sentence)
    return error_from_code(note.code, note.sentence)


def _leave(path: Path, error: RingcastError) -> None:
    """Writes it down, and removes the oldest of more than ``MAX_NOTES``. Where it can't, attempts do more work."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        part.write_bytes(msgspec.json.encode(_Note(error.code, str(error)[:_MAX_CHARS])))
        part.replace(path)
        notes = sorted(path.parent.glob(f"{_PREFIX}*.json"), key=lambda note: note.stat().st_mtime)
        for old in notes[:-MAX_NOTES]:
            old.unlink(missing_ok=True)
