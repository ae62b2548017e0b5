"""report.md of a run: what was measured on what, every figure with its spread, and plots.

Usage: python -m benchmarks.envelope.report [DIRECTORY], which holds the envelope.json of a `make envelope`, the
bench.json of a `make bench`, or both (default: build/bench).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.envelope import plots
from benchmarks.envelope.arrivals import spread
from benchmarks.envelope.goals import GOALS
from benchmarks.envelope.peers import OURS
from benchmarks.envelope.processes import ROOT
from benchmarks.envelope.results import FILE_NAME as RESULTS
from benchmarks.envelope.results import Case, Figure, about_now, read, shown

FILE_NAME = "report.md"
MICRO = "bench.json"

Draw = Callable[[Path, Sequence[Case]], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A scenario in the report. ``draw`` writes its plots and yields their file names."""

    scenario: str
    title: str
    text: str
    draw: Draw | None = None


def _latency_curves(name: str, title: str, panel: Callable[[Case], tuple[str, str]]) -> Draw:
    """``panel`` says of a case in which panel its line is, and what it is called there."""

    def draw(directory: Path, cases: Sequence[Case]) -> Iterator[str]:
        panels: dict[str, dict[str, plots.Histogram]] = {}
        for case in cases:
            if case.histogram:
                where, label = panel(case)
                panels.setdefault(where, {})[label] = case.histogram
        if panels:
            labels = {label for lines in panels.values() for label in lines}
            peers = labels - {OURS} if OURS in labels else ()
            plots.percentile_curves(directory / name, title, panels, peers=peers)
            yield name

    return draw


def _by_database(case: Case) -> tuple[str, str]:
    kind, _, rate = case.name.partition(", ")
    database, _, way = kind.partition(" ")
    return database, f"{rate} {way}".strip()


def _by_rate(case: Case) -> tuple[str, str]:
    peer, _, rate = case.name.partition(", ")
    return rate, peer


def _by_rate_into(case: Case) -> tuple[str, str]:
    rate, _, partitions = case.name.partition(" into ")
    return rate, partitions


def _latency(directory: Path, cases: Sequence[Case]) -> Iterator[str]:
    yield from _latency_curves("latency.svg", "Change to handler", _by_database)(directory, cases)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in cases:
        for percentile in ("p50_ms", "p99_ms"):
            # Those by calls are of one rate, which is no growth.
            if percentile in case.figures and " by " not in case.name:
                lines = panels.setdefault(case.name.partition(",")[0], {})
                found = (case.params["rate"], case.figures[percentile].value)
                lines.setdefault(percentile.removesuffix("_ms"), []).append(found)
    if panels:
        plots.growth(directory / "latency-growth.svg", "Change to handler", panels, "changes/s", "ms")
        yield "latency-growth.svg"


def _event_cost(directory: Path, cases: Sequence[Case]) -> Iterator[str]:
    cost = "cpu_us_per_event, "
    panels = {
        case.name.replace(", ", ",\n"): {
            label.removeprefix(cost): figure.value for label, figure in case.figures.items() if label.startswith(cost)
        }
        for case in cases
    }
    panels = {name: values for name, values in panels.items() if values}
    if panels:
        plots.bars(directory / "events.svg", "CPU time an event", panels, "µs", ours="worker")
        yield "events.svg"


def _rebalance(directory: Path, cases: Sequence[Case]) -> Iterator[str]:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for case in cases:
        for step, says in (("join", "joins"), ("leave", "leaves")):
            if f"{step}_ms" in case.figures:
                lines = panels.setdefault(f"a worker {says}", {})
                found = (case.params["workers"], case.figures[f"{step}_ms"].value)
                lines.setdefault(f"{case.params['partitions']} partitions", []).append(found)
    if panels:
        plots.growth(directory / "rebalance.svg", "Until all partitions are loaded again", panels, "workers", "ms")
        yield "rebalance.svg"


def _memory(directory: Path, cases: Sequence[Case]) -> Iterator[str]:
    points = [(case.params["rows"], case.figures["memory"].value) for case in cases if case.params.get("rows")]
    if points:
        plots.growth(directory / "memory.svg", "Memory of a worker", {"": {"worker": points}}, "rows", "MiB")
        yield "memory.svg"


