"""What the distribution promises about itself."""

from __future__ import annotations

import doctest
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import ringcast_core

ROOT = Path(__file__).resolve().parents[1]


def test_exported_names_are_frozen() -> None:
    assert sorted(ringcast_core.__all__) == [
        "Action",
        "ConsumerState",
        "DEFAULT_LOAD_FACTOR",
        "Dedup",
        "Dispatcher",
        "FetchedRows",
        "HASH_NAME",
        "KeyFilter",
        "MAX_CONSUMERS",
        "MAX_DEDUP_ROWS",
        "MAX_DISPATCH_WINDOW",
        "MAX_KEY_FILTERS",
        "MAX_PARTITIONS",
        "MAX_ROW_ID_BYTES",
        "MAX_SLOTS",
        "MAX_WEIGHT",
        "Partitions",
        "Ring",
        "Router",
        "VIRTUAL_NODES",
        "WIRE_VERSION",
        "__version__",
        "assign_jump",
        "assign_ring",
        "assign_sticky",
        "jump_hash",
        "jump_hash_batch",
        "read_fetch_reply",
        "row_partition",
        "row_partitions",
        "row_partitions_arrow",
    ]
    for name in ringcast_core.__all__:
        assert getattr(ringcast_core, name) is not None


def test_constants_that_others_rely_on() -> None:
    assert ringcast_core.HASH_NAME == "xxh64-42"
    assert ringcast_core.MAX_PARTITIONS == 4096
    assert ringcast_core.MAX_SLOTS == 1024
    assert ringcast_core.MAX_ROW_ID_BYTES == 512
    assert ringcast_core.VIRTUAL_NODES == 100
    assert ringcast_core.WIRE_VERSION == 1
    assert ringcast_core.DEFAULT_LOAD_FACTOR == 1.25


def test_the_version_has_one_place() -> None:
    """maturin and the compiled module both take it from Cargo.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dynamic"] == ["version"]
    assert "version" not in project
    assert ringcast_core.__version__ == version("ringcast-core")
    assert f"## {ringcast_core.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not requires("ringcast-core")


def test_readme_examples_run() -> None:
    failed, attempted = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert attempted >= 8
    assert failed == 0


def test_every_public_object_is_documented() -> None:
    for name in ringcast_core.__all__:
        thing = getattr(ringcast_core, name)
        if callable(thing):
            assert thing.__doc__, name
