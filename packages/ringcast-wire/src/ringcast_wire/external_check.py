"""The generated gRPC API of the external check of releases (``ringcast.external_check.v1``), for servers that do it."""

from __future__ import annotations

from typing import Final

from ringcast_wire._proto import external_check_pb2 as pb
from ringcast_wire._proto.external_check_pb2_grpc import (
    ExternalCheckServicer,
    ExternalCheckStub,
    add_ExternalCheckServicer_to_server,
)

SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ExternalCheck"].full_name

__all__ = ["SERVICE_NAME", "ExternalCheckServicer", "ExternalCheckStub", "add_ExternalCheckServicer_to_server", "pb"]
