"""The audit log of the config service: its entries, and the chain of hashes that they form.

The hash of an entry covers the hash of the entry before it, so that an entry that is changed, removed, added or moved
no longer fits those behind it. What writes entries, what verifies them, and what verifies an export of them, all use
this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from ringcast_wire._common.errors import InvalidInputError, shown

GENESIS: Final = "0" * 64
"""What stands in the place of the hash before the first entry."""
MAX_AUDIT_PAGE: Final = 1_000
"""Entries of one answer."""
_HASH_DIGITS: Final = 64

_encoder = msgspec.json.Encoder()


class AuditEntry(NamedTuple):
    """One thing that was done, or refused.

    ``seq`` counts from 1 without gaps. ``at_ms``: Unix time by the database's clock. ``action``: the name of the call,
    or ``WriteRows``. ``store``: ``*`` for all, empty where it is about none. ``outcome``: ``done``, ``begun``,
    ``refused`` or ``break-glass``. ``details``: a JSON object. ``hash``: 64 hexadecimal digits.
    """

    seq: int
    at_ms: int
    principal: str
    action: str
    store: str
    key: str
    outcome: str
    reason: str
    details: str
    hash: str = ""


class Link(NamedTuple):
    """A place in the chain: the hash of the entry ``seq``, :data:`GENESIS` for 0."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


START: Final = Link(0, GENESIS)


def parse_link(field: str, text: str) -> Link:
    """A link as :class:`Link` prints it, ``SEQ:HASH``.

    Raises:
        InvalidInputError: it is none.
    """
    seq, _, digits = text.partition(":")
    if not (seq.isascii() and seq.isdigit() and len(seq) <= 18) or len(digits) != _HASH_DIGITS:
        raise InvalidInputError(
            f"{field} {shown(text)} is not SEQ:HASH: a number and {_HASH_DIGITS} hexadecimal digits are expected, as "
            "`ringcast audit verify` prints them",
            field=field,
        )
    return Link(int(seq), digits.lower())


def entry_hash(before: str, entry: AuditEntry) -> str:
    """The hash of an entry behind the one with the hash ``before``. :attr:`AuditEntry.hash` does not count."""
    return hashlib.sha256(_encoder.encode([before, *entry[:-1]])).hexdigest()


class Chain(NamedTuple):
    """What the service has noted of the chain: the last entry, and the last one that is past the retention."""

    head: Link
    floor: Link


class ChainCheck:
    """Verifies a chain page by page, each behind the one before. ``anchor``: a link that was noted earlier, elsewhere.

    Once :attr:`problem` is a sentence, nothing more is looked at.
    """

    def __init__(self, anchor: Link | None = None) -> None:
        self.problem = ""
        self.checked = 0
        self.at: Link | None = None
        """The last entry that was looked at."""
        self._anchor = anchor
        self._begin: Link | None = None
        """What the chain was first seen to begin behind."""
        self._floor: Link | None = None
        self._forgotten = 0

    def add(self, chain: Chain, entries: Iterable[AuditEntry], *, last: bool) -> None:
        """Looks at a page: ``chain`` as it was when the page was read. ``last``: there is nothing behind the page."""
        if self.at is None or self.at.seq < chain.floor.seq:  # what we wanted to read next is past the retention by now
            self._floor = self._floor or chain.floor
            self.begin(chain.floor)
        for entry in entries:
            self.check(entry)
            if self.problem:
                return
        if last:
            self._check_end(chain)

    def begin(self, link: Link) -> None:
        """What follows is behind this link."""
        self.at = link
        self._begin = self._begin or link
        self._check_anchor(link)

    def check(self, entry: AuditEntry) -> None:
        """Looks at one entry, behind the one before."""
        assert self.at is not None
        if entry.seq != self.at.seq + 1:
            self.problem = f"entries {self.at.seq + 1} to {entry.seq - 1} are missing"
        elif entry_hash(self.at.hash, entry) != entry.hash:
            self.problem = f"entry {entry.seq} does not fit the one before it: one of them was changed, or moved"
        else:
            self.at = Link(entry.seq, entry.hash)
            self.checked += 1
            self._check_anchor(self.at)
            if entry.action == FORGET:
                self._forgotten = max(self._forgotten, forgotten_upto(entry.details))

    def _check_anchor(self, found: Link) -> None:
        anchor = self._anchor
        if not self.problem and anchor is not None and anchor.seq == found.seq and anchor != found:
            self.problem = f"entry {found.seq} has another hash than the anchor: the log was written again"

    def _check_end(self, chain: Chain) -> None:
        assert self.at is not None
        if self.problem:
            return
        if self.at.seq < chain.head.seq:
            self.problem = f"entries {self.at.seq + 1} to {chain.head.seq}, the newest ones, are missing"
        elif self.at != chain.head:
            self.problem = f"the noted head {chain.head.seq} is not the last entry, which is {self.at.seq}"
        elif self._floor is not None and self._forgotten < self._floor.seq:
            gone = f"entries up to {self._floor.seq} are gone"
            self.problem = f"{gone}, and no entry says that they were past the retention"
        else:
            self.check_end()

    def check_end(self) -> None:
        """There is no further entry: the one of the anchor has to be among those that were."""
        if self.problem or self._anchor is None:
            return
        wanted, oldest, newest = self._anchor.seq, (self._begin or START).seq, (self.at or START).seq
        if wanted > newest:
            self.problem = f"entry {wanted} of the anchor is missing: the newest one is {newest}"
        elif wanted < oldest:
            gone = f"entry {wanted} of the anchor is gone, as all before {oldest} are"
            self.problem = f"{gone}: nothing shows that the log is the same, a newer anchor would"


class _Forgotten(msgspec.Struct):
    upto: int = 0


FORGET: Final = "ForgetAudit"
"""The action of the entry that says up to which one entries were removed, since they were past the retention."""


def forgotten_upto(details: str) -> int:
    """What the details of such an entry say; 0 where they say nothing."""
    try:
        return msgspec.json.decode(details, type=_Forgotten).upto
    except msgspec.DecodeError:
        return 0
