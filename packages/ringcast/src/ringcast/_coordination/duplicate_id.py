"""Detection of another live process with the same worker id."""

from __future__ import annotations

import asyncio
from typing import Final

from ringcast_wire import EventLog, InUseError, LeaseRecord, NodeRecord, names

from ringcast._bus.buckets import Bucket
from ringcast._bus.bus import TRANSIENT
from ringcast._bus.refusals import RefusedError
from ringcast._common.config import WorkerConfig
from ringcast._coordination.lease import PATIENCE_S, LeaseSource
from ringcast._coordination.lease_reader import LeaseReader
from ringcast._protocol.kv_mirror import Entry
from ringcast._protocol.membership import Membership

_POLL_S: Final = 0.25


class DuplicateIdError(Exception):
    """Another live process has this worker's id; it may be about to end."""


class DuplicateIdCheck:
    """Compares the records under this worker's id with its incarnation and leases.

    Two processes with one worker id may have leases on different hosts; the records of a key show them each other.
    """

    def __init__(
        self,
        nodes: Bucket,
        membership: Membership,
        reader: LeaseReader,
        lease: LeaseSource,
        config: WorkerConfig,
        incarnation: str,
        log: EventLog,
    ) -> None:
        self._nodes = nodes
        self._membership = membership
        self._reader = reader
        self._lease = lease
        self._keys = config.keys
        self._worker_id = config.worker_id
        self._incarnation = incarnation
        self._log = log
        self._since: float | None = None

    async def wait_until_alone(self) -> None:
        """Waits until no other live process has this worker's id, before any of its records is touched.

        The watch has the id in its name, and so have the consumers, which are created for what is assigned: to create
        them at once would take them from a process that works.

        Raises:
            InUseError: there is one, and it lives on.
        """
        loop = asyncio.get_running_loop()
        since: float | None = None
        while True:
            try:
                view = await self._read_own_records()
            except RefusedError:
                return  # the watch reports it later
            except TRANSIENT as error:
                self._log.debug("records.read_failed", error=error)
                since = None
            else:
                found = (self._find(view, key) for key in self._keys)
                other = next((one for one in found if one is not None), None)
                if other is None:
                    return
                since = loop.time() if since is None else since
                if loop.time() >= since + PATIENCE_S:
                    raise self._in_use(other, view)
            await asyncio.sleep(_POLL_S)

    def found(self, key: str) -> bool:
        """Whether the members of a key show another live process with this worker's id."""
        return self._find(self._membership, key) is not None

    def check(self, key: str, *, registered: bool) -> None:
        """To be called before a key is registered; ``registered``: this process has been registered before.

        Raises:
            DuplicateIdError: there is another process, which may have died just now.
            InUseError: it lives, or came while this process took part.
        """
        now = asyncio.get_running_loop().time()
        other = self._find(self._membership, key)
        if other is None:
            return
        if self._since is None:
            self._since = now
        if not registered and now - self._since < PATIENCE_S:
            raise DuplicateIdError
        raise self._in_use(other, self._membership)

    async def _read_own_records(self) -> Membership:
        """The records under this worker's id, and the leases that they name, without a watch."""
        view = Membership()
        records = [names.node_key(key, self._worker_id) for key in self._keys]
        for name, entry in zip(records, await asyncio.gather(*map(self._nodes.get, records)), strict=True):
            view.nodes.correct(name, entry)
        leases = sorted(view.named(self._keys) - self._lease.ids)
        for lease, found in (await self._reader.read_once(leases) if leases else {}).items():
            view.leases.correct(lease, Entry(found.revision, found.value))
        return view

    def _find(self, view: Membership, key: str) -> NodeRecord | None:
        return view.duplicate_worker(key, self._worker_id, self._incarnation, self._lease.ids)

    def _in_use(self, other: NodeRecord, view: Membership) -> InUseError:
        self._lease.id_in_use = True
        lease = view.leases.get(other.lease, LeaseRecord)
        where = f" on host {lease.host}" if lease is not None else ""
        return InUseError(f"worker id {self._worker_id!r} is in use by another process{where}", field="worker_id")
