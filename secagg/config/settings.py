"""What can be set for a server and for a client, with ranges and defaults.

Rule 1: the classes below are the reference; `deploy/config/*.full.toml` lists exactly
        these keys, and a test compares the two.
Rule 2: privacy floors exist on the client's side only (`PolicySection`); the server's
        sections describe a proposal that clients are free to refuse.
Rule 3: releasing a sum without noise takes a sentence, not a flag: the operator has to
        write down what it means.

Ranges here catch typing errors early.  What a session can be at all is decided by
`secagg.parameters`, what a mechanism can be by its planner.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from secagg.config.loader import (
    LoadedSettings,
    load_settings,
    sections_in,
    setting,
    settings_from,
)
from secagg.config.schedule import CONTINUOUS, Schedule
from secagg.enrolment.keys import parse_key
from secagg.errors import ErrorCode, ServiceError
from secagg.parameters import MAX_TASK_ID_BYTES
from secagg.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.transport.admission import Admission
from secagg.transport.identity import DEFAULT_TRUST_DOMAIN, PeerIdentity, Role

__all__ = [
    "AdmissionSection",
    "ClientSection",
    "ClientSettings",
    "CohortSection",
    "EnrolmentSection",
    "HostSettings",
    "IdentitySection",
    "NoiseSection",
    "PolicySection",
    "RoundsSection",
    "ServerSection",
    "ServerSettings",
    "TLSSection",
    "TaskSection",
    "TaskSettings",
    "VectorSection",
    "end_of_task",
    "is_client_file",
    "load_client_settings",
    "load_host_settings",
    "load_server_settings",
    "load_task_settings",
    "names_a_task",
    "task_from_document",
]

_PROFILES: Final = (
    "honest-curious-server",
    "malicious-server",
    "malicious-server-sparse",
)
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_LOG_FORMATS: Final = ("text", "json")
# A week, as in `secagg.parameters`.
_MAX_SECONDS: Final = 7 * 24 * 3600


@dataclass(frozen=True, slots=True)
class TLSSection:
    """Files of mutual TLS; there is no plaintext mode."""

    ca: Path = setting("Certificate of the authority that signed the other side.")
    certificate: Path = setting("This program's own certificate.")
    key: Path = setting("Private key of that certificate; nobody else may read it.")


@dataclass(frozen=True, slots=True)
class ServerSection:
    """The aggregator process."""

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
    page_listen: str | None = setting(
        "Address of the operator's web page, on this machine only: whoever has a login "
        "here can read it, names of clients included; empty for none.",
        default=None,
    )
    state_dir: Path = setting(
        "Journal and spooled uploads; must survive restarts.",
        default=Path("server-state"),
    )
    store: str | None = setting(
        "PostgreSQL database that keeps sessions, numbers and budgets, such as "
        "postgresql://user@host/name?sslmode=verify-full&passfile=/path; empty for a "
        "file in state_dir, which keeps uploads and sums in any case.",
        default=None,
    )
    rollback_mark: Path | None = setting(
        "File outside state_dir and its backups that tells a state that was put back "
        "from the newest one; empty for one under ~/.local/state/secagg.",
        default=None,
    )
    output_dir: Path = setting(
        "Where sum-<n>.npy, report-<n>.json and receipt-<n>.bin are written; of a task "
        "that is not in this file, in a folder of its name.",
        default=Path("sums"),
    )
    tasks_dir: Path | None = setting(
        "Folder of further tasks, one *.toml each; empty for none.", default=None
    )
    admin_socket: Path | None = setting(
        "Socket for the commands of an operator on this machine, for this user and "
        "root; empty for admin.sock in state_dir.",
        default=None,
    )
    revoked: Path | None = setting(
        "File of clients' certificates that were taken back, from `secagg pki revoke`; "
        "looked at once a minute. Empty for none.",
        default=None,
    )
    drain_seconds: float = setting(
        "How long calls in flight may finish after SIGTERM.",
        default=10.0,
        low=0.0,
        high=600.0,
        unit="seconds",
    )
    keep_seconds: float = setting(
        "How long the outcome, sum and payload of an ended session stay readable at "
        "least; after the last sum the server waits that long for clients that do not "
        "know it yet.",
        default=600.0,
        low=0.0,
        high=float(_MAX_SECONDS),
        unit="seconds",
    )
    keep_receipts_days: float = setting(
        "How long receipts of ended sessions stay in state_dir. Who asks later for the "
        "end of its session is told UNKNOWN_SESSION.",
        default=400.0,
        low=1.0,
        high=36_500.0,
        unit="days",
    )
    keep_receipts: int = setting(
        "How many receipts of one task stay, the latest ones.",
        default=10_000,
        low=16,
        high=1_000_000,
        unit="receipts",
    )
    log_level: str = setting(
        "Least severe log line on standard error.",
        default="warning",
        choices=_LOG_LEVELS,
    )
    log_format: str = setting(
        "How a log line is written: text for people, or json for programs, one object "
        "a line.",
        default="text",
        choices=_LOG_FORMATS,
    )


_USUAL: Final = Admission()


@dataclass(frozen=True, slots=True)
class AdmissionSection:
    """How many connections strangers may have; a relay before gRPC enforces it."""

    relay: str = setting(
        '"auto" has the relay on Linux, unless only this machine can connect.',
        default=_USUAL.relay,
        choices=("auto", "on", "off"),
    )
    connections: int = setting(
        "Open connections in all, each of which takes three files; newcomers beyond "
        "are turned away. 0 for as many as there are files for, at most 8192.",
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

    def limits(self) -> Admission:
        """Return what the relay enforces."""
        return Admission(**dataclasses.asdict(self))


@dataclass(frozen=True, slots=True)
class TaskSection:
    """The series of sessions that this server runs."""

    id: str = setting("Name of the task; clients ask for it.")
    sessions: int = setting(
        "How many sums the task may release.",
        default=1,
        low=1,
        high=1_000_000,
        unit="sessions",
    )
    schedule: str = setting(
        'When sessions open: "continuous" for one after the other, or "every 1h" (s, '
        "m, h, d; counted in UTC) for one in each hour.",
        default=CONTINUOUS,
    )
    window: str | None = setting(
        "For how long of each slot of the schedule clients may join, such as 30m; "
        "empty for all of it.",
        default=None,
    )
    attempts: int = setting(
        "How often one sum is tried before the task is paused; waiting for clients is "
        "no attempt.",
        default=3,
        low=1,
        high=100,
        unit="attempts",
    )
    ends: str | None = setting(
        "Date and time in UTC, such as 2027-01-31T18:00:00Z, from which on no session "
        "of the task begins and none waits for clients any more; empty for none.",
        default=None,
    )
    spare: int | None = setting(
        "Sessions that the privacy budget covers beyond those: each replaces one that "
        "ended when it may have shown something. Empty means none if a sum is tried "
        "once, else one for every twenty sessions and one for every colluder.",
        default=None,
        low=0,
        high=1_000_000,
        unit="sessions",
    )
    profile: str = setting(
        "Named threat model; malicious-server-sparse is experimental and unreviewed.",
        default="honest-curious-server",
        choices=_PROFILES,
    )
    payload: Path | None = setting(
        "File handed to every client, for example a model.", default=None
    )
    invited: tuple[str, ...] = setting(
        "Client names that may take part; empty for everybody with a certificate.",
        default=(),
    )


@dataclass(frozen=True, slots=True)
class VectorSection:
    """What one client contributes."""

    dimension: int = setting(
        "Entries of one vector.", low=1, high=1 << 30, unit="entries"
    )
    modulus_bits: int | None = setting(
        "Sums are exact modulo 2^modulus_bits; empty lets the planner choose when "
        "there is noise, and means 32 when there is none.",
        default=None,
        low=1,
        high=62,
        unit="bits",
    )


@dataclass(frozen=True, slots=True)
class CohortSection:
    """Who takes part and how many may be lost."""

    min_clients: int = setting(
        "Smallest cohort that starts.", low=2, high=65_535, unit="clients"
    )
    max_clients: int = setting(
        "Largest cohort; the session starts as soon as it is full.",
        low=2,
        high=65_535,
        unit="clients",
    )
    min_survivors: int = setting(
        "Fewest inputs that a released sum adds up.", low=2, high=65_535, unit="clients"
    )
    threshold: int = setting(
        "Shares that rebuild a secret; 0 means one more than half of max_clients (of "
        'the degree on a ring), or with degree "auto" the fewest that are safe.',
        default=0,
        low=0,
        high=65_535,
        unit="shares",
    )
    max_dropouts: int | None = setting(
        "Most clients that may be lost after sharing; empty means max_losses.",
        default=None,
        low=0,
        high=65_535,
        unit="clients",
    )
    max_losses: int | None = setting(
        "Most clients that may be lost after joining; empty means "
        "max_clients - min_survivors.",
        default=None,
        low=0,
        high=65_535,
        unit="clients",
    )
    colluders: int = setting(
        "Clients assumed to help the server.",
        default=0,
        low=0,
        high=65_535,
        unit="clients",
    )
    degree: int | Literal["auto"] = setting(
        "Neighbours of each client on a ring; 0 means everybody shares with everybody, "
        '"auto" the fewest that are safe with these numbers, or 0 where none are. In '
        "the profile malicious-server-sparse, how many others each client draws; 0 is "
        "refused there.",
        default=0,
        low=0,
        high=65_534,
        unit="neighbours",
    )
    graph_bits: int = setting(
        "On a ring, sessions that are unsafe with more than one chance in two to this "
        "are not summed up; drawn neighbours must be as safe.",
        default=40,
        low=1,
        high=128,
        unit="bits",
    )
    quorum: int | None = setting(
        "Signatures on who is in the sum without which nobody unmasks, in the profile "
        "malicious-server-sparse; empty means the fewest that are safe.",
        default=None,
        low=2,
        high=65_535,
        unit="clients",
    )


@dataclass(frozen=True, slots=True)
class NoiseSection:
    """The privacy budget of the whole task, or the sentence that waives it."""

    none: str = setting(
        f'To release exact sums, write "{NO_NOISE_ACKNOWLEDGEMENT}".',
        default="",
        choices=("", NO_NOISE_ACKNOWLEDGEMENT),
    )
    mechanism: str = setting(
        "Mechanism that encodes and adds noise.", default="skellam-mixture"
    )
    epsilon: float | None = setting(
        "Budget of the whole task against the server.",
        default=None,
        low=1e-6,
        high=1e4,
    )
    delta: float | None = setting(
        "Probability beyond epsilon; well below one over the number of people.",
        default=None,
        low=1e-300,
        high=0.999999,
    )
    l2_clip: float | None = setting(
        "Longest vector of one client; longer ones are shortened to it.",
        default=None,
        low=1e-300,
        high=1e300,
        unit="caller's units",
    )
    max_nonzero: int | None = setting(
        "For skellam-counts instead of l2_clip: how many entries of one client may "
        "differ from zero; 1 for a histogram.",
        default=None,
        low=1,
        high=1 << 30,
        unit="entries",
    )
    linf_bound: int | None = setting(
        "Largest entry of one client; empty lets the mechanism choose, which is 1 for "
        "skellam-counts.",
        default=None,
        low=1,
        high=1 << 25,
        unit="grid steps",
    )
    signed: bool = setting(
        "Whether entries of skellam-counts may be below 0.", default=False
    )
    scale_factor: float | None = setting(
        "Grid steps per unit; empty lets the planner choose.",
        default=None,
        low=1e-300,
        high=1e300,
    )
    accountant: str | None = setting(
        "Accountant that vouches for the budget; empty for the default of the "
        "mechanism.",
        default=None,
    )
    clip_quantile: float | None = setting(
        "Part of the vectors that should fit the clip: l2_clip is then that of the "
        "first session, and those after it follow the sums, at no privacy cost but for "
        "a slightly longer vector. Empty for a clip that stays.",
        default=None,
        low=1e-6,
        high=0.999999,
    )
    lowest_clip: float | None = setting(
        "Smallest clip of any session with clip_quantile; empty means l2_clip / 16.",
        default=None,
        low=1e-300,
        high=1e300,
        unit="caller's units",
    )
    highest_clip: float | None = setting(
        "Largest clip of any session with clip_quantile; empty means 16 l2_clip.",
        default=None,
        low=1e-300,
        high=1e300,
        unit="caller's units",
    )
    selection_rate: str = setting(
        'Part of the vectors that count in a sum, such as "1/10": everybody takes part '
        "and adds noise, and a secret coin of each client decides whether its vector "
        "is added. A smaller part needs less noise and gives a less exact estimate.",
        default="1",
    )
    loss_fraction: float | None = setting(
        "Part of the clients of one session that may be lost after sharing; empty "
        "means what min_survivors leaves of max_clients. Less of it is less noise in "
        "sessions that are not full.",
        default=None,
        low=0.0,
        high=0.999999,
    )
    ladder: int | None = setting(
        "Rungs by which survivors take back noise that no loss has made necessary; 0 "
        "for none. Empty means 4 where clients may be lost and the mechanism allows "
        "it, which keeps about 1 percent too much where a tenth may be lost, 2 where "
        "three tenths may.",
        default=None,
        low=0,
        high=8,
        unit="rungs",
    )
    colluder_fraction: float | None = setting(
        "Part of the clients of one session that is taken for colluders where that "
        "is more than cohort.colluders; clients may demand it. Empty means 0.1 in "
        "profiles that distrust the server, else 0.",
        default=None,
        low=0.0,
        high=0.999999,
    )
    rotation: str = setting(
        "How vectors are spread before rounding.",
        default="hadamard",
        choices=("hadamard", "hadamard-kronecker", "dft", "none"),
    )
    randomiser: str | None = setting(
        "What makes every vector private on its own, in case masks are broken: "
        "separated, privunit2, privunit-inf, scalar-dp; empty for nothing. l2_clip "
        "then bounds what goes into it, and the noise is planned for what comes out: "
        "larger vectors, so more of it.",
        default=None,
    )
    randomiser_epsilon: float | None = setting(
        "Its level for one session, without a delta; the levels of sessions add up.",
        default=None,
        low=1e-3,
        high=1e3,
    )
    randomiser_magnitude_epsilon: float | None = setting(
        "The part of that level that separated spends on the length of a vector; "
        "empty for the best part for vectors of a fifth of l2_clip.",
        default=None,
        low=1e-3,
        high=1e3,
    )


@dataclass(frozen=True, slots=True)
class RoundsSection:
    """How long each round stays open at most."""

    advertise_keys: int = setting(
        "Waiting for clients to join.",
        default=60,
        low=1,
        high=_MAX_SECONDS,
        unit="seconds",
    )
    choose_edges: int = setting(
        "Waiting for lists of drawn neighbours; only in the profile "
        "malicious-server-sparse.",
        default=60,
        low=1,
        high=_MAX_SECONDS,
        unit="seconds",
    )
    share_keys: int = setting(
        "Waiting for shares.", default=60, low=1, high=_MAX_SECONDS, unit="seconds"
    )
    masked_input: int = setting(
        "Waiting for masked inputs; grows while uploads progress.",
        default=300,
        low=1,
        high=_MAX_SECONDS,
        unit="seconds",
    )
    consistency: int = setting(
        "Waiting for signatures on who is in the sum; only in profiles that distrust "
        "the server.",
        default=60,
        low=1,
        high=_MAX_SECONDS,
        unit="seconds",
    )
    unmasking: int = setting(
        "Waiting for shares of the survivors.",
        default=60,
        low=1,
        high=_MAX_SECONDS,
        unit="seconds",
    )


@dataclass(frozen=True, slots=True)
class EnrolmentSection:
    """Whose credentials count, in profiles that distrust the server."""

    trust_domain: str = setting(
        "Name of the deployment, as in its certificates and credentials.",
        default=DEFAULT_TRUST_DOMAIN,
    )
    enrolment_key: str | None = setting(
        "Public key of the issuer, ed25519: and 64 digits; required by profiles that "
        "distrust the server. Empty for none.",
        default=None,
    )
    revocations: Path | None = setting(
        "The issuer's newest revocation list; empty while nothing was ever revoked.",
        default=None,
    )


def _plain(value: object) -> object:
    """Return a value in the words of TOML and JSON."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Everything that decides one task."""

    task: TaskSection
    vector: VectorSection
    cohort: CohortSection
    noise: NoiseSection
    rounds: RoundsSection
    enrolment: EnrolmentSection

    def document(self) -> dict[str, dict[str, object]]:
        """Return it as a settings file would say it, for `task_from_document`.

        What is not set is left out, and paths are whole.
        """
        return {
            section.name: {
                key: _plain(value)
                for key, value in dataclasses.asdict(
                    getattr(self, section.name)
                ).items()
                if value is not None
            }
            for section in dataclasses.fields(TaskSettings)
        }

    @property
    def schedule(self) -> Schedule:
        """When sessions open."""
        return Schedule.parse(self.task.schedule, self.task.window)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What an aggregator needs that may run any task, or none yet."""

    server: ServerSection
    tls: TLSSection
    admission: AdmissionSection


@dataclass(frozen=True, slots=True)
class ServerSettings(TaskSettings):
    """Everything that `secagg server` can be told: a task, and who runs it."""

    server: ServerSection
    tls: TLSSection
    admission: AdmissionSection

    @property
    def host(self) -> HostSettings:
        """The part that is no task's."""
        return HostSettings(self.server, self.tls, self.admission)

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


