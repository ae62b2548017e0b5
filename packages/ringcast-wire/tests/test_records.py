"""What is kept in buckets while builds are mixed: an older build passes over a record of another form than it knows."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest
from ringcast_wire import GroupSeal, LeaseRecord, NodeRecord, SlotClaim, ended_sessions
from ringcast_wire._messages.messages import EndedLeases, SealHolder
from ringcast_wire._ownership import migration
from ringcast_wire.owner_records import State, Term, _TableRecord

RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "NodeRecord": NodeRecord,
    "SlotClaim": SlotClaim,
    "LeaseRecord": LeaseRecord,
    "EndedLeases": EndedLeases,
    "GroupSeal": GroupSeal,
    "SealHolder": SealHolder,
    "Term": Term,
    "State": State,
    "Table": _TableRecord,
    "Gone": ended_sessions._Record,
    "Step": migration._Record,
}

_NAME: Final = r"\A[A-Za-z0-9_-]{1,64}\Z"
_LEASE: Final = r"\A[A-Za-z0-9_-]{1,64}(\.[A-Za-z0-9_-]{1,64})?\Z"
_MOST: Final = 2**53 - 1
_PARTITIONS: Final = 4096

OF_0_1_0: Final[dict[str, dict[str, Any]]] = {
    "NodeRecord": {
        "required": ["incarnation", "lease", "slot"],
        "slot": {"type": "integer"},
        "lease": {"pattern": _LEASE, "type": "string"},
        "incarnation": {"type": "string"},
        "capabilities": {"default": [], "items": {"type": "string"}, "type": "array"},
        "phase": {"$ref": "NodePhase", "default": "active"},
        "wire": {"default": 1, "maximum": 2147483647, "minimum": 1, "type": "integer"},
    },
    "NodePhase": {"enum": ["active", "joining", "leaving"]},
    "SlotClaim": {
        "required": ["lease", "worker_id"],
        "worker_id": {"type": "string"},
        "lease": {"pattern": _LEASE, "type": "string"},
    },
    "LeaseRecord": {
        "required": ["host", "incarnation", "pid", "started_at_ms"],
        "incarnation": {"type": "string"},
        "host": {"type": "string"},
        "pid": {"type": "integer"},
        "started_at_ms": {"type": "integer"},
    },
    "EndedLeases": {
        "required": ["leases"],
        "leases": {"items": {"type": "string"}, "type": "array"},
    },
    "GroupSeal": {
        "required": ["history", "revision"],
        "history": {"type": "string"},
        "revision": {"maximum": 9223372036854775807, "minimum": 0, "type": "integer"},
        "pending": {
            "default": [],
            "items": {"maximum": 9223372036854775807, "minimum": 0, "type": "integer"},
            "maxItems": 128,
            "type": "array",
        },
        "holder": {"default": "", "type": "string"},
        "lease": {"anyOf": [{"pattern": _LEASE, "type": "string"}, {"type": "null"}], "default": None},
        "sealed_at_ms": {"default": 0, "type": "integer"},
    },
    "Term": {
        "required": ["leader"],
        "leader": {"pattern": _NAME, "type": "string"},
    },
    "State": {
        "required": ["lease", "session"],
        "lease": {"pattern": _LEASE, "type": "string"},
        "session": {"maximum": _MOST, "minimum": 0, "type": "integer"},
        "first": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "ended": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "seen": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "prepared": {
            "default": [],
            "items": {
                "items": False,
                "maxItems": 2,
                "minItems": 2,
                "prefixItems": [
                    {"exclusiveMaximum": _PARTITIONS, "minimum": 0, "type": "integer"},
                    {"maximum": _MOST, "minimum": 0, "type": "integer"},
                ],
                "type": "array",
            },
            "maxItems": 64,
            "type": "array",
        },
        "released": {
            "default": [],
            "items": {
                "items": False,
                "maxItems": 2,
                "minItems": 2,
                "prefixItems": [
                    {"exclusiveMaximum": _PARTITIONS, "minimum": 0, "type": "integer"},
                    {"maximum": _MOST, "minimum": 0, "type": "integer"},
                ],
                "type": "array",
            },
            "maxItems": 64,
            "type": "array",
        },
        "leaving": {"default": False, "type": "boolean"},
        "capacity": {"default": 1, "maximum": 1000000, "minimum": 1, "type": "integer"},
        "agent": {"default": "", "pattern": "\\A[A-Za-z0-9_-]{0,64}\\Z", "type": "string"},
        "stopped": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "guarded": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "wire": {"default": 1, "maximum": 2147483647, "minimum": 1, "type": "integer"},
    },
    "Table": {
        "required": ["epoch", "moves", "owners", "sessions", "tokens"],
        "epoch": {"maximum": _MOST, "minimum": 1, "type": "integer"},
        "sessions": {
            "items": {
                "items": False,
                "maxItems": 3,
                "minItems": 3,
                "prefixItems": [
                    {"pattern": _NAME, "type": "string"},
                    {"pattern": _LEASE, "type": "string"},
                    {"maximum": _MOST, "minimum": 0, "type": "integer"},
                ],
                "type": "array",
            },
            "maxItems": 528,
            "type": "array",
        },
        "owners": {
            "items": {"exclusiveMaximum": 528, "minimum": -1, "type": "integer"},
            "maxItems": _PARTITIONS,
            "minItems": 1,
            "type": "array",
        },
        "tokens": {
            "items": {"maximum": _MOST, "minimum": 0, "type": "integer"},
            "maxItems": _PARTITIONS,
            "minItems": 1,
            "type": "array",
        },
        "moves": {
            "items": {
                "items": False,
                "maxItems": 4,
                "minItems": 4,
                "prefixItems": [
                    {"exclusiveMaximum": _PARTITIONS, "minimum": 0, "type": "integer"},
                    {"$ref": "Phase"},
                    {"exclusiveMaximum": 528, "minimum": -1, "type": "integer"},
                    {"maximum": _MOST, "minimum": 0, "type": "integer"},
                ],
                "type": "array",
            },
            "maxItems": 64,
            "type": "array",
        },
        "rule": {"$ref": "Rule", "default": "owners"},
        "since": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
        "peers": {
            "default": [],
            "items": {"exclusiveMaximum": 528, "minimum": 0, "type": "integer"},
            "maxItems": 528,
            "type": "array",
        },
        "step": {"default": 0, "maximum": _MOST, "minimum": 0, "type": "integer"},
    },
    "SealHolder": {
        "required": [],
        "holder": {"default": "", "type": "string"},
        "lease": {"anyOf": [{"pattern": _LEASE, "type": "string"}, {"type": "null"}], "default": None},
    },
    "Gone": {
        "required": ["gone"],
        "gone": {
            "items": {
                "items": False,
                "maxItems": 3,
                "minItems": 3,
                "prefixItems": [
                    {"pattern": _NAME, "type": "string"},
                    {"maximum": _MOST, "minimum": 1, "type": "integer"},
                    {"maximum": _MOST, "minimum": 1, "type": "integer"},
                ],
                "type": "array",
            },
            "maxItems": 256,
            "type": "array",
        },
    },
    "Step": {
        "required": ["call_bound_ms", "lease_ttl_ms", "number", "stage"],
        "stage": {"enum": ["finish", "off", "shadow", "switch", "validate"]},
        "number": {"maximum": _MOST, "minimum": 1, "type": "integer"},
        "lease_ttl_ms": {"type": "integer"},
        "call_bound_ms": {"type": "integer"},
        "is_back": {"default": False, "type": "boolean"},
    },
    "Phase": {"enum": ["drain", "held", "prepare"]},
    "Rule": {"enum": ["nobody", "owners", "peers"]},
}
"""The forms of the records in 0.1.0. Nothing in here is changed: a later build adds fields with a default, and lists
their names here once it is a release as well. A build that computes owners from records which it passes over computes
other ones than its peers."""


def forms_now() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for label, record in RECORDS.items():
        for title, form in msgspec.json.schema_components([record])[1].items():
            name = label if title == record.__name__ else title
            text = json.dumps(form.get("properties", {})).replace("#/$defs/", "")
            values = {"enum": form["enum"]} if "enum" in form else {"required": sorted(form["required"])}
            found[name] = {**values, **json.loads(text)}
    return found


@pytest.mark.parametrize("name", OF_0_1_0)
def test_a_record_has_the_form_that_older_builds_read(name: str) -> None:
    now, then = forms_now()[name], OF_0_1_0[name]
    assert {field: now.get(field) for field in then} == then
    if "enum" in then:
        assert now == then


def test_all_records_are_listed() -> None:
    assert forms_now().keys() == OF_0_1_0.keys()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_may_have_fields_that_this_build_does_not_know(name: str) -> None:
    config = RECORDS[name].__struct_config__
    assert not config.forbid_unknown_fields
    assert not config.array_like
    assert config.tag is None
