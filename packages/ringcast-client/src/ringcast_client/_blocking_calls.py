"""Calls of the config service for code that is not asynchronous, tried again until their time is up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from ringcast_wire import Backoff, RingcastError, UnavailableError
from ringcast_wire.grpc import error_from_rpc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallRetries:
    """When a call is tried again: after a silence of ``silence_s``, and with back-off between two tries.

    The service may ask for longer waits, up to ``max_requested_s`` in all.
    """

    silence_s: float = 30.0
    first_wait_s: float = 0.1
    max_wait_s: float = 2.0
    max_requested_s: float = 600.0


DEFAULT_RETRIES = CallRetries()


def retried(call: Callable[[float], T], timeout_s: float, retries: CallRetries = DEFAULT_RETRIES) -> T:
    """``call(seconds_left)``, again with back-off while the service can't be reached or asks to try again later.

    A wait that the service asks for is added to ``timeout_s``, and is waited for in full.

    Raises:
        RingcastError: the service refused, or the last failure when the time is up.
    """
    deadline = time.monotonic() + timeout_s
    requested_s = 0.0
    backoff = Backoff(random.random, first_s=retries.first_wait_s, most_s=retries.max_wait_s)
    while True:
        try:
            return call(max(0.05, min(deadline - time.monotonic(), retries.silence_s)))
        except (grpc.RpcError, UnavailableError) as error:
            refusal = error if isinstance(error, UnavailableError) else _translated(error)
            retry_after_s = refusal.retry_after_s
            if retry_after_s is None and not isinstance(refusal, UnavailableError):
                raise refusal from None
            delay_s = backoff.next_s()
            if retry_after_s:
                requested_s += retry_after_s
                if requested_s > retries.max_requested_s:
                    raise refusal from None
                deadline += retry_after_s
                delay_s += retry_after_s
            if time.monotonic() + delay_s >= deadline:
                raise refusal from None
            time.sleep(delay_s)


def _translated(error: Any) -> RingcastError:
    return error_from_rpc(error)
