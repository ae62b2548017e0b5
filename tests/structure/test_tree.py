"""The check of the tracked files finds what it looks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "build-support/checks/tree.py"


def check(root: Path, name: str, content: bytes) -> subprocess.CompletedProcess[str]:
    """Run the check over a repository that tracks this one file."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for words in (["init", "-q"], ["add", "-f", name]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return subprocess.run([sys.executable, str(CHECK), str(root)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("locks/x.txt", b"--extra-index-url y\n", "locks/x.txt:1: a lock names an address"),
        ("locks/x.txt", b"a @ https" + b"://h/a.whl\n", "locks/x.txt:1: a lock names an address"),
        ("a/x.sh", b"cd /" + b"home/me/x\n", "a/x.sh:1: an absolute path of one machine"),
        ("a/x.py", b"x = 1\n" * 501, "a/x.py: 501 lines, above the limit of 500"),
        ("a/x.bin", b"\xff" * (1024 * 1024 + 1), "a/x.bin: 1048577 bytes, above the limit of 1048576"),
    ],
)
def test_what_must_not_be_tracked_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    result = check(tmp_path, name, content)
    assert result.returncode == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("locks/x.txt", b"click==8.1.8 --hash=sha256:00\n"),
        ("a/x.py", b"x = 1\n" * 500),
        ("a/x_pb2.py", b"x = 1\n" * 501),
        ("README.md", b"https" + b"://example.org/" + b"home/x\n"),
    ],
)
def test_what_may_be_tracked_passes(tmp_path: Path, name: str, content: bytes) -> None:
    result = check(tmp_path, name, content)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_repository_that_tracks_nothing_is_refused(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    result = subprocess.run([sys.executable, str(CHECK), str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "git tracks no file" in result.stderr
