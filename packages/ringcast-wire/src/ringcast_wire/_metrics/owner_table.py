"""The metrics of exclusive ownership, which a worker has in stores with the strategy sticky, or that migrate."""

from __future__ import annotations

from typing import Final

from ringcast_wire._metrics.metric import SECONDS, Kind, Metric

_KEY: Final = ("store", "key")
_KEY_WORKER: Final = ("store", "key", "worker_id")


def _owner(
    name: str, kind: Kind, labels: tuple[str, ...], unit: str, text: str, buckets: tuple[float, ...] = ()
) -> Metric:
    return Metric(name, kind, labels, unit, text, "worker", "", buckets)


OWNERS: Final = (
    _owner(
        "config_key_leading",
        "gauge",
        _KEY_WORKER,
        "keys",
        "1 while this worker leads the key (strategy sticky).",
    ),
    _owner(
        "config_leader_changes_total",
        "counter",
        _KEY,
        "changes",
        "Times that a worker began to lead the key (strategy sticky).",
    ),
    _owner(
        "config_handoff_seconds",
        "histogram",
        _KEY,
        "seconds",
        "How long a partition of a planned move was without calls: from the table that stops its owner to the one that "
        "names the next, on the leader's clock (strategy sticky).",
        SECONDS,
    ),
    _owner(
        "config_phase_partitions",
        "gauge",
        (*_KEY_WORKER, "phase"),
        "partitions",
        "Partitions by phase, as the leader has them: held, prepare, drain or unowned (strategy sticky).",
    ),
    _owner(
        "config_plan_moves",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions that the plan of a store that migrates gives to another worker, as the leader has it; else 0.",
    ),
    _owner(
        "config_passed_over_workers",
        "gauge",
        _KEY_WORKER,
        "workers",
        "Workers that get no partitions for five minutes, as the leader has it: they have not prepared in time what "
        "they were offered (strategy sticky).",
    ),
    _owner(
        "config_fence_refusals_total",
        "counter",
        _KEY,
        "calls",
        "Calls that were not let start: the fence had passed, or the partition was another's (strategy sticky).",
    ),
    _owner(
        "config_calls_over_bound_total",
        "counter",
        _KEY,
        "calls",
        "Calls of handler or callbacks that took longer than the store's call_bound_ms (strategy sticky).",
    ),
    _owner(
        "config_calls_ended_total",
        "counter",
        _KEY,
        "calls",
        "Calls that waited, and were cancelled: their session was over, and their bound was up (strategy sticky).",
    ),
    _owner(
        "config_call_over_bound_seconds",
        "gauge",
        _KEY_WORKER,
        "seconds",
        "How long a call has been running that is over that bound; else 0 (strategy sticky).",
    ),
    _owner(
        "config_unreadable_owner_records_total",
        "counter",
        _KEY_WORKER,
        "records",
        "Records of owners, and wishes of operators, of the store that could not be read (strategy sticky).",
    ),
    _owner(
        "config_key_load",
        "gauge",
        _KEY_WORKER,
        "changes/s",
        "Changes a second that reach the partitions that this worker owns, a decaying mean (strategy sticky).",
    ),
    _owner(
        "config_hot_partitions",
        "gauge",
        _KEY_WORKER,
        "partitions",
        "Partitions whose load alone is more than a worker should have, as the leader knows; else 0 (strategy sticky).",
    ),
    _owner(
        "config_load_skew",
        "gauge",
        _KEY_WORKER,
        "ratio",
        "Load of the busiest worker over the mean of all, as the leader knows; else 0 (strategy sticky).",
    ),
)
