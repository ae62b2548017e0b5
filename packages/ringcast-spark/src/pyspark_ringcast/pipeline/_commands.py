"""The subcommands of ``ringcast-pipeline``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from ringcast_wire import InvalidInputError, Strategy

from pyspark_ringcast.pipeline import _plan as plans
from pyspark_ringcast.pipeline._capacity import Layout, simulate_move, synthetic_ids
from pyspark_ringcast.pipeline._session import spark_session
from pyspark_ringcast.pipeline._settings import ALL, PLACE, overrides, spec_options, variable
from pyspark_ringcast.pipeline._spec import Guards, Spec, check_share, read_spec
from pyspark_ringcast.pipeline._target import Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_ringcast.pipeline._apply import ApplyReport
    from pyspark_ringcast.pipeline._difference import Planned

REJECTED: Final = 3

_paths = click.option(
    "--input", "paths", multiple=True, envvar=variable("input"), help="A file or glob, instead of the specification's."
)
_rejects = click.option(
    "--rejects",
    metavar="PATH",
    envvar=variable("rejects"),
    help="Write the rejected rows and why to this directory, replacing what is there.",
)
_rejects_format = click.option(
    "--rejects-format",
    type=click.Choice(["parquet", "json"]),
    default="parquet",
    envvar=variable("rejects_format"),
    show_default=True,
)
_allow_empty = click.option(
    "--allow-empty",
    is_flag=True,
    envvar=variable("allow_empty"),
    help="Let an input without a valid row empty the key.",
)
_reason = click.option(
    "--reason",
    default="",
    envvar=variable("reason"),
    help="Why, in one line of up to 512 bytes: the history has it with each row that is written.",
)


@click.command("check")
@click.argument("spec")
@_paths
@spec_options(*ALL)
@_allow_empty
@click.pass_context
def check(context: click.Context, /, spec: str, paths: tuple[str, ...], **given: Any) -> None:
    """Read SPEC and print it with all defaults; nothing else is looked at."""
    found = _spec(spec, paths, given)
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    click.echo(text if not context.obj["json"] else msgspec.json.encode(found))


@click.command("plan")
@click.argument("spec")
@click.argument("plan")
@_paths
@spec_options(*ALL)
@_allow_empty
@_rejects
@_rejects_format
@click.pass_context
def plan(context: click.Context, /, spec: str, plan: str, **given: Any) -> int:
    """Compare the input of SPEC with the live store, and save what would be written as PLAN, a new directory."""
    from pyspark_ringcast.pipeline._saved import save_plan

    found = _spec(spec, given.pop("paths"), given)
    with _spark(context) as spark, _planned(context, spark, found, given) as planned:
        _say(context)(f"saving the plan to {plan}")
        save_plan(planned, plan)
    _print_plan(context, planned.plan)
    return REJECTED if planned.plan.input.rejected else 0


@click.command("show")
@click.argument("plan")
@click.pass_context
def show(context: click.Context, /, plan: str) -> None:
    """Print a saved PLAN for review."""
    from pyspark_ringcast.pipeline._saved import read_plan

    _print_plan(context, read_plan(plan))


@click.command("apply")
@click.argument("plan")
@spec_options(*PLACE, "max_delete_share", "max_rejected_share")
@_allow_empty
@click.option("--replan", metavar="SPEC", help="If the store moved on, plan again by SPEC and apply that.")
@_reason
@click.pass_context
def apply(context: click.Context, /, plan: str, replan: str | None, reason: str, **given: Any) -> int:
    """Write what a saved PLAN says, and read it back. Doing it twice changes nothing."""
    from pyspark_ringcast.pipeline._apply import apply_plan
    from pyspark_ringcast.pipeline._saved import load_plan

    changed = overrides(given)
    with _spark(context) as spark:
        planned = _elsewhere(load_plan(spark, plan), changed)
        guards = _guards(planned.plan.guards, changed)
        try:
            report = apply_plan(spark, planned, guards=guards, reason=reason, say=_say(context))
        except plans.StalePlanError as error:
            if replan is None:
                raise
            _say(context)(f"{error}: planning again by {replan}")
            again = _same_target(read_spec(replan, changed), planned.plan)
            with _planned(context, spark, again, {}) as planned:
                report = apply_plan(spark, planned, reason=reason, say=_say(context))
    return _print_report(context, planned, report)


@click.command("run")
@click.argument("spec")
@_paths
@spec_options(*ALL)
@_allow_empty
@_rejects
@_rejects_format
@_reason
@click.pass_context
def run(context: click.Context, /, spec: str, reason: str, **given: Any) -> int:
    """Plan by SPEC, apply at once, and read back."""
    from pyspark_ringcast.pipeline._apply import apply_plan

    found = _spec(spec, given.pop("paths"), given)
    with _spark(context) as spark, _planned(context, spark, found, given) as planned:
        if not context.obj["json"]:
            _print_plan(context, planned.plan)
        report = apply_plan(spark, planned, reason=reason, say=_say(context))
    return _print_report(context, planned, report)


@click.command("export")
@click.argument("store")
@click.argument("key")
@click.argument("path")
@click.option("--history", is_flag=True, help="Every revision that the service still knows, instead of the live rows.")
@click.option("--since", metavar="PATH", help="With --history: only what came after this earlier export.")
@spec_options(*PLACE)
@click.pass_context
def export(
    context: click.Context, /, store: str, key: str, path: str, history: bool, since: str | None, **given: Any
) -> None:
    """Write KEY of STORE as Parquet to PATH, a new directory: a consistent snapshot, or the history of changes."""
    from pyspark_ringcast.pipeline._export import export_history, export_snapshot, read_export

    if since is not None and not history:
        raise click.UsageError("--since goes with --history", context)
    target = Target(store=store, key=key, **overrides(given).get("target", {}))
    with _spark(context) as spark:
        if history:
            heads = None if since is None else read_export(since).heads
            made = export_history(spark, target, path, since=heads)
        else:
            made = export_snapshot(spark, target, path)
    if context.obj["json"]:
        click.echo(msgspec.json.encode({"rows": made.rows, "kind": made.kind, "revisions": sum(made.heads)}))
    else:
        what = "revisions" if history else "rows"
        click.echo(f"{made.rows:,} {what} of {target} to {path}, as of revisions that sum to {sum(made.heads)}")


@click.command("capacity")
@click.option("--rows", type=click.IntRange(1), default=1_000_000_000, show_default=True, help="Synthetic ids.")
@click.option("--partitions", type=int, required=True)
@click.option("--workers", type=int, required=True, help="How many there are now.")
@click.option("--strategy", type=click.Choice([kind.value for kind in Strategy]), default="jump", show_default=True)
@click.option("--then-partitions", type=int, help="[default: as now]")
@click.option("--then-workers", type=int, help="[default: as now]")
@click.option("--then-strategy", type=click.Choice([kind.value for kind in Strategy]), help="[default: as now]")
@click.option("--without", "gone", type=int, multiple=True, help="A worker that leaves, by number from 0; may repeat.")
@click.pass_context
def capacity(context: click.Context, /, rows: int, **given: Any) -> None:
    """Simulate what another number of workers, partition count or strategy moves, and how even the load is."""
    before = Layout(
        partitions=given["partitions"], workers=tuple(range(given["workers"])), strategy=Strategy(given["strategy"])
    )
    then = given["then_workers"] if given["then_workers"] is not None else given["workers"]
    after = Layout(
        partitions=given["then_partitions"] or before.partitions,
        workers=tuple(slot for slot in range(then) if slot not in given["gone"]),
        strategy=Strategy(given["then_strategy"] or before.strategy),
    )
    before.owners(), after.owners()  # a limit that is crossed is an error before Spark starts
    started = time.monotonic()
    with _spark(context) as spark:
        _say(context)(f"placing {rows:,} ids")
        report = simulate_move(synthetic_ids(spark, rows), before, after)
    figures = {
        "rows": report.rows,
        "moved_share": round(report.moved_share, 6),
        "ideal_share": round(report.ideal_share, 6),
        "load_before": round(report.load_before, 4),
        "load_after": round(report.load_after, 4),
        "seconds": round(time.monotonic() - started, 2),
    }
    if context.obj["json"]:
        click.echo(msgspec.json.encode(figures))
        return
    click.echo(f"moved     {report.moved_share:.2%} of {rows:,} rows; the least possible is {report.ideal_share:.2%}")
    click.echo(f"load      fullest worker by mean {report.load_before:.3f} before, {report.load_after:.3f} after")


def _spark(context: click.Context) -> AbstractContextManager[SparkSession]:
    return spark_session(context.obj["master"], progress=context.obj["progress"])


def _spec(path: str, paths: tuple[str, ...], given: dict[str, Any]) -> Spec:
    return read_spec(path, overrides(given, paths))


def _elsewhere(planned: Planned, changed: dict[str, dict[str, Any]]) -> Planned:
    """A saved plan for the same key, reached in another way than when it was made."""
    target = msgspec.structs.replace(planned.plan.target, **changed.get("target", {}))
    return replace(planned, plan=msgspec.structs.replace(planned.plan, target=target))


def _same_target(spec: Spec, found: plans.Plan) -> Spec:
    if str(spec.target) != str(found.target):
        raise InvalidInputError(f"replan is for {spec.target}, and the plan for {found.target}", field="replan")
    return spec


def _guards(guards: Guards, changed: dict[str, dict[str, Any]]) -> Guards:
    found = msgspec.structs.replace(guards, **changed.get("guards", {}))
    for name in ("max_delete_share", "max_rejected_share"):
        check_share(name, getattr(found, name))
    return found


@contextmanager
def _planned(context: click.Context, spark: SparkSession, spec: Spec, given: dict[str, Any]) -> Iterator[Planned]:
    from pyspark_ringcast.pipeline._difference import make_plan, write_rejects

    say = _say(context)
    say(f"reading {', '.join(spec.source.paths[:3])} and comparing with {spec.target}")
    planned = make_plan(spark, spec)
    try:
        if given.get("rejects") is not None and planned.rejects is not None:
            say(f"writing the reject report to {given['rejects']}")
            write_rejects(planned.rejects, given["rejects"], given["rejects_format"])
        yield planned
    finally:
        planned.release()


def _say(context: click.Context) -> Callable[[str], None]:
    """Steps go to standard error, so that they never mix with results."""
    if not context.obj["progress"]:
        return lambda _: None
    started = time.monotonic()
    return lambda text: click.echo(f"{time.monotonic() - started:7.1f} s  {text}", err=True)


def _print_plan(context: click.Context, found: plans.Plan) -> None:
    click.echo(
        plans.encode_plan(found) if context.obj["json"] else plans.describe_plan(found), nl=not context.obj["json"]
    )


def _print_report(context: click.Context, planned: Planned, report: ApplyReport) -> int:
    rejected = planned.plan.input.rejected
    if context.obj["json"]:
        figures = {"rows_per_s": round(report.rows_per_s, 1), "diff_rows": planned.plan.diff_rows, "rejected": rejected}
        click.echo(msgspec.json.encode(msgspec.structs.asdict(report) | figures))
    else:
        click.echo(
            f"{report.written:,} rows written to {planned.plan.target} in {report.seconds:.1f} s; "
            f"{report.verified:,} rows read back, all as planned; {rejected:,} rejected"
        )
    return REJECTED if rejected else 0


COMMANDS: Final[dict[str, click.Command]] = {
    str(command.name): command for command in (check, plan, show, apply, run, export, capacity)
}
