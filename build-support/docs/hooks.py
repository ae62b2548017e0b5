"""Hooks of MkDocs: the site has the repository's own pages, each at its path, so a link that works there works here.

Pages outside of docs/ are added. A link to a folder leads to its README. A source file that a page links to becomes a
page that shows it. The reference is made from the code: reference.py beside this file prints the commands, errors and
RPCs, and mkdocstrings reads the docstrings of each package.
"""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
PAGES = (
    *("*.md", "docs/*.md", "benchmarks/README.md", "benchmarks/runs/*/report.md"),
    *("packages/*/*.md", "services/*/*.md", "crates/ringcast-core-py/*.md"),
)
OF_THE_COMMAND_LINE = ("ringcast_cli", "ringcast_testkit")
"""Packages that nobody imports."""
LANGUAGES = {".py": "python", ".proto": "protobuf"}
_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s:#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_ROLE = re.compile(r":(?:class|data|meth|func|attr|mod|exc):(?=<code)")


def packages() -> dict[str, Path]:
    """The import packages that applications use, and where their sources are."""
    found = [
        path.parent
        for path in (*ROOT.glob("packages/*/src/*/__init__.py"), *ROOT.glob("crates/*/python/*/__init__.py"))
    ]
    return {path.name: path for path in sorted(found) if path.name not in OF_THE_COMMAND_LINE}


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as Git hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


@event_priority(100)
def on_config(config: Any) -> Any:
    """Before that of mkdocstrings, which takes its paths then."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    sources = [str(path.parent) for path in packages().values()]
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = sources
    return config


def api_page(name: str, source: Path) -> str:
    """A package, and its public modules."""
    modules = [path.stem for path in sorted(source.glob("*.py")) if not path.name.startswith("_")]
    return "\n\n".join([f"# {name}", *(f"::: {'.'.join((name, module)).rstrip('.')}" for module in ("", *modules))])


def linked_files(pages: list[Path]) -> set[Path]:
    """Files of the repository to which pages link, pages aside."""
    targets = {
        (page.parent / match["target"]).resolve() for page in pages for match in _LINK.finditer(page.read_text())
    }
    return {path for path in targets if path.is_file() and path.suffix != ".md" and path.is_relative_to(ROOT)}


def on_files(files: Files, config: Any) -> Files:
    pages = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    found = Files([file for file in files if file.src_dir != config.docs_dir])  # those of the theme
    for path in [*pages, *linked_files(pages)]:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in LANGUAGES:
            text = f"# `{name}`\n\n```{LANGUAGES[path.suffix]}\n{path.read_text()}```\n"
            found.append(File.generated(config, f"{name}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        else:
            found.append(File(name, str(ROOT), config.site_dir, use_directory_urls=True))
    made = subprocess.run(
        [PYTHON, Path(__file__).with_name("reference.py")], capture_output=True, text=True, check=True
    )
    texts = json.loads(made.stdout) | {name: api_page(name, source) for name, source in packages().items()}
    for name, text in texts.items():
        found.append(File.generated(config, f"reference/{name}.md", content=text))
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A link to a folder leads to its README, and one to a source file to the page that shows it."""
    here = posixpath.dirname(page.file.src_uri)

    def changed(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        path = posixpath.normpath(posixpath.join(here, target))
        for page_of_it in (f"{path}/README.md", f"{path}.md"):
            if not path.endswith(".md") and files.get_file_from_path(page_of_it):
                return posixpath.relpath(page_of_it, here or ".") + anchor
        return match[0]

    return _LINK.sub(changed, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Docstrings name things with roles of Sphinx, which nothing here reads."""
    return _ROLE.sub("", html)
