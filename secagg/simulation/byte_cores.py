"""The two state machines of a session as objects that take and give byte strings.

For programs that carry the bytes themselves: over a message queue, a radio, a file.
A byte string is one message: its kind in one byte, its canonical encoding, and after
the name of an upload the packed vector itself.

Rule 1: who a message comes from is for the carrier to prove; a name is believed here.
Rule 2: nothing is stored and no time is kept.  A program that survives restarts stores
        what it hands in before it sends what comes back: with the same seed, the same
        vector and the same messages in the same order, a client says the same again.
Rule 3: epsilon is judged by whoever makes the client (`secagg.Client` does); the cores
        know the floors of the cohort only.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.crypto.modular import BadVectorError, add_into, reduce_in_place, zeros
from secagg.crypto.prg import add_masks
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import subtract_layers
from secagg.errors import (
    ErrorCode,
    LocalProtocolError,
    RemoteProtocolError,
    SessionAbortedError,
)
from secagg.protocol.client import machine as client
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import (
    ClientEvent,
    InputReady,
    NoisyVector,
    PlainVector,
    Received,
    RoundClosed,
    ServerEvent,
    SessionOffered,
    SumComputed,
)
from secagg.protocol.masking import mask_input, removal_masks
from secagg.protocol.membership import Membership
from secagg.protocol.messages import KINDS, Aborted, Envelope, Round, Upload
from secagg.protocol.noise_terms import NoiseReader, NoiseSecrets, no_noise
from secagg.protocol.outputs import ComputeSum, MaskAndUpload, Send
from secagg.protocol.packing import pack, packed_size, unpack
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy
from secagg.protocol.server import machine as server

Residues = npt.NDArray[np.unsignedinteger[Any]]
_SEED_BYTES: Final = 32
_NAME_BYTES: Final = len(Upload(0, bytes(32)).encode())


class ClientCore:
    """One client in one session.

    Args:
        session: The session, judged by the caller.
        identity: The client's name, as the aggregator knows it.
        aggregator: Who the aggregator has proven to be.
        now: The client's time, in Unix seconds.
        policy: Floors and caps of the cohort.
        make_input: Makes the vector when everybody's keys are shared; given what its
            noise is to be drawn from.
        membership: The client's place among the enrolled, for a session of a profile
            whose clients sign; its revocation list is checked by the caller.
        read_noise: Reads the noise block of a session that has one.
        seed: 32 secret bytes, from which every key of the session derives; fresh ones
            but for a client that begins anew.

    Attributes:
        seed: That seed; whoever stores it stores every secret of the session.
        state: The state machine's; `secagg.protocol.client.machine` says what it may
        be.
    """

    def __init__(  # noqa: PLR0913 - what a session consists of for one client
        self,
        session: SessionDescriptor,
        identity: str,
        *,
        aggregator: str,
        now: float,
        policy: ClientPolicy,
        make_input: Callable[[NoiseSecrets], PlainVector | NoisyVector],
        membership: Membership | None = None,
        read_noise: NoiseReader = no_noise,
        seed: SecretBytes | None = None,
    ) -> None:
        self.seed: Final = (
            SecretBytes(SystemEntropy().token(_SEED_BYTES)) if seed is None else seed
        )
        self._offer = SessionOffered(
            session, identity, aggregator, self.seed, int(now), membership
        )
        self._policy = policy
        self._make_input = make_input
        self._parameters = session.parameters
        self.state: client.ClientState = client.start(read_noise)

    @property
    def is_over(self) -> bool:
        """Whether the session is over for this client."""
        return client.is_over(self.state)

    @property
    def round(self) -> Round | None:
        """The last round that this client has entered; None before it has joined.

        An aggregator that is told so can give the news to whoever was away.
        """
        return None if isinstance(self.state, client.Idle) else self.state.ROUND

    def join(self) -> list[bytes]:
        """Return the first message.

        Raises:
            RemoteProtocolError: The session is below a floor of the policy, or none.
        """
        return self._step(self._offer)

    def receive(self, data: bytes) -> list[bytes]:
        """Take a message of the aggregator; return what to send.

        Raises:
            RemoteProtocolError: The aggregator broke the protocol, and this client has
                left the session; or BAD_ENCODING for bytes that are no message.
            SessionAbortedError: The aggregator has ended the session without a sum.
        """
        envelope, _ = _opened(data)
        sent = self._step(Received(envelope))
        if isinstance(self.state, client.ReadyForInput) and not isinstance(
            self.state, client.Masked
        ):
            given = self._make_input(client.noise_secrets(self.state, self.seed))
            sent += self._step(InputReady(given))
        return sent

    def _step(self, event: ClientEvent) -> list[bytes]:
        step = client.step(self.state, event, policy=self._policy)
        self.state = step.state
        if isinstance(step.state, client.Failed):
            reason, code = step.state.reason, step.state.code
            if isinstance(event, Received) and event.envelope.kind is Aborted:
                raise SessionAbortedError(reason, code=code)
            raise RemoteProtocolError(reason, code=code)
        sent = []
        for output in step.outputs:
            if isinstance(output, Send):
                sent.append(_closed(output.envelope))
            elif isinstance(output, MaskAndUpload):
                masked = mask_input(output.vector.residues, output.job)
                packed = pack(masked, self._parameters.bits)
                digest = sha256(packed).digest()
                named = Upload(len(packed), digest, output.view)
                sent.append(_closed(Envelope.of(named), packed))
        return sent


class ServerCore:
    """The aggregator of one session; holds the uploads in memory.

    Args:
        parameters: Of the task, for example from `secagg.Cohort.parameters`.
        aggregator: Its own name, as the carrier proves it to clients.
        task_id: Name of the task.
        now: Its time, in Unix seconds.
        session_number: Of the task, from 1; no client takes part in one twice.
        payload_hash: SHA-256 of what the session hands out; b"" for nothing.
        noise_terms: What the noise block leaves open of this session; see
            `secagg.distributed_dp.offered_terms`.
        invited: Who may take part; None for everybody whom the carrier lets in.
        revoked: Serials of the revocation list that the parameters name, for a profile
            whose clients sign.
        read_noise: Reads the noise block of a session that has one.
        entropy: Names the session and orders the ring of a sparse graph; the operating
            system's by default.

    Attributes:
        session: What clients are offered; its `encode` gives bytes.
        state: The state machine's; `secagg.protocol.server.machine` says what it may
        be. total: The sum, residues modulo m of shape (d,); None before the end.

    Raises:
        RemoteProtocolError: BAD_CONFIG; no such session can exist.
    """

    def __init__(  # noqa: PLR0913 - what a session consists of for its server
        self,
        parameters: ProtocolParameters,
        *,
        aggregator: str,
        task_id: str,
        now: float,
        session_number: int = 1,
        payload_hash: bytes = b"",
        noise_terms: bytes = b"",
        invited: frozenset[str] | None = None,
        revoked: frozenset[int] = frozenset(),
        read_noise: NoiseReader = no_noise,
        entropy: Entropy | None = None,
    ) -> None:
        self._parameters = parameters
        self._packed_bytes = packed_size(parameters.dimension, parameters.bits)
        self._entropy = entropy or SystemEntropy()
        self.session: Final = SessionDescriptor(
            aggregator=aggregator,
            task_id=task_id,
            session_number=session_number,
            server_nonce=self._entropy.token(_SEED_BYTES),
            session_end=int(now) + parameters.deadlines.longest_session,
            payload_hash=payload_hash,
            noise_terms=noise_terms,
            parameters=parameters,
        )
        self._uploads: dict[bytes, bytes] = {}
        self.total: Residues | None = None
        self.state: server.ServerState = server.start(
            self.session,
            packed_bytes=self._packed_bytes,
            invited=invited,
            revoked=revoked,
            read_noise=read_noise,
        )

    @property
    def is_over(self) -> bool:
        """Whether the session has ended, with a sum or without."""
        return server.is_over(self.state)

    def receive(self, sender: str, data: bytes) -> None:
        """Take a message of a client.

        Args:
            sender: Who sent it, proven by the carrier.
            data: The message.

        Raises:
            RemoteProtocolError: It cannot be one, or comes too late; the session goes
                on without it.
        """
        envelope, packed = _opened(data)
        if envelope.kind is Upload:
            self._check_upload(envelope, packed)
        self._step(Received(envelope, sender))
        if envelope.kind is Upload:
            self._uploads[sha256(packed).digest()] = packed

    def news_for(self, identity: str, *, after: Round | None = None) -> bytes | None:
        """Return what a client may know next; None while there is nothing.

        Args:
            identity: Who asks, proven by the carrier.
            after: Its `ClientCore.round`, if it says so: who was away while the others
                signed the sets is shown them before their signatures.
        """
        envelope = server.update_for(self.state, identity, after)
        return None if envelope is None else _closed(envelope)

    def close_round(self) -> None:
        """End the open round with those who are in: all of them, or time is up.

        Raises:
            LocalProtocolError: The session is over.
        """
        if self.is_over:
            raise LocalProtocolError("the session is over: it has no open round")
        opening = self.state.ROUND is Round.ADVERTISE_KEYS
        seed = self._entropy.token(_SEED_BYTES) if opening else b""
        self._step(RoundClosed(self.state.ROUND, seed))

    def _step(self, event: ServerEvent) -> None:
        step = server.step(self.state, event)
        self.state = step.state
        for output in step.outputs:
            if isinstance(output, ComputeSum):
                self.total = self._sum(output)
                packed = pack(self.total, self._parameters.bits)
                self._step(SumComputed(sha256(packed).digest(), len(packed)))

    def _sum(self, job: ComputeSum) -> Residues:
        total = zeros(job.dimension, job.modulus)
        for _, digest in job.uploads:
            add_into(total, self._unpacked(self._uploads[digest]), job.modulus)
        add_masks(total, removal_masks(job), job.modulus)
        subtract_layers(total, job.noise)
        return reduce_in_place(total, job.modulus)

    def _check_upload(self, envelope: Envelope, packed: bytes) -> None:
        named = envelope.open()
        if (
            not isinstance(named, Upload)
            or len(packed) != self._packed_bytes
            or (named.size, named.digest) != (len(packed), sha256(packed).digest())
        ):
            raise RemoteProtocolError(
                f"an upload has {len(packed)} bytes, of {self._packed_bytes}, or is "
                "not what its name says",
                code=ErrorCode.UPLOAD_CORRUPT,
            )
        try:
            self._unpacked(packed)
        except BadVectorError as error:
            raise RemoteProtocolError(str(error), code=ErrorCode.BAD_VECTOR) from None

    def _unpacked(self, packed: bytes) -> Residues:
        parameters = self._parameters
        return unpack(packed, parameters.dimension, parameters.bits, parameters.modulus)


def _closed(envelope: Envelope, packed: bytes = b"") -> bytes:
    return bytes([envelope.kind.KIND]) + envelope.data + packed


def _opened(data: bytes) -> tuple[Envelope, bytes]:
    """Return the message, and the vector that follows an upload's name."""
    kind = KINDS.get(data[0]) if data else None
    if kind is None:
        raise RemoteProtocolError(
            "the bytes are no message", code=ErrorCode.BAD_ENCODING
        )
    if kind is not Upload:
        return Envelope(kind, data[1:]), b""
    split = 1 + _NAME_BYTES
    return Envelope(kind, data[1:split]), data[split:]
