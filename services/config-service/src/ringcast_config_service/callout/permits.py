"""Decides what a worker may do on NATS, and whether it still may. No connection is needed for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ringcast_wire import InvalidInputError, Role, names, shown
from ringcast_wire.permissions import agent_user, worker_user
from ringcast_wire.tokens import KnownToken, digest
from ringcast_wire.worker_tokens import MAX_TOKEN_LENGTH, WorkerToken, read_worker_tokens

from ringcast_config_service.access import Access
from ringcast_config_service.caller import Caller
from ringcast_config_service.callout.claims import ConnectOptions
from ringcast_config_service.watched_file import WatchedFile

Reason: TypeAlias = Literal["no_token", "unknown_token", "wrong_id", "no_role", "too_large"]


class RefusedError(Exception):
    """The worker may not log in. The text is for the log of NATS, and has no token."""

    def __init__(self, reason: Reason, worker_id: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.worker_id = worker_id


class Permit(NamedTuple):
    """What a worker may do. ``name`` is what NATS calls its user: see :meth:`Permits.still`."""

    worker_id: str
    name: str
    publish: list[str]
    subscribe: list[str]


class _Known:
    """The tokens of the file, as they are looked for."""

    def __init__(self, tokens: Sequence[WorkerToken]) -> None:
        self.by_digest: defaultdict[bytes, list[WorkerToken]] = defaultdict(list)
        self.by_tag: dict[tuple[str, str], WorkerToken] = {}
        for token in tokens:
            self.by_digest[token.digest].append(token)
            self.by_tag[token.principal, token.tag] = token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.by_tag == other.by_tag

    __hash__ = None  # type: ignore[assignment]


class Permits:
    """What the tokens of a file allow, to principals that may read the stores.

    As long as no role is granted to anybody, every principal may.
    """

    def __init__(self, token_file: str, access: Access, *, consumer_prefix: str, partitions: int) -> None:
        self._tokens = WatchedFile(token_file, lambda path: _Known(read_worker_tokens(path)), _Known(()))
        self._access = access
        self._prefix = consumer_prefix
        self._partitions = partitions

    @property
    def version(self) -> tuple[int, int]:
        """Is another one after each change of tokens, roles or what is revoked. Looks whether the file has changed."""
        self._tokens.now()
        return self._tokens.version, self._access.version

    @property
    def file_unusable(self) -> bool:
        """Whether the file of tokens can't be used as it is now, and what it said before counts."""
        return self._tokens.unusable

    def permit(self, login: ConnectOptions) -> Permit:
        """What a worker with this login may do.

        Raises:
            RefusedError: nothing.
        """
        known = self._tokens.now().by_digest
        # Where the token stands in place of the id, by mistake, no log is to show it.
        worker_id = "" if digest(login.user) in known else login.user
        secret = login.password or login.auth_token
        asked = shown(worker_id) if worker_id else "a client without a name"
        if not secret or len(secret) > MAX_TOKEN_LENGTH:
            raise RefusedError("no_token", worker_id, f"{asked} sent no token of 1 to {MAX_TOKEN_LENGTH} characters")
        tokens = known.get(digest(secret), [])
        if not tokens:
            raise RefusedError("unknown_token", worker_id, f"{asked} sent a token that is unknown")
        if self._access.is_revoked(tokens[0].digest):
            raise RefusedError("unknown_token", worker_id, f"{asked} sent a token that is revoked")
        if not worker_id and not tokens[0].many:
            worker_id = tokens[0].worker_id
        try:
            names.check_name("worker", worker_id)
        except InvalidInputError as error:
            raise RefusedError("wrong_id", worker_id, str(error)) from error
        token = next((token for token in tokens if token.allows(worker_id)), None)
        if token is None:
            principal = tokens[0].principal
            raise RefusedError("wrong_id", worker_id, f"the token of {principal} is not for the id {worker_id}")
        if (store := self._unreadable(token)) is not None:
            text = f"principal {token.principal} has no role {Role.READER} for store {store}"
            raise RefusedError("no_role", worker_id, text)
        make = agent_user if token.agent else worker_user
        user = make(token.worker(worker_id), prefix=self._prefix, partitions=self._partitions)
        return Permit(worker_id, f"{worker_id}@{token.principal}~{token.tag}", user.publish, user.subscribe)

    def still(self, name: str) -> bool:
        """Whether what was permitted under this name of a user still is, unchanged; so is what was never asked here."""
        worker_id, at, rest = name.partition("@")
        principal, tilde, tag = rest.rpartition("~")
        if not at or not tilde:
            return True
        token = self._tokens.now().by_tag.get((principal, tag))
        if token is None or self._access.is_revoked(token.digest):
            return False
        return token.allows(worker_id) and self._unreadable(token) is None

    def known_tokens(self) -> list[KnownToken]:
        """The tokens in the file now, revoked ones too: each once, though it may have several lines."""
        tokens = (token for tokens in self._tokens.now().by_digest.values() for token in tokens[:1])
        return [KnownToken(token.principal, token.digest) for token in tokens]

    def _unreadable(self, token: WorkerToken) -> str | None:
        """A store of the token that its principal may not read."""
        caller = Caller(token.principal, "", "")
        return next((store for store, _ in token.stores if not self._access.may(caller, Role.READER, store)), None)
