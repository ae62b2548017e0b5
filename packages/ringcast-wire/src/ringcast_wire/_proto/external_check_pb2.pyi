from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckReleaseRequest(_message.Message):
    __slots__ = ("store", "release", "digest", "author", "reason", "rows", "bytes", "key_count", "keys")
    STORE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    store: str
    release: int
    digest: str
    author: str
    reason: str
    rows: int
    bytes: int
    key_count: int
    keys: _containers.RepeatedCompositeFieldContainer[KeyChanges]
    def __init__(self, store: _Optional[str] = ..., release: _Optional[int] = ..., digest: _Optional[str] = ..., author: _Optional[str] = ..., reason: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., key_count: _Optional[int] = ..., keys: _Optional[_Iterable[_Union[KeyChanges, _Mapping]]] = ...) -> None: ...

class KeyChanges(_message.Message):
    __slots__ = ("key", "added", "changed", "deleted")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    key: str
    added: int
    changed: int
    deleted: int
    def __init__(self, key: _Optional[str] = ..., added: _Optional[int] = ..., changed: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class CheckReleaseResponse(_message.Message):
    __slots__ = ("digest", "allow", "reason")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ALLOW_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    digest: str
    allow: bool
    reason: str
    def __init__(self, digest: _Optional[str] = ..., allow: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
