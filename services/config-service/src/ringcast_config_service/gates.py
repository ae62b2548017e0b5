"""The gate behind each wave of a release: whether the next one may follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from ringcast_wire import RingcastError, UnavailableError

from ringcast_config_service.proof import Lack
from ringcast_config_service.proofs import Look
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


class Gates:
    """Judges releases at their gates.

    Nothing of it has to outlive the process: a judgement begins anew with whoever goes on, so it may last longer, and
    is never made by less than the gate asks for.
    """

    def __init__(self, releases: ReleaseRepository, asker: Asker) -> None:
        self._releases = releases
        self._asker = asker

    async def judged(self, release: Release) -> str | None:
        """Returns once it is known whether the next wave may follow: empty if it may, otherwise why not. ``None``: the
        release is not at this gate any more.

        The workers are asked about all that is published, again and again. What can't be asked counts as not proven.
        """
        rollout = release.rollout
        assert rollout is not None
        gate, place = rollout.gate, (release.store, release.number)
        keys: Sequence[KeyRevisions] | None = None if release.published else ()
        good_s, proven_s, pause_s = time.monotonic(), None, _FIRST_PAUSE_S
        noted, noted_s = "", good_s
        while True:
            try:
                if keys is None:
                    keys = await self._releases.revisions(*place)
                given_up, pending = await self._asker.look(release, keys)
            except RingcastError as error:
                given_up, pending = (), (Lack("", str(error)),)
            now_s = time.monotonic()
            if len(given_up) > gate.max_refused:
                return _cut(f"{_rows(len(given_up))} refused, and {gate.max_refused} may be: {_said(given_up[0])}")
            if pending:
                if now_s - good_s >= gate.patience_ms / 1000:
                    return _cut(f"not proven within {gate.patience_ms / 1000:g} s: {_said(pending[0])}")
                lacks = waits_for = f"proof: {_said(pending[0])}"
            else:
                good_s, proven_s = now_s, now_s if proven_s is None else proven_s
                baked_ms = 1000 * (now_s - proven_s)
                if baked_ms >= gate.bake_ms:
                    return ""
                lacks, waits_for = "bake time", f"bake time: {baked_ms / 1000:.0f} of {gate.bake_ms / 1000:g} s"
            if lacks != noted or now_s - noted_s >= _NOTE_S:
                try:
                    if not await self._releases.note_gate(*place, rollout.wave, _cut(waits_for)):
                        return None
                    noted, noted_s = lacks, now_s
                except UnavailableError:
                    pass  # it is judged all the same, and the verdict waits for the database
            await asyncio.sleep(pause_s)
            pause_s = min(_MAX_PAUSE_S, 2 * pause_s)


def _said(lack: Lack) -> str:
    return f"{lack.key}: {lack.sentence}" if lack.key else lack.sentence


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"


def _cut(sentence: str) -> str:
    return " ".join(sentence.split())[:_MAX_WHY_CHARS]
