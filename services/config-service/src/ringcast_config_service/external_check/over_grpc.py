"""A server that is asked over gRPC: ``ringcast.external_check.v1.ExternalCheck``."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError
from ringcast_wire import shown
from ringcast_wire.external_check import SERVICE_NAME, pb

from ringcast_config_service.endpoints import (
    EndpointLogin,
    NoAnswerError,
    refused_login,
    silent,
    too_large,
    unaccepted_certificate,
    unreachable,
    wrong_status,
)
from ringcast_config_service.external_check.messages import MAX_ANSWER_BYTES, SERVER, Answer, Question, nonsense

_METHOD: Final = f"/{SERVICE_NAME}/CheckRelease"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),  # before and after it is unpacked
    # As over HTTP: one try over a connection of its own, straight to the server.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),
)


class GrpcServer:
    """The :class:`~.messages.CheckServer` at an address, ``host:port``."""

    def __init__(self, address: str, *, tls: bool) -> None:
        # Without dns:/// an address could be of another kind: unix:80 is the path of a socket.
        self._target = f"dns:///{address}"
        self._tls = tls

    async def ask(self, question: Question, login: EndpointLogin, timeout_s: float) -> Answer:
        metadata = (("authorization", f"Bearer {login.token}"),) if login.token else ()
        async with await self._channel(login) as channel:
            # Without a decoder of gRPC: that logs what it can't decode, and makes None of it.
            call: Any = channel.unary_unary(_METHOD, pb.CheckReleaseRequest.SerializeToString)
            try:
                data = await call(_request(question), timeout=timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                why = _why(error.code(), error.details() or "", timeout_s)
                raise NoAnswerError(why, shown(login.hidden(error.details() or ""), 200)) from error
        return _to_answer(data)

    async def _channel(self, login: EndpointLogin) -> grpc.aio.Channel:
        if not self._tls:
            return grpc.aio.insecure_channel(self._target, _OPTIONS)
        authorities = login.ca or await asyncio.to_thread(_authorities_of_the_machine)
        if not authorities:
            raise NoAnswerError(unaccepted_certificate(SERVER), "the machine has no certificates of authorities")
        return grpc.aio.secure_channel(self._target, grpc.ssl_channel_credentials(authorities), _OPTIONS)


def _request(question: Question) -> pb.CheckReleaseRequest:
    return pb.CheckReleaseRequest(**msgspec.to_builtins(question))


def _to_answer(data: bytes) -> Answer:
    try:
        response = pb.CheckReleaseResponse.FromString(data)
    except DecodeError:
        raise nonsense("a CheckReleaseResponse") from None
    if not response.HasField("allow"):
        raise nonsense("a CheckReleaseResponse")
    return Answer(response.digest, response.allow, response.reason)


def _why(code: grpc.StatusCode, details: str, timeout_s: float) -> str:
    match code:
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return refused_login(SERVER, code.name)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return silent(SERVER, timeout_s)
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{SERVER} has no method {_METHOD.removeprefix('/')} (status UNIMPLEMENTED)"
        # What follows gRPC tells apart by its words alone.
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return too_large(MAX_ANSWER_BYTES)
        case grpc.StatusCode.UNAVAILABLE if "handshake failed" in details or "Verification Check failed" in details:
            return unaccepted_certificate(SERVER)
        case grpc.StatusCode.UNAVAILABLE:
            return unreachable(SERVER)
    return wrong_status(SERVER, code.name)


def _authorities_of_the_machine() -> bytes:
    """Those that HTTPS trusts here. gRPC would trust a list that it brings along."""
    paths = ssl.get_default_verify_paths()
    files = [Path(paths.cafile)] if paths.cafile else []
    if paths.capath:  # names by hash, as OpenSSL looks for them
        files += sorted(Path(paths.capath).glob("[0-9a-f]*.[0-9]*"))
    found = []
    for file in files:
        with contextlib.suppress(OSError):  # a link to a certificate that was removed
            found.append(file.read_bytes())
    return b"\n".join(found)