@dataclass(frozen=True, slots=True)
class ClientSection:
    """The client process."""

    server: str = setting(
        "Address and port of the aggregator; the host must be in its certificate, "
        "unless aggregator is set."
    )
    task: str = setting("Name of the task to take part in.")
    aggregator: str | None = setting(
        "Name in the certificate of the one aggregator to accept, wherever it listens; "
        "empty for the one whose certificate has the host of server.",
        default=None,
    )
    state_dir: Path = setting(
        "One record per session, so that no input is ever sent twice; must survive "
        "restarts.",
        default=Path("client-state"),
    )
    rollback_mark: Path | None = setting(
        "File outside state_dir and its backups that tells a state that was put back "
        "from the newest one; empty for one under ~/.local/state/secagg.",
        default=None,
    )
    sessions: int = setting(
        "How many sessions to take part in before stopping.",
        default=1,
        low=1,
        high=1_000_000,
        unit="sessions",
    )
    attempts: int = setting(
        "How often to try again in a row when a session is aborted or goes on without "
        "this client.",
        default=3,
        low=1,
        high=1000,
        unit="attempts",
    )
    wait_seconds: float = setting(
        "How long to wait for the server to come up and open a session.",
        default=120.0,
        low=0.0,
        high=float(_MAX_SECONDS),
        unit="seconds",
    )
    keep_receipts_days: float = setting(
        "How long this client's receipts of ended sessions stay in state_dir.",
        default=400.0,
        low=1.0,
        high=36_500.0,
        unit="days",
    )
    keep_receipts: int = setting(
        "How many receipts of one task stay, the latest ones.",
        default=10_000,
        low=16,
        high=1_000_000,
        unit="receipts",
    )
    log_level: str = setting(
        "Least severe log line on standard error.",
        default="warning",
        choices=_LOG_LEVELS,
    )
    log_format: str = setting(
        "How a log line is written: text for people, or json for programs, one object "
        "a line.",
        default="text",
        choices=_LOG_FORMATS,
    )


