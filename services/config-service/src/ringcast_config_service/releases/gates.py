"""The gate behind each wave of a release: whether the next one may follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from ringcast_wire import KeyCertificate, ReleaseGate, RingcastError, UnavailableError

from ringcast_config_service.promql.conditions import Answer, Outcome, sentence_of
from ringcast_config_service.releases.proof import Lack
from ringcast_config_service.releases.proofs import Look
from ringcast_config_service.repository import KeyRevisions, Release, ReleaseRepository

_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 1.0
_NOTE_S: Final = 1.5
"""How old a note may be when the workers have been asked again, and say the same. It also says that an instance works
at the release: with looks of 2 s and pauses of 1 s it comes every 4.5 s at the latest, before another one takes the
release over (``releases.TAKEOVER_MS``)."""
_MAX_WHY_CHARS: Final = 400


class Asker(Protocol):
    """What asks the workers."""

    async def look(self, release: Release, keys: Sequence[KeyRevisions]) -> Look: ...


class Layers(Protocol):
    """What asks the workers of a canary for the provisional rows of a release."""

    async def look(self, release: Release) -> Look: ...


class Questions(Protocol):
    """What asks Prometheus."""

    async def ask(self, conditions: Sequence[str]) -> Sequence[Answer]: ...


class Judgement(NamedTuple):
    """``why``: why the release has to be undone; empty: the next wave may follow.

    ``proven``: the certificates of all keys for what is published, by the last look; empty where a row may be refused.
    """

    why: str = ""
    proven: tuple[KeyCertificate, ...] = ()


class _Found(NamedTuple):
    """What one look at a gate has found. ``bad``: what fails it at once. ``lacks``: what the wave waits for first, and
    ``late`` what that is called once it has lasted for the patience; empty: nothing lacks."""

    bad: str = ""
    lacks: str = ""
    late: str = ""


class Gates:
    """Judges releases at their gates.

    Nothing of it has to outlive the process: the instance that goes on starts the judgement over, so it may last
    longer, and is never made by less than the gate asks for.
    """

    def __init__(self, releases: ReleaseRepository, asker: Asker, layers: Layers, questions: Questions) -> None:
        self._releases = releases
        self._asker = asker
        self._layers = layers
        self._questions = questions

    async def judged(self, release: Release) -> Judgement | None:
        """Returns once it is known whether the next wave may follow. ``None``: the release is no longer at this gate.

        The workers are asked about all that is published, and Prometheus for the conditions, again and again. What
        can't be asked counts as not proven, and as not met.
        """
        rollout = release.rollout
        assert rollout is not None
        gate, place = rollout.gate, (release.store, release.number)
        keys: Sequence[KeyRevisions] | None = None if release.published else ()
        good_s, proven_s, pause_s = time.monotonic(), None, _FIRST_PAUSE_S
        noted, noted_s = "", good_s
        while True:
            asked, answers = await asyncio.gather(self._look(release, keys), self._questions.ask(gate.promql))
            keys, look = asked
            found = _found(gate, look, answers)
            now_s = time.monotonic()
            if found.bad:
                return Judgement(_cut(found.bad))
            if found.lacks:
                if now_s - good_s >= gate.patience_ms / 1000:
                    return Judgement(_cut(found.late))
                lacks = waits_for = found.lacks
            else:
                good_s, proven_s = now_s, now_s if proven_s is None else proven_s
                baked_ms = 1000 * (now_s - proven_s)
                if baked_ms >= gate.bake_ms:
                    return Judgement(proven=look.proven)
                lacks, waits_for = "bake time", f"bake time: {baked_ms / 1000:.0f} of {gate.bake_ms / 1000:g} s"
                if gate.promql:
                    waits_for += f"; PromQL: {len(answers)} of {len(answers)} met"
            if lacks != noted or now_s - noted_s >= _NOTE_S:
                try:
                    if not await self._releases.note_gate(*place, rollout.wave, _cut(waits_for)):
                        return None
                    noted, noted_s = lacks, now_s
                except UnavailableError:
                    pass  # it is judged all the same, and the verdict waits for the database
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)

    async def _look(
        self, release: Release, keys: Sequence[KeyRevisions] | None
    ) -> tuple[Sequence[KeyRevisions] | None, Look]:
        """One look at the workers, and what they were asked about, which stays the same."""
        try:
            if release.is_only_laid_over:
                return keys, await self._layers.look(release)
            if keys is None:
                keys = await self._releases.revisions(release.store, release.number)
            return keys, await self._asker.look(release, keys)
        except RingcastError as error:
            return keys, Look((), (Lack("", str(error)),))


def _found(gate: ReleaseGate, look: Look, answers: Sequence[Answer]) -> _Found:
    given_up, pending, _ = look
    if (refused := sum(lack.rows for lack in given_up)) > gate.max_refused:
        return _Found(f"{_rows(refused)} refused, and {gate.max_refused} may be: {_reason(given_up[0])}")
    sentences = [(answer.outcome, sentence_of(number, gate.promql, answer)) for number, answer in enumerate(answers)]
    for outcome, sentence in sentences:
        if outcome is Outcome.NOT_MET:
            return _Found(sentence)
    patience = f"{gate.patience_ms / 1000:g} s"
    if pending:
        return _Found("", f"proof: {_reason(pending[0])}", f"not proven within {patience}: {_reason(pending[0])}")
    for outcome, sentence in sentences:
        if outcome is not Outcome.MET:
            return _Found("", sentence, f"not met within {patience}: {sentence}")
    return _Found()


def _reason(lack: Lack) -> str:
    return f"{lack.key}: {lack.sentence}" if lack.key else lack.sentence


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


def _cut(sentence: str) -> str:
    return " ".join(sentence.split())[:_MAX_WHY_CHARS]
