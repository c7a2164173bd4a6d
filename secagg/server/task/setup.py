"""Turns a server's settings into the parameters of its sessions.

Rule 1: with a budget, modulus and dimension come from the planner and the noise block
        from `secagg.distributed_dp`. Without one, the operator has acknowledged in
        words that sums are exact.
Rule 2: the valid credentials are read at every start, and when the list changes: a
        newer revocation list does not make another task.
Rule 3: an empty setting gets the safest value that works: a majority as threshold, and
        as many losses as the survivors allow.  An empty degree becomes the smallest
        safe one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

from secagg.config import TaskSettings
from secagg.config.common import parse_rate
from secagg.distributed_dp import (
    ClippingSchedule,
    DPNoiseError,
    LocalParameters,
    NoisyTask,
    ParameterError,
    Plan,
    PlanRequest,
    PrivacyReport,
    clip_flag_amplitude,
    local_parameters,
    make_randomiser,
    plan,
    randomised_sum,
)
from secagg.distributed_dp.report_cache import privacy_report
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.pki.key_files import PublishedEnrolment, parse_key
from secagg.protocol.arguments import (
    check_kind,
    check_member,
    check_whole,
    did_you_mean,
    validates_arguments,
)
from secagg.protocol.graphs.choice import (
    GraphAdversary,
    GraphChoice,
    GraphDemand,
    choose_graph,
    complete_graph,
    drawn_edges,
)
from secagg.protocol.parameters import MAX_IN_DEGREES, Graph, ProtocolParameters
from secagg.protocol.policy import ExactSumWaiver, colluder_fraction_of
from secagg.protocol.profiles import (
    HonestCuriousParameters,
    MaliciousParameters,
    Profile,
    RoundDeadlines,
    SparseParameters,
    Tail,
)
from secagg.server.task.stored import (
    ChangedMeanwhileError,
    StoredTask,
    encode_settings,
    lookup,
    row_of,
)
from secagg.storage.changes import PutTask
from secagg.storage.rows import Task, TaskRow, TaskState
from secagg.storage.store import Store
from secagg.wire.calls import check_transportable

# Sums of a thousand clients with entries up to four million stay exact.
_DEFAULT_BITS_WITHOUT_NOISE: Final = 32
_SESSIONS_PER_SPARE: Final = 20
# Default limit of how far an adaptive clip may move from its first value.
_CLIPS_REACH: Final = 16.0


@validates_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Describes the clients of a session, and how many of them may be lost.

    Attributes:
        min_clients: Smallest cohort that starts.
        max_clients: Largest cohort; a session starts as soon as it is full.
        min_survivors: Fewest inputs that a released sum adds up.
        threshold: Shares that rebuild a secret. None for one more than half of
            max_clients (on a ring, of the degree), so two disjoint groups cannot both
            rebuild secrets. None for the smallest safe number with degree "auto" or
            against a malicious server.
        max_dropouts: Most clients lost after sharing; None for as many as
            `max_losses`.
        max_losses: Most clients lost after joining; None for as many as the survivors
            allow.
        colluders: Clients assumed to help the server.
        degree: Neighbours of each client on a ring; 0 means the complete graph. "auto"
            means the smallest safe degree for these numbers, or 0 if no degree is safe.
            In profile malicious-server-sparse, how many other clients each client
            draws.
        graph_bits: On a ring and with drawn neighbours, the bound 2^-graph_bits on the
            probability of a session that unmasks more than one sum.
        quorum: Signatures that open the unmasking in profile malicious-server-sparse;
            None for the smallest safe number.  Empty in all other profiles.
        profile: Named threat model; malicious-server-sparse is experimental and
            unreviewed (docs/choosing-a-graph.md).
        enrolment: The valid credentials; required by the profiles for a malicious
            server, and by no other.
        deadlines: Longest duration of each round; None for those of `RoundDeadlines.of`
            the profile.

    Raises:
        LocalProtocolError: A value is of the wrong kind, or too small for any cohort.
    """

    min_clients: int
    max_clients: int
    min_survivors: int
    threshold: int | None = None
    max_dropouts: int | None = None
    max_losses: int | None = None
    colluders: int = 0
    degree: int | Literal["auto"] = 0
    graph_bits: int = 40
    quorum: int | None = None
    profile: Profile = Profile.HONEST_CURIOUS_SERVER
    enrolment: PublishedEnrolment | None = None
    deadlines: RoundDeadlines | None = None

    def __post_init__(self) -> None:
        """Refuse impossible values; the plan checks how they agree."""
        least = {"min_clients": 2, "max_clients": 2, "min_survivors": 2}
        for name in (*least, "threshold", "max_dropouts", "max_losses", "colluders"):
            if (value := getattr(self, name)) is not None:
                checked = check_whole(name, value, least=least.get(name, 0))
                object.__setattr__(self, name, checked)
        for name in ("graph_bits", "quorum"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(name, value, least=0))
        if isinstance(self.degree, str):
            if self.degree != "auto":
                raise ErrorCode.LOCAL_MISUSE.error(
                    f'degree must be an integer or "auto", got {self.degree!r}',
                    fix=did_you_mean(self.degree, ["auto"]),
                )
        else:
            object.__setattr__(
                self, "degree", check_whole("degree", self.degree, least=0)
            )
        check_member("profile", self.profile, Profile)
        for name, kind in (
            ("enrolment", PublishedEnrolment),
            ("deadlines", RoundDeadlines),
        ):
            if (given := getattr(self, name)) is not None:
                check_kind(name, given, kind, make=f"{kind.__name__}(...)")

    @classmethod
    def planned(cls, made: Plan) -> Self:
        """Return the cohort that a plan assumes: all of its clients, no more."""
        request = made.request
        return cls(
            min_clients=request.clients,
            max_clients=request.clients,
            min_survivors=request.survivors,
            colluders=request.colluders,
        )

    def parameters(self, *, dimension: int, modulus: int) -> ProtocolParameters:
        """Return the parameters of sessions without noise, not yet validated.

        Raises:
            LocalProtocolError: The profile and `enrolment`, or `quorum`, do not belong
                together.
            ServiceError: INFEASIBLE; the degree is left open, and no graph is safe.
        """
        max_losses, max_dropouts = self.max_losses, self.max_dropouts
        if max_losses is None:
            max_losses = max(0, self.max_clients - self.min_survivors)
        graph = self._graph(max_losses)
        if max_dropouts is None:
            max_dropouts = max_losses
        return ProtocolParameters(
            tail=self._tail(graph),
            modulus=modulus,
            dimension=dimension,
            min_clients=self.min_clients,
            max_clients=self.max_clients,
            threshold=graph.threshold,
            degree=graph.degree,
            min_survivors=self.min_survivors,
            max_dropouts=max_dropouts,
            max_losses=max_losses,
            colluders=self.colluders,
            deadlines=self.deadlines or RoundDeadlines.of(self.profile),
        )

    def _tail(self, graph: GraphChoice) -> Tail:
        """Return the parameters of the profile alone, or refuse contradictions."""
        is_sparse = self.profile is Profile.MALICIOUS_SERVER_SPARSE
        if self.profile.has_identities != (self.enrolment is not None):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"profile {self.profile.label} requires an enrolment of credentials"
                if self.enrolment is None
                else f"profile {self.profile.label} uses no credentials",
                fix="Give Cohort(enrolment=PublishedEnrolment(...)) with the "
                "profiles for a malicious server, and with no other.",
            )
        if self.quorum is not None and not is_sparse:
            raise ErrorCode.LOCAL_MISUSE.error(
                f"profile {self.profile.label} has no quorum of its own",
                fix="Leave cohort.quorum empty: the threshold is the quorum in "
                "the profile malicious-server, and no client signs in the default one.",
            )
        if self.enrolment is None:
            return HonestCuriousParameters(self.graph_bits if graph.degree else 0)
        if not is_sparse:
            return MaliciousParameters(self.enrolment.trust)
        least = max(graph.quorum or 0, self.min_survivors + graph.unseen)
        return SparseParameters(
            self.enrolment.trust,
            self.graph_bits,
            in_cap=MAX_IN_DEGREES * graph.degree,
            quorum=least if self.quorum is None else self.quorum,
        )

    def _graph(self, max_losses: int) -> GraphChoice:
        """Return the graph; find one where it is left open."""
        is_honest = self.profile is Profile.HONEST_CURIOUS_SERVER
        is_sparse = self.profile is Profile.MALICIOUS_SERVER_SPARSE
        is_open = self.degree == "auto" or (
            # Half of the cohort is not enough for clients that must agree on U3.
            self.degree == 0 and self.threshold is None and not is_honest
        )
        if is_sparse and self.degree == 0:
            raise ErrorCode.BAD_SETTINGS.error(
                f"in the profile {self.profile.label} clients draw their neighbours, "
                "and degree 0 means the complete graph",
                fix='Set cohort.degree to "auto", or take the profile '
                f"{Profile.MALICIOUS_SERVER.label}.",
            )
        if self.degree != "auto" and not is_open and not is_sparse:
            half = (self.degree or self.max_clients) // 2
            return GraphChoice(
                graph=Graph.RING if self.degree else Graph.COMPLETE,
                degree=self.degree,
                threshold=self.threshold or half + 1,
                max_threshold=self.threshold or half + 1,
            )
        demand = GraphDemand(
            min_clients=self.min_clients,
            max_clients=self.max_clients,
            min_survivors=self.min_survivors,
            max_losses=max_losses,
            colluders=self.colluders,
            graph_bits=self.graph_bits,
        )
        if is_honest:
            return choose_graph(
                demand, GraphAdversary.CURIOUS, threshold=self.threshold
            )
        if is_sparse:
            degree = None if self.degree == "auto" else self.degree
            return drawn_edges(demand, degree=degree, threshold=self.threshold)
        # A malicious server would draw a ring that it can cut.
        return complete_graph(
            demand, GraphAdversary.MALICIOUS, threshold=self.threshold
        )


