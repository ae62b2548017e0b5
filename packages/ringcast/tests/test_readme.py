from __future__ import annotations

from pathlib import Path

import pytest
from ringcast import WorkerConfig
from ringcast_testkit import ConfigServiceProcess, NatsServer, run_readme_examples, settings_table


def test_the_examples_of_the_readme_run(
    tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    with ConfigServiceProcess(tmp_path, nats_url=nats_server.url, database=database) as service:
        monkeypatch.setenv("RINGCAST_SERVERS", nats_server.url)
        monkeypatch.setenv("RINGCAST_SERVICE", service.address)
        assert run_readme_examples(Path(__file__).parent.parent / "README.md") == 5


def test_the_table_of_settings_is_what_the_class_says() -> None:
    """Where it is not, the table of the README is to be replaced by this one."""
    table = settings_table(WorkerConfig)
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert table in readme, f"write this into the README:\n{table}"
