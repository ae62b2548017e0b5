from __future__ import annotations

import ringcast_wire
from ringcast_wire import ErrorCode, RingcastError, error_from_code
from ringcast_wire.grpc import STATUS

FROZEN = [
    "AlreadyExistsError",
    "Backoff",
    "BatchRequest",
    "Change",
    "Chunk",
    "ChunkAssembler",
    "ConditionFailedError",
    "DEFAULT_CALL_BOUND_MS",
    "DEFAULT_LEASE_TTL_MS",
    "DEFAULT_LOAD_FACTOR",
    "MAX_LEASE_TTL_MS",
    "MIGRATING_WIRE_VERSION",
    "Migration",
    "MIN_LEASE_TTL_MS",
    "DeadLetter",
    "EndedLeases",
    "ErrorCode",
    "Event",
    "EventLog",
    "FetchReply",
    "FetchReplyWriter",
    "GroupSeal",
    "HeadsReply",
    "HeadsRequest",
    "InUseError",
    "InternalError",
    "InvalidInputError",
    "KeyDeletedError",
    "LeaseRecord",
    "LimitExceededError",
    "LoginRefusals",
    "MAX_REPLAY_WAIT_MS",
    "MAX_REPLAY_WHY_CHARS",
    "MismatchError",
    "Mode",
    "NO_POLICY",
    "NatsLogin",
    "NodePhase",
    "NodeRecord",
    "OutcomeUnknownError",
    "PermissionDeniedError",
    "POLICY_RANGES",
    "PartitionRequest",
    "PartitionRows",
    "PlainRow",
    "ProtocolError",
    "RandomSource",
    "ReleaseOutcome",
    "ReleaseState",
    "ReplayAnswer",
    "ReplayOutcome",
    "ReplayRequest",
    "RevisionGoneError",
    "RingcastError",
    "Role",
    "Row",
    "RowRule",
    "SealHolder",
    "SlotClaim",
    "Stage",
    "StoreDeletedError",
    "StorePolicy",
    "StoreSettings",
    "Strategy",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownKeyError",
    "UnknownStoreError",
    "ValueSealedError",
    "WIRE_VERSION",
    "assign",
    "check_condition",
    "check_idempotency_key",
    "check_login_settings",
    "check_ownership_times",
    "check_policy",
    "check_policy_name",
    "check_reason",
    "check_row",
    "check_row_id",
    "dead_letter_id",
    "decode_batch_request",
    "decode_dead_letter",
    "decode_event",
    "decode_fetch_reply",
    "decode_heads_reply",
    "decode_heads_request",
    "decode_migration",
    "decode_partition_request",
    "decode_record",
    "decode_replay_answer",
    "decode_replay_request",
    "encode",
    "encode_dead_letter",
    "encode_migration",
    "encode_record",
    "encode_replay",
    "error_from_code",
    "event_before",
    "event_within",
    "field_text",
    "limits",
    "login_refusal",
    "names",
    "next_stages",
    "shown",
    "shown_path",
    "split_chunks",
    "stage_name",
    "take_answer",
    "without_passwords",
]


def test_the_exported_names_are_frozen() -> None:
    assert sorted(ringcast_wire.__all__) == sorted(FROZEN)
    assert all(hasattr(ringcast_wire, name) for name in FROZEN)


def test_every_code_has_an_exception_and_a_grpc_status() -> None:
    assert set(STATUS) == set(ErrorCode)
    for code in ErrorCode:
        error = error_from_code(code.value, "why", field="f")
        assert (error.code, str(error), error.field) == (code, "why", "f")


def test_an_unknown_code_is_an_internal_error_that_keeps_it() -> None:
    error = error_from_code("FROM_THE_FUTURE", "why")
    assert isinstance(error, RingcastError)
    assert error.code is ErrorCode.INTERNAL
    assert "FROM_THE_FUTURE" in str(error)
