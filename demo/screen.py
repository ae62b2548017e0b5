"""What the demo shows: a table of the fleet that keeps itself up to date, and a line for each thing that happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.fleet import Fleet

_BAR = 16
_WIDTH = 100  # where there is no terminal to ask
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


class Screen:
    """Prints to a terminal; in a pipe, plain lines without the live table."""

    def __init__(self, *, picture: Path | None = None, title: str = "make demo") -> None:
        self.console = Console(record=picture is not None, highlight=False)
        if picture or not self.console.is_terminal:
            self.console.width = _WIDTH
        self._picture = picture
        self._title = title
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._step = 0

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._picture is not None:
            # Without the web fonts that rich names: a picture must not load anything.
            picture = re.sub(r"@font-face \{.*?\}\s*", "", self.console.export_svg(title=self._title), flags=re.DOTALL)
            self._picture.write_text(picture, encoding="utf-8")

    def step(self, title: str) -> None:
        """Begins a part of the story."""
        self._step += 1
        self.console.print(f"\n[bold]{self._step}. {title}[/bold]")

    def say(self, text: str) -> None:
        """One line of it."""
        self.console.print(f"   {text}")

    def follow(self, fleet: Fleet, partition_count: int) -> Callable[[], None]:
        """Returns what redraws the live table of the fleet."""

        def refresh() -> None:
            if self._live.is_started:
                self._live.update(fleet_table(fleet, partition_count), refresh=True)

        return refresh

    def show(self, table: RenderableType) -> None:
        """Prints something to stay."""
        self.console.print(table)


def fleet_table(fleet: Fleet, partition_count: int) -> Table:
    """Who owns how much of each list, drawn to scale."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("worker", "pid", *fleet.keys, "rows", "changes heard"):
        table.add_column(heading, no_wrap=True)
    for member in fleet.members.values():
        colour = _COLOURS[member.number % len(_COLOURS)]
        shares = [_share(len(member.owned.get(key, ())), partition_count, colour) for key in fleet.keys]
        rows = f"{member.rows.total():,}"
        table.add_row(Text(member.worker_id, colour), str(member.process.pid), *shares, rows, str(member.heard))
    return table


def _share(partitions: int, partition_count: int, colour: str) -> Text:
    filled = round(_BAR * partitions / partition_count)
    return Text.assemble(("█" * filled, colour), ("░" * (_BAR - filled), "dim"), f" {partitions:>3}")


def figures_table(figures: dict[str, object]) -> Group:
    """The closing table."""
    table = Table("figure", "value", box=box.SIMPLE_HEAD)
    for name, value in figures.items():
        shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
        table.add_row(name, f"{shown:,}" if isinstance(shown, int) else str(shown))
    return Group(Text(), table)
