"""The versions of messages on the bus: those that this build reads, and the one that it writes for a reader.

A build reads several, so that two that follow each other can share a bus. An event is written in the version that its
store is pinned to, which the config services keep at the newest one that every process reads. An answer is written in
the newest one that its asker reads, as the request says. All else is of the first version.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ringcast_wire._common.errors import ProtocolError

WIRE_VERSION: Final = 1
"""The version that every build reads. Requests are of it, since nothing says what the service reads that takes them."""
WIRE_VERSIONS: Final[tuple[int, ...]] = (WIRE_VERSION,)
"""The versions that this build reads and writes, rising. The next new one is 3: in the settings of a store 2 stands for
a migration (:data:`~ringcast_wire.MIGRATING_WIRE_VERSION`), so no message is of version 2."""
NEWEST_WIRE_VERSION: Final = WIRE_VERSIONS[-1]
"""What a process of this build says that it reads, in its records and its requests."""

Reads = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
"""The newest version that a process reads; a build that does not say so reads the first one alone."""


def version_for(reads: int) -> int:
    """The newest version that this build writes, and a process that reads up to version ``reads`` can read."""
    return max((version for version in WIRE_VERSIONS if version <= reads), default=WIRE_VERSION)


def check_version(version: int, what: str) -> None:
    """Looks whether this build reads a message; ``what`` begins the sentence.

    Raises:
        ProtocolError: it is of another version. The sentence names it, and those that this build reads.
    """
    if version not in WIRE_VERSIONS:
        known = " and ".join(str(each) for each in WIRE_VERSIONS)
        todo = "; upgrade it" if version > WIRE_VERSIONS[-1] else ""
        raise ProtocolError(f"{what} has wire version {version}: this build speaks {known}{todo}")


class _Head(msgspec.Struct, array_like=True):
    wire_version: int


_head = msgspec.msgpack.Decoder(_Head)


def check_version_of(data: bytes | bytearray, what: str) -> None:
    """Looks whether a message that can't be decoded is of a version that this build does not read: all else in it may
    be of another form then. Raises as :func:`check_version`, and not if there is no version in it."""
    try:
        version = _head.decode(data).wire_version
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return
    check_version(version, what)
