"""One session of the kit: the aggregator and all clients but one, played.

Rule 1: the aggregator is `StepServer`; it checks all that the tested program says.
Rule 2: a message that the program repeats is a no-op, as it is for every aggregator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.conformance.noise_law import (
    LEAST_ENTRIES,
    law_complaint,
    missing_complaint,
    noise_fault,
)
from secagg.conformance.program import ProgramFailedError, Tested
from secagg.conformance.scene import (
    AGGREGATOR,
    LIST,
    NOW,
    REVOKED_SERIAL,
    TESTED,
    Peer,
    Scene,
    membership_line,
)
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import RemoteProtocolError
from secagg.protocol.messages import (
    Aborted,
    Complaint,
    Delivery,
    Neighbourhood,
    Quorum,
    Released,
    Roster,
    Survivors,
    Upload,
)
from secagg.server.step_server import StepServer

KIND_NAMES: Final[Mapping[int, str]] = {
    Roster.KIND: "roster",
    Delivery.KIND: "delivery",
    Survivors.KIND: "survivors",
    Quorum.KIND: "quorum",
    Released.KIND: "ending",
    Aborted.KIND: "ending",
}
_ORDER: Final = ("roster", "delivery", "survivors", "quorum", "ending")
# Complaints about all others, and the message of the round.
_MOST_MESSAGES: Final = 64
_ENDS: Final = frozenset({"left", "ended", "released"})
_ANSWERS: Final = _ENDS | {"messages"}
_VIEW_AT: Final = 1 + 8 + 32
LIMITS: Final[Mapping[str, Any]] = {
    "profiles": [1, 2],
    "suites": [1, 2],
    "graphs": ["complete", "ring"],
    "min_graph_bits": 40,
    "min_clients": 3,
    "max_clients": 10_000,
    "min_survivors": 2,
    "max_dropouts": None,
    "min_colluders": 0,
    "require_majority": True,
    "max_dimension": 1 << 26,
    "max_modulus_bits": 62,
    "max_revocation_days": None,
    "require_noise": False,
    "max_epsilon": 10.0,
    "max_delta": 1e-4,
    "min_colluder_fraction": 0.0,
}
"""What the tested client is told to insist on, by the names of a client's settings."""


class BrokenRuleError(Exception):
    """The program has done what an implementation must not do; the sentence says it."""


@dataclass(frozen=True)
class ProgramAnswer:
    """What the program said to one line.

    Attributes:
        messages: To send to the aggregator.
        view: What it shows before its vector is bound; b"" where it binds none.
        left: Code with which it has left the session by its own decision, or "".
        ended: Code with which the aggregator has ended it, or "".
        released: The aggregator has released a sum, and the program believes it.
        content: All of it.
    """

    messages: tuple[bytes, ...] = ()
    view: bytes = b""
    left: str = ""
    ended: str = ""
    released: bool = False
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "ProgramAnswer":
        """Read an answer.

        Raises:
            ProgramFailedError: It is not of the contract.
        """
        said = content.get("messages", [])
        left, ended = content.get("left", ""), content.get("ended", "")
        view, known = content.get("view", ""), _ANSWERS & set(content)
        is_text = all(isinstance(each, str) for each in (left, ended, view))
        is_list = isinstance(said, list) and len(said) <= _MOST_MESSAGES
        try:
            if known and len(known & _ENDS) <= 1 and is_text and is_list:
                messages = tuple(map(_message, said))
                shown, released = bytes.fromhex(view), content.get("released") is True
                return cls(messages, shown, left, ended, released, content)
        except (TypeError, ValueError):
            pass
        raise ProgramFailedError(
            f"the program's answer is not of the contract: {str(content)[:100]}"
        )

    @property
    def in_words(self) -> str:
        """What it says, for a sentence about it."""
        if self.left:
            return f"left {self.left}"
        if self.ended:
            return f"ended {self.ended}"
        if self.released:
            return "released"
        kinds = [message[0] for message in self.messages if message]
        return f"messages {kinds}" + (" and a view" if self.view else "")


def _integer(entry: object) -> int:
    if not isinstance(entry, str):
        raise TypeError("without noise, entries are decimal strings")
    return int(entry)


def _message(text: str) -> bytes:
    found = bytes.fromhex(text)
    if not found:
        raise ValueError("a message has its kind at least")
    return found


