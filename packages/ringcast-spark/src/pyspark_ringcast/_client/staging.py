"""One release that is being staged, over gRPC: its batches, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ringcast_client.blocking import retried
from ringcast_wire import RingcastError
from ringcast_wire.grpc import pb

from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.options import Options


class Staging:
    """Nobody sees the release before it is complete. ``number`` is 0 before the first batch; ``rows`` are staged."""

    def __init__(self, options: Options, stage_id: str) -> None:
        """Sends nothing yet. ``stage_id`` names the release until it has a number; no other one has it."""
        self._options = options
        self._stub = shared_stub(options.service)
        self._stage_id = stage_id
        self._sequence = 0
        self.number = 0
        self.rows = 0

    def send(self, rows: Sequence[pb.KeyedWrite], *, complete: bool = False) -> list[pb.RejectedRow]:
        """Stages a batch; returns the rows that were left out. A batch that is sent again is not stored twice.

        Raises:
            LimitExceededError: the store has 20 releases that are staged or under way, or this one has too many rows.
            RingcastError: the service refused, or did not answer in time.
        """
        request = pb.StageReleaseRequest(
            store=self._options.store,
            stage_id=self._stage_id,
            sequence=self._sequence,
            rows=rows,
            complete=complete,
            reason=self._options.reason,
            on_invalid=pb.ON_INVALID_SKIP_ROW,
        )
        answer = retried(lambda left_s: self._stub.StageRelease(request, timeout=left_s), self._options.timeout_s)
        self._sequence += 1
        self.number, self.rows = answer.number, answer.rows
        return list(answer.rejected)

    def drop(self) -> None:
        """Drops what was staged, if the service can be reached; otherwise it expires."""
        if self.number:
            request = pb.ChangeReleaseRequest(store=self._options.store, number=self.number)
            with suppress(RingcastError):
                retried(lambda left_s: self._stub.DropRelease(request, timeout=left_s), self._options.timeout_s)