@dataclass(frozen=True, slots=True)
class IdentitySection:
    """Who this client is, and whom it believes who the others are.

    Required by profiles that distrust the server: all three or none.
    """

    identity: Path | None = setting(
        "Private key, identity.seed of `secagg pki identity`; nobody else may read "
        "it. Empty for none.",
        default=None,
    )
    credential: Path | None = setting(
        "What the issuer has signed for that key; empty for none.", default=None
    )
    enrolment_key: str | None = setting(
        "Public key of the issuer, ed25519: and 64 digits, as the issuer says it and "
        "not as the aggregator does; no other one is believed. Empty for none.",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class PolicySection:
    """Floors that no server can lower.  The client leaves rather than cross one."""

    profiles: tuple[str, ...] = setting(
        "Threat models that are accepted; malicious-server-sparse is experimental and "
        "unreviewed.",
        default=("honest-curious-server",),
    )
    graphs: tuple[str, ...] = setting(
        "Who may share with whom: complete, ring, k-out (drawn neighbours, in the "
        "profile malicious-server-sparse).",
        default=("complete",),
    )
    min_graph_bits: int = setting(
        "On a ring or with drawn neighbours, the session must be safe but for a chance "
        "of one in two to this.",
        default=40,
        low=1,
        high=128,
        unit="bits",
    )
    min_clients: int = setting(
        "Smallest cohort.", default=3, low=2, high=65_535, unit="clients"
    )
    max_clients: int = setting(
        "Largest cohort.", default=10_000, low=2, high=65_535, unit="clients"
    )
    min_survivors: int = setting(
        "Fewest inputs in a released sum.",
        default=3,
        low=2,
        high=65_535,
        unit="clients",
    )
    max_dropouts: int | None = setting(
        "Most lost clients; empty for no cap beyond min_survivors.",
        default=None,
        low=0,
        high=65_535,
        unit="clients",
    )
    min_colluders: int = setting(
        "Colluders that the session must tolerate.",
        default=0,
        low=0,
        high=65_535,
        unit="clients",
    )
    whole_roster: bool = setting(
        "On a ring, read everybody's advert and not only those of the neighbours.",
        default=False,
    )
    require_majority: bool = setting(
        "Demand a threshold above half of the cohort on the complete graph.",
        default=True,
    )
    max_dimension: int = setting(
        "Longest vector.", default=1 << 26, low=1, high=1 << 30, unit="entries"
    )
    max_modulus_bits: int = setting(
        "Widest entry.", default=62, low=1, high=62, unit="bits"
    )
    require_noise: bool = setting("Refuse tasks that release exact sums.", default=True)
    max_revocation_days: float | None = setting(
        "Oldest revocation list, in profiles with credentials: older ones, and none at "
        "all, are refused. Empty for no limit.",
        default=None,
        low=0.01,
        high=3650.0,
        unit="days",
    )
    max_epsilon: float | None = setting(
        "Largest epsilon of a whole task, recomputed by this client; required while "
        "noise is required.",
        default=None,
        low=1e-6,
        high=1e4,
    )
    max_delta: float | None = setting(
        "Largest delta that goes with it.", default=None, low=1e-300, high=0.999999
    )
    grounds: tuple[str, ...] = setting(
        "How epsilon must be known: proven, certified, numerical, recalled.",
        default=("proven", "certified"),
    )
    min_local_noise_stddev: float = setting(
        "Least noise that this client itself adds to every entry: what is left to it "
        "if all other clients are inventions of the server.",
        default=0.0,
        low=0.0,
        high=1e300,
        unit="caller's units",
    )
    max_local_epsilon: float | None = setting(
        "Largest epsilon of a whole task against a server that sees this client's "
        "vector without masks: demands a local randomiser. Empty for no such demand.",
        default=None,
        low=1e-3,
        high=1e9,
    )
    min_local_noise_multiplier: float = setting(
        "The same over the longest vector that is not shortened: whatever the unit.",
        default=0.0,
        low=0.0,
        high=1e300,
    )
    min_colluder_fraction: float | None = setting(
        "Part of every roster that the noise must take for colluders. An absolute "
        "number alone is thinned out by a larger roster, and inventing clients makes "
        "it larger. Empty means 0.1 in profiles that distrust the server, else 0.",
        default=None,
        low=0.0,
        high=0.999999,
    )


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Everything that `secagg client` can be told."""

    client: ClientSection
    tls: TLSSection
    enrolment: IdentitySection
    policy: PolicySection


_TASK_SECTIONS: Final = tuple(each.name for each in dataclasses.fields(TaskSettings))
_HOST_SECTIONS: Final = tuple(each.name for each in dataclasses.fields(HostSettings))
_CLIENT_SECTIONS: Final = ("client", "policy")


def load_server_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[ServerSettings]:
    """Load and cross-check the settings of an aggregator and the task in its file.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        ServerSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections=_CLIENT_SECTIONS,
    )
    _check_task(loaded.settings, origins=loaded.origins)
    return loaded