@dataclass(frozen=True, slots=True)
class PreparedTask:
    """Holds what a server is about to run; `from_plan` or `exact` makes it.

    Attributes:
        parameters: Parameters of every session of the task.
        noised: Mechanism and budget; None for a task that releases exact sums.
        report: Privacy cost of the whole task; None with `noised`.
        payload: Bytes handed to every client; b"" for none.
        enrolment: The valid credentials; None where none are required.
        steps: Sums that the task releases. None for as many as may hold one client's
            data; without noise, for one.
    """

    parameters: ProtocolParameters
    noised: NoisyTask | None
    report: PrivacyReport | None
    payload: bytes = field(default=b"", repr=False)
    enrolment: PublishedEnrolment | None = None
    steps: int | None = None

    @classmethod
    def of(cls, task: "Plan | PreparedTask") -> "PreparedTask":
        """Return a task; a plan is prepared with its own cohort.

        Raises:
            LocalProtocolError: The argument is neither a plan nor a prepared task.
            RemoteProtocolError: As `from_plan`.
        """
        return task if isinstance(task, PreparedTask) else cls.from_plan(task)

    @classmethod
    def from_plan(
        cls,
        made: Plan,
        cohort: Cohort | None = None,
        *,
        randomiser: LocalParameters | None = None,
        clip: ClippingSchedule | None = None,
    ) -> Self:
        """Join a plan of noise with a cohort; takes up to seconds.

        Args:
            made: A plan from `secagg.plan`, whose clients, min_survivors and colluders
                are the cohort's.
            cohort: The clients; by default exactly those of the plan.
            randomiser: Makes every vector private before it is encoded, in case masks
                are broken.  Plan for its `output_norm` as `l2_clip`.
            clip: Lets the clip follow the released sums.  Plan with the
                `clip_flag_amplitude` that `secagg.advanced.clip_flag_amplitude`
                returns.

        Raises:
            LocalProtocolError: The plan or the cohort is of another class.
            RemoteProtocolError: BAD_CONFIG, naming the contradiction.
        """
        check_kind("task", made, Plan, make="secagg.plan(...)")
        if cohort is not None:
            check_kind("cohort", cohort, Cohort, make="secagg.Cohort(...)")
        if cohort is None:
            cohort = Cohort.planned(made)
        # Modulus and dimension are the plan's.
        protocol = cohort.parameters(dimension=1, modulus=2)
        noised = NoisyTask.from_plan(made, protocol, randomiser=randomiser, clip=clip)
        check_transportable(noised.parameters)
        return cls(
            noised.parameters,
            noised,
            noised.report(),
            enrolment=cohort.enrolment,
            steps=made.request.steps,
        )

    @property
    def sums(self) -> int:
        """Sums that the task releases."""
        if self.steps is not None:
            return self.steps
        return 1 if self.noised is None else self.noised.budget.participations

    @property
    def max_sessions(self) -> int | None:
        """Sessions that may charge clients before the task ends; None without noise."""
        if self.noised is None:
            return None
        return self.noised.budget.max_sessions(self.sums)

    @classmethod
    def exact(
        cls,
        waiver: ExactSumWaiver,
        cohort: Cohort,
        *,
        dimension: int,
        modulus_bits: int = _DEFAULT_BITS_WITHOUT_NOISE,
    ) -> Self:
        """Prepare a task that releases sums of integers without noise.

        Args:
            waiver: Acknowledges in words that sums are exact.
            cohort: The clients.
            dimension: Entries of one vector.
            modulus_bits: Sums are exact modulo 2^modulus_bits.

        Raises:
            LocalProtocolError: The waiver is missing.
            RemoteProtocolError: BAD_CONFIG, naming the impossible number.
        """
        if not isinstance(waiver, ExactSumWaiver):
            raise ErrorCode.LOCAL_MISUSE.error(
                "exact sums require a waiver",
                fix="Give ExactSumWaiver(...) with its sentence.",
            )
        parameters = cohort.parameters(dimension=dimension, modulus=1 << modulus_bits)
        check_transportable(parameters.validate())
        return cls(parameters, None, None, enrolment=cohort.enrolment)


