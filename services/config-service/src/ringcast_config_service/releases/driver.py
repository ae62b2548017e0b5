"""Releases: staged, published and undone by callers, and the work that this takes, which any instance does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ringcast_core import row_partition
from ringcast_wire import (
    DEFAULT_GATE,
    Backoff,
    EventLog,
    InternalError,
    InvalidInputError,
    ReleaseGate,
    ReleaseState,
    RingcastError,
    UnavailableError,
    check_canary,
    check_gate,
    check_idempotency_key,
    check_row,
    check_row_id,
    limits,
    names,
    shown,
)

from ringcast_config_service.external_check.check import ExternalCheck
from ringcast_config_service.histories import Histories
from ringcast_config_service.promql.conditions import Conditions
from ringcast_config_service.releases.canaries import Canaries
from ringcast_config_service.releases.dry_waves import DryWaves
from ringcast_config_service.releases.gates import Gates
from ringcast_config_service.repository import (
    Authorship,
    Canary,
    OutboxRecord,
    Release,
    ReleaseRow,
    Repository,
    RowRelease,
    RowWrite,
    StageBatch,
    StagedRow,
    Step,
)
from ringcast_config_service.telemetry import RELEASE_STATES, Measures
from ringcast_config_service.value_schemas import ValueSchemas
from ringcast_config_service.writes.batches import Rejected, RowInput, check_row_policy
from ringcast_config_service.writes.terms import KeyedRow

log = EventLog(logging.getLogger(__name__))

TAKEOVER_MS: Final = 5_000
"""An instance goes on with a release at which no other has worked for so long."""
HALTED_AFTER_S: Final = 30.0
"""A release has halted once its steps could not be done for so long, and at once when one was refused."""
_POLL_S: Final = 2.0
MAX_GATES: Final = 32
"""Releases that one instance judges at once; others wait, or are another instance's."""
_EXPIRY_S: Final = 60.0
_COUNT_S: Final = 15.0
"""How old the metric of releases by state may be."""
_ROW_RELEASES: Final = 20
_MAX_PROBLEM_CHARS: Final = 500
_MAX_DIGEST_CHARS: Final = 128


class ReleasePage(NamedTuple):
    """Rows of a release, and the place behind which to go on; 0: that was all."""

    rows: list[ReleaseRow]
    next: int


class Staged(NamedTuple):
    """What became of a batch of rows."""

    release: Release
    rejected: list[Rejected]


