from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_RELIABLE: _ClassVar[Mode]
    MODE_LOSSY: _ClassVar[Mode]
MODE_RELIABLE: Mode
MODE_LOSSY: Mode

class ConsumeRequest(_message.Message):
    __slots__ = ("register", "answers", "ping", "leave")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    register: Register
    answers: Answers
    ping: Ping
    leave: Leave
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., answers: _Optional[_Union[Answers, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("registered", "deliveries", "pong")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    deliveries: Deliveries
    pong: Pong
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., deliveries: _Optional[_Union[Deliveries, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("store", "key", "group", "name", "filters", "capacity", "mode", "poison_policy", "changes_only", "session", "routing_key")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    POISON_POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_ONLY_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    group: str
    name: str
    filters: _containers.RepeatedScalarFieldContainer[str]
    capacity: int
    mode: Mode
    poison_policy: str
    changes_only: bool
    session: str
    routing_key: str
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., group: _Optional[str] = ..., name: _Optional[str] = ..., filters: _Optional[_Iterable[str]] = ..., capacity: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., poison_policy: _Optional[str] = ..., changes_only: _Optional[bool] = ..., session: _Optional[str] = ..., routing_key: _Optional[str] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("session", "resumed", "agent", "capacity", "evict_after_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    EVICT_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    session: str
    resumed: bool
    agent: str
    capacity: int
    evict_after_s: float
    def __init__(self, session: _Optional[str] = ..., resumed: _Optional[bool] = ..., agent: _Optional[str] = ..., capacity: _Optional[int] = ..., evict_after_s: _Optional[float] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("deliveries",)
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("offset", "attempt", "row_id", "value", "version", "partition", "deleted", "metadata", "committed_at_ms")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    attempt: int
    row_id: str
    value: str
    version: int
    partition: int
    deleted: bool
    metadata: _containers.ScalarMap[str, str]
    committed_at_ms: int
    def __init__(self, offset: _Optional[int] = ..., attempt: _Optional[int] = ..., row_id: _Optional[str] = ..., value: _Optional[str] = ..., version: _Optional[int] = ..., partition: _Optional[int] = ..., deleted: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ..., committed_at_ms: _Optional[int] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("answers", "done_offsets", "done_attempts")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    DONE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DONE_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    done_offsets: _containers.RepeatedScalarFieldContainer[int]
    done_attempts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., done_offsets: _Optional[_Iterable[int]] = ..., done_attempts: _Optional[_Iterable[int]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("offset", "attempt", "rejected", "reason")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    offset: int
    attempt: int
    rejected: bool
    reason: str
    def __init__(self, offset: _Optional[int] = ..., attempt: _Optional[int] = ..., rejected: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number", "staleness_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STALENESS_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    staleness_s: float
    def __init__(self, number: _Optional[int] = ..., staleness_s: _Optional[float] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResolveRequest(_message.Message):
    __slots__ = ("store", "key", "group", "row_id", "discard")
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    DISCARD_FIELD_NUMBER: _ClassVar[int]
    store: str
    key: str
    group: str
    row_id: str
    discard: bool
    def __init__(self, store: _Optional[str] = ..., key: _Optional[str] = ..., group: _Optional[str] = ..., row_id: _Optional[str] = ..., discard: _Optional[bool] = ...) -> None: ...

class ResolveResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...