def load_host_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[HostSettings]:
    """Load the settings of an aggregator; of a task in its file nothing is read.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    return load_settings(
        HostSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections=(*_TASK_SECTIONS, *_CLIENT_SECTIONS),
        passed_over=_TASK_SECTIONS,
    )


def load_task_settings(path: Path) -> TaskSettings:
    """Load and cross-check one task, from a file of its own or an aggregator's.

    The environment and flags have no say in it: a task is what its file says.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        TaskSettings, path=path, environment={}, passed_over=_HOST_SECTIONS
    )
    _check_task(loaded.settings, origins=loaded.origins)
    return loaded.settings


def task_from_document(document: Mapping[str, object], *, origin: str) -> TaskSettings:
    """Read what `TaskSettings.document` returned, and cross-check it.

    Args:
        document: Sections and their keys.
        origin: Where it comes from, for messages.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = settings_from(TaskSettings, document, origin=origin)
    _check_task(loaded.settings, origins=loaded.origins)
    return loaded.settings


def names_a_task(path: Path) -> bool:
    """Whether a settings file has a task in it.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return "task" in sections_in(path)


def is_client_file(path: Path) -> bool:
    """Whether a settings file is a client's, not an aggregator's.

    Raises:
        ServiceError: BAD_SETTINGS; it cannot be read.
    """
    return "client" in sections_in(path)


