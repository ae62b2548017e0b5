"""Every public name of the Dapr-shaped clients, held against the installed ``dapr`` package."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types
import typing
from typing import Any

import pytest
import ringcast
import ringcast.aio
from dapr.aio.clients import DaprClient as TheirAsyncClient
from dapr.clients import DaprClient as TheirClient
from dapr.clients.grpc import _response as theirs
from dapr.proto import common_v1
from ringcast._dapr import response as ours

CLIENTS = [(ringcast.DaprClient, TheirClient), (ringcast.aio.DaprClient, TheirAsyncClient)]
RESPONSES = [
    (ours.DaprResponse, theirs.DaprResponse),
    (ours.ConfigurationItem, theirs.ConfigurationItem),
    (ours.ConfigurationResponse, theirs.ConfigurationResponse),
]
CALLS = ["get_configuration", "subscribe_configuration", "unsubscribe_configuration"]


def _normal(annotation: Any) -> Any:
    """An annotation in a form that compares: unions without order, classes by name, built-in containers."""
    if annotation is None:
        return "NoneType"
    if annotation is Any or isinstance(annotation, str | typing.TypeVar):
        return str(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return frozenset(map(_normal, arguments))
    if isinstance(annotation, list):
        return tuple(map(_normal, annotation))
    if origin is not None:
        return (origin.__name__, tuple(map(_normal, arguments)))
    return "..." if annotation is Ellipsis else annotation.__name__


def _shape(function: Any) -> tuple[list[tuple[str, str, Any, Any]], Any]:
    hints = typing.get_type_hints(function, vars(inspect.getmodule(function)))
    parameters = [
        (name, parameter.kind.name, parameter.default, _normal(hints.get(name, Any)) if name != "self" else None)
        for name, parameter in inspect.signature(function).parameters.items()
    ]
    return parameters, _normal(hints.get("return", Any))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("mine", "other"), CLIENTS)
def test_the_calls_have_the_very_signatures(mine: type, other: type, call: str) -> None:
    assert _shape(getattr(mine, call)) == _shape(getattr(other, call))
    assert inspect.iscoroutinefunction(getattr(mine, call)) == inspect.iscoroutinefunction(getattr(other, call))


@pytest.mark.parametrize(("mine", "other"), CLIENTS)
def test_the_clients_are_made_used_and_closed_alike(mine: type, other: type) -> None:
    names = [name for name in vars(mine) if not name.startswith("_") or name in ("__enter__", "__aenter__")]
    assert set(names) - {"__enter__", "__aenter__"} == {*CALLS, "close"}, "a public call that dapr does not have"
    for name in (*names, "__exit__" if "__enter__" in names else "__aexit__"):
        assert list(inspect.signature(getattr(mine, name)).parameters) == list(
            inspect.signature(getattr(other, name)).parameters
        )
        assert inspect.iscoroutinefunction(getattr(mine, name)) == inspect.iscoroutinefunction(getattr(other, name))
    address = inspect.signature(mine).parameters["address"]
    assert address.replace(annotation=0) == inspect.signature(other).parameters["address"].replace(annotation=0)
    assert all(
        parameter.kind is parameter.KEYWORD_ONLY
        for name, parameter in inspect.signature(mine).parameters.items()
        if name != "address"
    ), "a positional parameter would mean something else in dapr"


@pytest.mark.parametrize(("mine", "other"), RESPONSES)
def test_the_responses_have_the_same_members(mine: type, other: type) -> None:
    def members(kind: type) -> dict[str, str]:
        return {
            name: type(value).__name__
            for name, value in vars(kind).items()
            if not name.startswith("_") or name == "__init__"
        }

    assert members(mine) == members(other)
    assert [base.__name__ for base in mine.__mro__] == [base.__name__ for base in other.__mro__]
    for name, kind in members(other).items():
        if kind == "property":
            mine_get, other_get = getattr(mine, name).fget, getattr(other, name).fget
            assert _shape(mine_get) == _shape(other_get), name
            assert (getattr(mine, name).fset is None) == (getattr(other, name).fset is None)
        elif name != "__init__":
            assert _shape(getattr(mine, name)) == _shape(getattr(other, name)), name
    mine_made, other_made = (list(inspect.signature(kind).parameters.values()) for kind in (mine, other))
    assert [(p.name, p.kind, p.default) for p in mine_made] == [(p.name, p.kind, p.default) for p in other_made]


def test_a_response_behaves_as_theirs() -> None:
    headers = (("a", "1"), ("b", b"2"), ("a", "3"))
    source = common_v1.ConfigurationItem(value=json.dumps({"on": True}), version="7", metadata={"m": "n"})
    built = [kind({"x": source}, headers) for kind in (ours.ConfigurationResponse, theirs.ConfigurationResponse)]
    facts = []
    for response in built:
        item = response.items["x"]
        response_headers = (response.headers, response.get_headers(), response.get_headers(as_dict=True))
        response.headers = (("c", "4"),)
        facts.append(
            (
                (item.value, item.version, item.metadata, item.text(), item.json()),
                response_headers,
                response.headers,
                type(item.metadata),
            )
        )
    assert facts[0] == facts[1]
    for kind in (ours.ConfigurationItem, theirs.ConfigurationItem):
        assert (kind("v", "1").metadata, kind("v", "1").text()) == ({}, "v")
        with pytest.raises(json.JSONDecodeError):
            kind("not json", "1").json()


async def _refusal(client: Any, call: str, *arguments: Any) -> str:
    async def run() -> None:
        result = getattr(client, call)(*arguments)
        if inspect.isawaitable(result):
            await result

    with pytest.raises(ValueError) as caught:
        await run()
    return str(caught.value)


@pytest.mark.parametrize(("mine", "other"), CLIENTS)
@pytest.mark.parametrize("store", ["", "   ", None])
async def test_a_blank_store_name_is_refused_in_the_same_words(mine: Any, other: Any, store: str | None) -> None:
    own = mine()
    foreign = object.__new__(other)  # the check comes first, so it needs no connection and no sidecar
    for call, arguments in (("get_configuration", (store, ["k"])), ("subscribe_configuration", (store, ["k"], print))):
        assert await _refusal(own, call, *arguments) == await _refusal(foreign, call, *arguments)
    if isinstance(own, ringcast.DaprClient):
        own.close()


def test_dapr_is_not_imported_at_run_time() -> None:
    code = (
        "import sys, ringcast, ringcast.aio; ringcast.DaprClient(); ringcast.aio.DaprClient(); "
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('dapr', 'grpc')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
