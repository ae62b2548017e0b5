"""The provisional rows of a config key: what a release that is not published yet would make of some of its rows.

They lie over what the worker holds and are no part of it: no revision counts them, and nothing of them gets to the
disk. Each was staged for a version of its row, its base. It is shown for as long as the row has this version. What is
written to the row from then on, by the release or by another writer, takes its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ringcast_wire import Row
from ringcast_wire.reports import StagedRow

from ringcast._common.change import Change
from ringcast._protocol.partition import Partition


class ProvisionalRows:
    """Of one key, of one release at a time. ``partitions``: what the worker holds, whichever that is by now."""

    def __init__(self, store: str, key: str, partitions: Mapping[int, Partition]) -> None:
        self.release = 0
        """Whose rows they are; 0: there are none."""
        self.laid_at = 0.0
        """Since when they lie there, on the clock of the caller; all were laid over at once."""
        self._store = store
        self._key = key
        self._partitions = partitions
        self._rows: dict[str, StagedRow] = {}
        self._histories: dict[int, str] = {}
        """Of each partition, when they were laid over."""
        self._handed: set[str] = set()
        """Rows that the handler may have got."""

    @property
    def count(self) -> int:
        """How many are shown."""
        return sum(map(self._is_shown, self._rows.values()))

    def __len__(self) -> int:
        """How many have not been written since, and handed over; they are shown, or are about to leave."""
        return len(self._rows)

    def lay(self, release: int, rows: Iterable[StagedRow], now: float) -> None:
        """Shows these rows from now on. Those whose base is another by now are left out: the release will skip them."""
        self.release, self.laid_at = release, now
        self._histories = {number: part.history for number, part in self._partitions.items()}
        self._rows = {row.row_id: row for row in rows if self._is_shown(row)}
        self._handed = set()

    def end(self) -> list[StagedRow]:
        """Shows none any more. Returns those that the handler has got: it is to get what the worker holds instead."""
        handed = [row for row_id in self._handed if (row := self.of(row_id)) is not None]
        self._rows, self._handed, self.release = {}, set(), 0
        return handed

    def base(self, row: StagedRow) -> Change | None:
        """What the worker holds in place of a row that is not shown any more; ``None``: it was written since."""
        if not self._is_shown(row):
            return None
        part = self._partitions[row.partition]
        held = part.rows.get(row.row_id)
        place = self._store, self._key, row.partition, row.row_id
        if held is None:
            return Change(*place, None, part.applied, deleted=True)
        return Change(*place, held.value, held.version, metadata=held.metadata)

    def leave(self, changes: Iterable[Change]) -> None:
        """These changes are about to be handed over: their rows are what the worker holds of them from now on."""
        if self._rows:
            for change in changes:
                self._rows.pop(change.row_id, None)

    def of(self, row_id: str) -> StagedRow | None:
        """The one that is shown in place of a row; one without a value shows that there is no such row."""
        row = self._rows.get(row_id)
        return row if row is not None and self._is_shown(row) else None

    def row(self, row_id: str, held: Row | None) -> Row | None:
        """What is shown of a row of which the worker holds ``held``."""
        row = self.of(row_id) if self._rows else None
        return held if row is None else _live(row)

    def over(self, held: Iterable[Row]) -> Iterator[Row]:
        """What is shown of all live rows, of which the worker holds ``held``."""
        if not self._rows:
            yield from held
            return
        shown = {row_id: row for row_id, row in self._rows.items() if self._is_shown(row)}
        for row in held:
            if row.row_id not in shown:
                yield row
        for each in shown.values():
            if (live := _live(each)) is not None:
                yield live

    def changed_count(self) -> int:
        """By how many live rows what is shown is more than what the worker holds."""
        shown = [row for row in self._rows.values() if self._is_shown(row)]
        return sum((row.value is not None) - (row.version > 0) for row in shown)

    def changes(self) -> list[Change]:
        """Those that are shown, as changes. Their handler has got them then."""
        shown = [row for row in self._rows.values() if self._is_shown(row)]
        self._handed.update(row.row_id for row in shown)
        return [self.change(row) for row in shown]

    def hand_over(self, row_id: str) -> Change | None:
        """The change with which the handler gets a row, if it is still shown."""
        row = self.of(row_id)
        if row is None:
            return None
        self._handed.add(row_id)
        return self.change(row)

    def change(self, row: StagedRow) -> Change:
        """A row as a change; its version is that of the row which it is shown in place of."""
        return Change(
            self._store,
            self._key,
            row.partition,
            row.row_id,
            row.value,
            row.version,
            deleted=row.value is None,
            metadata=row.metadata,
            release=self.release,
            provisional=True,
        )

    def ids(self) -> list[str]:
        """Of all of them."""
        return list(self._rows)

    def _is_shown(self, row: StagedRow) -> bool:
        part = self._partitions.get(row.partition)
        if part is None or self._histories.get(row.partition) not in ("", part.history):  # "": nothing was written
            return False
        held = part.rows.get(row.row_id)
        return row.version == (held.version if held is not None else 0)


def _live(row: StagedRow) -> Row | None:
    return None if row.value is None else Row(row.row_id, row.value, row.version, metadata=row.metadata)