async def settle_task(
    settings: TaskSettings, store: Store, *, reports: Path | None
) -> PreparedTask:
    """Settle a task in place of its present row; see `settle_row`."""
    row = await row_of(store, settings.task.id)
    return await settle_row(row, settings, store, reports=reports)


async def settle_row(
    row: TaskRow | None,
    settings: TaskSettings,
    store: Store,
    *,
    reports: Path | None,
    check: Callable[[PreparedTask], None] = lambda _: None,
) -> PreparedTask:
    """Return the task as it was first planned; plan and store it the first time.

    Its row then holds these settings; the operator's actions on the task (`TaskState`)
    stay.

    Args:
        row: The task's row that the caller has read; None for none.  A row that was
            written since with other settings is not replaced.
        settings: The task's settings.
        store: The aggregator's store.
        reports: As for `prepare_task`.
        check: Raises for a task that may not run; then its row stays as it is.

    Raises:
        ChangedMeanwhileError: The store has another row, with other settings.
        ServiceError: BAD_SETTINGS or INFEASIBLE, as `prepare_task`; STORAGE_FAILED.
    """
    task_id, text = settings.task.id, encode_settings(settings)
    while True:
        known = lookup(row, settings)
        prepared = await asyncio.to_thread(
            prepare_task, settings, known=known, reports=reports
        )
        check(prepared)
        if known is not None and row is not None and row.task.settings == text:
            return prepared
        planned = known or StoredTask(prepared.parameters)
        plan = planned.encode()
        task = (
            Task(task_id, TaskState.RUNNING, text, plan)
            if row is None
            else replace(row.task, settings=text, plan=plan)
        )
        version = 0 if row is None else row.version
        if await store.commit(PutTask(task, expect_version=version)):
            return prepared
        row = await row_of(store, task_id)
        if row is None or row.task.settings != text:
            raise ChangedMeanwhileError(task_id)
        # Another aggregator has started with the same file: its plan counts.


