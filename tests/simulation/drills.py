"""What is tried while all is well, or nearly: one thing happens, and everything else has to go on at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ringcast._protocol.planned import MOST
from ringcast_wire import limits, names

from tests.simulation.checker import PROMPT_S
from tests.simulation.connection import REQUEST_TIMEOUT_S
from tests.simulation.worker import Worker
from tests.simulation.world import World

_QUIET_S: Final = 30.0
"""How long all have to find out that the database was restored, with no event that tells them."""
_HEADS_S: Final = 13.0
"""Within this time every worker has compared with the heads."""

_OVER_TO_THE_AGENT_S: Final = 6.0
"""Within this time a worker that has come lives by its agent's lease alone, and an agent knows which workers do."""


def drill(world: World) -> None:
    """Writes while all is well, and then some of the drills, in any order."""
    random, scheduler = world.random, world.scheduler
    world.history.add(scheduler.now, "calm", True)
    _touch(world)
    _write_for(world, 2.0)
    for chosen in random.sample(_HOST_DRILLS, random.randint(1, len(_HOST_DRILLS))) if world.hosts else ():
        chosen(world)
    for chosen in random.sample(_DRILLS, random.randint(1, 4)):
        if not world.full:
            chosen(world)
    if not world.full and random.random() < 0.3:
        _die_unseen(world)  # last, so that what comes before is what it was without
    scheduler.run_until(scheduler.now + 5.0)
    world.history.add(scheduler.now, "calm", False)


def _write_for(world: World, time_s: float, every_s: float = 0.15) -> None:
    world.write_every_s = every_s
    world.write_until(world.scheduler.now + time_s)
    world.scheduler.run_until(world.scheduler.now + time_s)


def _touch(world: World) -> None:
    """Writes once to each partition while partitions move, then no more: no later event shows what was missed."""
    world.touch_each(within_s=0.5)
    world.scheduler.run_until(world.scheduler.now + PROMPT_S + 1.0)


def _join(world: World) -> None:
    world.start_worker("late")
    _touch(world)
    _settle(world)
    _touch(world)


def _leave(world: World) -> None:
    if worker := _spare(world):
        worker.stop()
        _touch(world)
        _settle(world)
        _touch(world)


def _settle(world: World) -> None:
    """Waits until those who come have come, and those who go have gone: what is tried next is to meet neither."""
    scheduler = world.scheduler
    until = scheduler.now + (MOST + 1.0) * world.settings.stabilisation_s + 2.0 * PROMPT_S
    while scheduler.now < until and any(
        worker.leaving or not all(session.vitals.assigned for session in worker.sessions.values())
        for worker in world.living()
    ):
        scheduler.run_until(scheduler.now + 0.1)
    scheduler.run_until(scheduler.now + 1.0)


def _come_and_go(world: World) -> None:
    """Workers come one after the other while one goes: until all that happens at once every partition has an owner."""
    scheduler, window_s = world.scheduler, world.settings.stabilisation_s
    for number in range(3):
        world.start_worker(f"c{number}")
        scheduler.run_until(scheduler.now + world.random.uniform(0.1, 0.9) * window_s)
        if number == 1 and (worker := _spare(world)):
            worker.stop()
    _settle(world)
    _touch(world)


def _lose_lease(world: World) -> None:
    """A worker is cut off until its lease has ended, and meanwhile NATS loses the events."""
    scheduler, random = world.scheduler, world.random
    worker = random.choice(world.living())
    with _cut_off(world, worker):
        _write_for(world, random.uniform(1.0, 9.0))
        world.broker.events().purge()
        scheduler.run_until(scheduler.now + limits.LEASE_TTL_S)
    scheduler.run_until(scheduler.now + 4.5)


def _lose_events(world: World) -> None:
    """NATS loses events with no sign of it: a comparison with the heads shows it."""
    with _trouble(world):
        world.broker.events().muted = True
        world.touch_each(within_s=0.5)
        world.scheduler.run_until(world.scheduler.now + 1.0)
        world.broker.events().purge()
        world.broker.events().muted = False
        world.scheduler.run_until(world.scheduler.now + _HEADS_S)
    world.scheduler.run_until(world.scheduler.now + PROMPT_S + 1.0)  # no later event shows what was missed


