"""What fewer programs need: certificates, budgets over tasks, carriers, own parts.

These names are promised like those of `secagg`, and imported when they are first used.
"""

from typing import Final

from dpnoise.lazy_names import lazy_names

_MODULES: Final = {
    "secagg.client.data_usage": ("DataClaim", "DataUsage"),
    "secagg.client.edge_connection": ("EdgeConnection", "connect_edge"),
    "secagg.client.enrolment": ("ClientEnrolment", "EnrolledIdentity"),
    "secagg.client.enrolment_files": ("load_enrolled",),
    "secagg.client.gate": ("Need",),
    "secagg.client.grpc_connection": ("GrpcConnection",),
    "secagg.client.open_client": ("ClientStep", "TaskPlace"),
    "secagg.client.participation": ("Participation",),
    "secagg.client.session_driver": ("ClientPhase", "ClientProgress"),
    "secagg.client.total_claim": ("TotalBudgetExceededError",),
    "secagg.client.visit": ("Visit", "visit"),
    "secagg.crypto.cipher_suite": ("CipherSuite",),
    "secagg.crypto.entropy": ("Entropy",),
    "secagg.distributed_dp": (
        "ClippingSchedule",
        "LocalParameters",
        "LocalPrivacy",
        "LocalRandomiser",
        "NoiseBudget",
        "NoisyTask",
        "PlanRequest",
        "PrivacyReport",
        "PrivacyStatement",
        "SessionNoise",
        "UnitBounds",
        "clip_flag_amplitude",
        "error_curve",
        "make_randomiser",
    ),
    "secagg.pki.certificate_authority": ("CertificateAuthority", "IssuedCertificate"),
    "secagg.pki.development": ("DevelopmentEnrolment",),
    "secagg.pki.key_files": ("PublishedEnrolment",),
    "secagg.protocol.descriptor": ("SessionDescriptor",),
    "secagg.protocol.graphs.ring_safety": ("RingRisk",),
    "secagg.protocol.messages": ("Round",),
    "secagg.protocol.noise_terms": ("NoiseCertificate",),
    "secagg.protocol.parameters": ("Graph", "ProtocolParameters"),
    "secagg.protocol.policy": ("NO_NOISE_ACKNOWLEDGEMENT", "TotalBudget"),
    "secagg.protocol.profiles": ("RoundDeadlines",),
    "secagg.runtime.clock": ("Clock",),
    "secagg.transport.connection": ("AggregatorConnection", "CallDeadlines"),
    "secagg.server.http_edge.listener": ("EdgeOptions",),
    "secagg.server.server": ("RunningTask",),
    "secagg.server.session.events": (
        "DroppedClient",
        "SessionPhase",
        "SessionProgress",
    ),
    "secagg.server.session.report": ("SessionReceipt",),
    "secagg.server.step_server": ("next_session_number",),
    "secagg.simulation.in_process": (
        "ClippingWarning",
        "InProcessCohort",
        "InProcessEnrolment",
    ),
    "secagg.storage.rows": ("Retention",),
    "secagg.transport.address": ("Address",),
    "secagg.transport.peer_identity": ("PeerIdentity", "Role"),
    "secagg.transport.handshake_limits": ("AdmissionLimits",),
    "secagg.transport.tls": ("TLSFiles",),
}

__all__, __getattr__, __dir__ = lazy_names(__name__, _MODULES)
