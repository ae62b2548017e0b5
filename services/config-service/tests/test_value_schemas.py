"""The schemas of values as clients see them: on every way in, in two instances, and how operators set them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from ringcast_config_service import value_schemas
from ringcast_config_service.repository.value_checks import to_value_schema
from ringcast_testkit import attempt
from ringcast_wire import ErrorCode
from ringcast_wire.grpc import error_from_rpc, pb

Running = Any  # of conftest.py

NUMBER = json.dumps({"type": "integer"})
SMALL = json.dumps({"type": "integer", "maximum": 9})
ENFORCE, WARN, OFF = pb.SCHEMA_MODE_ENFORCE, pb.SCHEMA_MODE_WARN, pb.SCHEMA_MODE_OFF


async def register(
    service: Running, store: str, definition: str = SMALL, mode: Any = None, key: str = "k", kind: Any = None
) -> pb.KeySchema:
    request = pb.RegisterSchemaRequest(store=store, key=key, definition=definition, mode=mode, kind=kind)
    found: pb.KeySchema = await service.stub.RegisterSchema(request)
    return found


async def set_mode(service: Running, store: str, mode: Any, key: str = "k") -> pb.KeySchema:
    found: pb.KeySchema = await service.stub.SetSchemaMode(pb.SetSchemaModeRequest(store=store, key=key, mode=mode))
    return found


async def refusal(call: Any) -> tuple[ErrorCode, str | None, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = error_from_rpc(caught.value)
    return error.code, error.field, str(error)


def said(store: str, row_id: str = "bad", version: int = 1) -> str:
    rule = "as a whole (rule /maximum): the value is greater than the maximum of 9: '10'"
    return f"row {row_id!r} of {store}/k breaks version {version} of its schema {rule}"


async def changes(service: Running, store: str, *values: str) -> list[pb.ChangeResult]:
    async def requests() -> AsyncIterator[pb.Changes]:
        rows = [pb.RowChange(number=n, row_id="bad", value=value) for n, value in enumerate(values, 1)]
        yield pb.Changes(store=store, key="k", changes=rows)

    return [result async for results in service.stub.Change(requests()) for result in results.results]


@attempt(
    "a writer of a store",
    "write a value that breaks the schema of its key, on any way in",
    "refused, naming row, version and rule; nothing is written",
)
async def test_every_way_in_refuses_what_breaks_the_schema(service: Running, store_name: str) -> None:
    await service.create(store_name)
    found = await register(service, store_name)
    assert (found.key, found.version, found.kind, found.mode) == ("k", 1, pb.SCHEMA_KIND_JSON_SCHEMA, ENFORCE)
    expected = ErrorCode.INVALID_INPUT, "value", said(store_name)
    assert await refusal(service.put(store_name, "bad", "10")) == expected
    row = pb.RowWrite(row_id="bad", value="10")
    commit = pb.CommitRequest(
        store=store_name,
        writes=[pb.KeyedWrite(key="j", row=pb.RowWrite(row_id="x", value="v")), pb.KeyedWrite(key="k", row=row)],
    )
    assert await refusal(service.stub.Commit(commit)) == (
        ErrorCode.INVALID_INPUT,
        "value",
        f"write 1 of the commit: {said(store_name)}",
    )
    (bad, good) = sorted(await changes(service, store_name, "10", "9"), key=lambda result: result.number)
    assert (bad.error, bad.field, bad.message) == ("INVALID_INPUT", "value", said(store_name))
    assert (good.error, good.version) == ("", 1)
    whole = service.write(store_name, [pb.RowWrite(row_id="good", value="1"), row])
    assert (await refusal(whole))[2] == f"row 1 of the batch: {said(store_name)}"
    stage = pb.StageReleaseRequest(
        store=store_name,
        stage_id="one",
        rows=[pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="bad", value="10", if_absent=True))],
        complete=True,
    )
    assert (await refusal(service.stub.StageRelease(stage)))[2] == f"row 0 of the batch: {said(store_name)}"
    stage.rows.append(pb.KeyedWrite(key="k", row=pb.RowWrite(row_id="fine", value="1", if_absent=True)))
    stage.on_invalid = pb.ON_INVALID_SKIP_ROW
    for _ in range(2):  # the second time it is stored, and answered in the same way
        staged = await service.stub.StageRelease(stage)
        (left_out,) = staged.rejected
        assert (left_out.index, left_out.row_id, left_out.code, left_out.field) == (0, "bad", "SCHEMA", "value")
        assert (staged.rows, left_out.reason) == (1, said(store_name))
    stage.rows[1].row.ClearField("if_absent")
    assert "has no condition" in (await refusal(service.stub.StageRelease(stage)))[2], (
        "a fault of the caller, not a row"
    )
    stage.on_invalid = 9  # type: ignore[assignment]
    assert (await refusal(service.stub.StageRelease(stage)))[2] == "on_invalid 9 is unknown: 3 values are defined"
    (result,) = await service.write(
        store_name,
        [pb.RowWrite(row_id="good", value="1"), row, pb.RowWrite(row_id="bad", delete=True)],
        on_invalid=pb.ON_INVALID_SKIP_ROW,
    )
    assert [(each.index, each.row_id, each.code, each.field) for each in result.rejected] == [
        (1, "bad", "SCHEMA", "value")
    ]
    assert result.rejected[0].reason == said(store_name)
    assert (result.written, result.deleted) == (1, 1)
    await service.put(store_name, "x", "anything", key="other")


async def test_many_plain_rows_are_rejected_one_by_one(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await register(service, store_name)

    async def batches() -> AsyncIterator[pb.WriteBatch]:
        ids = [f"r{number}" for number in range(200)]
        values = ["10" if number % 50 == 0 else "9" for number in range(200)]
        skip = pb.ON_INVALID_SKIP_ROW
        yield pb.WriteBatch(store=store_name, key="k", row_ids=ids, values=values, on_invalid=skip)
        yield pb.WriteBatch(store=store_name, key="k", row_ids=ids[1:49], values=["8"] * 48, on_invalid=skip)

    first, second = [result async for result in service.stub.Write(batches())]
    assert (first.written, [each.row_id for each in first.rejected]) == (196, ["r0", "r50", "r100", "r150"])
    assert (second.written, list(second.rejected)) == (48, [])


async def test_another_instance_holds_writes_to_it_at_once(
    start: Callable[..., Any], nats_url: str, tmp_path: Path, store_name: str
) -> None:
    """What it has read of the schemas is a few seconds old."""
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    async with start(nats_url, database) as one, start(nats_url, database) as two:
        await one.create(store_name)
        await two.put(store_name, "a", "10")
        await two.put(store_name, "a", "1")
        await register(one, store_name)
        assert (await refusal(two.put(store_name, "bad", "10")))[2] == said(store_name)
        await register(one, store_name, json.dumps({"type": "integer", "maximum": 9, "minimum": 0}))
        assert (await refusal(two.put(store_name, "bad", "10")))[2] == said(store_name, version=2)
        await set_mode(one, store_name, OFF)
        for app in (one.app, two.app):
            app.core.schemas.forget(store_name)
        await two.put(store_name, "bad", "10")


async def test_a_bulk_load_is_held_to_a_schema_from_the_next_batch_on(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.put(store_name, "first", "1")
    registered, read = asyncio.Event(), asyncio.Event()

    async def batches() -> AsyncIterator[pb.WriteBatch]:
        yield pb.WriteBatch(store=store_name, key="k", row_ids=["a"], values=["7"])
        await registered.wait()
        skip = pb.ON_INVALID_SKIP_ROW
        yield pb.WriteBatch(store=store_name, key="k", row_ids=["bad", "b"], values=["10", "2"], on_invalid=skip)

    results = []
    call = service.stub.Write(batches())

    async def take() -> None:
        async for result in call:
            results.append(result)
            read.set()

    taking = asyncio.create_task(take())
    await read.wait()
    await register(service, store_name)
    registered.set()
    await taking
    assert (results[1].written, [each.code for each in results[1].rejected]) == (1, ["SCHEMA"])


class Watched:
    """A schema that notes in which turn of the loop it is asked."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self.turn = 0
        self.turns: list[int] = []

    async def count(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def accepts(self, value: str) -> bool:
        self.turns.append(self.turn)
        return bool(self._schema.accepts(value))

    def problem(self, value: str) -> Any:
        return self._schema.problem(value)


@attempt(
    "a writer of a store",
    "have many values checked for long in one call, good ones and bad ones",
    "others get their turn between one value and the next",
)
@pytest.mark.parametrize("way", ["plain", "rows", "commit", "stage", "changes"])
async def test_others_get_their_turn_while_values_are_checked(
    service: Running, store_name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create(store_name)
    await register(service, store_name)
    check = await service.app.core.schemas.check_of(store_name, "k")
    watched = Watched(check._schema)
    monkeypatch.setattr(check, "_schema", watched)
    monkeypatch.setattr(value_schemas, "_AGE_S", 600.0)
    monkeypatch.setattr(value_schemas, "_TURN_S", -1.0)
    rows = [pb.RowWrite(row_id=f"r{n}", value=str(n), metadata={"a": "b"}, if_absent=True) for n in range(8)]
    keyed = [pb.KeyedWrite(key="k", row=row) for row in rows]

    async def plain() -> AsyncIterator[pb.WriteBatch]:
        skip = pb.ON_INVALID_SKIP_ROW
        ids, values = [row.row_id for row in rows], [*(row.value for row in rows[:-1]), "10"]
        yield pb.WriteBatch(store=store_name, key="k", row_ids=ids, values=values, on_invalid=skip)

    counting = asyncio.create_task(watched.count())
    try:
        match way:
            case "plain":
                (result,) = [result async for result in service.stub.Write(plain())]
                assert (result.written, len(result.rejected)) == (7, 1)
            case "rows":
                await service.write(store_name, [*rows, pb.RowWrite(row_id="gone", delete=True)])
            case "commit":
                await service.stub.Commit(pb.CommitRequest(store=store_name, writes=keyed))
            case "stage":
                await service.stub.StageRelease(pb.StageReleaseRequest(store=store_name, stage_id="one", rows=keyed))
            case "changes":
                await changes(service, store_name, *(row.value for row in rows))
    finally:
        counting.cancel()
    assert len(watched.turns) == 8, "each value is checked once"
    assert len({*watched.turns}) == 8


async def test_a_warning_is_counted_and_logged_and_written(
    service: Running, store_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await service.create(store_name)
    await service.put(store_name, "old", "10")
    assert (await register(service, store_name, mode=WARN)).mode == WARN
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await service.put(store_name, "bad", "10")
        await service.write(store_name, [pb.RowWrite(row_id="worse", value="secret-ish")])
    lines = [record.getMessage() for record in caplog.records if "schema.broken" in record.getMessage()]
    assert lines == [
        f'event=schema.broken store={store_name} key=k row=bad version=1 place="as a whole (rule /maximum)" unlogged=0'
    ]
    counts = service.app.core._measures.schema_violations
    assert counts == {(store_name, "warn"): 4}
    code, field, sentence = await refusal(set_mode(service, store_name, ENFORCE))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "definition")
    assert sentence.startswith(
        f"3 rows break the schema, so it can't be enforced for {store_name}/k, nothing is changed: '"
    )
    assert sentence.endswith("(with the mode warn it can be registered, and be enforced when they are mended)")
    await service.write(store_name, [pb.RowWrite(row_id=row, value="1") for row in ("bad", "worse", "old")])
    assert (await set_mode(service, store_name, ENFORCE)).mode == ENFORCE
    await refusal(service.put(store_name, "bad", "10"))
    assert counts == {(store_name, "warn"): 4, (store_name, "enforce"): 1}


async def test_a_schema_that_rows_break_is_checked_and_refused(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await service.write(store_name, [pb.RowWrite(row_id=f"r{number:03}", value=str(number)) for number in range(100)])
    check = pb.CheckSchemaRequest(store=store_name, key="k", definition=SMALL)
    report = await service.stub.CheckSchema(check)
    assert (report.rows, report.broken, len(report.first)) == (100, 90, 10)
    one = report.first[0]
    assert (one.where, one.rule, one.reason) == ("", "/maximum", "the value is greater than the maximum of 9")
    assert one.found == repr(str(int(one.row_id[1:])))
    code, field, sentence = await refusal(register(service, store_name))
    assert (code, field) == (ErrorCode.INVALID_INPUT, "definition")
    assert sentence.startswith(
        f"90 rows break the schema, so it can't be enforced for {store_name}/k, nothing is changed: 'r"
    )
    assert " … (with the mode warn" in sentence
    listed = await service.stub.ListSchemas(pb.ListSchemasRequest(store=store_name))
    assert list(listed.schemas) == []
    code, field, sentence = await refusal(service.stub.GetSchema(pb.GetSchemaRequest(store=store_name, key="k")))
    assert (code, field, sentence) == (ErrorCode.INVALID_INPUT, "key", f"{store_name}/k has no schema")
    await register(service, store_name, NUMBER)
    again = await service.stub.CheckSchema(pb.CheckSchemaRequest(store=store_name, key="k"))
    assert (again.rows, again.broken) == (100, 0)
    none = await service.stub.CheckSchema(pb.CheckSchemaRequest(store=store_name, key="none", definition=SMALL))
    assert (none.rows, none.broken) == (0, 0)


async def test_versions_are_listed_and_shown(service: Running, store_name: str) -> None:
    await service.create(store_name)
    await register(service, store_name, NUMBER)
    await register(service, store_name, SMALL)
    await register(service, store_name, "[a-z]+", key="words", kind=pb.SCHEMA_KIND_REGEX, mode=WARN)
    keys = await service.stub.ListSchemas(pb.ListSchemasRequest(store=store_name))
    assert [(each.key, each.version, each.mode, each.definition) for each in keys.schemas] == [
        ("k", 2, ENFORCE, ""),
        ("words", 1, WARN, ""),
    ]
    versions = await service.stub.ListSchemas(pb.ListSchemasRequest(store=store_name, key="k"))
    assert [(each.version, each.mode) for each in versions.schemas] == [(2, ENFORCE), (1, pb.SCHEMA_MODE_UNSPECIFIED)]
    for version, text in ((0, SMALL), (1, NUMBER), (2, SMALL)):
        found = await service.stub.GetSchema(pb.GetSchemaRequest(store=store_name, key="k", version=version))
        assert found.definition == text
    missing = service.stub.GetSchema(pb.GetSchemaRequest(store=store_name, key="k", version=3))
    assert (await refusal(missing))[1:] == ("version", f"{store_name}/k has no version 3 of a schema")


@pytest.mark.parametrize(
    ("words", "field", "sentence"),
    [
        ({"definition": "{"}, "definition", "definition is no schema that can be used: it is no JSON"),
        ({"definition": "{}", "kind": 9}, "kind", "kind 9 is unknown"),
        ({"definition": '"strin"', "kind": pb.SCHEMA_KIND_AVRO}, "definition", "'strin' is no type of Avro"),
        ({"definition": "{}", "mode": 9}, "mode", "mode 9 is unknown"),
        ({"definition": "{}", "key": "K!"}, "key", "key 'K!'"),
        ({"definition": '{"$ref": "http://x.example/"}'}, "definition", "only references within it"),
    ],
)
async def test_what_is_no_schema_is_refused(
    service: Running, store_name: str, words: dict[str, Any], field: str, sentence: str
) -> None:
    await service.create(store_name)
    code, found, text = await refusal(register(service, store_name, **words))
    assert (code, found) == (ErrorCode.INVALID_INPUT, field)
    assert sentence in text


async def test_only_so_many_calls_look_at_all_rows_at_once(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create(store_name)
    waiting, begun = asyncio.Event(), asyncio.Semaphore(0)
    schemas: value_schemas.ValueSchemas = service.app.core.schemas
    look = schemas._look

    async def slow(*words: Any) -> Any:
        begun.release()
        await waiting.wait()
        return await look(*words)

    monkeypatch.setattr(schemas, "_look", slow)
    check = pb.CheckSchemaRequest(store=store_name, key="k", definition=SMALL)
    under_way = [asyncio.ensure_future(service.stub.CheckSchema(check)) for _ in range(value_schemas.MAX_CHECKS)]
    for _ in under_way:
        await begun.acquire()
    code, _, sentence = await refusal(service.stub.CheckSchema(check))
    assert code is ErrorCode.UNAVAILABLE
    assert sentence == "the rows of 2 keys are checked against schemas now: try again later"
    waiting.set()
    assert [(await call).rows for call in under_way] == [0, 0]


async def test_a_check_that_takes_too_long_ends(
    service: Running, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create(store_name)

    async def endless(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service.app.core.schemas, "_look", endless)
    monkeypatch.setattr(value_schemas, "MAX_CHECK_S", 0.05)
    code, _, sentence = await refusal(register(service, store_name))
    assert (code, sentence) == (ErrorCode.UNAVAILABLE, "checking the rows took more than 0.05 s: nothing is changed")


async def test_writes_without_a_schema_read_nothing_for_it(service: Running, store_name: str) -> None:
    """What is in force is read once for a store, not once a write."""
    await service.create(store_name)
    schemas: value_schemas.ValueSchemas = service.app.core.schemas
    reads: list[str] = []
    in_force = schemas._schemas.in_force

    async def counted(store: str) -> Any:
        reads.append(store)
        return await in_force(store)

    schemas._schemas.in_force = counted  # type: ignore[method-assign]
    for number in range(20):
        await service.put(store_name, f"r{number}", "x")
    assert reads == [store_name]


@attempt(
    "an administrator of a store",
    "give a thousand keys schemas that take long to read and much memory",
    "a write reads the schema of its own key, beside all other work; those that were used last are kept",
)
async def test_a_write_reads_the_schema_of_its_own_key_and_few_are_kept(
    start: Any, nats_url: str, tmp_path: Path, store_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, str]] = []

    def noted(kind: str, definition: str) -> Any:
        read.append((definition, threading.current_thread().name))
        return to_value_schema(kind, definition)

    monkeypatch.setattr(value_schemas, "_KEPT_CHARS", 4 * 1_100)
    definitions = {f"k{most}": json.dumps({"type": "integer", "maximum": most}) for most in range(8)}
    database = f"sqlite:{tmp_path / 'ringcast.db'}"
    async with start(nats_url, database) as service:
        await service.create(store_name)
        for key, definition in definitions.items():
            await register(service, store_name, definition, key=key)
    monkeypatch.setattr(value_schemas, "to_value_schema", noted)
    async with start(nats_url, database) as service:
        await service.put(store_name, "a", "no schema", key="other")
        assert read == []
        for _ in range(2):
            for most, (key, definition) in enumerate(definitions.items()):
                for value in (most, most):
                    await service.put(store_name, "a", str(value), key=key)
                _, _, sentence = await refusal(service.put(store_name, "a", str(most + 1), key=key))
                assert f"row 'a' of {store_name}/{key} breaks version 1 of its schema" in sentence
                assert read.pop() == (definition, "schemas-for-writes_0")
                assert read == [], "once while it is kept"
        last = [*definitions][-4:]
        for key in last:
            await service.put(store_name, "a", "0", key=key)
        assert read == [], "the last four are kept"