def _lose_consumer(world: World) -> None:
    """NATS loses a worker's consumer with no sign of it: the pull that falls silent shows it."""
    worker = world.random.choice(world.living())
    with _trouble(world):
        world.broker.events().lose_consumer(names.consumer_name("ringcast", worker.worker_id))
        world.scheduler.run_until(world.scheduler.now + 8.0)
    _touch(world)


def _wait_for_a_row(world: World) -> None:
    """A row can't be fetched by its name. Its partition can, after which no other change may wait for the row."""
    scheduler, random = world.scheduler, world.random
    worker, key = random.choice(world.living()), random.choice(world.keys)
    if (row_id := world.row_of(worker, key)) is None:
        return
    scheduler.run_until(scheduler.now + 1.0)  # what was written before is not to be fetched together with the row
    world.history.add(scheduler.now, "calm", False)
    world.database.unreadable.add(row_id)
    world.put(key, row_id, "x" * (limits.DEFAULT_INLINE_BYTES + 1))
    scheduler.run_until(scheduler.now + random.uniform(8.0, 20.0))  # the pauses between the tries have become long
    with _cut_off(world, worker):
        world.put(key, row_id, "y")
        scheduler.run_until(scheduler.now + 1.0)
        world.broker.events().purge()  # so it is the heads that tell of this one
    scheduler.run_until(scheduler.now + 1.0)
    world.database.unreadable.clear()
    _touch(world)


def _change_unheard(world: World) -> None:
    """The answers to a change of filters get lost, and before that is noticed the change is not wanted any more."""
    scheduler = world.scheduler
    workers = world.living()
    with _trouble(world):
        for worker in workers:
            worker.link.answers_lost = True
        world.start_worker("brief")
        scheduler.run_until(scheduler.now + 2.0)
        brief = world.workers["brief"]
        brief.stop()
        scheduler.run_until(scheduler.now + 1.0)
        for worker in workers:
            worker.link.answers_lost = False
        scheduler.run_until(scheduler.now + REQUEST_TIMEOUT_S + 2.0)
    _settle(world)
    _touch(world)


def _take_slot(world: World) -> None:
    """A worker whose slot was given away needs another, and the marker of the one that is free has expired unseen."""
    scheduler = world.scheduler
    leaver = _spare(world)
    if leaver is None or world.marker_s > 60.0:
        return
    with _trouble(world):
        leaver.stop()
        _settle(world)
        scheduler.run_until(scheduler.now + world.marker_s + 2.0)
        worker = world.random.choice(world.living())
        worker.pause()
        scheduler.run_until(scheduler.now + limits.LEASE_TTL_S + 1.0)
        world.start_worker("heir")
        scheduler.run_until(scheduler.now + 2.0)
        worker.resume()
        scheduler.run_until(scheduler.now + 8.0)
    _settle(world)
    _touch(world)


def _overlook(world: World) -> None:
    """For a moment some server does not have the lease of a worker that lives, so that others may take it for dead."""
    scheduler = world.scheduler
    with _trouble(world):
        world.broker.overlooked.add(world.random.choice(world.living()).lease_id)
        scheduler.run_until(scheduler.now + world.random.uniform(1.0, 6.0))
        world.broker.overlooked.clear()
        scheduler.run_until(scheduler.now + 8.0)
    _touch(world)


def _die(world: World) -> None:
    """Workers die at once, and the others take over a moment after the leases have ended."""
    scheduler, random = world.scheduler, world.random
    with _trouble(world):
        workers = [worker for worker in world.workers.values() if worker.alive]
        for worker in random.sample(workers, max(0, min(random.randint(1, 3), len(workers) - 1))):
            worker.crash()
        scheduler.run_until(scheduler.now + limits.LEASE_SEEN_TO_END_S + 1.0)
    _touch(world)


