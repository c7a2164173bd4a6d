"""Settings of an aggregator: where it listens and keeps its state, whom it admits."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.config.common import ProgramSection, TLSSection
from secagg.config.loader import setting
from secagg.config.task import EnrolmentSection, TaskSettings
from secagg.errors import ErrorCode
from secagg.protocol.profiles import MAX_DEADLINE_SECONDS
from secagg.transport.handshake_limits import AdmissionLimits

_USUAL: Final = AdmissionLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSection(ProgramSection):
    """The process of an aggregator of any kind."""

    listen: str = setting("Address and port to listen on.", default="127.0.0.1:7400")
    health_listen: str | None = setting(
        "Address for health checks without TLS (grpc.health.v1), and nothing else; "
        "empty for none.",
        default=None,
    )
    metrics_listen: str | None = setting(
        "Address for /metrics (Prometheus), /healthz and /readyz, without TLS; empty "
        "for none. They name tasks, never clients.",
        default=None,
    )
    otlp: str | None = setting(
        "Collector of OpenTelemetry to which measurements and traces of sessions are "
        "sent, such as http://127.0.0.1:4318 (OTLP over HTTP); empty for none. They "
        "name tasks, never clients.",
        default=None,
    )
    page_listen: str | None = setting(
        "Address of the operator's web page, on this machine only. Every user who can"
        " log in here can read it, names of clients included; empty for none.",
        default=None,
    )
    state_dir: Path = setting(
        "Journal and spooled uploads; must survive restarts.",
        default=Path("server-state"),
    )
    store: str | None = setting(
        "PostgreSQL database that keeps sessions, numbers and budgets, such as "
        "postgresql://user@host/name?sslmode=verify-full&passfile=/path; empty for a "
        "file in state_dir.",
        default=None,
    )
    tasks_dir: Path | None = setting(
        "Folder of further tasks, one *.toml each; empty for none.", default=None
    )
    admin_socket: Path | None = setting(
        "Socket for the commands of an operator on this host, for this user and "
        "root; empty for admin.sock in state_dir.",
        default=None,
    )
    revoked: Path | None = setting(
        "Revocation lists (X.509 CRL, PEM or DER) of the authorities in tls.ca, such "
        "as ca.crl of `secagg pki revoke`; read once a minute. Empty for none.",
        default=None,
    )
    max_revocation_days: float | None = setting(
        "Oldest of these lists, counted from its thisUpdate: with an older one no "
        "certificate is accepted. Empty for no limit but the nextUpdate of the list.",
        default=None,
        low=0.01,
        high=3650.0,
        unit="days",
    )
    drain_seconds: float = setting(
        "How long calls in flight may finish after SIGTERM.",
        default=10.0,
        low=0.0,
        high=600.0,
        unit="seconds",
    )
    keep_receipts_days: float = setting(
        "How long receipts of ended sessions stay in state_dir. A client that asks "
        "later for the end of its session is told UNKNOWN_SESSION.",
        default=400.0,
        low=1.0,
        high=36_500.0,
        unit="days",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection(HostSection):
    """The process of an aggregator that is alone."""

    blobs: str | None = setting(
        "Where uploads, payloads and sums are kept, such as file:/mnt/shared or "
        "s3://bucket/prefix (keys in AWS_* of the environment); empty for a folder in "
        "state_dir. Aggregators with the same store and the same blobs "
        "share the work.",
        default=None,
    )
    engine: str = setting(
        "What removes masks from large sums: threads, processes, a Dask cluster "
        "(dask:tls://host:8786) or a Ray cluster (ray:auto). Its workers read uploads "
        "in state_dir, and are trusted with them and with keys of masks.",
        default="threads",
    )
    output_dir: Path = setting(
        "Where sum-<n>.npy, report-<n>.json and receipt-<n>.bin are written; of a task "
        "that is not in this file, in a folder of its name.",
        default=Path("sums"),
    )
    keep_seconds: float = setting(
        "How long the outcome, sum and payload of an ended session stay readable at "
        "least. After the last sum the server waits that long for clients that do not"
        " know it yet.",
        default=600.0,
        low=0.0,
        high=float(MAX_DEADLINE_SECONDS),
        unit="seconds",
    )


@dataclass(frozen=True, slots=True)
class AdmissionSection:
    """Connection limits of unauthenticated peers; a relay before gRPC enforces them."""

    relay: str = setting(
        '"auto" has the relay on Linux, unless only this host can connect.',
        default=_USUAL.relay,
        choices=("auto", "on", "off"),
    )
    connections: int = setting(
        "Open connections in all; newcomers beyond are turned away. Each takes three "
        "files, or one without the relay. 0 for as many as there are files for, "
        "through the relay at most 8192.",
        default=_USUAL.connections,
        low=0,
        high=1_000_000,
        unit="connections",
    )
    waiting: int = setting(
        "Connections that have not begun TLS; beyond, the oldest is closed.",
        default=_USUAL.waiting,
        low=1,
        high=100_000,
        unit="connections",
    )
    per_address: int = setting(
        "Connections of one address (IPv6: of one /64) that have made no call under a "
        "certificate; newcomers beyond are turned away. 0 for no limit, behind a "
        "balancer that shows its own address.",
        default=_USUAL.per_address,
        low=0,
        high=100_000,
        unit="connections",
    )
    handshakes: int = setting(
        "TLS handshakes under way; the others wait for their turn.",
        default=_USUAL.handshakes,
        low=1,
        high=100_000,
        unit="connections",
    )
    handshake_seconds: float = setting(
        "How long a handshake may take, up to the first call under a certificate.",
        default=_USUAL.handshake_seconds,
        low=0.1,
        high=600.0,
        unit="seconds",
    )
    per_identity: int = setting(
        "Connections of one client; beyond, its oldest is closed.",
        default=_USUAL.per_identity,
        low=1,
        high=1000,
        unit="connections",
    )

    def limits(self) -> AdmissionLimits:
        """Return the limits that the relay enforces."""
        return AdmissionLimits(**dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class EdgeSection:
    """Calls of clients without certificates over HTTPS, signed by enrolled keys."""

    listen: str | None = setting(
        "Address and port of the HTTP edge, such as 0.0.0.0:7443; empty for none. It "
        "needs [enrolment] and the extra edge.",
        default=None,
    )
    authority: str | None = setting(
        "Host name by which clients call the edge, in lower case, and its port unless "
        "that is 443; every request is signed for it.",
        default=None,
    )
    certificate: Path | None = setting(
        "Certificate chain for that host name, of an authority that the clients trust; "
        "a renewed one is taken within a minute.",
        default=None,
    )
    private_key: Path | None = setting(
        "Private key of that certificate, not encrypted.", default=None
    )
    origins: tuple[str, ...] = setting(
        "Origins of web pages that may call, such as https://app.example.org; none for "
        "native applications only.",
        default=(),
    )
    behind_proxy: bool = setting(
        "Whether a proxy stands before the edge, so that all connections come from it. "
        "Limits by address are then the proxy's, and no task of the profile "
        "honest-curious-server runs.",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class HostSettings:
    """Settings of an aggregator that may run any task, or none yet."""

    server: ServerSection
    tls: TLSSection
    admission: AdmissionSection
    edge: EdgeSection
    enrolment: EnrolmentSection


@dataclass(frozen=True, slots=True)
class ServerSettings(TaskSettings):
    """All settings of `secagg server`: a task, and its aggregator."""

    server: ServerSection
    tls: TLSSection
    admission: AdmissionSection
    edge: EdgeSection

    @property
    def host(self) -> HostSettings:
        """The part that is no task's."""
        return HostSettings(
            self.server, self.tls, self.admission, self.edge, self.enrolment
        )

    @property
    def own_task(self) -> TaskSettings:
        """The part that is a task's."""
        return TaskSettings(
            self.task,
            self.vector,
            self.cohort,
            self.noise,
            self.rounds,
            self.enrolment,
        )


def files_in(folder: Path) -> list[Path]:
    """Return the files of ``server.tasks_dir``, in the order of their names.

    Raises:
        ServiceError: BAD_SETTINGS; the folder cannot be read.
    """
    try:
        # Not `glob`, to which a folder that may not be read is an empty one.
        return sorted(each for each in folder.iterdir() if each.suffix == ".toml")
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"server.tasks_dir {folder} cannot be read: {error.strerror}",
            fix="Make it a directory that this user may read, or leave the "
            "setting out.",
        ) from None
