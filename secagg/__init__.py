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
    from secagg.client.data_usage import (
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
    from secagg.client.participation import (
        TakenPart,
    )
    from secagg.client.session_driver import (
        ClientPhase,
        ClientProgress,
    )
    from secagg.client.total_claim import (
        TotalSpentError,
    )
    from secagg.crypto.cipher_suite import (
        CipherSuite,
    )
    from secagg.crypto.entropy import (
        Entropy,
    )
    from secagg.crypto.secret_bytes import (
        SecretBytes,
    )
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
    from secagg.distributed_dp.planning import (
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
    from secagg.pki.certificate_authority import (
        Authority,
        IssuedCertificate,
    )
    from secagg.pki.published_enrolment import (
        PublishedEnrolment,
    )
    from secagg.protocol.descriptor import SessionDescriptor
    from secagg.protocol.events import (
        NoisedVector,
    )
    from secagg.protocol.graphs.ring_safety import (
        RingRisk,
    )
    from secagg.protocol.messages import (
        Round,
    )
    from secagg.protocol.noise_certificate import (
        NoiseCertificate,
    )
    from secagg.protocol.noise_terms import (
        NoiseSecrets,
    )
    from secagg.protocol.parameters import Graph, ProtocolParameters
    from secagg.protocol.policy import (
        NO_NOISE_ACKNOWLEDGEMENT,
        ClientPolicy,
        ExactSumsAccepted,
        PrivacyFloors,
        TotalBudget,
    )
    from secagg.protocol.profiles import (
        HonestTail,
        MaliciousTail,
        Profile,
        RoundDeadlines,
        SparseTail,
        Trust,
    )
    from secagg.runtime.connection import (
        AggregatorConnection,
    )
    from secagg.server.server import (
        ReleasedSum,
        RunningTask,
        Server,
    )
    from secagg.server.session.progress import (
        Dropped,
        SessionPhase,
        SessionProgress,
    )
    from secagg.server.session.receipt import (
        SessionReceipt,
    )
    from secagg.server.task.setup import (
        Cohort,
        PreparedTask,
    )
    from secagg.simulation.in_process import (
        ClippingWarning,
        LocalCohort,
        LocalEnrolment,
        local,
    )
    from secagg.transport.address import (
        Address,
    )
    from secagg.transport.peer_identity import (
        PeerIdentity,
        Role,
    )
    from secagg.transport.relay.handshake_limits import (
        Admission,
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
    "client.data_usage": ("ClaimedTask", "DataUse"),
    "client.session_driver": ("ClientPhase", "ClientProgress"),
    "client.enrolment": ("ClientEnrolment",),
    "client.grpc_connection": ("CallDeadlines", "GrpcConnection"),
    "client.gate": ("SessionInfo",),
    "client.participation": ("TakenPart",),
    "client.total_claim": ("TotalSpentError",),
    "protocol.descriptor": ("SessionDescriptor",),
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
    "distributed_dp.planning": ("plan",),
    "pki.published_enrolment": ("PublishedEnrolment",),
    "errors": (
        "ErrorCode",
        "InputError",
        "LocalProtocolError",
        "RemoteProtocolError",
        "SecAggError",
        "ServiceError",
        "SessionAbortedError",
    ),
    "protocol.messages": ("Round",),
    "protocol.noise_certificate": ("NoiseCertificate",),
    "simulation.in_process": (
        "ClippingWarning",
        "LocalCohort",
        "LocalEnrolment",
        "local",
    ),
    "protocol.parameters": ("Graph", "ProtocolParameters"),
    "protocol.policy": (
        "ClientPolicy",
        "ExactSumsAccepted",
        "NO_NOISE_ACKNOWLEDGEMENT",
        "PrivacyFloors",
        "TotalBudget",
    ),
    "crypto.cipher_suite": ("CipherSuite",),
    "crypto.entropy": ("Entropy",),
    "crypto.secret_bytes": ("SecretBytes",),
    "protocol.profiles": (
        "HonestTail",
        "MaliciousTail",
        "Profile",
        "RoundDeadlines",
        "SparseTail",
        "Trust",
    ),
    "protocol.events": ("NoisedVector",),
    "protocol.noise_terms": ("NoiseSecrets",),
    "protocol.graphs.ring_safety": ("RingRisk",),
    "runtime.connection": ("AggregatorConnection",),
    "server.session.progress": ("Dropped", "SessionPhase", "SessionProgress"),
    "server.session.receipt": ("SessionReceipt",),
    "server.server": ("ReleasedSum", "RunningTask", "Server"),
    "server.task.setup": ("Cohort", "PreparedTask"),
    "transport.address": ("Address",),
    "transport.relay.handshake_limits": ("Admission",),
    "pki.certificate_authority": ("Authority", "IssuedCertificate"),
    "transport.peer_identity": ("PeerIdentity", "Role"),
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
