"""A database that can't be used gets another name, with all that belongs to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ringcast_sqlite import COMPANIONS, quarantine, quarantined, remove_database, try_lock


def put(path: Path, text: str) -> None:
    for end in COMPANIONS:
        path.with_name(path.name + end).write_text(f"{text}{end}")


def texts(path: Path) -> list[str]:
    return [path.with_name(path.name + end).read_text() for end in COMPANIONS]


def test_the_logs_of_a_file_in_quarantine_do_not_meet_the_new_one(tmp_path: Path) -> None:
    path, new = tmp_path / "x.db", tmp_path / "new"
    put(path, "old")
    new.write_text("new")
    found = quarantine(path, "damaged", new)
    assert path.read_text() == "new"
    assert texts(found) == [f"old{end}" for end in COMPANIONS]
    assert len(list(tmp_path.iterdir())) == 5


def test_files_in_quarantine_are_found_by_age_and_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    names = []
    for number in range(20):
        put(path, str(number))
        names.append(quarantine(path, "odd"))
        assert not any(path.with_name(path.name + end).exists() for end in COMPANIONS)
    assert quarantined(path, "odd") == names
    assert quarantined(path, "damaged") == []
    assert texts(names[3]) == [f"3{end}" for end in COMPANIONS]
    for name in names:
        remove_database(name)
        remove_database(name)  # harmless
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_links_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path / "x.db", "old")
    assert texts(quarantine(tmp_path / "x.db", "damaged")) == [f"old{end}" for end in COMPANIONS]


def test_a_lock_is_of_one_holder_alone(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert try_lock(first)
        assert not try_lock(second)
    finally:
        os.close(first)
    assert try_lock(second)
    os.close(second)
