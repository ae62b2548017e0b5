"""The parts of the auth callout, wired in one place."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from nats.aio.client import Client
from ringcast_wire import NatsLogin

from ringcast_config_service.access import Access
from ringcast_config_service.callout.permits import Permits
from ringcast_config_service.callout.revocation import Revocation
from ringcast_config_service.callout.server import CalloutServer
from ringcast_config_service.callout.settings import CalloutSettings
from ringcast_config_service.telemetry import Measures


def callout_login(settings: CalloutSettings, service: NatsLogin) -> NatsLogin:
    """The login of the callout's connection; over TLS as the service's own."""
    return msgspec.structs.replace(
        service,
        user=settings.user,
        password=settings.password,
        password_file=settings.password_file,
        credentials_file="",
        nkey_seed_file="",
    )


async def callout_work(
    nc: Client, settings: CalloutSettings, access: Access, measures: Measures
) -> dict[str, Coroutine[Any, Any, None]]:
    """Begins to take requests; what is to run until the instance stops, by name."""
    permits = Permits(
        settings.token_file, access, consumer_prefix=settings.consumer_prefix, partitions=settings.partitions
    )
    access.worker_tokens = permits.known_tokens
    measures.unusable_files["worker_tokens"] = lambda: permits.file_unusable
    server = CalloutServer(
        nc,
        permits,
        settings.signer(),
        settings.sealer(),
        measures,
        waiting=settings.requests,
        valid_s=settings.valid_s,
    )
    await server.start()
    return {"callout": server.run(), "revocation": Revocation(nc, permits, measures).run()}
