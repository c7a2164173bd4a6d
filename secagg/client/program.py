"""The client process: settings become a `Client`.

What is printed is decided by the caller.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from secagg.client.client import Client
from secagg.client.enrolment import ClientEnrolment
from secagg.client.session_driver import ClientProgress
from secagg.client.step_client import StepClient
from secagg.config import ClientSettings
from secagg.config.policy import cohort_of, privacy_limits_of, total_of
from secagg.errors import ErrorCode
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.storage.rows import Retention
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity


def client_of(  # noqa: PLR0913 - what settings do not say
    settings: ClientSettings,
    *,
    shared: StepClient | None = None,
    fetch_sum: bool = True,
    accept_restored: bool = False,
    is_service: bool = False,
    on_progress: Callable[[ClientProgress], None] | None = None,
) -> Client:
    """Return the client that the settings describe, not yet open.

    Args:
        settings: Whom to talk to, as whom, under which privacy limits.
        shared: As `shared_state_of` returns it; None for a state of its own.
        fetch_sum: Whether the released sums are wanted.
        accept_restored: As for `Client`; for a state of its own.
        is_service: Wait for sessions without end, whatever `wait_seconds` says.
        on_progress: Told what the client is doing.

    Raises:
        ServiceError: BAD_CERTIFICATE or BAD_SETTINGS.
    """
    client = settings.client
    build = partial(
        Client,
        client.server,
        task=client.task,
        identity=_load_certificate(settings),
        attempts=client.attempts,
        wait_seconds=None if is_service else client.wait_seconds,
        fetch_sum=fetch_sum,
        max_payload_bytes=client.max_payload_bytes,
        answer_at=client.answer_at,
        make_unselected=True,  # its files would reveal the selection
        on_progress=on_progress,
    )
    if shared is not None:
        return build(step_client=shared)
    return build(
        privacy_limits=privacy_limits_of(settings.policy),
        cohort=client_policy(settings),
        enrolment=client_enrolment(settings),
        total=total_of(settings.policy),
        state_dir=client.state_dir,
        rollback_mark=client.rollback_mark,
        accept_restored=accept_restored,
        aggregator=client.aggregator,
        retention=_retention(settings),
    )


def shared_state_of(
    settings: ClientSettings, tasks: Iterable[str], *, accept_restored: bool = False
) -> StepClient:
    """Return the state that clients of several tasks share, not yet open.

    Args:
        settings: As for `client_of`.
        tasks: Names of the tasks.
        accept_restored: As for `Client`.

    Raises:
        ServiceError: BAD_CERTIFICATE, or BAD_SETTINGS; the aggregator has no name.
        SecAggError: BAD_CREDENTIAL, or what else is wrong with the enrolment.
    """
    client, own = settings.client, _load_certificate(settings).identity
    if client.aggregator is None:
        raise ErrorCode.BAD_SETTINGS.error(
            "client.aggregator is empty, and the tasks of one state are of one "
            "aggregator",
            fix="Set client.aggregator to the name in its certificate, which `secagg "
            "doctor` prints.",
        )
    enrolled, files = None, client_enrolment(settings)
    if files is not None:
        from secagg.client.enrolment_files import load_enrolled  # noqa: PLC0415 - X.509

        enrolled = load_enrolled(files, name=own.name, trust_domain=own.trust_domain)
    return StepClient(
        own.name,
        aggregator=client.aggregator,
        trust_domain=own.trust_domain,
        privacy_limits=privacy_limits_of(settings.policy),
        tasks=tasks,
        cohort=client_policy(settings),
        state_dir=client.state_dir,
        rollback_mark=client.rollback_mark,
        accept_restored=accept_restored,
        enrolment=enrolled,
        total=total_of(settings.policy),
        keep_upload=False,  # inputs are kept as files, which say what was given
        retention=_retention(settings),
    )


def _load_certificate(settings: ClientSettings) -> TLSIdentity:
    """Load the client's certificate and key."""
    return TLSIdentity.load(
        certificate=settings.tls.certificate,
        private_key=settings.tls.key,
        authority=settings.tls.ca,
        role=Role.CLIENT,
    )


def _retention(settings: ClientSettings) -> Retention:
    """Return what is kept of receipts."""
    client = settings.client
    return Retention(
        keep_receipts_days=client.keep_receipts_days,
        keep_receipts=client.keep_receipts,
    )


def client_enrolment(settings: ClientSettings) -> ClientEnrolment | None:
    """Return what the client has of the enrolment; None where nothing is set."""
    section = settings.enrolment
    if (
        section.identity is None
        or section.credential is None
        or section.enrolment_key is None
    ):
        return None  # the loader has settled that it is all of them or none
    return ClientEnrolment(
        seed=section.identity,
        credential=section.credential,
        enrolment_key=section.enrolment_key,
        max_revocation_days=settings.policy.max_revocation_days,
    )


def client_policy(settings: ClientSettings) -> ClientPolicy:
    """Return the limits of the cohort as the core enforces them.

    Raises:
        ServiceError: BAD_SETTINGS for an unknown profile, suite or graph.
    """
    section = settings.policy
    try:
        profiles = frozenset(Profile.from_label(label) for label in section.profiles)
    except ValueError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.profiles: {error}", fix="Name only profiles of that list."
        ) from None
    try:
        graphs = frozenset(Graph(name) for name in section.graphs)
    except ValueError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.graphs: {error}", fix="Name only complete, ring and k-out."
        ) from None
    return replace(
        cohort_of(section),
        profiles=profiles,
        aggregators=None
        if settings.client.aggregator is None
        else frozenset({settings.client.aggregator}),
        graphs=graphs,
        min_graph_bits=section.min_graph_bits,
        min_colluders=section.min_colluders,
        require_majority=section.require_majority,
        whole_roster=section.whole_roster,
    )