def _die_unseen(world: World) -> None:
    """A worker dies, of which one that is cut off learns when it is back: the others have shared out without both."""
    scheduler, random = world.scheduler, world.random
    while len(world.living()) < 3:
        world.start_worker(f"e{len(world.living())}")
    _settle(world)
    worker, dying = random.sample(world.living(), 2)
    world.history.add(scheduler.now, "calm", False)
    dying.crash()
    ended_at = scheduler.now + limits.LEASE_SEEN_TO_END_S + 2.0
    scheduler.run_until(scheduler.now + random.choice((0.0, random.uniform(0.0, 9.0))))
    with _cut_off(world, worker):
        scheduler.run_until(ended_at)
    _touch(world)


def _restore(world: World) -> None:
    """The database is restored from a backup. New writes overtake what was lost, or nobody writes at all."""
    scheduler = world.scheduler
    with _trouble(world):
        scheduler.run_until(scheduler.now + 2.0)
        world.database.back_up()
        _write_for(world, world.random.uniform(0.2, 2.0))
        scheduler.run_until(scheduler.now + PROMPT_S)
        world.restore(wiped=world.random.random() < 0.5)
        if world.random.random() < 0.5:
            _write_for(world, 2.0)
        scheduler.run_until(scheduler.now + _QUIET_S)
        world.note_rows()
    _touch(world)


def _die_under_an_agent(world: World) -> None:
    """A worker dies and its agent lives: the agent deletes its records at once, and nobody waits for a lease to end."""
    scheduler = world.scheduler
    while len(world.living()) < 2:
        world.start_worker(f"h{len(world.living())}")
    _settle(world)
    scheduler.run_until(scheduler.now + _OVER_TO_THE_AGENT_S)
    workers = [worker for worker in world.workers.values() if worker.alive and worker.by_agent]
    if workers:
        worker = world.random.choice(workers)
        world.history.add(scheduler.now, "dies", worker.name)
        worker.crash()
        _touch(world)
        _settle(world)


def _agent_dies(world: World) -> None:
    """An agent dies, or stops and goes on, and nothing else does: no partition moves, and no change is late."""
    scheduler, random = world.scheduler, world.random
    host = random.choice(world.hosts)
    _settle(world)
    scheduler.run_until(scheduler.now + _OVER_TO_THE_AGENT_S)
    world.history.add(scheduler.now, "still", True)
    if host.agent is not None and random.random() < 0.7:
        host.agent.crash()
    elif host.agent is not None:
        host.agent.pause()
    _write_for(world, random.uniform(0.05, random.choice((2.0, 25.0))))
    if host.agent is not None and host.agent.alive:
        host.agent.resume()
    elif random.random() < 0.7 and not host.gone:
        world.start_agent(host)
    else:
        host.gone = True
    _write_for(world, 15.0)
    world.history.add(scheduler.now, "still", False)


_HOST_DRILLS: Final = (_die_under_an_agent, _agent_dies)

_DRILLS: Final = (
    _join,
    _leave,
    _come_and_go,
    _lose_lease,
    _lose_events,
    _lose_consumer,
    _wait_for_a_row,
    _change_unheard,
    _take_slot,
    _overlook,
    _die,
    _restore,
)


def _spare(world: World) -> Worker | None:
    """A worker that others can do without."""
    workers = [worker for worker in world.workers.values() if worker.alive]
    return world.random.choice(workers) if len(workers) > 1 else None


@contextmanager
def _trouble(world: World) -> Iterator[None]:
    """Within the block nothing has to be prompt; at its end all has to be well."""
    world.history.add(world.scheduler.now, "calm", False)
    yield
    world.history.add(world.scheduler.now, "calm", True)


@contextmanager
def _cut_off(world: World, worker: Worker) -> Iterator[None]:
    """A worker has no connection within the block; all is well again from the moment at which it has one."""
    scheduler, link = world.scheduler, worker.link
    world.history.add(scheduler.now, "calm", False)
    link.blocked = True
    link.cut()
    yield
    link.on_back.insert(0, lambda: world.history.add(scheduler.now, "calm", True))
    link.blocked = False
    while not link.connected:
        scheduler.run_until(scheduler.now + 0.5)
