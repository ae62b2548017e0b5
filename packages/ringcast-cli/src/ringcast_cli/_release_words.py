"""How commands say how far the waves of a release are."""

from __future__ import annotations

from ringcast_wire import ReleaseState, Rollout

from ringcast_cli._output import visible


def wave_words(rollout: Rollout, number: int | None = None) -> str:
    """The wave of a number, by default the one that is under way."""
    number = number or rollout.wave
    return f"wave {number} of {len(rollout.waves)} ({rollout.waves[number - 1]} %)"


def state_words(state: ReleaseState, rollout: Rollout | None) -> str:
    """The state of a release, with its wave while that matters."""
    if rollout is None or state not in {ReleaseState.PUBLISHING, ReleaseState.STOPPED}:
        return str(state)
    if state is ReleaseState.STOPPED:
        return f"{state} in {wave_words(rollout)}"
    return f"{'paused' if rollout.paused else state}, {wave_words(rollout)}"


def gate_words(rollout: Rollout) -> str:
    """What the wave that is under way waits for; empty if it is not at its gate."""
    if rollout.paused or not rollout.at_gate:
        return ""
    return f"wave {rollout.wave} is published, and waits for its gate" + (
        f": {visible(rollout.waits_for)}" if rollout.waits_for else ""
    )
