"""How commands read the waves of a release, and say how far they are."""

from __future__ import annotations

from typing import Any

import click
from ringcast_wire import InvalidInputError, ReleaseState, Rollout, check_waves

from ringcast_cli._common.output import visible


class Waves(click.ParamType[tuple[int, ...]]):
    """Percents with commas between them."""

    name = "PERCENTS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return check_waves([int(each) for each in value.split(",")])
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers with commas between them, such as 1,10,100", param, ctx)


def wave_words(rollout: Rollout, number: int | None = None) -> str:
    """The wave of a number, by default the one that is under way."""
    number = number or rollout.wave
    return f"wave {number} of {len(rollout.waves)} ({share_words(rollout, number)})"


def share_words(rollout: Rollout, number: int) -> str:
    """What is in after a wave."""
    if percent := rollout.waves[number - 1]:
        return f"{percent} %"
    return f"canary {visible(rollout.canary)}" + (", provisional rows" if rollout.provisional else "")


def state_words(state: ReleaseState, rollout: Rollout | None) -> str:
    """The state of a release, with its wave while that matters."""
    if rollout is None or state not in {ReleaseState.PUBLISHING, ReleaseState.STOPPED}:
        return str(state)
    if state is ReleaseState.STOPPED:
        return f"{state} in {wave_words(rollout)}"
    return f"{'paused' if rollout.paused else state}, {wave_words(rollout)}"


def failure_words(rollout: Rollout) -> str:
    """Why a release was undone by itself."""
    return f"the gate of {wave_words(rollout)} failed, so the service undid the release: {visible(rollout.failure)}"


def approval_words(has: int, needed: int) -> str:
    """What a staged release waits for before it can be published; empty if it has the approvals that it needs."""
    lacks = needed - has
    if lacks <= 0:
        return ""
    more = "" if not has else " more"
    return f"it waits for {lacks}{more} approval{'' if lacks == 1 else 's'}"


def gate_words(rollout: Rollout) -> str:
    """What the wave that is under way waits for; empty if it is not at its gate."""
    if rollout.paused or not rollout.at_gate:
        return ""
    done = "laid over" if rollout.provisional and rollout.wave == 1 else "published"
    return f"wave {rollout.wave} is {done}, and waits for its gate" + (
        f": {visible(rollout.waits_for)}" if rollout.waits_for else ""
    )
