"""``ringcast up``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import click

from ringcast_cli._common.config import DEFAULT_SERVICE
from ringcast_cli._common.options import settings_of, shared_options
from ringcast_cli._common.output import note, print_json
from ringcast_cli._local.up import Running, UpOptions, run_up


@click.command()
@click.option("--data-dir", metavar="DIR", help="Directory of all data [env: RINGCAST_DATA_DIR].")
@click.option("--nats-port", metavar="PORT", help="Port of NATS; 0: any free port [default: 4222].")
@click.option("--grpc-port", metavar="PORT", help="Port of the config service; 0: any free port [default: 7420].")
@click.option(
    "--ready-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the addresses, written once everything serves and removed at the end.",
)
@click.option(
    "--start-timeout",
    "start_timeout_s",
    type=click.FloatRange(0.1, 600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long each part may take to start.",
)
@shared_options()
@click.pass_context
def up(
    context: click.Context,
    data_dir: str | None,
    nats_port: str | None,
    grpc_port: str | None,
    ready_file: Path | None,
    start_timeout_s: float,
) -> None:
    """Run NATS and the config service on this machine.

    Starts a NATS server with JetStream and a config service on SQLite, both on 127.0.0.1. A directory keeps the data
    for the next time. Ctrl-C or SIGTERM stops both in order. If one of them ends by itself, the other
    is stopped too and the exit code is 1.
    """
    context.find_root().ensure_object(dict).update(data_dir=data_dir, nats_port=nats_port, grpc_port=grpc_port)
    config = settings_of(context)
    options = UpOptions(config.data_dir, config.nats_port, config.grpc_port, ready_file, start_timeout_s)

    def on_ready(running: Running) -> None:
        if config.json:
            print_json(running)
        else:
            _greet(running)

    asyncio.run(run_up(options, pid=os.getpid(), on_ready=on_ready))
    if not config.json:
        note("Stopped.")


def _greet(running: Running) -> None:
    click.echo("Ringcast is up. Ctrl-C stops it.")
    click.echo(f"  NATS            {running.nats}")
    click.echo(f"  config service  {running.service}")
    click.echo(f"  cluster         {running.cluster_store}")
    click.echo(f"  data            {running.data_dir}")
    cluster = f"RINGCAST_CLUSTER_STORE={running.cluster_store}"
    click.echo("In another terminal:")
    if (running.nats, running.service) == ("nats://127.0.0.1:4222", DEFAULT_SERVICE):
        click.echo(f"  export {cluster}    # for `ringcast cluster`; the rest needs no setting")
    else:
        click.echo(f"  export RINGCAST_SERVERS={running.nats} RINGCAST_SERVICE={running.service} {cluster}")


COMMANDS: Final = {"up": up}
