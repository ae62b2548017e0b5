"""Ringcast stores as a source and sink of Apache Spark.

Spark imports every ``pyspark_…`` module that it finds, and finds ``DefaultSource`` in this one, so that
``spark.read.format("ringcast")`` works without a registration. Nothing is imported before it is asked for: a module of
that kind that fails or is slow to import does so for every query of everybody.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_ringcast._batch.counted import write
    from pyspark_ringcast._batch.counts import Counts, Staged
    from pyspark_ringcast._batch.lookup import lookup
    from pyspark_ringcast._batch.prepare import partition_count, prepare, with_reasons
    from pyspark_ringcast._batch.read import version_now
    from pyspark_ringcast._batch.staged import stage_release
    from pyspark_ringcast._client.lifecycle import (
        delete_key,
        delete_store,
        restore_key,
        restore_store,
        update_store,
    )
    from pyspark_ringcast._common.since import revisions_of
    from pyspark_ringcast._defaults import register
    from pyspark_ringcast._source import DefaultSource

__all__ = [
    "Counts",
    "DefaultSource",
    "Staged",
    "delete_key",
    "delete_store",
    "lookup",
    "partition_count",
    "prepare",
    "register",
    "restore_key",
    "restore_store",
    "revisions_of",
    "stage_release",
    "update_store",
    "version_now",
    "with_reasons",
    "write",
]

_HOMES = {
    "Counts": "_batch.counts",
    "DefaultSource": "_source",
    "Staged": "_batch.counts",
    "delete_key": "_client.lifecycle",
    "delete_store": "_client.lifecycle",
    "lookup": "_batch.lookup",
    "partition_count": "_batch.prepare",
    "prepare": "_batch.prepare",
    "register": "_defaults",
    "restore_key": "_client.lifecycle",
    "restore_store": "_client.lifecycle",
    "revisions_of": "_common.since",
    "stage_release": "_batch.staged",
    "update_store": "_client.lifecycle",
    "version_now": "_batch.read",
    "with_reasons": "_batch.prepare",
    "write": "_batch.counted",
}


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
