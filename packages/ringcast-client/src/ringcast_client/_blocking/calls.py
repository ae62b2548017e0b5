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

from ringcast_client._common.requested_waits import RequestedWaits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallRetries:
    """When a call is tried again: after a silence of ``silence_s``, and with back-off between two tries.

    The service may ask for longer waits, as long as
    :class:`~ringcast_client._common.requested_waits.RequestedWaits` allows.
    """

    silence_s: float = 30.0
    first_wait_s: float = 0.1
    max_wait_s: float = 2.0


DEFAULT_RETRIES = CallRetries()


def retried(call: Callable[[float], T], timeout_s: float, retries: CallRetries = DEFAULT_RETRIES) -> T:
    """``call(seconds_left)``, again with back-off while the service can't be reached or asks to try again later.

    A wait that the service asks for is waited for in full, and ``timeout_s`` begins again after it.

    Raises:
        RingcastError: the service refused, or the last failure when the time is up.
    """
    deadline = time.monotonic() + timeout_s
    requested_waits = RequestedWaits()
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
                delay_s += retry_after_s
                if not requested_waits.may_wait(refusal, delay_s):
                    raise refusal from None
                deadline = time.monotonic() + delay_s + timeout_s
            if time.monotonic() + delay_s >= deadline:
                raise refusal from None
            time.sleep(delay_s)


def _translated(error: Any) -> RingcastError:
    return error_from_rpc(error)
