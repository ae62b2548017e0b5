"""The two real lists of the demo, as files that `ringcast import` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import disposable_email_domains
import publicsuffixlist


class SourceList(NamedTuple):
    """A list on disk, and the config key that it becomes."""

    key: str
    path: Path
    rows: int


def write_lists(directory: Path) -> list[SourceList]:
    """Writes both lists below ``directory``: domains as plain text, suffixes as JSON lines with their section."""
    directory.mkdir(parents=True, exist_ok=True)
    return [_blocklist(directory / "blocklist.txt"), _suffixes(directory / "suffixes.jsonl")]


def _blocklist(path: Path) -> SourceList:
    """Disposable e-mail domains (package disposable-email-domains, MIT), one a line."""
    domains = sorted(disposable_email_domains.blocklist)
    path.write_text("".join(f"{domain}\n" for domain in domains), encoding="utf-8")
    return SourceList("blocklist", path, len(domains))


def _suffixes(path: Path) -> SourceList:
    """The Public Suffix List (package publicsuffixlist, MPL 2.0): rule → section."""
    source = Path(publicsuffixlist.__file__).with_name("public_suffix_list.dat")
    section = ""
    rules: dict[str, str] = {}
    for line in source.read_text(encoding="utf-8").splitlines():
        if "===BEGIN" in line:
            section = line.split("BEGIN ")[1].split(" DOMAINS")[0].lower()
        elif line and not line.startswith("//"):
            rules[line.split()[0]] = section
    with path.open("w", encoding="utf-8") as file:
        for rule, value in rules.items():
            file.write(json.dumps({"row_id": rule, "value": value}, ensure_ascii=False) + "\n")
    return SourceList("suffixes", path, len(rules))
