"""What options are taken for, and how a wrong one is refused."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import pytest
from pyspark_ringcast._client.service import shared_stub
from pyspark_ringcast._common.options import (
    MAX_ROW_IDS,
    Changes,
    Malformed,
    OnChange,
    OnGap,
    Operation,
    Options,
    Service,
    parse_options,
    with_defaults,
)
from pyspark_ringcast._common.since import Since
from ringcast_wire import InvalidInputError

NEEDED = {"store": "gateway", "key": "blocklist"}


def parse(**given: str) -> Options:
    return parse_options({**NEEDED, **given}, {})


def test_defaults() -> None:
    options = parse()
    assert (options.store, options.key) == ("gateway", "blocklist")
    assert options.servers == ("nats://127.0.0.1:4222",)
    assert options.service == Service("127.0.0.1:7420")
    assert (options.partitions, options.row_ids, options.tasks, options.rejects_path) == (None, None, None, None)
    assert (options.on_change, options.operation) == (OnChange.SNAPSHOT, Operation.UPSERT)
    assert (options.since, options.include_deleted, options.max_rejected) == (Since(), False, 0)
    assert (options.max_delete_share, options.allow_empty) == (0.5, False)


def test_names_are_spelt_as_one_likes() -> None:
    spellings = ("rowIds", "row_ids", "ROWIDS", "rowids")
    assert {parse(**{spelling: "a"}).row_ids for spelling in spellings} == {("a",)}


def test_every_option_is_read() -> None:
    options = parse(
        servers="nats://a:4222, nats://b:4222",
        service="tls://c:7420",
        timeout_s="2.5",
        partitions="7, 0-3,2",
        row_ids='["a,b", "é", "a,b"]',
        since='{"3": 12}',
        versionAsOf='{"3": 13}',
        timestampAsOf="1970-01-01T01:00:01+01:00",
        includeDeleted="TRUE",
        onChange="Latest",
        tasks="3",
        releaseAsOf="7",
        release="new",
        operation="delete",
        maxRejected="10",
        rejectsPath="/somewhere",
        countsPath="/counts",
        maxRowsPerSecond="400",
        maxDeleteShare="0.25",
        allowEmpty="true",
        reason="a new list",
        keyRing="ring.json",
        changes="every",
        startingTimestamp="2026-01-01",
        readChangeFeed="true",
        maxRowsPerTrigger="5",
        onGap="skip",
        columns="ROW, `a,b`",
        idColumn="row",
        valueColumns="`a,b` INT, s STRUCT<x: DECIMAL(3, 1)>",
        metadataColumns="by, why",
        malformedValues="null",
        user="u",
        password="p",
        service_tls_ca_file="ca",
        serviceTlsCertFile="crt",
        service_tls_key_file="key",
        service_token_file="token",
    )
    assert options.servers == ("nats://a:4222", "nats://b:4222")
    assert (options.service, options.timeout_s) == (Service("tls://c:7420", "ca", "crt", "key", "token"), 2.5)
    assert options.partitions == (0, 1, 2, 3, 7)
    assert options.row_ids == ("a,b", "é")
    assert (options.since, options.include_deleted, options.on_change) == (Since({3: 12}), True, OnChange.LATEST)
    assert (options.version_as_of, options.timestamp_as_of) == (Since({3: 13}), 1_000)
    assert parse(timestamp_as_of="1970-01-02").timestamp_as_of == 86_400_000
    assert (options.tasks, options.operation, options.max_rejected) == (3, Operation.DELETE, 10)
    assert (options.release, options.release_as_of) == (True, 7)
    assert (options.login.user, options.login.password, options.rejects_path) == ("u", "p", "/somewhere")
    assert (options.changes, parse(startingOffsets="latest").starting_offsets) == (Changes.EVERY, "latest")
    assert (options.max_rows_per_trigger, options.on_gap) == (5, OnGap.SKIP)
    assert (options.max_delete_share, options.allow_empty, options.reason) == (0.25, True, "a new list")
    assert (options.columns, options.id_column, options.malformed_values) == (("row", "a,b"), "row", Malformed.NULL)
    assert options.value_columns == (("a,b", "INT"), ("s", "STRUCT<x: DECIMAL(3, 1)>"))
    assert (options.metadata_columns, options.key_ring) == (("by", "why"), "ring.json")
    read = {field.name for field in dataclasses.fields(Options)}
    changed = {name for name in read if getattr(options, name) != getattr(parse(), name)}
    assert changed == read - {"store", "key", "starting_offsets"}


def test_a_path_and_what_create_table_adds() -> None:
    assert parse_options({"path": "gateway/blocklist"}, {}) == parse()
    table = {"provider": "ringcast", "owner": "me", "comment": "x", "some": "property", "timeouts": "3"}
    options = {"option.store": "gateway", "option.key": "blocklist", "option.timeouts": "3"}
    assert parse_options({**NEEDED, **table, **options}, {}) == parse(timeout_s="3")
    assert parse_options({**table, "path": "gateway/blocklist", "location": "gateway/blocklist"}, {}) == parse()
    with pytest.raises(InvalidInputError, match=r"option store is missing: .*Spark 4\.3 drops those of a table"):
        parse_options({}, {})


def test_the_environment_says_where_and_who() -> None:
    environ = {"RINGCAST_SERVERS": "nats://x:1", "RINGCAST_USER": "u", "RINGCAST_PASSWORD": "p", "RINGCAST_STORE": "no"}
    options = parse_options(NEEDED, environ)
    assert (options.servers, options.login.user, options.store) == (("nats://x:1",), "u", "gateway")
    assert parse_options({**NEEDED, "servers": "nats://y:1"}, environ).servers == ("nats://y:1",)


def test_defaults_are_of_what_is_not_given() -> None:
    defaults = {"store": "s", "key": "k", "rowIds": "a", "tasks": "3"}
    assert parse_options(with_defaults({"row_ids": "b", "key": "c"}, defaults), {}) == parse_options(
        {"store": "s", "key": "c", "row_ids": "b", "tasks": "3"}, {}
    )
    by_path = parse_options(with_defaults({"path": "gateway/blocklist"}, defaults), {})
    assert by_path == parse(row_ids="a", tasks="3")
    table = {"provider": "ringcast", "tasks": "9", "option.tasks": "2"}
    assert parse_options(with_defaults(table, defaults), {}).tasks == 2


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        ({"store": ""}, "store", "option store is missing: say which store it is about, as in .option('store', 'gat"),
        ({"key": ""}, "key", "option key is missing"),
        ({"store": "a.b"}, "store", "store 'a.b' is not a valid name"),
        ({"tabel": "x"}, "tabel", "option 'tabel' is unknown: there are "),
        ({"path": "x"}, "path", "option path is 'x': store and key with a slash between are wanted, as in gateway/blo"),
        ({"path": "a/b"}, "store", "option store is given, and a path too ('a/b'): one of them is enough"),
        ({"servers": " , "}, "servers", "option servers is empty"),
        ({"service": "nowhere"}, "service", "option service 'nowhere' is not an address: host:port is exp"),
        ({"service": "a:0"}, "service", "service 'a:0' is not an address"),
        ({"service": "a:1,b"}, "service", "service 'b' is not an address"),
        ({"service": "http://a:1"}, "service", "is not an address: host:port is expected"),
        ({"service": "u:hunter2@a:1"}, "service", "service 'a:1' is not an address"),
        ({"timeout_s": "soon"}, "timeout_s", "option timeout_s is 'soon': 0.1 to 3600 seconds are allowed"),
        ({"timeout_s": "nan"}, "timeout_s", "0.1 to 3600 seconds"),
        ({"partitions": "1,x"}, "partitions", "has 'x': numbers and ranges such as 0-3,7 are allowed"),
        ({"partitions": "3-1"}, "partitions", "partitions are 0 to 4095, lowest first"),
        ({"partitions": "4096"}, "partitions", "partitions are 0 to 4095"),
        ({"row_ids": "[1]"}, "row_ids", "is not a JSON list of texts"),
        ({"row_ids": " ,"}, "row_ids", f"has 0 ids: 1 to {MAX_ROW_IDS} are allowed"),
        ({"row_ids": "x" * 513}, "row_id", "has 513 bytes: 1 to 512"),
        ({"since": "17"}, "since", "option since is '17': one number can't say what is new, for each partition counts"),
        ({"since": "-1"}, "since", "one number can't say what is new"),
        ({"since": '{"0": -1}'}, "since", "what revisions_of(DataFrame), the offset of a stream or an export says is"),
        ({"since": '{"4096": 1}'}, "since", 'is allowed, such as {"0": 17} (partition: revision)'),
        ({"since": '{"a": 1}'}, "since", "the offset of a stream or an export says is allowed"),
        ({"since": '["1"]'}, "since", "the offset of a stream or an export says is allowed"),
        ({"since": "yesterday"}, "since", "the offset of a stream or an export says is allowed"),
        ({"max_delete_share": "50"}, "max_delete_share", "option max_delete_share is '50': 0 to 1 is allowed"),
        ({"maxDeleteShare": "nan"}, "max_delete_share", "0 to 1 is allowed"),
        ({"reason": "x" * 513}, "reason", "has 513 bytes: at most 512 are allowed"),
        ({"reason": "two\nlines"}, "reason", "has a character that is not printable"),
        ({"allowEmpty": "1"}, "allow_empty", "is '1': true or false is allowed"),
        ({"include_deleted": "yes"}, "include_deleted", "is 'yes': true or false is allowed"),
        ({"timestampAsOf": "yesterday"}, "timestamp_as_of", "a date or time such as 2026-11-22T10:30:00+01:00"),
        ({"onChange": "wait"}, "on_change", "is 'wait': snapshot or latest is allowed"),
        ({"operation": "merge"}, "operation", "is 'merge': upsert or delete is allowed"),
        ({"tasks": "0"}, "tasks", "is '0': a whole number from 1 to 10000 is allowed"),
        ({"max_rejected": "1e3"}, "max_rejected", "a whole number from 0 to 1000000"),
        ({"rejects_path": ""}, "rejects_path", "option rejects_path is empty"),
        ({"idColumn": " "}, "id_column", "option id_column is empty"),
        ({"id_column": "value"}, "columns", "column 'value' stands twice, and case does not count"),
        ({"valueColumns": "a INT, A STRING"}, "value_columns", "column 'A' stands twice"),
        ({"valueColumns": "a, Version"}, "columns", "column 'version' stands twice"),
        ({"valueColumns": "a,,b"}, "value_columns", "option value_columns has '': that is no name of a column"),
        ({"valueColumns": "`a"}, "value_columns", "has '`a': that is no name of a column"),
        ({"metadataColumns": "by STRING"}, "metadata_columns", "has 'by STRING': it must be names with commas between"),
        ({"columns": "valu"}, "columns", "option columns has 'valu': there are row_id, value, version, partition, de"),
        ({"columns": ",".join(f"c{n}" for n in range(1_001))}, "columns", "has 1001 columns: 1000 are allowed"),
        ({"malformedValues": "drop"}, "malformed_values", "is 'drop': fail or null is allowed"),
        ({"user": "u"}, "password", "user is given without password"),
        ({"credentials_file": "nowhere"}, "credentials_file", "credentials_file 'nowhere' is not a file"),
    ],
)
def test_what_is_refused(given: dict[str, str], field: str, sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_options({**NEEDED, **given}, {})
    assert sentence in str(caught.value)
    assert caught.value.field == field


def test_no_secret_shows(tmp_path: Path) -> None:
    """Neither in an error nor where Spark may print options: an address with a password is refused."""
    with pytest.raises(InvalidInputError, match="must not hold a user or password") as caught:
        parse(servers="nats://u:hunter2@a:4222")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(parse(user="u", password="hunter2"))
    for wrong in ({"store": "a.b"}, {"since": "x"}, {"tls_ca_file": str(tmp_path)}):
        with pytest.raises(InvalidInputError) as caught:
            parse(user="u", password="hunter2", **wrong)
        assert "hunter2" not in str(caught.value)


def test_files_for_the_config_service_are_named_as_such(tmp_path: Path) -> None:
    """NATS has files of the same names: an error says whose is meant, and of a token only where it is."""
    token = tmp_path / "token"
    token.write_text("hunter2")
    for given, field, sentence in (
        ({"service_tls_ca_file": "nowhere"}, "service_tls_ca_file", "tls_ca_file 'nowhere' is not a file"),
        ({"service_tls_cert_file": str(token)}, "service_tls_key_file", "tls_cert_file is given without tls_key_file"),
        ({"service_token_file": str(token)}, "service_token_file", "token_file is given without TLS"),
        ({"service_token_file": str(token), "service": "tls://a:1"}, "service_token_file", "token 1 is not 16 to 4096"),
    ):
        with pytest.raises(InvalidInputError, match="the login at the config service: ") as caught:
            shared_stub(parse(**given).service)
        assert sentence in str(caught.value)
        assert caught.value.field == field
        assert "hunter2" not in str(caught.value)


def test_options_travel() -> None:
    options = parse(user="u", password="p", row_ids="a")
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options.login)
