"""What the calls of the Dapr-shaped clients fail with: errors of Ringcast that are gRPC errors, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ringcast_wire import RingcastError


@contextmanager
def as_rpc_errors() -> Iterator[None]:
    """Raises an error of Ringcast as one of the same class that is a ``grpc.RpcError`` as well.

    Where nobody has imported gRPC nobody can ask for that, and it is not imported for it.
    """
    try:
        yield
    except RingcastError as error:
        if "grpc" not in sys.modules:
            raise
        from ringcast._dapr.rpc_error import rpc_error

        raise rpc_error(error) from error