def prepare_task(
    settings: TaskSettings,
    *,
    known: StoredTask | None = None,
    reports: Path | None = None,
    keep: bool = True,
) -> PreparedTask:
    """Check the settings of a task and compute what they leave open.

    Args:
        settings: The task's settings.
        known: The earlier result for these settings; None to plan again.
        reports: Directory that keeps the privacy report between starts; None to compute
            it again.
        keep: Whether a report is written there; False changes no file.

    Raises:
        ServiceError: BAD_SETTINGS or INFEASIBLE; names the setting and the nearest
            value that works.  BAD_CREDENTIAL for an invalid revocation list.
    """
    path, enrolment = settings.task.payload, published_enrolment(settings)
    payload = b"" if path is None else read_payload(path)
    try:
        task = known or _plan_task(settings, enrolment)
        parameters = task.parameters
        if enrolment is not None:
            parameters = parameters.under(enrolment.trust)
        check_transportable(parameters)
        noised = (
            NoisyTask.from_parameters(parameters) if parameters.noise_block else None
        )
    except ParameterError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"the budget under [noise] cannot be met: {error}",
            fix="Correct the setting, or try values with `secagg plan`.",
        ) from None
    except LocalProtocolError as error:  # of the settings, not of a program
        raise ErrorCode.BAD_SETTINGS.error(
            str(error), kind=ServiceError, fix=error.next_step
        ) from None
    except DPNoiseError as error:
        raise ErrorCode.INFEASIBLE.error(
            f"no noise meets the budget under [noise]: {error}",
            fix="Allow a larger epsilon or delta, ask for more clients, or "
            "choose another noise.mechanism or noise.accountant.",
        ) from None
    except RemoteProtocolError as error:
        # These values come from the operator, not from a peer.
        raise ErrorCode.BAD_SETTINGS.error(
            f"the task cannot run with these settings: {error}",
            fix="Correct the number under [cohort], [vector] or [task].",
        ) from None
    return PreparedTask(
        parameters=parameters,
        noised=noised,
        report=_report_of(noised, reports, keep=keep),
        payload=payload,
        enrolment=enrolment,
        steps=settings.task.steps,
    )


