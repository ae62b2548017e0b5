"""An import: reads rows in one thread, writes them in batches, and knows at each moment what is written."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ringcast_client import BatchResult, BulkWrite, ConfigServiceClient, InvalidRowError, OnInvalid, RowWrite
from ringcast_wire import ConditionFailedError, InvalidInputError, LimitExceededError, RingcastError

from ringcast_cli._rows.formats import Parsed
from ringcast_cli._rows.source import BadLineError

MAX_SHOWN_SKIPS: Final = 20


class OnError(StrEnum):
    """What an import does about a line that is malformed or breaks a rule."""

    STOP = "stop"
    SKIP = "skip"


@dataclass(slots=True)
class Summary:
    """What an import did. ``last_written`` is the last line (row, in Parquet) up to which everything is written."""

    store: str
    key: str
    unit: str = "line"
    rows: int = 0
    written: int = 0
    deleted: int = 0
    unchanged: int = 0
    skipped: int = 0
    last_written: int = 0
    maybe_written: int = 0
    seconds: float = 0.0
    complete: bool = False
    skips: list[str] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        """Rows read, over the whole time."""
        return self.rows / self.seconds if self.seconds else 0.0

    def state(self) -> str:
        """A clause that says exactly what is written."""
        if not self.last_written:
            text = "nothing is written"
        else:
            text = f"everything up to {self.unit} {self.last_written} is written ({self.rows} rows), nothing after it"
        if self.maybe_written > self.last_written:
            after = f"{self.unit}s {self.last_written + 1} to {self.maybe_written}"
            text = text.removesuffix(", nothing after it") + f"; {after} were on their way and may be written"
        return text


class ImportStoppedError(RingcastError):
    """The import did not run to its end; the message says why, where, and what is written."""


class Importer:
    """One import into one key."""

    def __init__(
        self,
        client: ConfigServiceClient,
        store: str,
        key: str,
        *,
        on_error: OnError,
        skip_unchanged: bool,
        job_id: str | None = None,
        reason: str | None = None,
        unit: str,
        on_progress: Callable[[Summary], None],
        on_skip: Callable[[str], None],
    ) -> None:
        self.summary = Summary(store, key, unit)
        self._client = client
        self._on_error = on_error
        self._skip_unchanged = skip_unchanged
        self._job_id = job_id
        self._reason = reason
        self._on_progress = on_progress
        self._on_skip = on_skip
        self._lines: deque[int] = deque()  # of the rows handed out and not yet confirmed
        self._first = 0  # index of the row that _lines begins with

    async def run(self, parsed: Iterator[Parsed]) -> Summary:
        """Writes every row.

        Raises:
            ImportStoppedError: a line is at fault and ``on_error`` is ``STOP``, or writing failed.
        """
        summary = self.summary
        started = time.monotonic()
        invalid = OnInvalid.REJECT_BATCH if self._on_error is OnError.STOP else OnInvalid.SKIP_ROW
        write = self._client.bulk_write(
            summary.store,
            summary.key,
            self._rows(parsed),
            on_invalid=invalid,
            skip_unchanged=self._skip_unchanged,
            job_id=self._job_id,
            reason=self._reason,
        )
        try:
            async for result in write:
                self._confirm(result)
                summary.seconds = time.monotonic() - started
                self._on_progress(summary)
            summary.complete = True
        except InvalidRowError as error:
            raise self._stopped(f"{summary.unit} {self._lines[error.index - self._first]}: {error}", error) from error
        except (InvalidInputError, ConditionFailedError, LimitExceededError) as error:
            raise self._stopped(str(error), error) from error  # the service refused a batch, and wrote none after it
        except RingcastError as error:
            summary.maybe_written = self._sent_line(write)
            raise self._stopped(str(error), error) from error
        except asyncio.CancelledError:
            summary.maybe_written = self._sent_line(write)
            raise
        finally:
            summary.seconds = time.monotonic() - started
        return summary

    def _rows(self, parsed: Iterator[Parsed]) -> Iterator[RowWrite]:
        """Runs in the reading thread."""
        for item in parsed:
            if isinstance(item, BadLineError):
                if self._on_error is OnError.STOP:
                    raise item
                self._skip(str(item))
                continue
            line, row = item
            self._lines.append(line)
            yield row

    def _confirm(self, result: BatchResult) -> None:
        summary = self.summary
        for row in result.rejected:
            self._skip(f"{summary.unit} {self._lines[row.index - self._first]}: {row.reason}")
        for _ in range(result.rows):
            summary.last_written = self._lines.popleft()
        self._first += result.rows
        summary.rows += result.rows - len(result.rejected)
        summary.written += result.written
        summary.deleted += result.deleted
        summary.unchanged += result.unchanged

    def _skip(self, reason: str) -> None:
        self.summary.skipped += 1
        if len(self.summary.skips) < MAX_SHOWN_SKIPS:
            self.summary.skips.append(reason)
            self._on_skip(reason)

    def _sent_line(self, write: BulkWrite) -> int:
        """The line of the last row that was handed to the connection."""
        pending = write.sent_rows - self._first
        return self._lines[pending - 1] if pending > 0 else self.summary.last_written

    def _stopped(self, reason: str, error: RingcastError) -> ImportStoppedError:
        stopped = ImportStoppedError(f"{reason}; {self.summary.state()}", field=error.field)
        stopped.code = error.code  # type: ignore[misc]  # an import fails with the code of what stopped it
        return stopped