class Releases:
    """What callers may do with releases; ``work`` does what follows from it."""

    def __init__(
        self,
        repository: Repository,
        work: ReleaseWork,
        schemas: ValueSchemas,
        conditions: Conditions,
        external: ExternalCheck,
        canaries: Canaries,
        dry_waves: DryWaves,
        *,
        staged_ms: int,
    ) -> None:
        self._schemas = schemas
        self._releases = repository.releases
        self._conditions = conditions
        self._external = external
        self._canaries = canaries
        self._dry_waves = dry_waves
        self._stores = repository.stores
        self._work = work
        self._staged_ms = staged_ms

    async def stage(
        self,
        store: str,
        stage_id: str,
        sequence: int,
        rows: Sequence[KeyedRow],
        by: Authorship,
        *,
        complete: bool,
        skip_invalid: bool = False,
    ) -> Staged:
        """Stores one batch of rows of a release; the last one completes it. ``skip_invalid``: without invalid rows.

        Raises:
            InvalidInputError: a row is invalid and ``skip_invalid`` is not set, or has no condition; or the batch is
                too large or not the next one.
        """
        record = await self._stores.get_record(names.check_name("store", store))
        check_idempotency_key(stage_id)
        if sequence < 0:
            raise InvalidInputError(f"sequence {sequence} is below 0", field="sequence")
        if len(rows) > limits.MAX_BATCH_ROWS:
            raise InvalidInputError(
                f"rows has {len(rows)} entries: at most {limits.MAX_BATCH_ROWS} are allowed in a batch", field="rows"
            )
        checks = await self._schemas.looked_at(store, ((key, row.value, row.metadata) for key, row in rows))
        checked = []
        rejected: list[Rejected] = []
        total = 0
        for index, (key, row) in enumerate(rows):
            try:
                names.check_name("key", key)
                condition = _condition(row)
            except InvalidInputError as error:
                raise _of_batch(index, error) from error
            try:
                size = check_row(row.row_id, row.value or "", row.metadata)
                if row.value is not None:
                    check_row_policy(row.row_id, size, record.policy.max_row_bytes)
                    if key in checks:
                        checks[key].check(row.row_id, row.value, row.metadata)
            except InvalidInputError as error:
                if not skip_invalid:
                    raise _of_batch(index, error) from error
                rejected.append(Rejected(index, row.row_id, str(error), error.rule, error.field))
                continue
            partition = row_partition(row.row_id, record.partition_count)
            metadata = dict(row.metadata) if row.metadata else None
            total += size
            checked.append(StagedRow(key, RowWrite(partition, row.row_id, row.value, metadata, size, condition)))
        if total > limits.MAX_BATCH_BYTES:
            raise InvalidInputError(
                f"rows has {total} bytes: at most {limits.MAX_BATCH_BYTES} are allowed in a batch", field="rows"
            )
        release = await self._releases.stage(record, StageBatch(stage_id, sequence, checked, complete), by)
        if complete:
            log.info("release.staged", store=store, release=release.number, rows=release.rows)
        return Staged(release, rejected)

    async def newest(self, store: str, before: int, limit: int) -> list[Release]:
        """Releases of a store with a number below ``before`` (0: all), the newest first."""
        most = _check_limit(limit, limits.MAX_RELEASE_PAGE)
        return await self._releases.newest(names.check_name("store", store), before or 2**62, most)

    async def get(self, store: str, number: int) -> Release:
        """A release with its keys."""
        return await self._releases.get(names.check_name("store", store), number)

    async def rows(self, store: str, number: int, after: int, limit: int, *, conflicts_only: bool) -> ReleasePage:
        """A page of the rows of a release, behind a place."""
        most = _check_limit(limit, limits.MAX_BATCH_ROWS)
        words = names.check_name("store", store), number, after, most, limits.MAX_BATCH_BYTES
        found = await self._releases.rows(*words, conflicts_only=conflicts_only)
        return ReleasePage(found, found[-1].place if found else 0)

    async def of_row(self, store: str, key: str, row_id: str) -> list[RowRelease]:
        """The newest releases that have a row, as long as their rows are kept."""
        names.check_name("store", store)
        return await self._releases.of_row(store, names.check_name("key", key), check_row_id(row_id), _ROW_RELEASES)

    async def publish(
        self,
        store: str,
        number: int,
        by: Authorship,
        waves: Sequence[int] = (),
        gate: ReleaseGate = DEFAULT_GATE,
        canary: str = "",
        dry_wave: bool = False,
    ) -> Release:
        """Begins to publish a release, in waves if there are any, with a gate behind each; again: changes nothing, and
        this instance works at it. ``canary``: a label; the first wave is then what workers with it own now.

        ``dry_wave``: these workers judge before what is staged for them, within the patience of the gate.

        PromQL conditions of the gate are asked before, and the external check where the policy of the store wants it:
        with what can't be met, or is not allowed, nothing is published.
        """
        words = names.check_name("store", store), number, self._staged_ms, by
        rollout = check_canary(canary, waves, dry_wave=dry_wave)[dry_wave:], check_gate(gate, waves)
        first = Canary(canary)
        if gate.promql or canary:
            release = await self._releases.get(store, number)
            if release.state is ReleaseState.STAGED:
                if gate.promql:
                    await self._conditions.check(release.place, gate.promql)
                if canary:
                    first = await self._canaries.find(release, canary)
                if dry_wave:
                    await self._dry_waves.hold(release, first, gate.patience_ms / 1000)
        allowed = await self._is_allowed(store, number)
        return self._begun(await self._releases.publish(*words, *rollout, first, allowed=allowed), by)

    async def _is_allowed(self, store: str, number: int) -> bool:
        """Whether the external check has allowed what is staged; false where it needs not be asked."""
        if not (await self._stores.get_record(store)).policy.external_check:
            return False
        release = await self._releases.get(store, number)
        if release.state is not ReleaseState.STAGED:
            return False
        await self._external.check(release)
        return True

    async def approve(self, store: str, number: int, by: Authorship, digest: str = "") -> Release:
        """Notes that a principal approves what is staged as a release; ``digest``: of what it has seen, empty: any."""
        if len(digest) > _MAX_DIGEST_CHARS:
            raise InvalidInputError(
                f"digest has {len(digest)} characters: at most {_MAX_DIGEST_CHARS} are allowed", field="digest"
            )
        release = await self._releases.approve(names.check_name("store", store), number, by, digest)
        log.info("release.approved", store=store, release=number, principal=by.author)
        return release

    async def revoke_approval(self, store: str, number: int, by: Authorship) -> Release:
        """Takes the approval of a principal back."""
        release = await self._releases.revoke(names.check_name("store", store), number, by)
        log.info("release.approval_revoked", store=store, release=number, principal=by.author)
        return release

    async def pause(self, store: str, number: int, by: Authorship) -> Release:
        """Has no more rows published of a release with waves."""
        return self._begun(await self._releases.pause(names.check_name("store", store), number, by), by)

    async def resume(self, store: str, number: int, by: Authorship) -> Release:
        """Lets a release go on that was paused."""
        return self._begun(await self._releases.resume(names.check_name("store", store), number, by), by)

    async def stop(self, store: str, number: int, by: Authorship) -> Release:
        """Ends a release with waves where it is."""
        return self._begun(await self._releases.stop(names.check_name("store", store), number, by), by)

    async def undo(self, store: str, number: int, by: Authorship) -> Release:
        """Begins to undo a release, in the same way."""
        return self._begun(await self._releases.undo(names.check_name("store", store), number, by), by)

    async def drop(self, store: str, number: int, by: Authorship) -> Release:
        """Drops a release that is not published."""
        return self._begun(await self._releases.drop(names.check_name("store", store), number, by), by)

    async def pin(self, store: str, number: int, by: Authorship) -> Release:
        """Keeps the rows of a release and of all after it."""
        return await self._releases.pin(names.check_name("store", store), number, by)

    async def unpin(self, store: str, number: int, by: Authorship) -> Release:
        """Takes that back."""
        return await self._releases.unpin(names.check_name("store", store), number, by)

    def _begun(self, release: Release, by: Authorship) -> Release:
        self._work.ask_again(release)
        if release.work:
            facts = {"store": release.store, "release": release.number, "state": str(release.state)}
            log.info("release.begun", **facts, principal=by.author)
            self._work.take(release.store, release.number)
        return release