def _check_task(settings: TaskSettings, *, origins: Mapping[str, str]) -> None:
    """Refuse what contradicts itself.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    _check_name(settings.task.id, origins)
    _check_invited(settings, origins)
    _check_enrolment(settings)
    end_of_task(settings.task)
    Schedule.parse(settings.task.schedule, settings.task.window)
    noise = settings.noise
    budget = {
        "epsilon": noise.epsilon,
        "delta": noise.delta,
        # Counts are bounded entry by entry.
        "l2_clip": noise.max_nonzero or noise.l2_clip,
    }
    missing = [name for name, value in budget.items() if value is None]
    if not noise.none and missing:
        raise ServiceError(
            f"noise.{missing[0]} is missing: without a budget the sum would be "
            "released without noise",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Set epsilon, delta and l2_clip under [noise], or write "
            f'none = "{NO_NOISE_ACKNOWLEDGEMENT}" there.',
        )
    if noise.none and len(missing) < len(budget):
        given = next(name for name, value in budget.items() if value is not None)
        raise ServiceError(
            f"noise.none waives the noise, but noise.{given} asks for some",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Remove one of the two.",
        )


def end_of_task(task: TaskSection) -> datetime | None:
    """Return when a task ends; None for a task without a date.

    Raises:
        ServiceError: BAD_SETTINGS; it is no date and time in UTC.
    """
    if task.ends is None:
        return None
    try:
        moment = datetime.fromisoformat(task.ends)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() != timedelta(0):
        raise ServiceError(
            f"task.ends is no date and time in UTC: {task.ends!r}",
            code=ErrorCode.BAD_SETTINGS,
            next_step='Write it as "2027-01-31T18:00:00Z".',
        )
    return moment


def _check_name(name: str, origins: Mapping[str, str]) -> None:
    """Refuse a name that no offer can carry, or that changes what a terminal shows."""
    if name.isprintable() and 1 <= len(name.encode()) <= MAX_TASK_ID_BYTES:
        return
    raise ServiceError(
        f"task.id has 1 to {MAX_TASK_ID_BYTES} bytes of printable characters, not "
        f"{name[:MAX_TASK_ID_BYTES]!r} (from {origins['task.id']})",
        code=ErrorCode.BAD_SETTINGS,
        next_step='Choose a short name, for example id = "digits".',
    )


def _check_invited(settings: TaskSettings, origins: Mapping[str, str]) -> None:
    """Refuse a name that nobody can have: it would invite nobody in silence."""
    for name in settings.task.invited:
        try:
            PeerIdentity(DEFAULT_TRUST_DOMAIN, Role.CLIENT, name)
        except ServiceError as error:
            raise ServiceError(
                f"task.invited holds a name that no certificate can carry: {error} "
                f"(from {origins['task.invited']})",
                code=ErrorCode.BAD_SETTINGS,
                next_step="Name clients as their certificates do, for example "
                'invited = ["client-1", "client-2"], or --set '
                "task.invited=client-1,client-2.",
            ) from None


def _check_enrolment(settings: TaskSettings) -> None:
    """Refuse a profile with credentials without the key that signs them."""
    enrolment = settings.enrolment
    if enrolment.enrolment_key is not None:
        parse_key(enrolment.enrolment_key)
        return
    if enrolment.revocations is not None:
        needs = "enrolment.revocations names a list of"
    elif settings.task.profile != _PROFILES[0]:
        needs = f"the profile {settings.task.profile} needs"
    else:
        return
    raise ServiceError(
        f"enrolment.enrolment_key is missing: {needs} an issuer",
        code=ErrorCode.BAD_SETTINGS,
        next_step="Set it to what `secagg pki enrol list` of the issuer says.",
    )


def _check_identity(settings: ClientSettings) -> None:
    """Refuse an identity in part, and a profile that needs one without it."""
    enrolment = settings.enrolment
    values = {
        "identity": enrolment.identity,
        "credential": enrolment.credential,
        "enrolment_key": enrolment.enrolment_key,
    }
    missing = [name for name, value in values.items() if value is None]
    signed = [name for name in settings.policy.profiles if name in _PROFILES[1:]]
    if enrolment.enrolment_key is not None:
        parse_key(enrolment.enrolment_key)
    if not missing or (len(missing) == len(values) and not signed):
        return
    needs = (
        f"the profile {signed[0]} needs"
        if signed
        else "the other settings of [enrolment] are half of"
    )
    raise ServiceError(
        f"enrolment.{missing[0]} is missing: {needs} an identity",
        code=ErrorCode.BAD_SETTINGS,
        next_step="`secagg pki identity new` makes the key and the request for the "
        "credential; the issuer says the enrolment key.",
    )


def load_client_settings(
    path: Path, *, environment: Mapping[str, str], overrides: Sequence[str] = ()
) -> LoadedSettings[ClientSettings]:
    """Load and cross-check the settings of a client.

    Raises:
        ServiceError: BAD_SETTINGS; the message names key, origin and remedy.
    """
    loaded = load_settings(
        ClientSettings,
        path=path,
        environment=environment,
        overrides=overrides,
        foreign_sections={*_HOST_SECTIONS, *_TASK_SECTIONS} - {"tls", "enrolment"},
    )
    policy = loaded.settings.policy
    _check_identity(loaded.settings)
    if policy.require_noise and (
        policy.max_epsilon is None or policy.max_delta is None
    ):
        raise ServiceError(
            "policy.max_epsilon and policy.max_delta are missing: a client that "
            "demands noise has to say how much",
            code=ErrorCode.BAD_SETTINGS,
            next_step="Set both under [policy], or require_noise = false for tasks "
            "that release exact sums.",
        )
    return loaded
