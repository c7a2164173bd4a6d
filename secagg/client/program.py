"""The client process: settings become a `Client`.

What is printed is decided by the caller.
"""

from collections.abc import Callable
from dataclasses import replace

from secagg.client.client import Client
from secagg.client.enrolment import ClientEnrolment
from secagg.client.session_driver import ClientProgress
from secagg.config import ClientSettings
from secagg.config.policy import cohort_of, privacy_limits_of, total_of
from secagg.errors import ErrorCode
from secagg.protocol.parameters import Graph
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.profiles import Profile
from secagg.storage.rows import Retention
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity


def client_of(
    settings: ClientSettings,
    *,
    fetch_sum: bool = True,
    accept_restored: bool = False,
    is_service: bool = False,
    on_progress: Callable[[ClientProgress], None] | None = None,
) -> Client:
    """Return the client that the settings describe, not yet open.

    Args:
        settings: Whom to talk to, as whom, under which privacy limits.
        fetch_sum: Whether the released sums are wanted.
        accept_restored: As for `Client`.
        is_service: Wait for sessions without end, whatever `wait_seconds` says.
        on_progress: Told what the client is doing.

    Raises:
        ServiceError: BAD_CERTIFICATE or BAD_SETTINGS.
    """
    client = settings.client
    return Client(
        client.server,
        task=client.task,
        privacy_limits=privacy_limits_of(settings.policy),
        cohort=client_policy(settings),
        identity=TLSIdentity.load(
            certificate=settings.tls.certificate,
            private_key=settings.tls.key,
            authority=settings.tls.ca,
            role=Role.CLIENT,
        ),
        enrolment=client_enrolment(settings),
        total=total_of(settings.policy),
        state_dir=client.state_dir,
        rollback_mark=client.rollback_mark,
        accept_restored=accept_restored,
        aggregator=client.aggregator,
        attempts=client.attempts,
        wait_seconds=None if is_service else client.wait_seconds,
        fetch_sum=fetch_sum,
        max_payload_bytes=client.max_payload_bytes,
        retention=Retention(
            keep_receipts_days=client.keep_receipts_days,
            keep_receipts=client.keep_receipts,
        ),
        answer_at=client.answer_at,
        make_unselected=True,  # its files would reveal the selection
        on_progress=on_progress,
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
            f"policy.profiles: {error}",
            fix="Name only profiles of that list.",
        ) from None
    try:
        graphs = frozenset(Graph(name) for name in section.graphs)
    except ValueError as error:
        raise ErrorCode.BAD_SETTINGS.error(
            f"policy.graphs: {error}",
            fix="Name only complete, ring and k-out.",
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
