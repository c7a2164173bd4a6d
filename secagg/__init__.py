"""Secure aggregation: a server adds up vectors and learns only the noisy sum.

The names below are the promise of this package; everything else may change between
minor releases.  They are imported when they are first used, so that importing one of
them does not cost all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from secagg.client.client import (
        Client,
        Contribution,
    )
    from secagg.client.conductor import (
        ClientPhase,
        ClientProgress,
    )
    from secagg.client.data_use import (
        ClaimedTask,
        DataUse,
    )
    from secagg.client.enrolment import (
        ClientEnrolment,
    )
    from secagg.client.gate import (
        SessionInfo,
    )
    from secagg.client.grpc_connection import (
        CallDeadlines,
        GrpcConnection,
    )
    from secagg.client.taken_part import (
        TakenPart,
    )
    from secagg.client.total_claim import (
        TotalSpentError,
    )
    from secagg.descriptor import SessionDescriptor
    from secagg.distributed_dp import (
        ClippingSchedule,
        CurvePoint,
        LocalParameters,
        LocalPrivacy,
        LocalRandomiser,
        NoiseBudget,
        NoisedInput,
        NoisedTask,
        Plan,
        PlanRequest,
        PrivacyReport,
        PrivacyStatement,
        SessionNoise,
        UnitBounds,
        error_curve,
        flag_amplitude_for,
        make_randomiser,
    )
    from secagg.distributed_dp.public_plan import (
        plan,
    )
    from secagg.enrolment.published import (
        PublishedEnrolment,
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
    from secagg.messages import (
        Round,
    )
    from secagg.noise_certificate import (
        NoiseCertificate,
    )
    from secagg.one_process import (
        ClippingWarning,
        LocalCohort,
        LocalEnrolment,
        local,
    )
    from secagg.parameters import Graph, ProtocolParameters
    from secagg.policy import (
        NO_NOISE_ACKNOWLEDGEMENT,
        ClientPolicy,
        ExactSumsAccepted,
        PrivacyFloors,
        TotalBudget,
    )
    from secagg.primitives.cipher_suite import (
        CipherSuite,
    )
    from secagg.primitives.entropy import (
        Entropy,
    )
    from secagg.primitives.secret_bytes import (
        SecretBytes,
    )
    from secagg.profiles import (
        HonestTail,
        MaliciousTail,
        Profile,
        RoundDeadlines,
        SparseTail,
        Trust,
    )
    from secagg.protocol.events import (
        NoisedVector,
    )
    from secagg.protocol.noise_terms import (
        NoiseSecrets,
    )
    from secagg.protocol.ring_safety import (
        RingRisk,
    )
    from secagg.runtime.connection import (
        AggregatorConnection,
    )
    from secagg.server.progress import (
        Dropped,
        SessionPhase,
        SessionProgress,
    )
    from secagg.server.receipt import (
        SessionReceipt,
    )
    from secagg.server.server import (
        ReleasedSum,
        RunningTask,
        Server,
    )
    from secagg.server.task_setup import (
        Cohort,
        PreparedTask,
    )
    from secagg.transport.address import (
        Address,
    )
    from secagg.transport.admission import (
        Admission,
    )
    from secagg.transport.certificates import (
        Authority,
        IssuedCertificate,
    )
    from secagg.transport.identity import (
        PeerIdentity,
        Role,
    )
    from secagg.transport.tls import (
        TLSFiles,
        TLSIdentity,
    )

__all__ = [
    "NO_NOISE_ACKNOWLEDGEMENT",
    "Address",
    "Admission",
    "AggregatorConnection",
    "Authority",
    "CallDeadlines",
    "CipherSuite",
    "ClaimedTask",
    "Client",
    "ClientEnrolment",
    "ClientPhase",
    "ClientPolicy",
    "ClientProgress",
    "ClippingSchedule",
    "ClippingWarning",
    "Cohort",
    "Contribution",
    "CurvePoint",
    "DataUse",
    "Dropped",
    "Entropy",
    "ErrorCode",
    "ExactSumsAccepted",
    "Graph",
    "GrpcConnection",
    "HonestTail",
    "InputError",
    "IssuedCertificate",
    "LocalCohort",
    "LocalEnrolment",
    "LocalParameters",
    "LocalPrivacy",
    "LocalProtocolError",
    "LocalRandomiser",
    "MaliciousTail",
    "NoiseBudget",
    "NoiseCertificate",
    "NoiseSecrets",
    "NoisedInput",
    "NoisedTask",
    "NoisedVector",
    "PeerIdentity",
    "Plan",
    "PlanRequest",
    "PreparedTask",
    "PrivacyFloors",
    "PrivacyReport",
    "PrivacyStatement",
    "Profile",
    "ProtocolParameters",
    "PublishedEnrolment",
    "ReleasedSum",
    "RemoteProtocolError",
    "RingRisk",
    "Role",
    "Round",
    "RoundDeadlines",
    "RunningTask",
    "SecAggError",
    "SecretBytes",
    "Server",
    "ServiceError",
    "SessionAbortedError",
    "SessionDescriptor",
    "SessionInfo",
    "SessionNoise",
    "SessionPhase",
    "SessionProgress",
    "SessionReceipt",
    "SparseTail",
    "TLSFiles",
    "TLSIdentity",
    "TakenPart",
    "TotalBudget",
    "TotalSpentError",
    "Trust",
    "UnitBounds",
    "error_curve",
    "flag_amplitude_for",
    "local",
    "make_randomiser",
    "plan",
]

_MODULES: Final = {
    "client.client": ("Client", "Contribution"),
    "client.data_use": ("ClaimedTask", "DataUse"),
    "client.conductor": ("ClientPhase", "ClientProgress"),
    "client.enrolment": ("ClientEnrolment",),
    "client.grpc_connection": ("CallDeadlines", "GrpcConnection"),
    "client.gate": ("SessionInfo",),
    "client.taken_part": ("TakenPart",),
    "client.total_claim": ("TotalSpentError",),
    "descriptor": ("SessionDescriptor",),
    "distributed_dp": (
        "ClippingSchedule",
        "CurvePoint",
        "LocalParameters",
        "LocalPrivacy",
        "LocalRandomiser",
        "NoiseBudget",
        "NoisedInput",
        "NoisedTask",
        "Plan",
        "PlanRequest",
        "PrivacyReport",
        "PrivacyStatement",
        "SessionNoise",
        "UnitBounds",
        "error_curve",
        "flag_amplitude_for",
        "make_randomiser",
    ),
    "distributed_dp.public_plan": ("plan",),
    "enrolment.published": ("PublishedEnrolment",),
    "errors": (
        "ErrorCode",
        "InputError",
        "LocalProtocolError",
        "RemoteProtocolError",
        "SecAggError",
        "ServiceError",
        "SessionAbortedError",
    ),
    "messages": ("Round",),
    "noise_certificate": ("NoiseCertificate",),
    "one_process": ("ClippingWarning", "LocalCohort", "LocalEnrolment", "local"),
    "parameters": ("Graph", "ProtocolParameters"),
    "policy": (
        "ClientPolicy",
        "ExactSumsAccepted",
        "NO_NOISE_ACKNOWLEDGEMENT",
        "PrivacyFloors",
        "TotalBudget",
    ),
    "primitives.cipher_suite": ("CipherSuite",),
    "primitives.entropy": ("Entropy",),
    "primitives.secret_bytes": ("SecretBytes",),
    "profiles": (
        "HonestTail",
        "MaliciousTail",
        "Profile",
        "RoundDeadlines",
        "SparseTail",
        "Trust",
    ),
    "protocol.events": ("NoisedVector",),
    "protocol.noise_terms": ("NoiseSecrets",),
    "protocol.ring_safety": ("RingRisk",),
    "runtime.connection": ("AggregatorConnection",),
    "server.progress": ("Dropped", "SessionPhase", "SessionProgress"),
    "server.receipt": ("SessionReceipt",),
    "server.server": ("ReleasedSum", "RunningTask", "Server"),
    "server.task_setup": ("Cohort", "PreparedTask"),
    "transport.address": ("Address",),
    "transport.admission": ("Admission",),
    "transport.certificates": ("Authority", "IssuedCertificate"),
    "transport.identity": ("PeerIdentity", "Role"),
    "transport.tls": ("TLSFiles", "TLSIdentity"),
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
