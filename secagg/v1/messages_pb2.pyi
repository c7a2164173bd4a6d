from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Round(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_UNSPECIFIED: _ClassVar[Round]
    ROUND_ADVERTISE_KEYS: _ClassVar[Round]
    ROUND_CHOOSE_EDGES: _ClassVar[Round]
    ROUND_SHARE_KEYS: _ClassVar[Round]
    ROUND_MASKED_INPUT_COLLECTION: _ClassVar[Round]
    ROUND_CONSISTENCY_CHECK: _ClassVar[Round]
    ROUND_UNMASKING: _ClassVar[Round]
    ROUND_FINISHED: _ClassVar[Round]

class Blob(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOB_UNSPECIFIED: _ClassVar[Blob]
    BLOB_PAYLOAD: _ClassVar[Blob]
    BLOB_SUM: _ClassVar[Blob]
    BLOB_ROSTER: _ClassVar[Blob]
    BLOB_DELIVERY: _ClassVar[Blob]
    BLOB_NEIGHBOURHOOD: _ClassVar[Blob]
    BLOB_QUORUM: _ClassVar[Blob]
    BLOB_REVOCATIONS: _ClassVar[Blob]
    BLOB_EDGES: _ClassVar[Blob]
ROUND_UNSPECIFIED: Round
ROUND_ADVERTISE_KEYS: Round
ROUND_CHOOSE_EDGES: Round
ROUND_SHARE_KEYS: Round
ROUND_MASKED_INPUT_COLLECTION: Round
ROUND_CONSISTENCY_CHECK: Round
ROUND_UNMASKING: Round
ROUND_FINISHED: Round
BLOB_UNSPECIFIED: Blob
BLOB_PAYLOAD: Blob
BLOB_SUM: Blob
BLOB_ROSTER: Blob
BLOB_DELIVERY: Blob
BLOB_NEIGHBOURHOOD: Blob
BLOB_QUORUM: Blob
BLOB_REVOCATIONS: Blob
BLOB_EDGES: Blob

class BlobReference(_message.Message):
    __slots__ = ("digest", "size", "blob")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    blob: Blob
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ..., blob: _Optional[_Union[Blob, str]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("retry_after_ms", "joined", "needed", "closes_in_ms")
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    CLOSES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    retry_after_ms: int
    joined: int
    needed: int
    closes_in_ms: int
    def __init__(self, retry_after_ms: _Optional[int] = ..., joined: _Optional[int] = ..., needed: _Optional[int] = ..., closes_in_ms: _Optional[int] = ...) -> None: ...

class UploadStatus(_message.Message):
    __slots__ = ("next_offset", "complete")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    complete: bool
    def __init__(self, next_offset: _Optional[int] = ..., complete: bool = ...) -> None: ...

class ServerUpdate(_message.Message):
    __slots__ = ("kind", "message", "reference")
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    kind: int
    message: bytes
    reference: BlobReference
    def __init__(self, kind: _Optional[int] = ..., message: _Optional[bytes] = ..., reference: _Optional[_Union[BlobReference, _Mapping]] = ...) -> None: ...
