"""What others may rely on, and what an import costs."""

from __future__ import annotations

import subprocess
import sys

import pyspark_ringcast
import pytest


def test_the_exported_names_are_frozen() -> None:
    assert pyspark_ringcast.__all__ == [
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
    assert all(hasattr(pyspark_ringcast, name) for name in pyspark_ringcast.__all__)
    with pytest.raises(AttributeError, match="'pyspark_ringcast' has no attribute 'nothing'"):
        _ = pyspark_ringcast.nothing  # type: ignore[attr-defined]


def test_an_import_is_light() -> None:
    """Spark imports it for every query, whatever its format."""
    program = """
import sys
import pyspark.sql.datasource
before = set(sys.modules)
from pyspark_ringcast import DefaultSource
print(DefaultSource.name(), *sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ringcast", "pyspark_ringcast", "pyspark_ringcast._source"]
