"""Broken groups. Each takes one rule away by which hosts share them; the judge has to notice every one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ringcast import Change
from ringcast_heartbeat_agent.dispatch.catch_up import CatchUp
from ringcast_heartbeat_agent.dispatch.consumer_session import ConsumerSession
from ringcast_heartbeat_agent.dispatch.holdings import Holdings
from ringcast_heartbeat_agent.dispatch.seal_keeper import SealKeeper
from ringcast_heartbeat_agent.dispatch.seals import Hold, Outcome, SealReads
from ringcast_heartbeat_agent.dispatch.settlements import Settlements
from ringcast_heartbeat_agent.dispatch.tally import Tally

from tests.simulation.agent_variants import Variant
from tests.simulation.group_host import Host

_read = CatchUp._read
_found = SealReads.found
_has_news = Settlements.has_news


async def _read_live_rows(self: CatchUp, partition: int, revision: int, history: str) -> Any:
    return await _read(self, partition, revision, history if revision else "")


def _leave_as_looked(self: Settlements, partition: int, settled: Tally | None) -> None:
    self.leaving[partition] = settled or self._tallies[partition]


def _found_dead(self: SealReads, *words: Any, lives: bool, **more: Any) -> Any:
    del lives
    return _found(self, *words, lives=False, **more)


def _no_messages(_self: Settlements) -> Iterator[Change]:
    return iter(())


def _held_whatever_the_lease(self: SealKeeper, partition: int) -> bool:
    return self.seals.is_held(partition)


def _has_news_but_of_reads(self: Settlements) -> bool:
    self._read = self._progress.missed.done
    return _has_news(self)


def _resumes_by_reading(self: SealReads, partition: int, *words: Any, **more: Any) -> Outcome:
    outcome = _found(self, partition, *words, **more)
    one = self._partitions.get(partition)
    if one is not None and one.state is Hold.CLAIMING and one.was_held and one.wanted is one.said:
        one.state, one.wanted = Hold.HELD, None
        return Outcome.RESUMED
    return outcome


def _nothing_dropped(self: Settlements, partition: int) -> tuple[int, ...]:
    self._dropped.pop(partition, None)
    return ()


def _nothing(*_: Any) -> None:
    pass


VARIANTS: Final = {
    "reads_live_rows": Variant(
        "reads the live rows alone where a seal says that nothing is settled",
        200,
        ((CatchUp, "_read", _read_live_rows),),
    ),
    "counts_no_late_answer": Variant(
        "seals what was settled when it looked last, not what was answered since",
        60,
        ((Settlements, "leave", _leave_as_looked),),
    ),
    "reads_in_silence": Variant(
        "seals nothing at the end of a read of which nothing was to be delivered",
        300,
        ((Settlements, "has_news", _has_news_but_of_reads),),
    ),
    "sees_no_short_absence": Variant(
        "does not notice at once that a partition is another host's: it may be back before the next look",
        60,
        ((Holdings, "partitions_changed", _nothing),),
    ),
    "claims_what_it_loads": Variant(
        "claims and reads a partition that its worker still loads",
        100,
        ((Host, "loaded", Host.applied),),
    ),
    "keeps_what_it_dropped": Variant(
        "takes a change that it dropped in doubt of its lease for delivered",
        300,
        ((Settlements, "take_dropped", _nothing_dropped),),
    ),
    "takes_from_the_living": Variant("claims a partition whose holder lives", 60, ((SealReads, "found", _found_dead),)),
    "resumes_by_reading": Variant(
        "holds a partition again after a doubt once it has read that the seal is its own",
        1_000,
        ((SealReads, "found", _resumes_by_reading),),
    ),
    "seals_ahead": Variant(
        "seals what is still in flight as settled", 300, ((Settlements, "_messages", _no_messages),)
    ),
    "gives_up_in_flight": Variant(
        "gives a partition up while consumers have rows of it",
        60,
        ((ConsumerSession, "partitions_in_flight", property(lambda _self: set[int]())),),
    ),
    "delivers_without_a_lease": Variant(
        "delivers what its seals say that it holds, whether its lease stands or not",
        60,
        ((SealKeeper, "is_held", _held_whatever_the_lease), (SealReads, "doubt", _nothing)),
    ),
}
