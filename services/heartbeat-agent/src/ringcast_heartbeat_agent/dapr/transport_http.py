"""Dapr's API over HTTP: configuration, health and metadata; the status of the agent; decisions about blocked rows."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web
from ringcast.hosting import ConfigurationItem
from ringcast_wire import limits, shown

from ringcast_heartbeat_agent.clients import Here, Trusted, enter, peer_of
from ringcast_heartbeat_agent.config import Config
from ringcast_heartbeat_agent.dapr.callbacks import CallbackSender
from ringcast_heartbeat_agent.dapr.handlers import Handlers
from ringcast_heartbeat_agent.dapr.web_pages import PageGuard
from ringcast_heartbeat_agent.dispatch.groups import Dispatch
from ringcast_heartbeat_agent.errors import DaprError, no_shutdown, unsubscribe_message
from ringcast_heartbeat_agent.status import Status
from ringcast_heartbeat_agent.telemetry import Measures

_VERSIONS: Final = ("v1.0", "v1.0-alpha1")
_METHODS: Final = frozenset(
    {
        "get",
        "subscribe",
        "unsubscribe",
        "metadata",
        "set_metadata",
        "shutdown",
        "health",
        "outbound",
        "status",
        "resolve",
    }
)
_METADATA: Final = "metadata."
_MAX_BODY: Final = limits.MIB
"""Bytes of a request's body: 1,000 row ids of 512 bytes fit in."""
_MAX_LINE: Final = limits.MIB
"""Characters of a request's first line: 1,000 keys of 577 bytes fit in."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Decision(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What is asked about the blocked rows of a group. Without ``row_ids``: about all of them."""

    store: str
    key: str
    group: str
    row_ids: list[str] | None = None
    discard: bool = False


