"""Look through the tracked files for what must never be among them.

Usage: tree.py [ROOT]. Refused are: addresses in locks, absolute paths of some machine, files above 1 MiB, and Python or
Rust files above 500 lines that nobody generated. Exit status 1 with one line a finding.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 1024 * 1024
MAX_LINES = 500
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
# Cargo's own name for its registry stands in every Cargo.lock, and can't be left out.
LOCK = re.compile(r"(^|/)(locks/.*|[^/]*requirements[^/]*|constraints[^/]*|.*\.lock)$")
CARGO_LOCK = re.compile(r"(^|/)Cargo\.lock$")
ADDRESS = re.compile(r"https?://|--(extra-)?index-url|--find-links")
# Put together here, so that this file does not contain what it looks for.
MACHINE_PATH = re.compile(r"(^|[^A-Za-z0-9_.~$}/-])/(" + "|".join(("root", "work", "farm", "home", "Users")) + ")/")


def tracked(root: Path) -> list[str]:
    """Names of the files that git tracks, relative to `root`."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    return [name for name in listing.stdout.decode().split("\0") if name and (root / name).is_file()]


def problems_of(name: str, content: bytes) -> Iterator[str]:
    """What is wrong with one file, as sentences that begin with its name."""
    if len(content) > MAX_BYTES:
        yield f"{name}: {len(content)} bytes, above the limit of {MAX_BYTES}"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return
    lines = text.splitlines()
    if name.endswith((".py", ".rs")) and not GENERATED.search(name) and len(lines) > MAX_LINES:
        yield f"{name}: {len(lines)} lines, above the limit of {MAX_LINES}"
    is_lock = LOCK.search(name) and not CARGO_LOCK.search(name)
    for number, line in enumerate(lines, start=1):
        if is_lock and ADDRESS.search(line):
            yield f"{name}:{number}: a lock names an address"
        if MACHINE_PATH.search(line):
            yield f"{name}:{number}: an absolute path of one machine"


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    names = tracked(root)
    if not names:
        sys.stderr.write(f"tree: git tracks no file under {root}\n")
        return 1
    found = [problem for name in names for problem in problems_of(name, (root / name).read_bytes())]
    for problem in found:
        sys.stderr.write(f"tree: {problem}\n")
    if not found:
        sys.stdout.write(f"tree: {len(names)} tracked files are clean\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
