"""Hold the dashboards in infra/grafana against the schema of Grafana, as the models of its SDK have it.

Usage: dashboards.py [FILE...], by default all of infra/grafana/dashboards. grafana-foundation-sdk has to be in this
interpreter's environment. Exit status 1 with every field that Grafana does not know, and every value of another type or
of none of the words that a field may have.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.cog import plugins  # type: ignore[import-not-found]
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # type: ignore[import-not-found]
from grafana_foundation_sdk.models.dashboard import Dashboard  # type: ignore[import-not-found]

DASHBOARDS: Final = Path(__file__).resolve().parents[2] / "infra/grafana/dashboards"
PANELS: Final = ("row", "stat", "state-timeline", "timeseries")
"""The kinds that the SDK has models of and ours are of: it takes the options of any other as they are."""


def lost(ours: Any, theirs: Any, path: str) -> Iterator[str]:
    """What is in ``ours`` and is not, or is another, once the models have read and written it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            if name in theirs:
                yield from lost(value, theirs[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: Grafana knows no such field"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from lost(one, other, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} is read as {theirs!r}"


def unfit(value: Any, hint: Any, path: str) -> Iterator[str]:
    """Where a value of a model is not of the type that the model gives it."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hasattr(value, "to_json"):
        hints = typing.get_type_hints(type(value))
        for name, inner in vars(value).items():
            yield from unfit(inner, hints.get(name, object), f"{path}.{name}")
    elif isinstance(value, dict) and hasattr(hint, "from_json"):  # the models leave some of theirs undecoded
        model = hint.from_json(value)
        yield from lost(value, json.loads(JSONEncoder().encode(model)), path)
        yield from unfit(model, hint, path)
    elif origin is typing.Union:
        tried = [list(unfit(value, part, path)) for part in parts if value is None or part is not type(None)]
        if all(tried):
            yield from max(tried, key=len)
    elif isinstance(value, list) and origin is list:
        for number, inner in enumerate(value):
            yield from unfit(inner, parts[0], f"{path}[{number}]")
    elif isinstance(value, dict) and origin is dict:
        for name, inner in value.items():
            yield from unfit(inner, parts[1], f"{path}.{name}")
    elif origin is typing.Literal or (isinstance(hint, type) and issubclass(hint, Enum)):
        words = parts if origin is typing.Literal else tuple(one.value for one in hint)
        if value not in words:
            yield f"{path}: {value!r} is none of {', '.join(map(repr, words))}"
    elif isinstance(hint, type):
        kind = (int, float) if hint is float else hint
        if not isinstance(value, kind) or (isinstance(value, bool) and hint in (int, float)):
            yield f"{path}: {value!r} is not of type {hint.__name__}"
    else:
        yield f"{path}: {value!r} is not {hint}"


def problems(text: str, name: str) -> list[str]:
    ours = json.loads(text)
    unknown = {panel["type"] for panel in ours["panels"]} - set(PANELS)
    if unknown:
        return [f"{name}: panels of the kind {', '.join(sorted(unknown))} are not checked: add it to PANELS"]
    model = Dashboard.from_json(ours)
    return [*lost(ours, json.loads(JSONEncoder().encode(model)), name), *unfit(model, Dashboard, name)]


def check_itself(text: str) -> None:
    """Raises AssertionError where another version of the SDK would let anything pass."""
    broken = json.loads(text) | {"refresh": 30, "refrehs": "30s"}
    found = problems(json.dumps(broken), "broken")
    assert found == ["broken.refrehs: Grafana knows no such field", "broken.refresh: 30 is not of type str"], found


def main() -> int:
    plugins.register_default_plugins()
    files = [Path(word) for word in sys.argv[1:]] or sorted(DASHBOARDS.glob("*.json"))
    check_itself(files[0].read_text())
    found = [problem for file in files for problem in problems(file.read_text(), file.name)]
    for problem in found:
        sys.stderr.write(f"dashboards: {problem}\n")
    if not found:
        sys.stdout.write(f"dashboards: {len(files)} dashboards fit the schema of Grafana\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
