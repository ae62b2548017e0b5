"""What Dapr's API answers a request with, and why updates of a subscription stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import grpc

_SHOWN: Final = 256
"""Characters of a list of keys in a message: a gRPC error must fit into the headers."""


class DaprError(Exception):
    """A refusal in Dapr's words: its error code, its HTTP status, its gRPC status."""

    def __init__(self, code: str, message: str, http: int, status: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code
        self.http = http
        self.status = status


class StoppedError(Exception):
    """Updates of a subscription have stopped; ``str(error)`` says why."""

    reason = "upstream"
    status = grpc.StatusCode.UNAVAILABLE


class ListDeletedError(StoppedError):
    """The store or the config key is deleted: to register again is of no use, as long as it is not restored."""

    status = grpc.StatusCode.FAILED_PRECONDITION


class StoppingError(StoppedError):
    """The agent itself stops."""

    reason = "stopping"


class BehindError(StoppedError):
    """A group has more rows to tell of than may wait."""

    reason = "behind"


class SealedError(StoppedError):
    """A value is encrypted, and the agent can't open it: to register again is of no use as long as that is so."""

    reason = "sealed"
    status = grpc.StatusCode.FAILED_PRECONDITION


class EvictedError(StoppedError):
    """A consumer gave no sign of life, so that others have its messages now."""

    reason = "evicted"
    status = grpc.StatusCode.ABORTED


def store_not_found(store: str) -> DaprError:
    """There is no such store."""
    return DaprError(
        "ERR_CONFIGURATION_STORE_NOT_FOUND",
        f"configuration store {_cut(store)} not found",
        400,
        grpc.StatusCode.INVALID_ARGUMENT,
    )


def get_failed(keys: Sequence[str], store: str, why: object) -> DaprError:
    """A read did not work."""
    return DaprError(
        "ERR_CONFIGURATION_GET",
        f"failed to get {_listed(keys)} from Configuration store {_cut(store)}: {why}",
        500,
        grpc.StatusCode.INTERNAL,
    )


def subscribe_failed(keys: Sequence[str], store: str, why: object) -> DaprError:
    """A subscription did not come about."""
    return DaprError(
        "ERR_CONFIGURATION_SUBSCRIBE",
        f"failed to subscribe {_listed(keys)} from Configuration store {_cut(store)}: {why}",
        500,
        grpc.StatusCode.INVALID_ARGUMENT,
    )


def unsubscribe_message(subscription_id: str) -> str:
    """The message for a subscription that does not exist; Dapr answers it, and does not fail."""
    return f"failed to unsubscribe to configuration request {_cut(subscription_id)}: subscription does not exist"


def no_app_channel() -> DaprError:
    """A subscription over HTTP needs to know where the application listens."""
    return DaprError(
        "ERR_APP_CHANNEL_NIL",
        "app channel is not initialized. cannot subscribe to configuration updates",
        500,
        grpc.StatusCode.FAILED_PRECONDITION,
    )


def metadata_refused(why: object) -> DaprError:
    """An entry of the metadata can't be kept."""
    return DaprError("ERR_METADATA_SET", f"failed to set metadata: {why}", 400, grpc.StatusCode.INVALID_ARGUMENT)


def no_shutdown() -> DaprError:
    """A sidecar ends with its application; an agent is the whole host's."""
    return DaprError(
        "ERR_SHUTDOWN_REFUSED",
        "the agent serves every application of this host and is not shut down by one: its service manager stops it",
        403,
        grpc.StatusCode.PERMISSION_DENIED,
    )


def _listed(keys: Sequence[str]) -> str:
    return f"[{_cut(' '.join(keys[:_SHOWN]))}]"


def _cut(text: str) -> str:
    text = "".join(char if char.isprintable() else "?" for char in text[: _SHOWN + 1])
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
