"""One client as calls that take and give bytes, and that a restart cannot undo.

For programs that carry the bytes themselves: over a queue, a radio, a federated
learning framework.  A call takes an offer and perhaps an update of the aggregator, and
returns what to send.

Rule 1: persist, then return.  What a call returns is on the disk before it returns, so
        that a new process over the same directory says the same bytes again.
Rule 2: one input per session, and one masked form of it.  The masked input lies in a
        file before its binding is committed and its budget is charged, in one change.
        A second vector is never looked at.
Rule 3: every offer and every stored session passes the gate before anything of it is
        said.  Limits of privacy, or their waiver in words, are no option.
Rule 4: what has asked for the vector cannot be kept waiting by it (R3.5-5): in a task
        with noise a vector that cannot be used is zeros, and no error.
Rule 5: of one aggregator (R5.0-6), and of the name that the carrier has proven.
Rule 6: seeds and masked inputs go when they are not needed any more: when this client
        has answered, at the end of a session, and when its time is over, also where
        the aggregator never comes back.

A message is its kind in one byte, its canonical encoding, and after the name of an
upload the packed vector itself.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self

import numpy.typing as npt

from secagg.client.budget import DataUsage
from secagg.client.contribution import (
    Contribution,
    Participation,
    last_part,
    receipt_of,
)
from secagg.client.durable_client import LOCK_SECONDS, DurableClient, check_terms
from secagg.client.enrolment import EnrolledClient, EnrolledIdentity
from secagg.client.gate import Need, SessionInfo
from secagg.client.open_client import ClientStep, GivenVector, TaskPlace, parse_update
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.distributed_dp import Unusable, UnusableKind
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.protocol.arguments import (
    as_path,
    check_kind,
    check_name,
    check_names,
    check_real,
    says_how_to_open,
    validates_arguments,
)
from secagg.protocol.messages import MAX_IDENTITY_BYTES
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.storage.rows import Retention


@says_how_to_open
@validates_arguments
class StepClient:
    """One client of one aggregator, for all of its tasks, driven by a carrier of bytes.

    The carrier proves that offers and updates come from `aggregator`: by TLS, by a
    signature, by the link of its framework.  Here the name in the offer is only
    compared.  A peer that can feed a client with offers or updates can end its sessions
    and use up its numbers.  It gets no second answer from it, and no charge beyond the
    budget.

    Use it as a context manager: entering it opens the state.  It is synchronous, keeps
    no time of its own and holds no lock between two calls but that of the directory, so
    that a vector may take hours, in another process.  Threads may share it; a fork of
    the process may not.

    Args:
        identity: The client's name, as the aggregator knows it; 1 to 255 bytes of
            UTF-8.
        aggregator: Name of the one aggregator whose sessions it takes part in.
        privacy_limits: The privacy that the client insists on, or their waiver in
            words.
        tasks: Names of the tasks that it takes part in.  None takes part in all that
            the aggregator offers, each with a budget of its own: that needs a `total`,
            unless exact sums are waived.
        cohort: Limits of the cohort.
        state_dir: Where sessions and spent budget are kept, for this client alone.
            None keeps them in memory: then nothing holds over a restart.
        rollback_mark: File outside `state_dir`, best on another volume, that tells a
            restored state from the newest one; by default one under the user's
            persistent state.  State and mark that are restored together, as by a
            snapshot of the whole machine, are not noticed.
        accept_restored: A person accepts, this once, that the state may have been
            restored: open sessions end, and their inputs count as summed.
        enrolment: Who the client is among the enrolled, for profiles that distrust the
            server; see `secagg.advanced.load_enrolled`.
        total: What all tasks together may cost the data that this client gives.
        trust_domain: Of the aggregator, as the carrier has proven it; None where it
            proves none.
        keep_upload: Keep the masked input in a file until the seed of its session is
            erased.  Without it a restart asks for the same vector again.
        lock_seconds: How long another process may keep the directory.
        retention: How long receipts stay; 400 days by default.
        clock: Returns the time in Unix seconds; the machine's by default.
        entropy: Where seeds come from; the operating system's by default.

    Raises:
        LocalProtocolError: There are no limits of privacy, nothing bounds what all
            tasks together may cost, `tasks` is one text, `enrolment` is something
            else, or `identity` is no name.

    Example:
        with secagg.StepClient(
            "phone-7",
            aggregator="hub",
            privacy_limits=secagg.PrivacyLimits(max_epsilon=4.0, max_delta=1e-6),
            tasks=["sums"],
            state_dir=Path("client-state"),
        ) as client:
            done = client.step(offer, update)
            if secagg.advanced.Need.VECTOR in done.needs:
                done = client.step(offer, vector=np.ones(64))
            for message in done.messages:
                send(message)
    """

    def __init__(  # noqa: PLR0913 - one argument per decision of the client's owner
        self,
        identity: str,
        *,
        aggregator: str,
        privacy_limits: PrivacyLimits | ExactSumWaiver,
        tasks: Iterable[str] | None = None,
        cohort: ClientPolicy | None = None,
        state_dir: Path | str | None,
        rollback_mark: Path | str | None = None,
        accept_restored: bool = False,
        enrolment: EnrolledIdentity | None = None,
        total: TotalBudget | None = None,
        trust_domain: str | None = None,
        keep_upload: bool = True,
        lock_seconds: float = LOCK_SECONDS,
        retention: Retention | None = None,
        clock: Callable[[], float] | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        if not _is_name(identity):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"a client has a name of 1 to {MAX_IDENTITY_BYTES} bytes of UTF-8 "
                "without U+0000",
                fix="Give the name that the carrier proves to the aggregator.",
            )
        check_name("an aggregator", aggregator, most=MAX_IDENTITY_BYTES)
        check_terms(privacy_limits, cohort=cohort, total=total)
        if isinstance(tasks, str):
            raise ErrorCode.LOCAL_MISUSE.error(
                "tasks is one text, whose letters would each be the name of a task",
                fix="Give tasks=[...], with the names of tasks.",
            )
        is_bounded = tasks is not None or total is not None
        if isinstance(privacy_limits, PrivacyLimits) and not is_bounded:
            raise ErrorCode.LOCAL_MISUSE.error(
                "nothing bounds what the tasks of the aggregator may cost together: "
                "each has a budget of its own, and the aggregator names them",
                fix="Give tasks=[...] or total=TotalBudget(...).",
            )
        if not isinstance(enrolment, EnrolledClient | None):
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client's place among the enrolled is not loaded",
                fix="Give enrolment=load_enrolled(ClientEnrolment(...), ...).",
            )
        self._aggregator, self._trust_domain = aggregator, trust_domain
        self._client = DurableClient(
            identity=identity,
            limits=privacy_limits,
            tasks=None if tasks is None else check_names("tasks", tasks),
            state_dir=as_path("state_dir", state_dir),
            rollback_mark=as_path("rollback_mark", rollback_mark),
            accept_restored=accept_restored,
            enrolment=enrolment,
            total=total,
            keep_upload=keep_upload,
            lock_seconds=check_real("lock_seconds", lock_seconds, least=0.0),
            cohort=cohort or ClientPolicy(),
            retention=retention or Retention(),
            clock=clock or time.time,
            entropy=entropy or SystemEntropy(),
        )

    def __enter__(self) -> Self:
        """Open the state, and end the sessions in it whose time is over.

        Raises:
            LocalProtocolError: The client is open already, or BAD_SETTINGS.
            StateDamagedError: What is stored does not fit together.
            ServiceError: STORAGE_FAILED, naming the process that keeps the directory;
                RESTORED_STATE for a state that was restored, copied or emptied.
        """
        self._client.open(aggregator=self._aggregator, trust_domain=self._trust_domain)
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; a session that is not over can be resumed."""
        self.close()

    def close(self) -> None:
        """Release the directory; harmless when repeated."""
        self._client.close()

    @property
    def aggregator(self) -> str:
        """Name of the one aggregator whose sessions it takes part in."""
        return self._aggregator

    @property
    def trust_domain(self) -> str | None:
        """The aggregator's trust domain, as the carrier has proven it, or None."""
        return self._trust_domain

    def place(self, task: str) -> TaskPlace:
        """Return where this client stands in a task, for a carrier that was restarted.

        Args:
            task: Name of the task.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return self._client.call(lambda client: client.place(task))

    def step(  # noqa: PLR0913 - whatever a carrier may have for a client
        self,
        offer: bytes,
        update: bytes = b"",
        *,
        vector: npt.ArrayLike | None = None,
        unusable: str | None = None,
        payload_hash: bytes = b"",
        revocations: bytes | None = None,
    ) -> ClientStep:
        """Take part in a session, one call after the other; durable when it returns.

        The same call again returns the same messages, also in another process.

        Args:
            offer: The encoded `SessionDescriptor`, the same in all calls of a session.
            update: What the aggregator has for this client now; b"" for nothing.
            vector: Numbers of shape (d,), caller's units, when a vector is needed.  In
                a task with noise one that cannot be used is replaced by zeros.
            unusable: In place of the vector, why it is missing, as a clause for the
                owner.  A carrier says so where the vector could not be made.
            payload_hash: SHA-256 of what the vector was made from, computed from that
                and never copied from the offer; required with a vector where the offer
                names a payload.
            revocations: Bytes of the revocation list that the offer names.

        Returns:
            What to send, and what is needed to continue.

        Raises:
            RemoteProtocolError: BAD_ENCODING for a malformed offer or update, and
                UNAUTHENTICATED for a session of another aggregator: nothing has
                changed.  With any other code the aggregator broke the protocol or a
                limit of this client, and the session is over for it.
            SessionAbortedError: The session is over without a sum.  It says so every
                time until its receipt is purged.
            InputError: In a task without noise: the vector cannot be used, and the
                session continues.
            LocalProtocolError: The calling program is at fault; nothing has changed.
            ServiceError: STORAGE_FAILED: send nothing, and make a new object.
                BAD_CREDENTIAL: the session was begun with another identity.
        """
        made = "hashlib.sha256(payload).digest()"
        check_kind("payload_hash", payload_hash, bytes, make=made)
        given = _vector_or_reason(vector, unusable, payload_hash)
        return self._client.call(
            lambda client: client.step(
                client.read(offer), parse_update(update), given, revocations=revocations
            )
        )

    def check_offer(
        self, offer: bytes, *, revocations: bytes | None = None
    ) -> SessionInfo:
        """Check an offer as `step` does, and claim nothing.

        Args:
            offer: The encoded `SessionDescriptor`.
            revocations: Bytes of the revocation list that it names.

        Returns:
            What is known of the session, with what the task costs this client.

        Raises:
            RemoteProtocolError: As `step`, also for a session that is over.
            LocalProtocolError: The offer names a revocation list.
            ServiceError: As `step`.
        """
        found = self._client.call(
            lambda client: client.check(client.read(offer), revocations)
        )
        if isinstance(found, Need):
            raise ErrorCode.LOCAL_MISUSE.error(
                "the offer names a revocation list, and it was not given",
                fix="Fetch the list and give it as revocations.",
            )
        return found

    def read_sum(self, offer: bytes, packed: bytes) -> Contribution:
        """Return what a session gave back, with the sum that it has released.

        Args:
            offer: Of a session that is over, with a sum.
            packed: The sum, as the aggregator hands it out.

        Raises:
            RemoteProtocolError: BAD_VECTOR or PAYLOAD_MISMATCH; it is not the sum that
                this client's receipt names.
            LocalProtocolError: The session released no sum to this client.
            ServiceError: As `step`.
        """
        return self._client.call(
            lambda client: client.read_sum(client.read(offer), packed)
        )

    def leave(self, offer: bytes, reason: str) -> None:
        """Leave a session for good; nothing happens in one that is over.

        Not because of the data: the aggregator sees who is missing.

        Args:
            offer: Of the session.
            reason: One sentence, for people.

        Raises:
            LocalProtocolError: This client has never joined it.
            ServiceError: As `step`.
        """
        error = ErrorCode.CANCELLED.error(reason, kind=SessionAbortedError)
        if not self._client.call(
            lambda client: client.leave(client.read(offer), error)
        ):
            raise ErrorCode.LOCAL_MISUSE.error(
                "this client has never joined the session",
                fix="Call step with its offer first.",
            )

    def receipt(self, task: str, session_number: int) -> bytes | None:
        """Return this client's receipt of a session that is over, or None.

        Args:
            task: Name of the task.
            session_number: Of the session.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return self._client.call(
            lambda client: receipt_of(client.store, task, session_number)
        )

    def last_part(self, task: str) -> Participation | None:
        """Return the latest session whose sum holds a vector of this client, or None.

        Args:
            task: Name of the task.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return self._client.call(lambda client: last_part(client.store, task))

    def data_use(self) -> DataUsage | None:
        """Return what tasks have claimed of the data; None without a total.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return self._client.call(lambda client: client.data_use())

    def sessions_left(self, task: str) -> int | None:
        """Return how many more sessions the budget of a task covers.

        None for a task that has charged nothing yet, or releases exact sums.

        Args:
            task: Name of the task.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        return self._client.call(lambda client: client.sessions_left(task))


def state_of(client: StepClient) -> DurableClient:
    """Return the state of a client, for a carrier that drives it by itself."""
    return client._client  # noqa: SLF001 - the carriers of this package share it


def check_peer(client: StepClient, identity: str, trust_domain: str | None) -> None:
    """Refuse a connection of another client or trust domain than the state's.

    Its aggregator is compared with every call, when it is known (R5.0-6).

    Args:
        client: The state.
        identity: Caller of the connection's calls.
        trust_domain: Of both ends, as the connection proves it; None for none.

    Raises:
        LocalProtocolError: It is of another one.
    """
    own = state_of(client).identity
    if identity != own:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"the connection is of {identity!r}, and the step client of {own!r}",
            fix="Give the connection of the same client.",
        )
    if trust_domain != client.trust_domain:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"the connection proves the trust domain {trust_domain!r}, and the step "
            f"client expects {client.trust_domain!r}",
            fix="Give StepClient(...) the trust domain of the connection.",
        )


def _is_name(identity: str) -> bool:
    """Whether an advert can state a name: another claims a number without success."""
    try:
        data = identity.encode()
    except (AttributeError, UnicodeEncodeError):
        return False
    return 0 < len(data) <= MAX_IDENTITY_BYTES and b"\0" not in data


def _vector_or_reason(
    vector: object, unusable: str | None, payload_hash: bytes
) -> GivenVector | None:
    """Return the vector, or the reason why it is missing, as one value."""
    if unusable is not None:
        if vector is not None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "a vector was given together with a reason why it is missing",
                fix="Give either of the two.",
            )
        return GivenVector(Unusable(UnusableKind.INVALID, unusable), b"")
    return None if vector is None else GivenVector(vector, payload_hash)
