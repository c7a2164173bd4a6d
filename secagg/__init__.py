"""Secure aggregation: a server adds up vectors and learns only the noisy sum.

The names below are the promise of this package; everything else may change between
minor releases.  They are imported when they are first used, so that importing one of
them does not cost all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from secagg.client.grpc_connection import GrpcConnection
    from secagg.client.runner import ClientRunner, SessionOutcome
    from secagg.distributed_dp import (
        NoisedTask,
        NoisePolicy,
        PrivacyReport,
        error_curve,
        plan,
    )
    from secagg.errors import (
        ErrorCode,
        InputError,
        LocalProtocolError,
        RemoteProtocolError,
        SecAggError,
        ServiceError,
        SessionAbortedError,
    )
    from secagg.parameters import (
        Profile,
        ProtocolParameters,
        RoundDeadlines,
        SessionDescriptor,
    )
    from secagg.plain_sums import decode_integers, encode_integers
    from secagg.policy import ClientPolicy
    from secagg.server.aggregator import Aggregator
    from secagg.server.grpc_server import GrpcServer
    from secagg.server.task import SessionSum, TaskDefinition
    from secagg.storage.book import Book
    from secagg.storage.open_book import open_book
    from secagg.storage.spool import MemorySpool, UploadSpool
    from secagg.transport.address import Address
    from secagg.transport.in_memory import InMemoryConnection
    from secagg.transport.tls import TLSIdentity

__all__ = [
    "Address",
    "Aggregator",
    "Book",
    "ClientPolicy",
    "ClientRunner",
    "ErrorCode",
    "GrpcConnection",
    "GrpcServer",
    "InMemoryConnection",
    "InputError",
    "LocalProtocolError",
    "MemorySpool",
    "NoisePolicy",
    "NoisedTask",
    "PrivacyReport",
    "Profile",
    "ProtocolParameters",
    "RemoteProtocolError",
    "RoundDeadlines",
    "SecAggError",
    "ServiceError",
    "SessionAbortedError",
    "SessionDescriptor",
    "SessionOutcome",
    "SessionSum",
    "TLSIdentity",
    "TaskDefinition",
    "UploadSpool",
    "decode_integers",
    "encode_integers",
    "error_curve",
    "open_book",
    "plan",
]

_MODULES: Final = {
    "distributed_dp": (
        "NoisePolicy",
        "NoisedTask",
        "PrivacyReport",
        "error_curve",
        "plan",
    ),
    "errors": (
        "ErrorCode",
        "InputError",
        "LocalProtocolError",
        "RemoteProtocolError",
        "SecAggError",
        "ServiceError",
        "SessionAbortedError",
    ),
    "parameters": (
        "Profile",
        "ProtocolParameters",
        "RoundDeadlines",
        "SessionDescriptor",
    ),
    "plain_sums": ("decode_integers", "encode_integers"),
    "policy": ("ClientPolicy",),
    "server.aggregator": ("Aggregator",),
    "client.runner": ("ClientRunner", "SessionOutcome"),
    "server.task": ("SessionSum", "TaskDefinition"),
    "storage.book": ("Book",),
    "storage.open_book": ("open_book",),
    "storage.spool": ("MemorySpool", "UploadSpool"),
    "transport.address": ("Address",),
    "client.grpc_connection": ("GrpcConnection",),
    "server.grpc_server": ("GrpcServer",),
    "transport.in_memory": ("InMemoryConnection",),
    "transport.tls": ("TLSIdentity",),
}
_PLACE: Final = {name: place for place, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    place = _PLACE.get(name)
    if place is None:
        raise AttributeError(f"module 'secagg' has no attribute {name!r}")
    return getattr(import_module(f"secagg.{place}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
