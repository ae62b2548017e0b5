"""How the config service refuses a call, as tests of its gRPC API look at it."""

from __future__ import annotations

from collections.abc import Awaitable

import grpc
import pytest
from ringcast_wire import ErrorCode
from ringcast_wire.grpc import STATUS, error_from_rpc


async def refused(call: Awaitable[object]) -> tuple[ErrorCode, str | None, str]:
    """Code, field and sentence of a refusal, with the status that belongs to the code."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = error_from_rpc(caught.value)
    assert caught.value.code() is STATUS[error.code]
    return error.code, error.field, str(error)
