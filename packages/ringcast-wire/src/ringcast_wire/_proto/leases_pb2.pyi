from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldRequest(_message.Message):
    __slots__ = ("register", "pong", "lost_lease", "leave", "sessions")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    LOST_LEASE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    register: Register
    pong: Pong
    lost_lease: LostLease
    leave: Leave
    sessions: Sessions
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., lost_lease: _Optional[_Union[LostLease, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., sessions: _Optional[_Union[Sessions, _Mapping]] = ...) -> None: ...

class HoldResponse(_message.Message):
    __slots__ = ("registered", "ping")
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    registered: Registered
    ping: Ping
    def __init__(self, registered: _Optional[_Union[Registered, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("version", "worker_id", "incarnation", "pid", "store", "keys")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    version: int
    worker_id: str
    incarnation: str
    pid: int
    store: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[str] = ..., pid: _Optional[int] = ..., store: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ...) -> None: ...

class Registered(_message.Message):
    __slots__ = ("lease", "ping_interval_s", "patience_s", "sees_end")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    SEES_END_FIELD_NUMBER: _ClassVar[int]
    lease: str
    ping_interval_s: float
    patience_s: float
    sees_end: bool
    def __init__(self, lease: _Optional[str] = ..., ping_interval_s: _Optional[float] = ..., patience_s: _Optional[float] = ..., sees_end: _Optional[bool] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number", "held", "losses", "failed_writes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    FAILED_WRITES_FIELD_NUMBER: _ClassVar[int]
    number: int
    held: bool
    losses: int
    failed_writes: int
    def __init__(self, number: _Optional[int] = ..., held: _Optional[bool] = ..., losses: _Optional[int] = ..., failed_writes: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LostLease(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sessions(_message.Message):
    __slots__ = ("key", "first", "last")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    key: str
    first: int
    last: int
    def __init__(self, key: _Optional[str] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