SECTIONS = (
    Section(
        "latency",
        "Change to handler",
        "One process makes changes at a fixed rate, whether the system keeps up or not; two worker processes own the "
        "partitions. The time runs from when a change was due to when the owner's handler has it, so waiting counts. "
        "Changes go through one stream of the config service, or where a case says so as a gRPC call each. From "
        "2,000/s on they go as a bulk write, in batches of what is due in 5 ms, and that waiting counts as well. What "
        "the disk alone takes to flush a page was measured beside it.",
        _latency,
    ),
    Section(
        "sustained",
        "Sustained changes",
        "The same, held for longer, into a store of one partition and into one of 256.",
        _latency_curves("sustained.svg", "Change to handler", _by_rate_into),
    ),
    Section(
        "events",
        "Events in one worker process",
        "Events that wait in the stream are taken as fast as one process can, by a worker with an empty handler and by "
        "two bare clients that only acknowledge them: `raw pull` is the least that the client library allows, `fetch` "
        "what its documentation shows. Neither writer nor database is at work meanwhile.",
        _event_cost,
    ),
    Section(
        "dispatch",
        "Key-shared dispatch through an agent",
        "Events of one change each wait in the stream and go through one agent to eight consumer processes, which "
        "acknowledge each delivery. The time runs until the last of them was handled; then the agent is asked whether "
        "all are settled. Consumers want every row, or each its own rows by filters.",
    ),
    Section(
        "bootstrap",
        "Bootstrap of a partition",
        "A worker that gains a partition: from the assignment until its handler has every row, one fetch of it without "
        "decoding, and a responder that only sends the same bytes in the same chunks. The three take turns in one "
        "process.",
    ),
    Section(
        "peers",
        "Beside others on the same job",
        "One process changes values, four others subscribe to all of them, and a change is known when the callback of "
        "each has it. They promise different things: Ringcast commits to a database and keeps a history, etcd flushes "
        "each put to the disk, NATS KV and Redis write to the disk a little later, and Redis only says which key "
        "changed, to those who listen just then.",
        _latency_curves("peers.svg", "Change to all subscribers", _by_rate),
    ),
    Section(
        "resources",
        "What a worker costs",
        "From starting the process of one worker that owns all 256 partitions until it has every row; the memory that "
        "is the process's alone (USS) by then; and what idle workers cost: CPU time a second, and messages to and from "
        "the broker, which are leases, requests for events and comparisons of revisions.",
        _memory,
    ),
    Section(
        "rebalance",
        "Rebalancing",
        "All workers of a case run in one process, each with its own connection, since as many processes would not fit "
        "here: they share one core, and the times at 200 workers are mostly that. The one that crashes is a process of "
        "its own, killed with SIGKILL: the others wait for its lease of 10 s to end. A step lasts until each partition "
        "has one owner again that has loaded it. The ideal moves what the leaver owned, or an equal share to the "
        "joiner, and nothing else.",
        _rebalance,
    ),
    Section(
        "ownership",
        "Exclusive ownership",
        "The same steps with the strategy `jump` and with `sticky`, at its default times. A partition is dark from "
        "when its owner was told to give it up, or was killed, to the first call of the next owner's handler. It was "
        "owned twice where that call came first. All workers but those that crash share one core, and the CPU time of "
        "a step is theirs. Under an agent, which sees the processes of its host end, others are killed one after "
        "another; the longest that a partition was dark counts.",
    ),
    Section(
        "leader",
        "The leader of a key",
        "With `sticky` one worker of each key writes the table of owners. It and one that follows are processes of "
        "their own, and all others share one or four: CPU time and messages while nothing moves, and while a worker "
        "leaves and another joins. With `jump` no worker leads, and one of the peers is measured.",
    ),
    Section(
        "balance",
        "Balance by load",
        "Twenty workers of a store of exclusive ownership share 256 partitions out, which are written at rates that "
        "fall by their rank to the power of 0.6, in no order of their numbers. How busy a worker is, is taken from "
        "these rates: first while each has as many partitions as the others, then the worst of the looks, one a "
        "second, in the last third of the time in which the leader balances by what the workers report.",
    ),
    Section(
        "control",
        "Who calls, and what is allowed",
        "Puts of single rows over TLS, each with a token, into a service that lets everybody in and writes no audit "
        "log, into one that writes it, into one that asks for the token besides and has granted roles, and into one "
        "whose store has policies too: CPU time of the service, the four in turn.",
    ),
    Section(
        "access",
        "Logins, revocations, leaders and drains",
        "Connections of workers whose tokens the config service checks for NATS (the auth callout), beside those of a "
        "worker in the server's own files; the end of all connections of a token that was removed; 300 workers of one "
        "token that come and go, 20 at a time, 100 at most at once (all in one process, without garbage collection); "
        "puts into a service that 10,000 others have roles in, beside one where none has; the time until another "
        "instance leads maintenance, once the one that led was killed; and until an instance is drained, and takes "
        "calls again.",
    ),
    Section(
        "undo",
        "Releases that are undone",
        "A release changes each of 100,000 rows, and is undone by a call; or its first wave, 1 % of the partitions, "
        "has rows that handlers refuse, and the service undoes it once the gate has failed. The times run from the "
        "call, or from when the release was last seen to be published, to when the record has its old rows again, and "
        "to the last call of a handler with an old row. Two worker processes own the partitions.",
    ),
    Section(
        "limits",
        "Hard limits",
        "Each parameter of the operating envelope is taken up to its hard limit on a real system, and then one beyond "
        "it. The first and the last five steps on the way tell whether a step gets dearer.",
    ),
)