def _report_of(
    noised: NoisyTask | None, reports: Path | None, *, keep: bool
) -> PrivacyReport | None:
    """Return the privacy report of a task, from the cache where there is one."""
    if noised is None or reports is None:
        return None if noised is None else noised.report()
    return privacy_report(noised, reports, keep=keep)


def _local_randomiser(settings: TaskSettings) -> LocalParameters | None:
    """Return the local randomiser; None without one.

    Raises:
        ParameterError: A setting is impossible.
        ServiceError: BAD_SETTINGS; the settings are incomplete.
    """
    noise, dim = settings.noise, settings.vector.dimension
    epsilon, magnitude = noise.randomiser_epsilon, noise.randomiser_magnitude_epsilon
    if (noise.randomiser, epsilon, magnitude) == (None, None, None):
        return None
    if noise.randomiser is None or epsilon is None or noise.l2_clip is None:
        raise ErrorCode.BAD_SETTINGS.error(
            "noise.randomiser and noise.randomiser_epsilon belong together",
            fix="Set both under [noise], or neither.",
        )
    if noise.clip_quantile is not None:
        raise ErrorCode.BAD_SETTINGS.error(
            "noise.clip_quantile and noise.randomiser exclude each other: a "
            "randomised vector always fits the clip, and the flag of the vector "
            "itself is not randomised",
            fix="Remove noise.clip_quantile and choose noise.l2_clip beforehand, or "
            "remove the randomiser.",
        )
    return local_parameters(
        noise.randomiser,
        dim=dim,
        bound=noise.l2_clip,
        epsilon=epsilon,
        magnitude_epsilon=magnitude,
    )


def plan_noise(settings: TaskSettings) -> Plan:
    """Plan the noise of a task with a budget.

    Raises:
        DPNoiseError: The budget cannot be met.
        ServiceError: BAD_SETTINGS; the budget is incomplete.
    """
    noise, cohort = settings.noise, settings.cohort
    if noise.epsilon is None or noise.delta is None:
        raise ErrorCode.BAD_SETTINGS.error(  # the loader checks files
            "noise.epsilon and noise.delta belong together", fix="Set both."
        )
    randomiser = _local_randomiser(settings)
    layer = None if randomiser is None else make_randomiser(randomiser)
    asked: dict[str, Any] = dict(  # noqa: C408 - the keywords of `plan`
        clients=cohort.max_clients,
        dimension=settings.vector.dimension,
        l2_clip=noise.l2_clip or 0.0 if layer is None else layer.output_norm,
        max_nonzero=noise.max_nonzero,
        linf_bound=noise.linf_bound,
        signed=noise.signed,
        epsilon=noise.epsilon,
        delta=noise.delta,
        bits=settings.vector.modulus_bits,
        mechanism=noise.mechanism,
        scale_factor=noise.scale_factor,
        steps=settings.task.steps,
        participations=settings.task.participations,
        spare=_spare_sessions(settings),
        selection_rate=parse_rate(noise.selection_rate, name="noise.selection_rate"),
        min_survivors=cohort.min_survivors,
        loss_fraction=noise.loss_fraction,
        colluders=cohort.colluders,
        colluder_fraction=colluder_fraction_of(
            Profile.from_label(settings.task.profile)
        )
        if noise.colluder_fraction is None
        else noise.colluder_fraction,
        ladder=noise.ladder,
        accountant=noise.accountant,
        rotation=noise.rotation,
    )
    if PlanRequest(**asked).is_central:
        raise ErrorCode.BAD_SETTINGS.error(
            f"noise.mechanism is {noise.mechanism}, whose noise a trusted party adds; "
            "here each client adds noise and trusts no other party",
            fix="Choose a mechanism with noise in shares, such as skellam-mixture, or "
            "let two aggregators add it: secagg two-aggregators.",
        )
    if layer is not None:
        asked |= randomised_sum(layer, PlanRequest(**asked))
    if noise.clip_quantile is not None:
        asked["clip_flag_amplitude"] = clip_flag_amplitude(PlanRequest(**asked))
    return plan(**asked)


