"""The generated gRPC API of key-shared dispatch (``ringcast.agent.dispatch.v1``)."""

from __future__ import annotations

from ringcast_wire._proto import dispatch_pb2 as pb
from ringcast_wire._proto.dispatch_pb2_grpc import DispatchServicer, DispatchStub, add_DispatchServicer_to_server

__all__ = ["DispatchServicer", "DispatchStub", "add_DispatchServicer_to_server", "pb"]
