"""Print what each benchmark found beside its peer in the same run.

Usage: ratios.py REPORT, where REPORT was written by pytest with --benchmark-json. Exit status 1 when it holds nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: ratios.py REPORT\n")
        return 2
    benchmarks = json.loads(Path(sys.argv[1]).read_text())["benchmarks"]
    table = Table("benchmark", "median", "beside its peer", title="Measured in this run")
    for benchmark in benchmarks:
        facts = ", ".join(f"{name} {value}" for name, value in benchmark["extra_info"].items())
        table.add_row(benchmark["name"], f"{benchmark['stats']['median'] * 1e3:.3f} ms", facts)
    Console(width=120).print(table)
    return 0 if benchmarks else 1


if __name__ == "__main__":
    sys.exit(main())
