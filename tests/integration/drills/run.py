"""Holds drills, one after another, and judges each: what had to fire has fired, and nothing else has."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.integration.drills.drill import Drill
from tests.integration.drills.rules import duration_ms, faster_expression, shipped_alerts
from tests.integration.drills.site import Alert, Site
from tests.integration.faults.arena import off

PATIENCE_S: Final = 120.0
"""How long an alert is waited for, with the machine's other work beside it."""
LONG: Final = {
    "RingcastAgentWorkersLost": "15m",
    "RingcastChangesDropped": "15m",
    "RingcastRowsBlocked": "15m",
    "RingcastUnreadableEvents": "15m",
    "RingcastDeliveryBudgetBurns": "2h",
    "RingcastDeliveryBudgetBurnsFast": "30m",
    "RingcastWriteBudgetBurns": "2h",
    "RingcastWriteBudgetBurnsFast": "30m",
    "RingcastEventsRefused": "1h",
    "RingcastHistoryBegan": "1h",
}
"""Alerts that look back so far, and fire for as long after their cause has ended: the next drill begins meanwhile."""
_LOOK_S: Final = 0.25
_METRIC: Final = re.compile(r"\b(?:up\b|config_\w+|ringcast_agent_\w+|ringcast:[\w:]+)")
_SHOWN: Final = 12
"""Samples of a metric that are shown where its rule does not fire."""

Say = Callable[[str], None]


@dataclass
class Result:
    """What became of an alert in a drill; seconds since the fault was begun, and since it was ended."""

    drill: str
    alert: str
    fired_s: float | None = None
    resolved_s: float | None = None


@dataclass
class Run:
    """The drills held so far."""

    site: Site
    say: Say
    results: list[Result] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    """Everything that is not as it should be, a sentence each."""
    lingering: dict[str, tuple[float, list[Result]]] = field(default_factory=dict)
    """Alerts of :data:`LONG` that still fire: since when their cause has ended, and whose they are."""

    async def hold(self, drill: Drill) -> None:
        """Does the fault, waits until all its alerts fire, ends it, and waits until they do not."""
        await self._wait_quiet(drill)
        self.say(f"{drill.name}: {drill.cause}")
        watch = _Watch(self.site, drill, self.lingering.keys())
        watching = asyncio.create_task(watch.run())
        results = {alert: Result(drill.name, alert) for alert in drill.alerts}
        self.results += results.values()
        began = ended = time.monotonic()
        try:
            async with drill.fault(self.site):
                fired = await watch.until(lambda: results.keys() <= watch.fired.keys())
                for alert, result in results.items():
                    if alert in watch.fired:
                        result.fired_s = watch.fired[alert] - began
                if not fired:
                    missing = ", ".join(sorted(results.keys() - watch.fired.keys()))
                    self._find(f"{drill.name}: {missing} did not fire within {PATIENCE_S:g} s")
                    for alert in results.keys() - watch.fired.keys():
                        await self._explain(alert)
                ended = time.monotonic()
            self.say(f"{drill.name}: all has fired; {drill.end}")
            await watch.until(lambda: not watch.firing - LONG.keys() - watch.before)
            self._note_resolved(watch, results, ended)
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        if watch.unexpected:
            told = "; ".join(f"{name} {instances}" for name, instances in watch.unexpected.items())
            self._find(f"{drill.name}: fired too, and is no companion of it: {told}")

    def _note_resolved(self, watch: _Watch, results: dict[str, Result], ended: float) -> None:
        for alert, result in results.items():
            if alert in watch.resolved:
                result.resolved_s = max(0.0, watch.resolved[alert] - ended)
        for alert in watch.firing & LONG.keys():
            mine = [results[alert]] if alert in results else []
            self.lingering[alert] = ended, [*self.lingering.get(alert, (0.0, []))[1], *mine]
        left = watch.firing - LONG.keys() - watch.before
        if left:
            self._find(f"{watch.drill.name}: {', '.join(sorted(left))} fires on after its cause has ended")

    async def settle(self) -> None:
        """Waits until the alerts that look back far have ended too."""
        await self._look_at_lingering()
        if self.lingering:
            self.say(f"waiting for what looks back far: {', '.join(sorted(self.lingering))}")
        patience_s = max((duration_ms(LONG[name]) / 1000 / self.site.factor for name in self.lingering), default=0.0)
        deadline = time.monotonic() + patience_s + PATIENCE_S
        while self.lingering and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            await self._look_at_lingering()
        for name in self.lingering:
            self._find(f"{name} fires on after the time that it looks back for")

    async def quiet(self, seconds: float) -> None:
        """Lets the deployment alone, but for its load: the shipped rules, as they are, may not see anything.

        Those in which time passes faster say nothing here: they scrape with as little patience, so that a machine that
        is busy for a second looks to them like one that is away for many.
        """
        if not seconds:
            return
        self.say(f"quiet for {seconds:g} s, by the shipped rules as they are")
        deadline = time.monotonic() + seconds
        seen: set[str] = set()
        while time.monotonic() < deadline:
            for alert in await self.site.shipped_alerts():
                if alert.name not in seen:
                    seen.add(alert.name)
                    self._find(f"the quiet time: {alert.name} {_told(alert)}")
            await asyncio.sleep(_LOOK_S)

    async def _wait_quiet(self, drill: Drill) -> None:
        """Waits until nothing fires but what looks back far, and nothing at all that the drill is to cause."""
        wait_s = max((duration_ms(LONG[name]) / 1000 / self.site.factor for name in self.lingering), default=0.0)
        deadline = time.monotonic() + wait_s + PATIENCE_S
        while True:
            await self._look_at_lingering()
            firing = {alert.name for alert in await self.site.alerts()} - (self.lingering.keys() - set(drill.alerts))
            if not firing:
                return
            if time.monotonic() > deadline:
                self._find(f"{drill.name}: {', '.join(sorted(firing))} fires before it")
                return
            await asyncio.sleep(_LOOK_S)

    async def _explain(self, alert: str) -> None:
        """Says what the metrics of a rule are that does not fire."""
        expression = faster_expression(shipped_alerts()[alert]["expr"], self.site.factor)
        self.say(f"{alert}: {expression}")
        for metric in sorted(set(_METRIC.findall(expression))):
            for sample in (await off(self.site.prometheus.samples, metric))[:_SHOWN]:
                labels = ", ".join(f"{key}={value}" for key, value in sample["metric"].items() if key != "job")
                self.say(f"    {labels}: {sample['value'][1]}")

    async def _look_at_lingering(self) -> None:
        if not self.lingering:
            return
        firing = {alert.name for alert in await self.site.alerts()}
        for name in self.lingering.keys() - firing:
            ended, results = self.lingering.pop(name)
            for result in results:
                result.resolved_s = time.monotonic() - ended

    def _find(self, sentence: str) -> None:
        self.findings.append(sentence)
        self.say(f"WRONG: {sentence}")