class HttpServer:
    """Listens from :meth:`start` to :meth:`stop`. ``unhealthy_because`` says why changes may be missed, if so."""

    def __init__(
        self,
        config: Config,
        handlers: Handlers,
        callbacks: CallbackSender,
        measures: Measures,
        status: Status,
        dispatch: Dispatch,
        *,
        unhealthy_because: Callable[[], str],
    ) -> None:
        self._config = config
        self._handlers = handlers
        self._callbacks = callbacks
        self._measures = measures
        self._agent_status = status
        self._dispatch = dispatch
        self._unhealthy_because = unhealthy_because
        self._trusted = Trusted(config.trusted_uids())
        self._pages = PageGuard(config)
        self._stopping = False
        self.port = 0
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[self._around])
        for version in _VERSIONS:
            at = f"/{version}/configuration/{{store}}"
            app.router.add_get(at, self._get)
            app.router.add_get(f"{at}/subscribe", self._subscribe)
            app.router.add_get(f"{at}/{{id}}/unsubscribe", self._unsubscribe)
        app.router.add_get("/v1.0/healthz", self._health)
        app.router.add_get("/v1.0/healthz/outbound", self._outbound)
        app.router.add_get("/v1.0/metadata", self._metadata)
        app.router.add_put("/v1.0/metadata/{name}", self._set_metadata)
        app.router.add_post("/v1.0/shutdown", self._shutdown)
        app.router.add_get("/ringcast/v1/status", self._status)
        app.router.add_post("/ringcast/v1/resolve", self._resolve)
        self._runner = web.AppRunner(app, access_log=None, max_line_size=_MAX_LINE, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Takes the port.

        Raises:
            OSError: it can't be used.
        """
        host, _, port = self._config.http_listen.rpartition(":")
        await self._runner.setup()
        site = web.TCPSite(self._runner, host.strip("[]"), int(port))
        try:
            await site.start()
        except OSError as error:
            raise OSError(f"http_listen {self._config.http_listen} can't be used: {error.strerror or error}") from error
        self.port = self._runner.addresses[0][1]

    def set_stopping(self) -> None:
        """Health says from now on that the agent is not ready."""
        self._stopping = True

    async def stop(self) -> None:
        """Closes the port."""
        await self._runner.cleanup()

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Looks at the token, and turns errors into Dapr's answers."""
        if refusal := self._pages.refusal(request.headers):
            return web.Response(status=403, text=refusal)
        if handler not in (self._health, self._outbound) and not await self._may_call(request):
            return web.Response(status=401, text="invalid api token")
        since, outcome = time.monotonic(), "ok"
        try:
            return await handler(request)
        except DaprError as error:
            outcome = error.code
            return _error(error.http, error.code, str(error))
        except web.HTTPException as error:
            outcome = str(error.status)
            if error.status not in (404, 405):
                raise
            return _error(
                error.status,
                "ERR_METHOD_NOT_FOUND",
                f"method {shown(f'{request.method} {request.path}')} is not found: "
                "this is no daprd, but a Ringcast agent, which serves configuration, health and metadata",
            )
        finally:
            method = getattr(handler, "__name__", "unknown").lstrip("_")
            known = method if method in _METHODS else "unknown"
            self._measures.request_answered("http", known, outcome, time.monotonic() - since)

    async def _may_call(self, request: web.Request) -> bool:
        """Whether a caller sends the token, or needs none."""
        token, given = self._config.api_token, request.headers.get("dapr-api-token", "")
        if not token or hmac.compare_digest(given.encode(errors="replace"), token.encode()):
            return True
        return not given and await self._trusted.includes(*_ends(request))

    async def _get(self, request: web.Request) -> web.Response:
        store, keys = request.match_info["store"], request.query.getall("key", [])
        items = await self._handlers.get(store, keys, _metadata_of(request), _json_size)
        if not items:
            return web.Response(status=204)
        body = json.dumps({name: _shown(item) for name, item in items.items()}).encode()
        self._handlers.check_size(store, keys, len(body))
        return web.Response(body=body, content_type="application/json")

    async def _subscribe(self, request: web.Request) -> web.Response:
        await enter(*_ends(request))
        subscription = await self._handlers.subscribe(
            request.match_info["store"], request.query.getall("key", []), "http", _metadata_of(request)
        )
        self._callbacks.follow(subscription)
        return web.json_response({"id": subscription.id})

    async def _unsubscribe(self, request: web.Request) -> web.Response:
        subscription_id = request.match_info["id"]
        if self._handlers.unsubscribe(subscription_id):
            return web.json_response({"ok": True})
        return web.json_response({"message": unsubscribe_message(subscription_id)}, status=500)

    async def _health(self, request: web.Request) -> web.Response:
        if self._stopping:
            return _error(500, "ERR_HEALTH_NOT_READY", "dapr is not ready")
        app_id, known = request.query.get("appid"), self._handlers.metadata()["id"]
        if app_id is not None and app_id != known:
            return _error(500, "ERR_HEALTH_APPID_NOT_MATCH", "dapr app-id does not match")
        return web.Response(status=204)

    async def _outbound(self, _request: web.Request) -> web.Response:
        why = "the agent is stopping" if self._stopping else self._unhealthy_because()
        if why:
            return _error(500, "ERR_OUTBOUND_HEALTH_NOT_READY", f"dapr outbound is not ready: {why}")
        return web.Response(status=204)

    async def _status(self, _request: web.Request) -> web.Response:
        return web.json_response(self._agent_status.document())

    async def _resolve(self, request: web.Request) -> web.Response:
        if request.content_type != "application/json":  # which no page of another site can send unasked
            return _error(415, "ERR_MALFORMED_REQUEST", "the body must be application/json")
        try:
            asked = msgspec.json.decode(await request.read(), type=Decision)
        except msgspec.MsgspecError as error:
            return _error(400, "ERR_MALFORMED_REQUEST", f"the body is no decision about blocked rows: {error}")
        if asked.row_ids is not None and not 1 <= len(asked.row_ids) <= limits.MAX_BATCH_ROWS:
            message = f"row_ids has {len(asked.row_ids)} entries: 1 to {limits.MAX_BATCH_ROWS} are allowed"
            return _error(400, "ERR_MALFORMED_REQUEST", message)
        group = self._dispatch.group(asked.store, asked.key, asked.group)
        if group is None:
            message = f"there is no group {shown(asked.group)} of {shown(asked.store)}/{shown(asked.key)} on this host"
            return _error(404, "ERR_GROUP_NOT_FOUND", message)
        wanted = None if asked.row_ids is None else dict.fromkeys(asked.row_ids)
        resolved = dict.fromkeys(group.resolve(wanted, discard=asked.discard))
        not_blocked = [row_id for row_id in wanted or () if row_id not in resolved]
        return web.json_response({"resolved": [*resolved], "not_blocked": not_blocked})

    async def _metadata(self, _request: web.Request) -> web.Response:
        return web.json_response(self._handlers.metadata())

    async def _set_metadata(self, request: web.Request) -> web.Response:
        body = await request.read()
        self._handlers.set_metadata(request.match_info["name"], body.decode(errors="replace"))
        return web.Response(status=204)

    async def _shutdown(self, _request: web.Request) -> web.Response:
        raise no_shutdown()


def _ends(request: web.Request) -> tuple[str, Here]:
    return peer_of(request.get_extra_info("peername")), Here.of(request.get_extra_info("sockname"))


def _metadata_of(request: web.Request) -> dict[str, str]:
    return {name.removeprefix(_METADATA): value for name, value in request.query.items() if name.startswith(_METADATA)}


def _shown(item: ConfigurationItem) -> dict[str, object]:
    return {"value": item.value, "version": item.version, "metadata": dict(item.metadata)}


def _json_size(name: str, item: ConfigurationItem) -> int:
    return len(json.dumps({name: _shown(item)}))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"errorCode": code, "message": message}, status=status)
