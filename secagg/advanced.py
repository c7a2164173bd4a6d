"""What fewer programs need: certificates, budgets over tasks, carriers, own parts.

These names are promised like those of `secagg`, and imported when they are first used.
"""

from typing import TYPE_CHECKING

from dpnoise.lazy_names import lazy_names

if TYPE_CHECKING:
    from secagg.client.budget import (
        DataClaim as DataClaim,
        DataUsage as DataUsage,
        TotalBudgetExceededError as TotalBudgetExceededError,
    )
    from secagg.client.contribution import Participation as Participation
    from secagg.client.edge_connection import (
        EdgeConnection as EdgeConnection,
        connect_edge as connect_edge,
    )
    from secagg.client.enrolment import (
        ClientEnrolment as ClientEnrolment,
        EnrolledIdentity as EnrolledIdentity,
    )
    from secagg.client.enrolment_files import load_enrolled as load_enrolled
    from secagg.client.gate import Need as Need
    from secagg.client.grpc_connection import GrpcConnection as GrpcConnection
    from secagg.client.open_client import (
        ClientStep as ClientStep,
        TaskPlace as TaskPlace,
    )
    from secagg.client.session_driver import (
        ClientPhase as ClientPhase,
        ClientProgress as ClientProgress,
    )
    from secagg.client.visit import Visit as Visit, visit as visit
    from secagg.crypto.cipher_suite import CipherSuite as CipherSuite
    from secagg.crypto.entropy import Entropy as Entropy
    from secagg.distributed_dp import (
        ClippingSchedule as ClippingSchedule,
        LocalParameters as LocalParameters,
        LocalPrivacy as LocalPrivacy,
        LocalRandomiser as LocalRandomiser,
        NoiseBudget as NoiseBudget,
        NoisyTask as NoisyTask,
        PlanRequest as PlanRequest,
        PrivacyReport as PrivacyReport,
        PrivacyStatement as PrivacyStatement,
        SessionNoise as SessionNoise,
        UnitBounds as UnitBounds,
        clip_flag_amplitude as clip_flag_amplitude,
        error_curve as error_curve,
        make_randomiser as make_randomiser,
    )
    from secagg.pki.certificate_authority import (
        CertificateAuthority as CertificateAuthority,
        IssuedCertificate as IssuedCertificate,
    )
    from secagg.pki.development import DevelopmentEnrolment as DevelopmentEnrolment
    from secagg.pki.key_files import PublishedEnrolment as PublishedEnrolment
    from secagg.protocol.descriptor import SessionDescriptor as SessionDescriptor
    from secagg.protocol.graphs.ring_safety import RingRisk as RingRisk
    from secagg.protocol.messages import Round as Round
    from secagg.protocol.noise_terms import NoiseCertificate as NoiseCertificate
    from secagg.protocol.parameters import (
        Graph as Graph,
        ProtocolParameters as ProtocolParameters,
    )
    from secagg.protocol.policy import (
        NO_NOISE_ACKNOWLEDGEMENT as NO_NOISE_ACKNOWLEDGEMENT,
        TotalBudget as TotalBudget,
    )
    from secagg.protocol.profiles import RoundDeadlines as RoundDeadlines
    from secagg.runtime.clock import Clock as Clock
    from secagg.server.http_edge.listener import EdgeOptions as EdgeOptions
    from secagg.server.server import RunningTask as RunningTask
    from secagg.server.session.events import (
        DroppedClient as DroppedClient,
        SessionPhase as SessionPhase,
        SessionProgress as SessionProgress,
    )
    from secagg.server.session.report import SessionReceipt as SessionReceipt
    from secagg.server.step_server import next_session_number as next_session_number
    from secagg.simulation.in_process import (
        ClippingWarning as ClippingWarning,
        InProcessCohort as InProcessCohort,
        InProcessEnrolment as InProcessEnrolment,
    )
    from secagg.storage.rows import Retention as Retention
    from secagg.transport.address import Address as Address
    from secagg.transport.connection import (
        AggregatorConnection as AggregatorConnection,
        CallDeadlines as CallDeadlines,
    )
    from secagg.transport.handshake_limits import AdmissionLimits as AdmissionLimits
    from secagg.transport.peer_identity import (
        PeerIdentity as PeerIdentity,
        Role as Role,
    )
    from secagg.transport.tls import TLSFiles as TLSFiles
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__)
