from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark_ringcast._common.options import _BY_PLAIN_NAME
from ringcast_testkit import run_readme_examples
from ringcast_wire.grpc import pb

README = Path(__file__).parent.parent / "README.md"


def test_the_examples_of_batch_reads_and_writes_run(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before the sections on the pipeline and on streams, which have tests of their own."""
    batch, heading, _ = README.read_text().partition("\n## Pipeline\n")
    assert heading
    (tmp_path / "README.md").write_text(batch)
    monkeypatch.setenv("RINGCAST_SERVERS", store.nats_url)
    monkeypatch.setenv("RINGCAST_SERVICE", store.address)
    store.stub.CreateStore(pb.CreateStoreRequest(name="gateway", partition_count=16))
    assert run_readme_examples(tmp_path / "README.md") == 13
    pages = store.stub.List(pb.ListRequest(store="gateway", key="blocklist"))
    assert {row.row_id for page in pages for row in page.rows} == {
        "mailinator.com",
        "0-mail.com",
        "example.org",
        "new.example",
    }


def test_every_option_is_described() -> None:
    text = README.read_text()
    assert len(_BY_PLAIN_NAME) > 15
    assert [name for name in _BY_PLAIN_NAME.values() if f"`{name}`" not in text] == []
