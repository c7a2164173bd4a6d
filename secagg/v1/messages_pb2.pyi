from secagg.v1 import errors_pb2 as _errors_pb2
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
    BLOB_BUNDLES: _ClassVar[Blob]
ROUND_UNSPECIFIED: Round
ROUND_ADVERTISE_KEYS: Round
ROUND_SHARE_KEYS: Round
ROUND_MASKED_INPUT_COLLECTION: Round
ROUND_CONSISTENCY_CHECK: Round
ROUND_UNMASKING: Round
ROUND_FINISHED: Round
BLOB_UNSPECIFIED: Blob
BLOB_PAYLOAD: Blob
BLOB_SUM: Blob
BLOB_ROSTER: Blob
BLOB_BUNDLES: Blob

class BlobReference(_message.Message):
    __slots__ = ("digest", "size")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size: int
    def __init__(self, digest: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("retry_after_ms",)
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    retry_after_ms: int
    def __init__(self, retry_after_ms: _Optional[int] = ...) -> None: ...

class UploadStatus(_message.Message):
    __slots__ = ("next_offset", "complete")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    complete: bool
    def __init__(self, next_offset: _Optional[int] = ..., complete: bool = ...) -> None: ...

class RosterPublished(_message.Message):
    __slots__ = ("roster", "roster_reference")
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    roster: bytes
    roster_reference: BlobReference
    def __init__(self, roster: _Optional[bytes] = ..., roster_reference: _Optional[_Union[BlobReference, _Mapping]] = ...) -> None: ...

class SharesDelivered(_message.Message):
    __slots__ = ("sharers", "bundles", "bundles_reference")
    SHARERS_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_REFERENCE_FIELD_NUMBER: _ClassVar[int]
    sharers: bytes
    bundles: bytes
    bundles_reference: BlobReference
    def __init__(self, sharers: _Optional[bytes] = ..., bundles: _Optional[bytes] = ..., bundles_reference: _Optional[_Union[BlobReference, _Mapping]] = ...) -> None: ...

class UnmaskRequested(_message.Message):
    __slots__ = ("survivors",)
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    survivors: bytes
    def __init__(self, survivors: _Optional[bytes] = ...) -> None: ...

class SumReleased(_message.Message):
    __slots__ = ("sum_hash", "size", "survivors")
    SUM_HASH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    sum_hash: bytes
    size: int
    survivors: int
    def __init__(self, sum_hash: _Optional[bytes] = ..., size: _Optional[int] = ..., survivors: _Optional[int] = ...) -> None: ...

class SessionAborted(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: _errors_pb2.ErrorCode
    reason: str
    def __init__(self, code: _Optional[_Union[_errors_pb2.ErrorCode, str]] = ..., reason: _Optional[str] = ...) -> None: ...

class ServerUpdate(_message.Message):
    __slots__ = ("roster_published", "shares_delivered", "unmask_requested", "sum_released", "session_aborted")
    ROSTER_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    SHARES_DELIVERED_FIELD_NUMBER: _ClassVar[int]
    UNMASK_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    SUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    SESSION_ABORTED_FIELD_NUMBER: _ClassVar[int]
    roster_published: RosterPublished
    shares_delivered: SharesDelivered
    unmask_requested: UnmaskRequested
    sum_released: SumReleased
    session_aborted: SessionAborted
    def __init__(self, roster_published: _Optional[_Union[RosterPublished, _Mapping]] = ..., shares_delivered: _Optional[_Union[SharesDelivered, _Mapping]] = ..., unmask_requested: _Optional[_Union[UnmaskRequested, _Mapping]] = ..., sum_released: _Optional[_Union[SumReleased, _Mapping]] = ..., session_aborted: _Optional[_Union[SessionAborted, _Mapping]] = ...) -> None: ...
