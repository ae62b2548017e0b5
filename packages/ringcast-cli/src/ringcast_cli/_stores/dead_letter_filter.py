"""Which dead letters a command is about: numbers, or what they have in common."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import click
from ringcast_client import ConfigServiceClient, DeadLetterRecord

from ringcast_cli._common.moments import since_ms


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the options say; ``None``: it does not choose."""

    key: str | None
    partition: int | None
    row_id: str | None
    group: str | None
    worker_id: str | None
    since: str | None

    @property
    def is_all(self) -> bool:
        """Whether nothing chooses."""
        return self == Chosen(None, None, None, None, None, None)

    def read(
        self,
        client: ConfigServiceClient,
        store: str,
        *,
        oldest_first: bool = False,
        with_values: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[DeadLetterRecord, None]:
        """Those of a store that are meant.

        Raises:
            InvalidInputError: what chooses them breaks a rule.
        """
        return client.dead_letters(
            store,
            key=self.key,
            partition=self.partition,
            row_id=self.row_id,
            group=self.group,
            worker_id=self.worker_id,
            since_ms=0 if self.since is None else since_ms(self.since),
            oldest_first=oldest_first,
            with_values=with_values,
            limit=limit,
        )


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of :class:`Chosen`, and hands the command ``chosen`` in their place."""

    @functools.wraps(command)
    def gathered(*args: Any, **words: Any) -> Any:
        chosen = Chosen(**{field.name: words.pop(field.name) for field in dataclasses.fields(Chosen)})
        return command(*args, chosen=chosen, **words)

    for option in (
        click.option(
            "--since", metavar="TIME", help="Only those of the last 30m, 2h or 7d, or since an ISO 8601 time."
        ),
        click.option("--worker", "worker_id", metavar="ID", help="Only those of this worker."),
        click.option("--group", metavar="NAME", help="Only those of this group of a heartbeat agent."),
        click.option("--row", "row_id", metavar="ROW_ID", help="Only those of this row; needs --key."),
        click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only those of this partition."),
        click.option("--key", metavar="KEY", help="Only those of this key."),
    ):
        gathered = option(gathered)
    return gathered
