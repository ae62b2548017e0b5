"""The tokens of workers and heartbeat agents: what each may do on NATS, and the file in which the service finds them.

A line of the file is ``NAME sha256:DIGEST worker=ID STORE/KEY[,KEY...]...``, or has ``agent=ID`` in place of
``worker=ID``. The name is the principal, as in :mod:`ringcast_wire.tokens`; it may have several lines, as while a token
is replaced. An ID that ends in ``*`` stands for all that begin so: a fleet shares such a token. Its workers can act as
each other, and as no other worker: lines of different names may not allow the same id. Blank lines, and those that
begin with ``#``, don't count. A file without a token says ``none`` in their place, and the last line needs its end: one
that is empty or cut off, as while it is written, withdraws no token.

A worker logs in to NATS with its id as the user, and the token as the password.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ringcast_wire._common import limits, names
from ringcast_wire._common.errors import InvalidInputError, shown, shown_path
from ringcast_wire._connections.login_settings import check_end, text_lines
from ringcast_wire.permissions import RESERVED, Worker, agent_workers, parse_workers
from ringcast_wire.tokens import check_principal, digest

MAX_FILE_BYTES: Final = 1 * limits.MIB
MAX_KEYS: Final = 32
"""Keys that one token may be for, over all stores: each takes some hundred subjects."""
MAX_TOKEN_LENGTH: Final = 512
"""Characters; NATS takes 4 KiB for a whole login."""
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_KINDS: Final = ("worker", "agent")
_LAST: Final = "\U0010ffff"
"""Sorts behind every character of an id."""
_NOBODY: Final = "none"


class WorkerToken(NamedTuple):
    """A token of a worker, or of an agent: its principal, its SHA-256 (32 bytes), and what it is for.

    ``worker_id``: the one id, or what the ids begin with where ``many`` is set.
    """

    principal: str
    digest: bytes
    agent: bool
    worker_id: str
    many: bool
    stores: tuple[tuple[str, tuple[str, ...]], ...]

    def allows(self, worker_id: str) -> bool:
        """Whether a worker, or an agent, of this id may log in with it."""
        return worker_id.startswith(self.worker_id) if self.many else worker_id == self.worker_id

    def worker(self, worker_id: str) -> Worker:
        """What such a worker takes part in."""
        return Worker(worker_id, {store: list(keys) for store, keys in self.stores})

    @property
    def tag(self) -> str:
        """12 characters that are others as soon as the token or what it is for is another."""
        return hashlib.sha256(self.digest + self.scope.encode()).hexdigest()[:12]

    @property
    def scope(self) -> str:
        """What it is for, as a line has it."""
        who = f"{_KINDS[self.agent]}={self.worker_id}{'*' if self.many else ''}"
        return " ".join([who, *(f"{store}/{','.join(keys)}" for store, keys in self.stores)])


def worker_token_line(principal: str, token: str, scope: str) -> str:
    """The line of a token, without an end of line; ``scope``: what follows the digest.

    Raises:
        InvalidInputError: the name is none, or the scope breaks a rule.
    """
    line = f"{check_principal('name', principal)} sha256:{digest(token).hex()} {scope}"
    return f"{principal} sha256:{digest(token).hex()} {_read(line).scope}"


def read_worker_tokens(path: str) -> list[WorkerToken]:
    """The tokens of a file.

    Raises:
        InvalidInputError: the file can't be read, is larger than 1 MiB, is empty or cut off, or a line breaks a rule.
            The message gives the number of the line, and nothing of a token.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"callout_tokens {shown_path(path)} can't be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInputError(f"callout_tokens {shown_path(path)} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return _tokens(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"callout_tokens {shown_path(path)}: {error}") from None


def _tokens(data: bytes) -> list[WorkerToken]:
    lines = [(number, line) for number, line in enumerate(text_lines(data), 1) if line.strip() and line[0] != "#"]
    found: list[tuple[int, WorkerToken]] = []
    if [line.strip() for _, line in lines] != [_NOBODY]:
        for number, line in lines:
            try:
                found.append((number, _read(line)))
            except InvalidInputError as error:
                raise InvalidInputError(f"line {number}: {error}") from None
        if not found:
            raise InvalidInputError(f"it holds no token; a file that is to have none says {_NOBODY}")
    check_end(data)
    _check_apart(found)
    return [token for _, token in found]


def _read(line: str) -> WorkerToken:
    name, *rest = line.split()
    # Neither is shown where it is wrong: a token may stand there by mistake.
    if len(rest) < 3 or (hexadecimal := _DIGEST.fullmatch(rest[0])) is None:
        raise InvalidInputError("it is not NAME sha256:DIGEST worker=ID STORE/KEY,KEY with 64 digits in small letters")
    try:
        check_principal("name", name)
    except InvalidInputError:
        raise InvalidInputError("its name is not 1 to 64 characters of A-Z a-z 0-9 . _ @ -") from None
    kind, _, worker_id = rest[1].partition("=")
    many = worker_id.endswith("*")
    prefix = worker_id.removesuffix("*")
    if kind not in _KINDS or not worker_id:
        raise InvalidInputError(f"{shown(rest[1])} is neither worker=ID nor agent=ID")
    names.check_name(kind, prefix)
    if any(prefix == name or (many and name.startswith(prefix)) for name in RESERVED):
        raise InvalidInputError(f"{kind} {shown(worker_id)} has the name of a user that is no worker")
    workers = parse_workers([f"{prefix}={place}" for place in rest[2:]])
    stores = tuple((store, tuple(keys)) for store, keys in workers[0].stores.items())
    if (count := sum(len(keys) for _, keys in stores)) > MAX_KEYS:
        raise InvalidInputError(f"it is for {count} keys, the limit is {MAX_KEYS}")
    return WorkerToken(name, bytes.fromhex(hexadecimal[1]), kind == "agent", prefix, many, stores)


def _check_apart(tokens: Sequence[tuple[int, WorkerToken]]) -> None:
    """Ids are ranges of text, each within another or apart from it: sorted, one that is within another follows it."""
    ranges = sorted(
        ((first, last, number, token.principal) for number, token in tokens for first, last in _ranges(token)),
        key=lambda found: (found[0], [-ord(letter) for letter in found[1]]),
    )
    outer: list[tuple[str, str, int, str]] = []
    for each in ranges:
        while outer and outer[-1][1] < each[0]:
            outer.pop()
        if outer and outer[-1][3] != each[3]:
            low, high = sorted((outer[-1][2], each[2]))
            raise InvalidInputError(f"lines {low} and {high} allow the same id to different names")
        outer.append(each)


def _ranges(token: WorkerToken) -> Iterator[tuple[str, str]]:
    """The ids that a token allows, as first and last: of an agent those of its workers, too."""
    first = token.worker_id
    yield first, first + _LAST if token.many else first
    if token.agent and not token.many:
        yield from ((worker.worker_id,) * 2 for worker in agent_workers(token.worker(first)))
    elif token.agent:
        yield from _shortened(first)


def _shortened(prefix: str) -> Iterable[tuple[str, str]]:
    """Where ids are long those of an agent's workers begin with a part of its own only."""
    short = prefix[: limits.MAX_NAME_LENGTH - 17]
    return [(short, short + _LAST)] if short != prefix else []
