"""Errors of Ringcast that are gRPC errors, for programs that were written for the ``dapr`` package.

They have ``except grpc.RpcError`` around their calls, and ask the error for ``code()`` and ``details()``.
"""

from __future__ import annotations

from typing import Any

import grpc
from ringcast_wire import ErrorCode, RingcastError
from ringcast_wire.grpc import STATUS


class _RpcError(grpc.RpcError):
    """The calls that programs make of an error of the ``dapr`` package."""

    error_code: ErrorCode
    """The kind of error, which is ``code`` in errors of Ringcast that are no gRPC errors."""

    def code(self) -> grpc.StatusCode:
        """The status that stands for the kind of error."""
        return STATUS[self.error_code]

    def details(self) -> str:
        """The message."""
        return str(self)

    def initial_metadata(self) -> Any:
        """There is none: no call over gRPC was made."""
        return ()

    def trailing_metadata(self) -> Any:
        """There is none: no call over gRPC was made."""
        return ()


_classes: dict[type[RingcastError], Any] = {}


def rpc_error(error: RingcastError) -> RingcastError:
    """The same error, as a ``grpc.RpcError`` too."""
    if isinstance(error, _RpcError):
        return error
    made: RingcastError = _class_of(type(error))(str(error), field=error.field)
    return made


def _class_of(kind: type[RingcastError]) -> Any:
    """``code`` of the one is data, of the other a call: the call wins, and the data is ``error_code``."""
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (_RpcError, kind), {"error_code": kind.code, "__module__": __name__})
    return _classes[kind]