class Recorder:
    """Hands lines to the program, and keeps what both have said.

    Args:
        tested: The program.

    Attributes:
        lines: Pairs of who said it and what, in order.
    """

    def __init__(self, tested: Tested) -> None:
        self._tested = tested
        self.lines: list[tuple[str, Mapping[str, Any]]] = []

    def call(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and return the answer; see `Tested.call`."""
        self.lines.append(("kit", line))
        answer = self._tested.call(line)
        self.lines.append(("program", answer))
        return answer

    def restart(self) -> None:
        """End the program; see `Tested.restart`."""
        self.lines.append(("kit", {"do": "(SIGKILL)"}))
        self._tested.restart()


class Run:
    """A session with the program in it.

    Args:
        scene: The task.
        recorder: The program.
        seed: Of the run, 32 bytes.
        number: Of the session.
        limits: Of the tested client, where they differ from `LIMITS`.
        lost: From which update on a peer is silent, by its name.
        spoil: Number of the message that a peer spoils, by its name.
        vector: Of the tested client; made where none is given.
        restart: How the program forgets: "memory" or "process".
        now: The program's time.
        aggregator: Whose session it is.
    """

    def __init__(  # noqa: PLR0913 - what a session consists of
        self,
        scene: Scene,
        recorder: Recorder,
        *,
        seed: bytes,
        number: int = 1,
        limits: Mapping[str, Any] | None = None,
        lost: Mapping[str, str] | None = None,
        spoil: Mapping[str, int] | None = None,
        vector: Sequence[float] | None = None,
        restart: str = "memory",
        now: int = NOW,
        aggregator: str = AGGREGATOR,
    ) -> None:
        self.scene, self.recorder, self.seed = scene, recorder, seed
        self.now, self.restarts = now, restart
        self._lost, self._spoil = lost or {}, spoil or {}
        has_list = bool(
            scene.parameters.trust and scene.parameters.trust.revocation_number
        )
        self.revoked = frozenset({REVOKED_SERIAL, 900} if has_list else ())
        self.server = StepServer(
            scene.prepared(),
            aggregator=aggregator,
            task_id="kit-task",
            session_number=number,
            now=NOW,
            entropy=SeededEntropy(SecretBytes(seed), b"kit/%d" % number),
        )
        self.offer = self.server.descriptor
        self.peers = {
            name: Peer(name, self.offer, seed=seed, revoked=self.revoked)
            for name in scene.peers
        }
        self.vector: list[float] = list(self._vector() if vector is None else vector)
        self.latest = b""
        self.ring_place = 0
        self.sent: list[bytes] = []
        self._peer_updates: dict[str, bytes] = {}
        self.line: dict[str, Any] = {
            "do": "begin",
            "offer": self.server.offer.hex(),
            "name": TESTED,
            "aggregator": AGGREGATOR,
            "now": self.now,
            "limits": dict(LIMITS) | dict(limits or {}),
            "vector": [
                float(x) if scene.parameters.noise_block else str(int(x))
                for x in self.vector
            ],
            "forget": number == 1,
        }
        if self.offer.parameters.profile.has_identities:
            self.line["membership"] = membership_line(TESTED)
            self.line["revocations"] = LIST.hex() if has_list else ""

    def _vector(self) -> list[float]:
        """Return the vector of the tested client."""
        if not self.scene.parameters.noise_block:
            return [int(x) for x in Peer(TESTED, self.offer, seed=self.seed).vector()]
        # Within the clip, and along one direction that can be found again.
        dim = self.scene.dim
        signs = np.where(np.arange(dim) % 3 == 0, -1.0, 1.0)
        return [float(x) for x in 0.9 * signs / np.sqrt(dim)]

    # --- the program ------------------------------------------------------------------

    def call(self, line: Mapping[str, Any]) -> ProgramAnswer:
        """Send one line and read the answer."""
        return ProgramAnswer.of(self.recorder.call(line))

    def begin(self, offer: bytes | None = None) -> ProgramAnswer:
        """Offer the session."""
        if offer is not None:
            self.line["offer"] = offer.hex()
        return self.call(self.line)

    def update(self, update: bytes) -> ProgramAnswer:
        """Hand the program an update; b"" for none."""
        return self.call({"do": "update", "update": update.hex(), "now": self.now})

    def restart(self) -> ProgramAnswer:
        """Let the program forget all but what it has stored."""
        if self.restarts == "process":
            self.recorder.restart()
        return self.call({**self.line, "do": "restart", "now": self.now})

    def unsent_messages(self, answer: ProgramAnswer) -> tuple[bytes, ...]:
        """Return the messages that it has not said before."""
        return tuple(each for each in answer.messages if each not in self.sent)

    def deliver(self, answer: ProgramAnswer) -> None:
        """Hand the aggregator what the program said.

        Raises:
            BrokenRuleError: The aggregator refuses it, or the program has left.
        """
        if answer.left or answer.ended:
            raise BrokenRuleError(
                f"the program left an honest session with {answer.left or answer.ended}"
            )
        for message in self.unsent_messages(answer):
            try:
                self.server.receive(TESTED, message)
            except RemoteProtocolError as error:
                raise BrokenRuleError(
                    f"the aggregator refuses message {message[0]} with "
                    f"{error.code.name}: {error}"
                ) from None
            self.sent.append(message)

    def deliver_answer(self, answer: ProgramAnswer) -> ProgramAnswer:
        """Deliver an answer; where it shows a view, check that and let it bind."""
        self.deliver(answer)
        if not answer.view:
            return answer
        try:
            self.server.check_view(TESTED, answer.view)
        except RemoteProtocolError as error:
            raise BrokenRuleError(
                f"the aggregator refuses the view with {error.code.name}"
            ) from None
        bound = self.call({"do": "bind", "now": self.now})
        self.deliver(bound)
        return bound

    def check_left(self, answer: ProgramAnswer, codes: Iterable[str]) -> None:
        """Check that the program has left with one of some codes.

        Raises:
            BrokenRuleError: It has not, or has said something besides.
        """
        wanted = sorted(codes)
        if self.unsent_messages(answer) or answer.view or answer.left not in wanted:
            raise BrokenRuleError(
                f"it must leave with {' or '.join(wanted)}, and says {answer.in_words}"
            )

    # --- the session ------------------------------------------------------------------

    def join(self) -> None:
        """Let the program advertise."""
        answer = self.begin()
        self.deliver(answer)
        if not self.unsent_messages(answer) and not self.sent:
            raise BrokenRuleError(
                "the program said nothing to an offer that it accepts"
            )

    def next(self) -> bytes:
        """Play on until there is an update that the program has not heard.

        Raises:
            BrokenRuleError: A peer complains about the program.
        """
        while True:
            if not self.server.is_over:
                for name in self.scene.peers:
                    self._step_peer(name)
                self.server.close_round()
            update = self.server.update_for(TESTED) or b""
            if (update and update != self.latest) or self.server.is_over:
                self.latest = update
                if update[:1] == bytes([Roster.KIND]):
                    roster = Roster.decode(update[1:])
                    if isinstance(roster, Neighbourhood):
                        self.ring_place = roster.reader
                return update

    def play_until(self, name: str) -> bytes:
        """Play honestly until there is an update of this name; return it unheard.

        Raises:
            BrokenRuleError: The program is at fault before.
        """
        while True:
            update = self.next()
            found = KIND_NAMES[update[0]]
            if found == name:
                return update
            if found == "ending":
                failure = self.server.failure
                raise BrokenRuleError(f"the session ended too early: {failure}")
            self.deliver_update(update)

    def deliver_update(self, update: bytes) -> ProgramAnswer:
        """Let the program hear an update, and answer."""
        return self.deliver_answer(self.update(update))

    def finish(self) -> None:
        """Play to the end, and check the sum.

        Raises:
            BrokenRuleError: There is no sum, or it is wrong.
        """
        update = self.latest if self.server.is_over else self.play_until("ending")
        if self.server.result is None:
            raise BrokenRuleError(f"there is no sum: {self.server.failure}")
        answer = self.update(update)
        if not answer.released:
            raise BrokenRuleError("the program does not say that the sum was released")
        self.check_sum()
        packed = self.server.packed_sum or b""
        self._check_reading(self.recorder.call({"do": "sum", "packed": packed.hex()}))

    def check_sum(self) -> None:
        """Check the sum by what all peers have given.

        Raises:
            BrokenRuleError: It is wrong.
        """
        result = self.server.result
        if result is None:
            raise BrokenRuleError(f"there is no sum: {self.server.failure}")
        if self.scene.task is None:
            expected = np.zeros(self.scene.dim, dtype=np.int64)
            for name in result.receipt.survivors:
                own = name == TESTED
                expected += (
                    np.array(self.vector, dtype=np.int64)
                    if own
                    else self.peers[name].vector()
                )
            m = self.scene.parameters.modulus
            if np.any((expected - np.asarray(result.values).astype(np.int64)) % m):
                raise BrokenRuleError("the sum is not that of the vectors")
        elif TESTED in result.receipt.survivors and not self._spoil:
            self._check_noise()

    def own_residues(self) -> npt.NDArray[np.int64]:
        """Return what is left of the sum without the peers, centred: x of the program.

        Layers that were taken back are taken back of the peers' parts as well.
        """
        result = self.server.result
        task, m = self.scene.task, self.scene.parameters.modulus
        if result is None or task is None:
            raise BrokenRuleError("there is no sum with noise")
        rest = result.residues.astype(np.int64)
        for name in result.receipt.survivors:
            if name != TESTED:
                rest -= self.peers[name].remaining_input(self.removed)
        rest %= m
        return np.where(rest >= (m + 1) // 2, rest - m, rest)

    @property
    def removed(self) -> tuple[int, ...]:
        """Layers that the sum was freed of."""
        result = self.server.result
        noise = None if result is None else result.receipt.noise
        return () if noise is None else tuple(noise.removed)

    @property
    def kept_variance(self) -> Fraction:
        """Variance of the noise that one client has left in each entry of the sum."""
        result = self.server.result
        if result is None or result.receipt.noise is None:
            raise BrokenRuleError("there is no certificate")
        noise = result.receipt.noise
        kept = [v for i, v in enumerate(noise.layers) if i not in noise.removed]
        return Fraction(noise.base) + sum(map(Fraction, kept))

    def _check_noise(self) -> None:
        """Refuse a vector whose noise does not follow the law of the task."""
        task = self.scene.task
        if task is None or self.scene.dim < LEAST_ENTRIES:
            return
        own, variance = self.own_residues(), float(self.kept_variance)
        complaint = ""
        if not any(self.vector):
            complaint = law_complaint(own, variance)
        numbers = task.mechanism.parameters
        given = np.array(self.vector)
        given *= min(1.0, numbers.l2_clip / max(float(np.linalg.norm(given)), 1e-300))
        residues = (own % numbers.modulus).astype(np.uint64)
        read = task.decode(residues, session_id=self.offer.session_id)
        # The rotation keeps the law: a sum of independent draws, entry by entry.
        left = (read - given) * numbers.scale_factor
        length = float(np.linalg.norm(given))
        complaint = missing_complaint(left, given, variance) if length else complaint
        complaint = complaint or noise_fault(left, variance)
        if complaint:
            raise BrokenRuleError(complaint)

    def _check_reading(self, content: Mapping[str, Any]) -> None:
        """Refuse a program that reads the released sum differently."""
        result, task = self.server.result, self.scene.task
        said = content.get("sum")
        if result is None or not isinstance(said, list):
            raise BrokenRuleError("the program cannot read the sum")
        try:
            read = [float(x) if task else _integer(x) for x in said]
        except (TypeError, ValueError, OverflowError):
            raise BrokenRuleError(
                "the program's sum has entries that are no numbers"
            ) from None
        values = [float(x) if task else int(x) for x in result.values]
        if len(read) != len(values):
            raise BrokenRuleError("the program's sum has another length")
        most = 1e-6 * max(1.0, *map(abs, values)) if task else 0
        # Written so that NaN is wrong as well.
        if not all(abs(a - b) <= most for a, b in zip(read, values, strict=True)):
            raise BrokenRuleError(
                "the program reads the sum otherwise (R14.1-2, R14.9-1)"
            )

    def _step_peer(self, name: str) -> None:
        """Let a peer hear what there is for it, and answer."""
        peer = self.peers[name]
        update = self.server.update_for(name) or b""
        if name not in self._peer_updates:
            self._peer_updates[name] = b""
            self._send_messages(name, peer.join())
            return
        if not update or update == self._peer_updates[name]:
            return
        self._peer_updates[name] = update
        lost = self._lost.get(name)
        kind = KIND_NAMES[update[0]]
        if lost is None or _ORDER.index(kind) < _ORDER.index(lost):
            self._send_messages(name, peer.receive(update))

    def _send_messages(self, name: str, messages: tuple[bytes, ...]) -> None:
        """Hand messages of a client to the server, one of them spoiled."""
        for message in messages:
            if message[0] == Complaint.KIND:
                self._check_complaint(name, message)
            if self._spoil.get(name) != message[0]:
                self.server.receive(name, message)
                continue
            # The view of an upload, the last byte of what is shorter.
            spoiled = bytearray(message)
            spoiled[_VIEW_AT if message[0] == Upload.KIND else -1] ^= 1
            try:
                self.server.receive(name, bytes(spoiled))
            except RemoteProtocolError:
                continue  # it is lost from here on

    def _check_complaint(self, name: str, message: bytes) -> None:
        complaint = Complaint.decode(message[1:])
        names = sorted((TESTED, *self.scene.peers))
        if self.scene.graph == "complete" and names[complaint.accused] == TESTED:
            raise BrokenRuleError(
                f"{name} cannot use its bundle: {complaint.code.name} (R5.3-7)"
            )
