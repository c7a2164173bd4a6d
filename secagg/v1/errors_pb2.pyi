from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_POLICY_VIOLATION: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_SIGNATURE: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_PUBLIC_KEY: _ClassVar[ErrorCode]
    ERROR_CODE_DUPLICATE_KEY: _ClassVar[ErrorCode]
    ERROR_CODE_SELF_MISSING: _ClassVar[ErrorCode]
    ERROR_CODE_ROSTER_TOO_SMALL: _ClassVar[ErrorCode]
    ERROR_CODE_ROSTER_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_SHARE_CIPHERTEXT: _ClassVar[ErrorCode]
    ERROR_CODE_SHARE_CONFUSION: _ClassVar[ErrorCode]
    ERROR_CODE_U2_TOO_SMALL: _ClassVar[ErrorCode]
    ERROR_CODE_U3_INVALID: _ClassVar[ErrorCode]
    ERROR_CODE_U3_TOO_SMALL: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_MANY_DROPOUTS: _ClassVar[ErrorCode]
    ERROR_CODE_NO_QUORUM: _ClassVar[ErrorCode]
    ERROR_CODE_EQUIVOCATION: _ClassVar[ErrorCode]
    ERROR_CODE_REPLAYED_SESSION: _ClassVar[ErrorCode]
    ERROR_CODE_UNEXPECTED_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_VECTOR: _ClassVar[ErrorCode]
    ERROR_CODE_DEADLINE: _ClassVar[ErrorCode]
    ERROR_CODE_RECONSTRUCTION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_NOISE_REVEAL: _ClassVar[ErrorCode]
    ERROR_CODE_PAYLOAD_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_ENCODING: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_FEW_ANSWERS: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_CREDENTIAL: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_PROOF: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_EDGES: _ClassVar[ErrorCode]
    ERROR_CODE_DISPUTED: _ClassVar[ErrorCode]
    ERROR_CODE_VIEW_DIFFERS: _ClassVar[ErrorCode]
    ERROR_CODE_BAD_CLOCK: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SESSION: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHENTICATED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_INVITED: _ClassVar[ErrorCode]
    ERROR_CODE_SESSION_OVER: _ClassVar[ErrorCode]
    ERROR_CODE_OVERLOADED: _ClassVar[ErrorCode]
    ERROR_CODE_STORAGE_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_SHUTTING_DOWN: _ClassVar[ErrorCode]
    ERROR_CODE_UPLOAD_CORRUPT: _ClassVar[ErrorCode]
    ERROR_CODE_UNREACHABLE: _ClassVar[ErrorCode]
    ERROR_CODE_CANCELLED: _ClassVar[ErrorCode]
    ERROR_CODE_TASK_OVER: _ClassVar[ErrorCode]

class Fault(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAULT_UNSPECIFIED: _ClassVar[Fault]
    FAULT_CALLER: _ClassVar[Fault]
    FAULT_SERVICE: _ClassVar[Fault]
    FAULT_SESSION: _ClassVar[Fault]
    FAULT_AGGREGATOR: _ClassVar[Fault]
    FAULT_TIMING: _ClassVar[Fault]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_BAD_VERSION: ErrorCode
ERROR_CODE_BAD_CONFIG: ErrorCode
ERROR_CODE_POLICY_VIOLATION: ErrorCode
ERROR_CODE_BAD_SIGNATURE: ErrorCode
ERROR_CODE_BAD_PUBLIC_KEY: ErrorCode
ERROR_CODE_DUPLICATE_KEY: ErrorCode
ERROR_CODE_SELF_MISSING: ErrorCode
ERROR_CODE_ROSTER_TOO_SMALL: ErrorCode
ERROR_CODE_ROSTER_TOO_LARGE: ErrorCode
ERROR_CODE_BAD_SHARE_CIPHERTEXT: ErrorCode
ERROR_CODE_SHARE_CONFUSION: ErrorCode
ERROR_CODE_U2_TOO_SMALL: ErrorCode
ERROR_CODE_U3_INVALID: ErrorCode
ERROR_CODE_U3_TOO_SMALL: ErrorCode
ERROR_CODE_TOO_MANY_DROPOUTS: ErrorCode
ERROR_CODE_NO_QUORUM: ErrorCode
ERROR_CODE_EQUIVOCATION: ErrorCode
ERROR_CODE_REPLAYED_SESSION: ErrorCode
ERROR_CODE_UNEXPECTED_MESSAGE: ErrorCode
ERROR_CODE_BAD_VECTOR: ErrorCode
ERROR_CODE_DEADLINE: ErrorCode
ERROR_CODE_RECONSTRUCTION_FAILED: ErrorCode
ERROR_CODE_BAD_NOISE_REVEAL: ErrorCode
ERROR_CODE_PAYLOAD_MISMATCH: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_BAD_ENCODING: ErrorCode
ERROR_CODE_TOO_FEW_ANSWERS: ErrorCode
ERROR_CODE_BAD_CREDENTIAL: ErrorCode
ERROR_CODE_BAD_PROOF: ErrorCode
ERROR_CODE_BAD_EDGES: ErrorCode
ERROR_CODE_DISPUTED: ErrorCode
ERROR_CODE_VIEW_DIFFERS: ErrorCode
ERROR_CODE_BAD_CLOCK: ErrorCode
ERROR_CODE_UNKNOWN_SESSION: ErrorCode
ERROR_CODE_UNAUTHENTICATED: ErrorCode
ERROR_CODE_NOT_INVITED: ErrorCode
ERROR_CODE_SESSION_OVER: ErrorCode
ERROR_CODE_OVERLOADED: ErrorCode
ERROR_CODE_STORAGE_FAILED: ErrorCode
ERROR_CODE_SHUTTING_DOWN: ErrorCode
ERROR_CODE_UPLOAD_CORRUPT: ErrorCode
ERROR_CODE_UNREACHABLE: ErrorCode
ERROR_CODE_CANCELLED: ErrorCode
ERROR_CODE_TASK_OVER: ErrorCode
FAULT_UNSPECIFIED: Fault
FAULT_CALLER: Fault
FAULT_SERVICE: Fault
FAULT_SESSION: Fault
FAULT_AGGREGATOR: Fault
FAULT_TIMING: Fault

class ErrorDetail(_message.Message):
    __slots__ = ("code", "fault", "message", "next_step", "retry_after_ms", "sender", "alive", "needed", "next_offset", "server_time")
    CODE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    fault: Fault
    message: str
    next_step: str
    retry_after_ms: int
    sender: str
    alive: int
    needed: int
    next_offset: int
    server_time: int
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., fault: _Optional[_Union[Fault, str]] = ..., message: _Optional[str] = ..., next_step: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., sender: _Optional[str] = ..., alive: _Optional[int] = ..., needed: _Optional[int] = ..., next_offset: _Optional[int] = ..., server_time: _Optional[int] = ...) -> None: ...
