"""What an instance does, whatever it listens on: its parts, wired in one place."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final

from nats.aio.client import Client
from nats.js import JetStreamContext
from ringcast_wire import EventLog, RingcastError

from ringcast_config_service.access import Access
from ringcast_config_service.audit import AuditTrail
from ringcast_config_service.config import Config
from ringcast_config_service.external_check.check import ExternalCheck
from ringcast_config_service.handlers import Handlers
from ringcast_config_service.histories import Histories
from ringcast_config_service.lifecycle import Lifecycle
from ringcast_config_service.maintenance import Duty, Maintenance, Term
from ringcast_config_service.nats.broker import AccountWatch
from ringcast_config_service.nats.fetch_server import FetchServer
from ringcast_config_service.nats.gone import GoneWorkers
from ringcast_config_service.nats.provisioner import Provisioner
from ringcast_config_service.nats.relay import Relay
from ringcast_config_service.policies import Policies
from ringcast_config_service.promql.conditions import Conditions
from ringcast_config_service.releases.canaries import Canaries
from ringcast_config_service.releases.driver import Releases, ReleaseWork
from ringcast_config_service.releases.dry_waves import DryWaves
from ringcast_config_service.releases.gates import Gates
from ringcast_config_service.releases.proofs import Proofs
from ringcast_config_service.releases.provisional import ProvisionalWaves
from ringcast_config_service.repository import Repository
from ringcast_config_service.telemetry import Telemetry
from ringcast_config_service.value_schemas import ValueSchemas
from ringcast_config_service.wire_pins import OpenCluster, WirePins
from ringcast_config_service.writes.group_writer import GroupWriter

log = EventLog(logging.getLogger(__name__))

_FORGET_MARKS: Final = 5_000
_CHECK_COUNTS_MS: Final = 86_400_000
"""How often the counts of all keys are compared with their rows."""


class Core:
    """Writes, the relay, fetches and upkeep over one repository and one connection. :meth:`work` is to be run."""

    def __init__(
        self,
        config: Config,
        repository: Repository,
        nc: Client,
        js: JetStreamContext,
        telemetry: Telemetry,
        instance_id: str,
        open_cluster: OpenCluster | None = None,
    ) -> None:
        self._config = config
        self._record = repository.maintenance
        self._measures = telemetry.measures
        self.provisioner = Provisioner(
            js,
            repository.stores,
            replicas=config.nats_replicas,
            interval_s=config.provision_interval_s,
            sizes=config.streams,
            telemetry=telemetry,
        )
        self.account = AccountWatch(nc, interval_s=config.provision_interval_s)
        self.histories = Histories(js, repository, self.provisioner, telemetry)
        self.relay = Relay(
            repository.events,
            nc,
            self.provisioner,
            batch=config.relay_batch,
            poll_s=config.relay_poll_s,
            duplicate=self.histories.duplicate,
            telemetry=telemetry,
        )
        self.provisioner.on_made = self.relay.reconnected
        self.provisioner.before_events = self.histories.before_events
        self.writer = GroupWriter(
            repository.writer, self.relay.committed, telemetry, transactions=repository.writer.write_lanes
        )
        self.schemas = ValueSchemas(repository, telemetry.measures)
        self.handlers = Handlers(repository, self.writer, self.provisioner, self.histories, self.schemas, telemetry)
        self.audit = AuditTrail(repository.audit, repository, retention_ms=config.audit_retention_ms)
        self.access = Access(repository.roles, telemetry.measures.refusals, self.audit)
        self.lifecycle = Lifecycle(
            repository,
            self.provisioner,
            gone=GoneWorkers(nc, js, repository.audit),
            retention_ms=config.deletion_retention_ms,
            forget=self._forget,
        )
        self.policies = Policies(repository, forget=self.handlers.forget)
        self.proofs = Proofs(nc, js, repository, instance_id)
        provisional = ProvisionalWaves(nc, js, repository)
        conditions = Conditions(config.promql, telemetry.measures.promql)
        self._release_work = ReleaseWork(
            repository,
            self.histories,
            Gates(repository.releases, self.proofs, provisional, conditions),
            self.relay.committed,
            telemetry.measures,
            ask_again=provisional.ask_again,
            instance_id=instance_id,
            staged_ms=config.staged_retention_ms,
            kept_ms=config.release_retention_ms,
        )
        self.releases = Releases(
            repository,
            self._release_work,
            self.schemas,
            conditions,
            ExternalCheck(
                config.external_check, telemetry.measures.external_checks, telemetry.measures.external_check_duration
            ),
            Canaries(nc, js, repository),
            DryWaves(nc, js, repository),
            staged_ms=config.staged_retention_ms,
        )
        self.fetches = FetchServer(
            nc, self.handlers, at_once=config.fetches, waiting=config.waiting_fetches, telemetry=telemetry
        )
        self.wire_pins = WirePins(js, repository.stores, open_cluster)
        self.maintenance = Maintenance(
            repository.lead,
            instance_id,
            telemetry.measures,
            lease_ms=config.maintenance_lease_ms,
            every_s=config.compaction_interval_s,
            duties=self._duties(),
        )

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run until the instance stops, by name."""
        return {
            "writer": self.writer.run(),
            "relay": self.relay.run(),
            "histories": self.histories.run(),
            "record": self.histories.watch(),
            "provision": self.provisioner.run(),
            "fetches": self.fetches.run(),
            "account": self.account.run(),
            "audit": self.audit.run(),
            "releases": self._release_work.run(),
            "maintenance": self.maintenance.run(),
        }

    def disconnected(self) -> None:
        """The connection to NATS was lost."""
        self.relay.disconnected()

    def reconnected(self) -> None:
        """It is back."""
        self.relay.reconnected()
        self.provisioner.check_now()  # the server may have come back without its disk

    def _forget(self, store: str) -> None:
        self.handlers.forget(store)
        self.schemas.forget(store)
        self.histories.forget(store)

    # ---- duties of maintenance

    def _duties(self) -> tuple[dict[str, Duty], ...]:
        """Those of one entry are done one after the other."""
        return (
            {"idempotency_keys": self._forget_marks, "compaction": self._compact, "counts": self._check_counts},
            {"audit_retention": self.audit.forget, "purge": self.lifecycle.purge_expired},
            {"wire_pins": self.wire_pins.keep},
        )

    async def _forget_marks(self, term: Term) -> None:
        """Removes old idempotency keys, a bounded number in a transaction."""
        older_than_ms = self._config.idempotency_retention_ms
        try:
            while await self._record.forget_marks(term.lead, older_than_ms, _FORGET_MARKS) == _FORGET_MARKS:
                pass
        except RingcastError as error:
            log.warning("idempotency_keys.postponed", error=error)

    async def _compact(self, term: Term) -> None:
        """Removes tombstones and revisions that are past their retention."""
        config = self._config
        try:
            done = await self._record.compact(term.lead, config.tombstone_retention_ms, config.history_retention_ms)
        except RingcastError as error:
            log.warning("compaction.postponed", error=error)
            return
        if done.tombstones or done.revisions:
            log.info("compaction.removed", tombstones=done.tombstones, revisions=done.revisions)

    async def _check_counts(self, term: Term) -> None:
        """Looks once a day whether the heads count the rows that are there."""
        try:
            async for store, key, partition in self._record.check_counts(term.lead, _CHECK_COUNTS_MS):
                self._measures.counts_repaired += 1
                log.error("counts.repaired", store=store, key=key, partition=partition)
        except RingcastError as error:
            log.warning("counts.postponed", error=error)