def adaptive_clip(settings: TaskSettings) -> ClippingSchedule | None:
    """Return how the clip follows the sums; None for a fixed clip.

    Raises:
        DPNoiseError: The clips contradict each other.
    """
    noise = settings.noise
    if noise.clip_quantile is None or noise.l2_clip is None:
        return None
    return ClippingSchedule(
        l2_clip=noise.l2_clip,
        lowest_clip=noise.lowest_clip or noise.l2_clip / _CLIPS_REACH,
        highest_clip=noise.highest_clip or noise.l2_clip * _CLIPS_REACH,
        target_quantile=noise.clip_quantile,
    )


def _spare_sessions(settings: TaskSettings) -> int:
    """Return the spare sessions of one client: those beyond its participations.

    A session may end after its inputs were fixed, and then stays charged; without a
    spare session such a fault would cost a sum. A colluder can cause one at will.
    """
    task = settings.task
    if task.spare_sessions is not None:
        return task.spare_sessions
    if task.attempts == 1:
        return 0
    return (
        -(-task.sums_of_one_client // _SESSIONS_PER_SPARE) + settings.cohort.colluders
    )


def published_enrolment(settings: TaskSettings) -> PublishedEnrolment | None:
    """Return the valid credentials, where the profile requires any.

    Args:
        settings: The task's settings.

    Raises:
        SecAggError: BAD_SETTINGS, or BAD_CREDENTIAL or BAD_ENCODING for an invalid
            revocation list.
    """
    section = settings.enrolment
    if not Profile.from_label(settings.task.profile).has_identities:
        return None
    if section.enrolment_key is None:
        raise ErrorCode.BAD_SETTINGS.error(  # the loader checks files
            "enrolment.enrolment_key is missing",
            fix="Set it to the key that the issuer publishes.",
        )
    return PublishedEnrolment.load(
        trust_domain=section.trust_domain,
        enrolment_key=parse_key(section.enrolment_key),
        revocations=section.revocations,
    )


def _plan_task(
    settings: TaskSettings, enrolment: PublishedEnrolment | None
) -> StoredTask:
    """Plan a task, and return what the store keeps of it."""
    protocol = _protocol_parameters(settings, enrolment)
    if settings.noise.none:
        return StoredTask(protocol.validate())
    made = plan_noise(settings)
    noised = NoisyTask.from_plan(
        made,
        protocol,
        randomiser=_local_randomiser(settings),
        clip=adaptive_clip(settings),
    )
    return StoredTask(noised.parameters)


def _protocol_parameters(
    settings: TaskSettings, enrolment: PublishedEnrolment | None
) -> ProtocolParameters:
    """Return the protocol's parameters of a task, without its noise."""
    cohort, rounds = settings.cohort, settings.rounds
    profile = Profile.from_label(settings.task.profile)
    bits = settings.vector.modulus_bits or _DEFAULT_BITS_WITHOUT_NOISE
    return Cohort(
        min_clients=cohort.min_clients,
        max_clients=cohort.max_clients,
        min_survivors=cohort.min_survivors,
        threshold=cohort.threshold or None,
        max_dropouts=cohort.max_dropouts,
        max_losses=cohort.max_losses,
        colluders=cohort.colluders,
        degree=cohort.degree,
        graph_bits=cohort.graph_bits,
        quorum=cohort.quorum,
        profile=profile,
        enrolment=enrolment,
        deadlines=RoundDeadlines.of(
            profile,
            advertise_keys=rounds.advertise_keys,
            choose_edges=rounds.choose_edges,
            share_keys=rounds.share_keys,
            masked_input=rounds.masked_input,
            consistency=rounds.consistency,
            unmasking=rounds.unmasking,
        ),
    ).parameters(dimension=settings.vector.dimension, modulus=1 << bits)


def read_payload(
    path: Path, *, fix: str = "Correct task.payload, or remove it."
) -> bytes:
    """Read the file that a task hands to every client.

    Args:
        path: The file.
        fix: The next step where it cannot be read.

    Raises:
        ServiceError: BAD_SETTINGS.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"the payload {path} cannot be read: {error.strerror}", fix=fix
        ) from None