class _Watch:
    """What fires during one drill. ``before``: what did when it began, from earlier ones."""

    def __init__(self, site: Site, drill: Drill, before: Iterable[str]) -> None:
        self.drill = drill
        self._site = site
        self.before = set(before)
        self.fired: dict[str, float] = {}
        self.resolved: dict[str, float] = {}
        self.firing: set[str] = set()
        self.unexpected: dict[str, str] = {}
        self._looked = asyncio.Condition()

    async def run(self) -> None:
        """Looks again and again until it is cancelled."""
        expected = {*self.drill.alerts, *self.drill.companions}
        while True:
            alerts = await self._site.alerts()
            now = time.monotonic()
            async with self._looked:
                firing = {alert.name for alert in alerts}
                for alert in alerts:
                    if self.fired.setdefault(alert.name, now) == now and alert.name not in expected | self.before:
                        self.unexpected[alert.name] = _told(alert)
                for name in self.firing - firing:
                    self.resolved[name] = now
                self.firing = firing
                self._looked.notify_all()
            await asyncio.sleep(_LOOK_S)

    async def until(self, condition: Callable[[], bool]) -> bool:
        """Waits for a condition on what was seen; whether it holds within the patience."""
        try:
            async with asyncio.timeout(PATIENCE_S), self._looked:
                await self._looked.wait_for(condition)
        except TimeoutError:
            return False
        return True


def _told(alert: Alert) -> str:
    return "; ".join(", ".join(f"{key}={value}" for key, value in each.items()) for each in alert.instances)


def table(results: Iterable[Result]) -> str:
    """The results as a table in Markdown."""
    lines = ["| alert | drill | fired after | resolved after |", "|---|---|---|---|"]
    for result in sorted(results, key=lambda each: each.alert):
        fired = "did not" if result.fired_s is None else f"{result.fired_s:.0f} s"
        resolved = "did not" if result.resolved_s is None else f"{result.resolved_s:.0f} s"
        lines.append(f"| {result.alert} | {result.drill} | {fired} | {resolved} |")
    return "\n".join(lines)
