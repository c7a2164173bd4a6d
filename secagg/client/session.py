"""One session on the client: the state machine and its durable record, always in step.

Rule 1: persist, then send.  `apply` returns what to send only when the event that
        caused it is on the disk, so that a restart can never forget what left
        (PROTOCOL §12).
Rule 2: one seed per session, drawn once and stored before anything derived from it
        leaves.  A restart derives the same bytes again; nothing is answered twice in
        two ways.
Rule 3: of an input only the digest is stored.  After a restart the application
        supplies the input again, and another one is refused.
Rule 4: at the end everything is scrubbed; the session's number stays used for good.

It talks to nobody: that is `secagg.client.runner`.
"""

from typing import Self

from secagg.errors import ErrorCode, InternalError, RemoteProtocolError
from secagg.messages import Round
from secagg.parameters import SessionDescriptor
from secagg.policy import ClientPolicy
from secagg.primitives.entropy import SEED_SIZE, Entropy
from secagg.primitives.kdf import noise_seed
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol import client
from secagg.protocol.events import (
    AbortRequested,
    ClientEvent,
    InputBound,
    InputReady,
    SessionOffered,
)
from secagg.protocol.outputs import ClientOutput
from secagg.runtime.journal_writer import JournalWriter
from secagg.runtime.workers import Workers
from secagg.storage.base import NumberClaim, Role, SessionStore
from secagg.storage.journal import decode_client_event, encode_event, encode_outcome

__all__ = ["ClientSession", "session_counter"]


def session_counter(identity: str, task_id: str) -> str:
    """Name the counter under which a client claims the numbers of a task."""
    return f"client/{identity}/{task_id}"


class ClientSession:
    """One session of one client; make it with `begin` or `resume`."""

    def __init__(
        self,
        offered: SessionOffered,
        *,
        store: SessionStore,
        workers: Workers,
        policy: ClientPolicy,
        events: tuple[ClientEvent, ...] = (),
    ) -> None:
        self._offered = offered
        self._store = store
        self._workers = workers
        self._policy = policy
        self.session_id = offered.descriptor.session_id
        self._key = _key_prefix(offered.identity) + self.session_id.hex()
        self._journal = JournalWriter(
            store, workers, self._key, next_sequence=len(events)
        )
        first = client.step(client.start(), offered, policy=policy)
        self._state = first.state
        for event in events:
            if client.is_over(self._state):
                break  # the policy is stricter than when the session was accepted
            self._state = client.step(self._state, event, policy=policy).state

    @classmethod
    async def begin(  # noqa: PLR0913 - a session joins as many parts
        cls,
        descriptor: SessionDescriptor,
        identity: str,
        *,
        store: SessionStore,
        workers: Workers,
        policy: ClientPolicy,
        entropy: Entropy,
    ) -> Self:
        """Accept an offer: draw the seed and claim the number, durably.

        Raises:
            RemoteProtocolError: REPLAYED_SESSION for a number seen before;
                POLICY_VIOLATION or BAD_CONFIG when the offer is refused.  Nothing is
                stored.
            ServiceError: STORAGE_FAILED.
        """
        counter = session_counter(identity, descriptor.task_id)
        highest = await workers.store(store.highest_session_number, counter)
        if descriptor.session_number <= highest:
            raise RemoteProtocolError(
                f"the server offers session {descriptor.session_number} of task "
                f"{descriptor.task_id!r}; numbers up to {highest} were seen before",
                code=ErrorCode.REPLAYED_SESSION,
                next_step="Tell the operator: the server has lost its state or lies.",
            )
        seed = SecretBytes(entropy.token(SEED_SIZE))
        offered = SessionOffered(descriptor, identity, seed)
        session = cls(offered, store=store, workers=workers, policy=policy)
        if isinstance(session._state, client.Failed):
            refused = session._state.outcome
            raise RemoteProtocolError(refused.reason, code=refused.code)
        await workers.store(
            store.create,
            session._key,
            Role.CLIENT,
            encode_event(offered),
            claim=NumberClaim(counter, descriptor.session_number),
        )
        return session

    @classmethod
    async def resume(
        cls,
        task_id: str,
        identity: str,
        *,
        store: SessionStore,
        workers: Workers,
        policy: ClientPolicy,
    ) -> Self | None:
        """Return the interrupted session of a task, or None.

        Raises:
            ServiceError: STORAGE_FAILED.
        """
        prefix = _key_prefix(identity)
        for key in await workers.store(store.sessions, Role.CLIENT):
            if not key.startswith(prefix):
                continue
            stored = await workers.store(store.load, key)
            if stored is None or stored.ended:
                continue
            offered = decode_client_event(stored.header)
            if (
                isinstance(offered, SessionOffered)
                and offered.identity == identity
                and offered.descriptor.task_id == task_id
            ):
                return cls(
                    offered,
                    store=store,
                    workers=workers,
                    policy=policy,
                    events=tuple(map(decode_client_event, stored.records)),
                )
        return None

    @property
    def descriptor(self) -> SessionDescriptor:
        """The session as it was offered."""
        return self._offered.descriptor

    @property
    def state(self) -> client.ClientState:
        """Where the session stands."""
        return self._state

    @property
    def round(self) -> Round:
        """The last round that this client has entered."""
        if isinstance(self._state, client.Idle):
            raise InternalError("a session begins with its offer")
        return self._state.ROUND

    @property
    def needs_input(self) -> bool:
        """Whether the application's input is wanted, for the first time or again."""
        return isinstance(self._state, client.ReadyForInput)

    @property
    def noise_seed(self) -> SecretBytes:
        """The seed of this client's noise share: the same after a restart.

        Bound to ctx2, so that another roster or another U2 gets other noise.
        """
        if not isinstance(self._state, client.ReadyForInput):
            raise InternalError("noise is drawn when the set U2 is known")
        return noise_seed(
            self._offered.seed,
            context=self._state.delivered.ctx2,
            component=0,
            suite=self.descriptor.parameters.suite,
        )

    def pending_outputs(self) -> tuple[ClientOutput, ...]:
        """Return what must be sent, perhaps again."""
        return client.pending_outputs(self._state)

    async def apply(self, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Apply an event; returns when it is durable.

        Returns:
            What to send now.

        Raises:
            LocalProtocolError: The application is at fault; nothing has changed.
            ServiceError: STORAGE_FAILED; nothing may be sent.  Drop this object and
                resume from the store.
        """
        # Key agreement with every neighbour, or the digest of a long vector.
        step = await self._workers.run(
            client.step, self._state, event, policy=self._policy
        )
        if not step.is_repeat:
            if not client.is_over(step.state):
                self._journal.append(encode_event(_stored_form(event, step.state)))
            await self._journal.durable()
            self._state = step.state
        return step.outputs

    async def scrub(self) -> None:
        """Remove all records of a session that is over, and leave a tombstone."""
        if not isinstance(self._state, client.Completed | client.Failed):
            raise InternalError("a session that is not over cannot be scrubbed")
        self._offered.seed.wipe()
        await self._workers.store(
            self._store.end, self._key, encode_outcome(self._state.outcome)
        )

    async def give_up(self, code: ErrorCode, reason: str) -> None:
        """Leave the session for good."""
        await self.apply(AbortRequested(code, reason))


def _stored_form(event: ClientEvent, state: client.ClientState) -> ClientEvent:
    if isinstance(event, InputReady) and isinstance(state, client.Masked):
        return InputBound(state.bound_input)  # hashed already, off the event loop
    return event


def _key_prefix(identity: str) -> str:
    return f"client/{identity}/"
