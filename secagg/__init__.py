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
    )
    from secagg.client.contribution import (
        Contribution,
    )
    from secagg.client.data_usage import (
        DataClaim,
        DataUsage,
    )
    from secagg.client.enrolment import (
        ClientEnrolment,
        EnrolledIdentity,
    )
    from secagg.client.enrolment_files import (
        load_enrolled,
    )
    from secagg.client.gate import (
        Need,
        SessionInfo,
    )
    from secagg.client.grpc_connection import (
        CallDeadlines,
        GrpcConnection,
    )
    from secagg.client.open_client import (
        ClientStep,
    )
    from secagg.client.participation import (
        Participation,
    )
    from secagg.client.session_driver import (
        ClientPhase,
        ClientProgress,
    )
    from secagg.client.step_client import (
        StepClient,
    )
    from secagg.client.total_claim import (
        TotalBudgetExceededError,
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
        NoisyInput,
        NoisyTask,
        Plan,
        PlanRequest,
        PrivacyReport,
        PrivacyStatement,
        SessionNoise,
        UnitBounds,
        clip_flag_amplitude,
        error_curve,
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
        CertificateAuthority,
        IssuedCertificate,
    )
    from secagg.pki.published_enrolment import (
        PublishedEnrolment,
    )
    from secagg.protocol.descriptor import SessionDescriptor
    from secagg.protocol.events import (
        NoisyVector,
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
        ExactSumWaiver,
        PrivacyLimits,
        TotalBudget,
    )
    from secagg.protocol.profiles import (
        HonestCuriousParameters,
        MaliciousParameters,
        Profile,
        RoundDeadlines,
        SparseParameters,
        Trust,
    )
    from secagg.runtime.connection import (
        AggregatorConnection,
    )
    from secagg.server.http_edge.listener import (
        EdgeOptions,
    )
    from secagg.server.released_sum import (
        ReleasedSum,
    )
    from secagg.server.server import (
        RunningTask,
        Server,
    )
    from secagg.server.session.progress import (
        DroppedClient,
        SessionPhase,
        SessionProgress,
    )
    from secagg.server.session.receipt import (
        SessionReceipt,
    )
    from secagg.server.step_server import (
        StepServer,
        next_session_number,
    )
    from secagg.server.task.setup import (
        Cohort,
        PreparedTask,
    )
    from secagg.simulation.in_process import (
        ClippingWarning,
        InProcessCohort,
        InProcessEnrolment,
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
        AdmissionLimits,
    )
    from secagg.transport.tls import (
        TLSFiles,
        TLSIdentity,
    )

__all__ = [
    "NO_NOISE_ACKNOWLEDGEMENT",
    "Address",
    "AdmissionLimits",
    "AggregatorConnection",
    "CallDeadlines",
    "CertificateAuthority",
    "CipherSuite",
    "Client",
    "ClientEnrolment",
    "ClientPhase",
    "ClientPolicy",
    "ClientProgress",
    "ClientStep",
    "ClippingSchedule",
    "ClippingWarning",
    "Cohort",
    "Contribution",
    "CurvePoint",
    "DataClaim",
    "DataUsage",
    "DroppedClient",
    "EdgeOptions",
    "EnrolledIdentity",
    "Entropy",
    "ErrorCode",
    "ExactSumWaiver",
    "Graph",
    "GrpcConnection",
    "HonestCuriousParameters",
    "InProcessCohort",
    "InProcessEnrolment",
    "InputError",
    "IssuedCertificate",
    "LocalParameters",
    "LocalPrivacy",
    "LocalProtocolError",
    "LocalRandomiser",
    "MaliciousParameters",
    "Need",
    "NoiseBudget",
    "NoiseCertificate",
    "NoiseSecrets",
    "NoisyInput",
    "NoisyTask",
    "NoisyVector",
    "Participation",
    "PeerIdentity",
    "Plan",
    "PlanRequest",
    "PreparedTask",
    "PrivacyLimits",
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
    "SparseParameters",
    "StepClient",
    "StepServer",
    "TLSFiles",
    "TLSIdentity",
    "TotalBudget",
    "TotalBudgetExceededError",
    "Trust",
    "UnitBounds",
    "clip_flag_amplitude",
    "error_curve",
    "load_enrolled",
    "local",
    "make_randomiser",
    "next_session_number",
    "plan",
]

_MODULES: Final = {
    "client.client": ("Client",),
    "client.contribution": ("Contribution",),
    "client.data_usage": ("DataClaim", "DataUsage"),
    "client.session_driver": ("ClientPhase", "ClientProgress"),
    "client.enrolment": ("ClientEnrolment", "EnrolledIdentity"),
    "client.enrolment_files": ("load_enrolled",),
    "client.open_client": ("ClientStep",),
    "client.step_client": ("StepClient",),
    "server.step_server": ("StepServer", "next_session_number"),
    "client.grpc_connection": ("CallDeadlines", "GrpcConnection"),
    "client.gate": ("Need", "SessionInfo"),
    "server.http_edge.listener": ("EdgeOptions",),
    "client.participation": ("Participation",),
    "client.total_claim": ("TotalBudgetExceededError",),
    "protocol.descriptor": ("SessionDescriptor",),
    "distributed_dp": (
        "ClippingSchedule",
        "CurvePoint",
        "LocalParameters",
        "LocalPrivacy",
        "LocalRandomiser",
        "NoiseBudget",
        "NoisyInput",
        "NoisyTask",
        "Plan",
        "PlanRequest",
        "PrivacyReport",
        "PrivacyStatement",
        "SessionNoise",
        "UnitBounds",
        "error_curve",
        "clip_flag_amplitude",
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
        "InProcessCohort",
        "InProcessEnrolment",
        "local",
    ),
    "protocol.parameters": ("Graph", "ProtocolParameters"),
    "protocol.policy": (
        "ClientPolicy",
        "ExactSumWaiver",
        "NO_NOISE_ACKNOWLEDGEMENT",
        "PrivacyLimits",
        "TotalBudget",
    ),
    "crypto.cipher_suite": ("CipherSuite",),
    "crypto.entropy": ("Entropy",),
    "crypto.secret_bytes": ("SecretBytes",),
    "protocol.profiles": (
        "HonestCuriousParameters",
        "MaliciousParameters",
        "Profile",
        "RoundDeadlines",
        "SparseParameters",
        "Trust",
    ),
    "protocol.events": ("NoisyVector",),
    "protocol.noise_terms": ("NoiseSecrets",),
    "protocol.graphs.ring_safety": ("RingRisk",),
    "runtime.connection": ("AggregatorConnection",),
    "server.session.progress": ("DroppedClient", "SessionPhase", "SessionProgress"),
    "server.session.receipt": ("SessionReceipt",),
    "server.released_sum": ("ReleasedSum",),
    "server.server": ("RunningTask", "Server"),
    "server.task.setup": ("Cohort", "PreparedTask"),
    "transport.address": ("Address",),
    "transport.relay.handshake_limits": ("AdmissionLimits",),
    "pki.certificate_authority": ("CertificateAuthority", "IssuedCertificate"),
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
