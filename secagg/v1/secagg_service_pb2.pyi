from secagg.v1 import messages_pb2 as _messages_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetOfferRequest(_message.Message):
    __slots__ = ("task_id", "after_session", "wait_ms")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SESSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    after_session: int
    wait_ms: int
    def __init__(self, task_id: _Optional[str] = ..., after_session: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GetOfferResponse(_message.Message):
    __slots__ = ("descriptor", "wait")
    DESCRIPTOR_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    descriptor: bytes
    wait: _messages_pb2.Wait
    def __init__(self, descriptor: _Optional[bytes] = ..., wait: _Optional[_Union[_messages_pb2.Wait, _Mapping]] = ...) -> None: ...

class AdvertiseKeysRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class AdvertiseKeysResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChooseEdgesRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ChooseEdgesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShareKeysRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ShareKeysResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportViolationRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ReportViolationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUploadStatusRequest(_message.Message):
    __slots__ = ("session_id", "view")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    view: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., view: _Optional[bytes] = ...) -> None: ...

class GetUploadStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _messages_pb2.UploadStatus
    def __init__(self, status: _Optional[_Union[_messages_pb2.UploadStatus, _Mapping]] = ...) -> None: ...

class UploadChunkRequest(_message.Message):
    __slots__ = ("session_id", "offset", "total_size", "digest", "data", "view")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    offset: int
    total_size: int
    digest: bytes
    data: bytes
    view: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., offset: _Optional[int] = ..., total_size: _Optional[int] = ..., digest: _Optional[bytes] = ..., data: _Optional[bytes] = ..., view: _Optional[bytes] = ...) -> None: ...

class UploadChunkResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _messages_pb2.UploadStatus
    def __init__(self, status: _Optional[_Union[_messages_pb2.UploadStatus, _Mapping]] = ...) -> None: ...

class SignConsistencyRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class SignConsistencyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RevealSharesRequest(_message.Message):
    __slots__ = ("session_id", "message")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    message: bytes
    def __init__(self, session_id: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class RevealSharesResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetUpdateRequest(_message.Message):
    __slots__ = ("session_id", "after", "wait_ms")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    after: _messages_pb2.Round
    wait_ms: int
    def __init__(self, session_id: _Optional[bytes] = ..., after: _Optional[_Union[_messages_pb2.Round, str]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class GetUpdateResponse(_message.Message):
    __slots__ = ("update", "wait")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    update: _messages_pb2.ServerUpdate
    wait: _messages_pb2.Wait
    def __init__(self, update: _Optional[_Union[_messages_pb2.ServerUpdate, _Mapping]] = ..., wait: _Optional[_Union[_messages_pb2.Wait, _Mapping]] = ...) -> None: ...

class WatchSessionRequest(_message.Message):
    __slots__ = ("session_id", "after")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    after: _messages_pb2.Round
    def __init__(self, session_id: _Optional[bytes] = ..., after: _Optional[_Union[_messages_pb2.Round, str]] = ...) -> None: ...

class WatchSessionResponse(_message.Message):
    __slots__ = ("update", "wait")
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    update: _messages_pb2.ServerUpdate
    wait: _messages_pb2.Wait
    def __init__(self, update: _Optional[_Union[_messages_pb2.ServerUpdate, _Mapping]] = ..., wait: _Optional[_Union[_messages_pb2.Wait, _Mapping]] = ...) -> None: ...

class FetchChunkRequest(_message.Message):
    __slots__ = ("session_id", "blob", "offset", "max_bytes")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    session_id: bytes
    blob: _messages_pb2.Blob
    offset: int
    max_bytes: int
    def __init__(self, session_id: _Optional[bytes] = ..., blob: _Optional[_Union[_messages_pb2.Blob, str]] = ..., offset: _Optional[int] = ..., max_bytes: _Optional[int] = ...) -> None: ...

class FetchChunkResponse(_message.Message):
    __slots__ = ("data", "total_size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    total_size: int
    def __init__(self, data: _Optional[bytes] = ..., total_size: _Optional[int] = ...) -> None: ...
