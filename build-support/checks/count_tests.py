"""Count the tests in a directory of JUnit reports, and end with the line "N passed, N failed".

Usage: count_tests.py DIRECTORY. Exit status 1 when a test failed, or when no test ran at all.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

# crates/tests runs all of cargo's tests as one of pytest's, and says in its report how many they were.
RUST_TESTS = "rust_tests_passed"


@dataclass
class Count:
    """Numbers of test cases."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    rust: int = 0

    def add(self, case: ElementTree.Element) -> None:
        """Count one `testcase` element."""
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed += 1
        elif case.find("skipped") is not None:
            self.skipped += 1
        else:
            self.passed += 1
        for entry in case.iter("property"):
            if entry.get("name") == RUST_TESTS:
                self.rust += int(entry.get("value", "0"))


def count(directory: Path) -> Count:
    """Add up all reports below `directory`."""
    total = Count()
    for report in sorted(directory.rglob("*.xml")):
        # Our own test run wrote these files.
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314
            total.add(case)
    return total


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: count_tests.py DIRECTORY\n")
        return 2
    total = count(Path(sys.argv[1]))
    sys.stdout.write(f"tests: {total.passed} of pytest's passed, {total.rust} of cargo's, {total.skipped} skipped\n")
    sys.stdout.write(f"{total.passed + total.rust} passed, {total.failed} failed\n")
    return 0 if total.passed and not total.failed else 1


if __name__ == "__main__":
    sys.exit(main())
