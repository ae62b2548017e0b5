"""Labels of workers: what may be one, and how many may be together."""

from __future__ import annotations

import msgspec
import pytest
from ringcast_wire import WIRE_VERSION, InvalidInputError, LimitExceededError, check_label, check_labels
from ringcast_wire.reports import WorkerKind, WorkerReport, decode_report, encode_report

LONGEST = "x" * 63


@pytest.mark.parametrize("label", ["site=test", "a=b", "0=0", "app.kubernetes-io_x=v1.2", f"{LONGEST}={LONGEST}"])
def test_a_label_is_a_name_and_a_value(label: str) -> None:
    assert check_label("labels", label) == label


@pytest.mark.parametrize(
    "label",
    [
        *("", "site", "=", "site=", "=test", "a=b=c", ".a=b", "a=-b", "a b=c", "a=b\n", "a=b,c", 7, None),
        *("\u00e9=b", "\u0661=1", f"{LONGEST}x=a", f"a={LONGEST}x"),
    ],
)
def test_anything_else_is_refused(label: object) -> None:
    with pytest.raises(InvalidInputError, match="is not a label: name=value is, each of 1 to 63 characters") as caught:
        check_label("canary", label)
    assert caught.value.field == "canary"


def test_labels_are_ordered_and_each_name_has_one_value() -> None:
    assert check_labels("labels", ["site=test", "rack=r2"]) == ("rack=r2", "site=test")
    assert len(check_labels("labels", [f"n{number}=v" for number in range(8)])) == 8
    with pytest.raises(LimitExceededError, match="labels has 9 entries: at most 8 are allowed"):
        check_labels("labels", [f"n{number}=v" for number in range(9)])
    with pytest.raises(InvalidInputError, match="labels has the name 'site' twice: each name has one value"):
        check_labels("labels", ["site=test", "a=b", "site=prod"])


def test_builds_with_and_without_labels_read_each_other() -> None:
    report = WorkerReport(
        WIRE_VERSION, "0" * 16, "i", "0", 1, WorkerKind.APPLICATION, "a", "h", [0, 1], [7], labels=["site=test"]
    )
    fields = msgspec.msgpack.decode(encode_report(report))
    assert decode_report(encode_report(report)).labels == ["site=test"]
    # A worker that has none, nor what was appended after them.
    older = msgspec.msgpack.encode(fields[: WorkerReport.__struct_fields__.index("labels")])
    assert decode_report(older).labels == []
    newer = msgspec.msgpack.encode([*fields, "what a later build says"])
    assert decode_report(newer).labels == ["site=test"]