def _of_batch(index: int, error: InvalidInputError) -> InvalidInputError:
    return InvalidInputError(f"row {index} of the batch: {error}", field=error.field)


def _condition(row: RowInput) -> int:
    if row.condition is None or (row.value is None and not row.condition):
        raise InvalidInputError(
            f"row {shown(row.row_id)} has no condition: a change in a release says what it was made for",
            field="if_version",
        )
    return row.condition


def _check_limit(limit: int, most: int) -> int:
    if not 0 <= limit <= most:
        raise InvalidInputError(f"limit {limit} is out of range: 0 to {most} is allowed", field="limit")
    return limit or most


def _backoff() -> Backoff:
    return Backoff(lambda: 1.0, first_s=0.1, most_s=5.0)


@dataclass(slots=True)
class _Tries:
    """How the last steps of a release went here. ``due_s``: when the next one is to be tried."""

    due_s: float = 0.0
    failing_since_s: float | None = None
    backoff: Backoff = field(default_factory=_backoff)


class ReleaseWork:
    """Publishes, undoes and removes releases, step by step: those that callers here have begun, and those at which no
    instance has worked for ``takeover_ms``. Of several releases each has a step in turn.

    A step that could not be done is tried again, later each time (0.1 s to 5 s). One that was refused is tried again
    when nobody has worked at its release for ``takeover_ms``.
    """

    def __init__(
        self,
        repository: Repository,
        histories: Histories,
        gates: Gates,
        committed: Callable[[Sequence[OutboxRecord]], None],
        measures: Measures,
        *,
        ask_again: Callable[[Release], None],
        instance_id: str,
        staged_ms: int,
        kept_ms: int,
        takeover_ms: int = TAKEOVER_MS,
        halted_after_s: float = HALTED_AFTER_S,
    ) -> None:
        self._releases = repository.releases
        self._generation = repository.histories
        self._histories = histories
        self._committed = committed
        self._measures = measures
        self._instance_id = instance_id
        self._staged_ms = staged_ms
        self._kept_ms = kept_ms
        self._takeover_ms = takeover_ms
        self._halted_after_s = halted_after_s
        self._gates = gates
        self.ask_again = ask_again
        self._mine: dict[tuple[str, int], _Tries] = {}
        self._judging: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def take(self, store: str, number: int) -> None:
        """Something is to be done with a release."""
        self._mine[store, number] = _Tries()
        self._wake.set()

    async def run(self) -> None:
        """Works until it is cancelled, which may be anywhere."""
        try:
            await self._run()
        finally:
            judging = list(self._judging.values())
            for each in judging:
                each.cancel()
            await asyncio.gather(*judging, return_exceptions=True)

    async def _run(self) -> None:
        expiry_s = count_s = time.monotonic()
        while True:
            try:
                for place in await self._releases.due(self._takeover_ms):
                    self._mine.setdefault(place, _Tries())
                if time.monotonic() >= expiry_s:
                    expiry_s = time.monotonic() + _EXPIRY_S
                    await self._expire()
                if time.monotonic() >= count_s:
                    count_s = time.monotonic() + _COUNT_S
                    self._measures.releases = dict.fromkeys(RELEASE_STATES, 0) | await self._releases.counts()
            except RingcastError as error:
                log.warning("releases.unreadable", error=error)
            poll_s = time.monotonic() + _POLL_S
            while (now_s := time.monotonic()) < poll_s:
                self._wake.clear()
                if ready := [each for each in self._mine.items() if each[1].due_s <= now_s]:
                    for place, tries in ready:
                        await self._turn(*place, tries)
                else:
                    next_s = min([poll_s, *(tries.due_s for tries in self._mine.values())])
                    await self._wait(next_s - now_s)

    async def _wait(self, most_s: float) -> None:
        """Until there is something new to do, for ``most_s`` at most."""
        try:
            async with asyncio.timeout(most_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _expire(self) -> None:
        while (release := await self._releases.expire(self._staged_ms, self._kept_ms)) is not None:
            log.info("release.expired", store=release.store, release=release.number, state=str(release.state))
            self._mine[release.store, release.number] = _Tries()

    async def _turn(self, store: str, number: int, tries: _Tries) -> None:
        try:
            step = await self._step(store, number)
            if step.done and step.release.at_gate:
                self._open_gate(step.release, tries)
                return
        except UnavailableError as error:
            await self._failed(store, number, tries, error)
        except RingcastError as error:
            await self._halt(store, number, tries, error)
        except Exception as error:
            log.error("release.failed", exc_info=True, store=store, release=number)
            await self._failed(store, number, tries, InternalError(f"the step failed: {type(error).__name__}"))
        else:
            tries.failing_since_s = None
            tries.backoff.reset()
            if step.done:
                self._forget(store, number, tries)
                release = step.release
                if release.state in {ReleaseState.PUBLISHED, ReleaseState.UNDONE} and release.kept:
                    facts = {"published": release.published, "undone": release.undone, "skipped": release.skipped}
                    log.info("release.done", store=store, release=number, state=str(release.state), **facts)

    async def _step(self, store: str, number: int) -> Step:
        started_s = time.perf_counter()
        if not self._histories.is_open(store):
            await self._histories.open(store)
        step = await self._releases.step(store, number, self._generation.generation)
        if step.events:
            self._committed(step.events)
        for key, rows in step.counts:
            self._measures.wrote(store, key, rows, "ok", time.perf_counter() - started_s)
        return step

    async def _failed(self, store: str, number: int, tries: _Tries, error: RingcastError) -> None:
        """A step could not be done, and may be in a moment."""
        now_s = time.monotonic()
        if tries.failing_since_s is None:
            tries.failing_since_s = now_s
        if now_s - tries.failing_since_s >= self._halted_after_s:
            await self._halt(store, number, tries, error)
            return
        tries.due_s = now_s + tries.backoff.next_s()
        log.info("release.postponed", store=store, release=number, failures=tries.backoff.failures, error=error)

    async def _halt(self, store: str, number: int, tries: _Tries, error: RingcastError) -> None:
        self._forget(store, number, tries)
        log.warning("release.halted", store=store, release=number, error=error)
        try:
            await self._releases.set_problem(store, number, str(error)[:_MAX_PROBLEM_CHARS])
        except RingcastError as unnoted:
            log.warning("releases.unreadable", error=unnoted)

    def _open_gate(self, release: Release, tries: _Tries) -> None:
        """Has it judged whether the next wave may follow, beside all other work."""
        place = release.store, release.number
        if place not in self._judging and len(self._judging) >= MAX_GATES:
            tries.due_s = time.monotonic() + _POLL_S  # another instance may have a place for it before
            return
        self._forget(*place, tries)
        if place not in self._judging:
            self._judging[place] = asyncio.create_task(self._judge(release), name=f"gate-{release.number}")

    async def _judge(self, release: Release) -> None:
        place, rollout = (release.store, release.number), release.rollout
        assert rollout is not None
        facts = {"store": release.store, "release": release.number, "wave": rollout.wave}
        try:
            judgement = await self._gates.judged(release)
            if judgement is not None and judgement.why:
                log.warning("release.gate_failed", **facts, why=judgement.why)
                self.ask_again(await self._releases.fail_gate(*place, rollout.wave, judgement.why))
            elif judgement is not None:
                passed = await self._releases.pass_gate(*place, rollout.wave, judgement.proven, self._instance_id)
                log.info("release.wave_passed", **facts, waves=len(rollout.waves), proven=passed.proven_at_ms > 0)
        except RingcastError as error:
            log.warning("release.gate_unjudged", **facts, error=error)
            return  # the instance that finds it without work judges it again
        except Exception:
            log.error("release.failed", exc_info=True, store=release.store, release=release.number)
            return
        finally:
            del self._judging[place]
        self.take(*place)

    def _forget(self, store: str, number: int, tries: _Tries) -> None:
        """There is nothing to do for now, unless a caller has begun something meanwhile."""
        if self._mine.get((store, number)) is tries:
            del self._mine[store, number]