def write_report(directory: Path) -> Path:
    """Writes the report and its plots beside the results in ``directory``, and returns where it is.

    It has what the last `make envelope` and the last `make bench` found, as far as there is either.
    """
    if (directory / RESULTS).is_file():
        about, cases = read(directory)
    else:  # only `make bench` was run
        about, cases = {**about_now(quick=False, command=[]), "command": None, "complete": True}, []
    lines = [*_head(about)] if about["quick"] else [*_head(about), *_goals(cases)]
    for section in SECTIONS:
        lines += _section(directory, section, [case for case in cases if case.scenario == section.scenario])
    lines += _micro(directory / MICRO)
    path = directory / FILE_NAME
    path.write_text("\n".join(lines).rstrip() + "\n")
    return path


def _head(about: Mapping[str, Any]) -> Iterator[str]:
    machine, versions = about["machine"], about["versions"]
    yield "# Ringcast, measured"
    yield ""
    if about["quick"]:
        yield "**Sizes that only prove that everything runs: no figure here means anything.**"
        yield ""
    if not about["complete"]:
        yield "**The run was stopped before its end: what is missing was not measured.**"
        yield ""
    words = about["command"]
    by = "" if words is None else f", by `{' '.join(['python -m benchmarks.envelope', *words])}`"
    yield f"{about['started_at']}, commit `{versions['commit']}`{by}."
    yield ""
    yield (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['distribution']}, "
        f"{machine['system']}. Everything on loopback. Load average before and after: "
        f"{machine['load_average_before']:.2f}, {machine.get('load_average_after', math.nan):.2f}."
    )
    yield ""
    yield ", ".join(f"{name} {number}" for name, number in versions.items() if name != "commit") + "."
    yield ""
    yield (
        "± is half the distance between the quartiles of the parts or rounds of a case, as a share of their median. "
        "CPU time is of whole processes and hardly depends on what else the machine does; wall time does."
    )
    yield ""


def _goals(cases: Sequence[Case]) -> Iterator[str]:
    verdicts = [verdict for goal in GOALS for verdict in goal.judge(cases)]
    if not verdicts:
        return
    yield from ("## Goals", "", "| goal | case | bound | found | times the bound | |", "|---|---|---|---|---|---|")
    for verdict in verdicts:
        bound = f"{'≥' if verdict.goal.at_least else '≤'} {verdict.goal.bound:,g} {verdict.unit}"
        found = f"{shown(verdict.value)} {verdict.unit}"
        mark = "reached" if verdict.reached else "**not reached**"
        yield f"| {verdict.goal.what} | {verdict.case} | {bound} | {found} | {shown(verdict.share)} | {mark} |"
    yield ""
    missed = [verdict for verdict in verdicts if not verdict.reached]
    for verdict in missed:
        why = verdict.goal.why or "The reason is not known yet."
        yield f"- {verdict.goal.what} ({verdict.case}): missed by {shown(verdict.missed_by)} times. {why}"
    if missed:
        yield ""


def _section(directory: Path, section: Section, cases: Sequence[Case]) -> Iterator[str]:
    if not cases:
        return
    yield from (f"## {section.title}", "", section.text, "")
    columns = list(dict.fromkeys(name for case in cases for name in case.figures))
    if columns:
        # Few cases with many figures are easier to read the other way round.
        measured = [case for case in cases if case.figures]
        yield "| | " + " | ".join(case.name for case in measured) + " |"
        yield "|---|" + "---|" * len(measured)
        for column in columns:
            cells = (_cell(case.figures.get(column)) for case in measured)
            yield f"| {_heading(column, measured)} | " + " | ".join(cells) + " |"
        yield ""
    for case in cases:
        if case.status != "ok" or case.note:
            yield f"- {case.name}: {case.status}. {case.note}".rstrip()
    yield ""
    if section.draw is not None:
        for name in section.draw(directory, cases):
            yield from (f"![{section.title}]({name})", "")


def _heading(column: str, cases: Sequence[Case]) -> str:
    unit = next(case.figures[column].unit for case in cases if column in case.figures)
    label = column.removesuffix("_ms").replace("_us_per_", " an ").replace("_per_s", "/s").replace("_", " ")
    return f"{label} ({unit})" if unit else label


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    noise = spread(figure.samples)
    return f"{shown(figure.value)} ± {noise:.0%}" if noise else shown(figure.value)


def _micro(path: Path) -> Iterator[str]:
    """What the last `make bench` found, if there was one."""
    if not path.is_file():
        return
    document = json.loads(path.read_text())
    yield from ("## Single operations", "", f"From `make bench` of {document['datetime'][:19]}.", "")
    yield from ("| benchmark | group | median | beside its peer |", "|---|---|---|---|")
    for found in document["benchmarks"]:
        facts = ", ".join(f"{name} {value}" for name, value in found["extra_info"].items())
        median = f"{shown(found['stats']['median'] * 1e3)} ms"
        yield f"| `{found['name']}` | {found['group'] or ''} | {median} | {facts} |"
    yield ""


def main() -> int:
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/bench"
    sys.stdout.write(f"{write_report(directory)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
