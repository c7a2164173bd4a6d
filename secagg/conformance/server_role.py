"""The kit's other role, experimental: honest and hostile clients of an aggregator.

Rule 1: all clients are the state machine; one of them sends one message that it must
        not send, and then the honest one.  Where the case says so it sends a wrong one
        that only others can notice, or a client sends it that has no place.
Rule 2: the aggregator refuses that message with a code of the case, keeps its state,
        and releases the right sum.
Rule 3: with noise the right sum is what the clients have given, less the layers that
        must leave; what it holds besides the vectors has the law of that noise.
Rule 4: after a restart the aggregator says what it has said, and has lost nothing.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.conformance.noise_law import LEAST_ENTRIES, law_complaint, noise_fault
from secagg.conformance.program import ProgramFailedError
from secagg.conformance.run import BrokenRuleError, Recorder
from secagg.conformance.scene import AGGREGATOR, NOW, TESTED, Peer, Scene, serial_of
from secagg.distributed_dp import NoisyTask
from secagg.errors import RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Aborted, Advert, Bundles, Envelope, Upload
from secagg.protocol.packing import unpack
from secagg.simulation.driver import issued_to

_FIRST: Final = "client-a"
_TASK: Final = "kit-task"
# More rounds than any profile has: an aggregator that never ends is left.
_MOST_ROUNDS: Final = 9
# Larger than the number of any message: of a client that is not lost.
_NEVER: Final = 99
Change = Callable[[bytes, "ServerRun"], bytes]
CHANGES: Final[dict[str, Change]] = {}


def _change(make: Change) -> Change:
    CHANGES[make.__name__] = make
    return make


@_change
def cut(message: bytes, _: "ServerRun") -> bytes:
    """Leave out the last byte."""
    return message[:-1]


@_change
def flip_last(message: bytes, _: "ServerRun") -> bytes:
    """Change a bit of the last byte."""
    return message[:-1] + bytes([message[-1] ^ 1])


@_change
def wrong_share(message: bytes, _: "ServerRun") -> bytes:
    """Change the last limb of the last share; its flags follow it."""
    at = len(message) - 3
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


@_change
def of_another(_: bytes, run: "ServerRun") -> bytes:
    """Send the advert of another client."""
    return Peer("client-o", run.offer, seed=run.seed).join()[0]


@_change
def low_order(message: bytes, _: "ServerRun") -> bytes:
    """Advertise a key that gives no secret."""
    return _advert(message, encryption_key=bytes(32))


@_change
def one_key(message: bytes, _: "ServerRun") -> bytes:
    """Advertise one key twice."""
    found = Advert.decode(message[1:])
    return _advert(message, encryption_key=found.masking_key)


@_change
def other_form(message: bytes, run: "ServerRun") -> bytes:
    """Advertise in the form of the other profiles."""
    if run.offer.parameters.trust is not None:
        return _advert(message, credential=None, signature=b"")
    credential = issued_to(_FIRST, serial_of(_FIRST))
    return _advert(message, credential=credential, signature=bytes(64))


@_change
def other_credential(message: bytes, _: "ServerRun") -> bytes:
    """Advertise a credential that the issuer has not signed."""
    credential = issued_to(_FIRST, serial_of(_FIRST))
    return _advert(message, credential=replace(credential, serial=77))


def _advert(message: bytes, **changes: Any) -> bytes:
    made = replace(Advert.decode(message[1:]), **changes)
    return Envelope.of(made).tagged()


@_change
def all_bits(message: bytes, _: "ServerRun") -> bytes:
    """Upload residues that are too large."""
    return _upload(message, b"\xff" * (len(message) - _VECTOR_AT))


@_change
def unused_bits(message: bytes, _: "ServerRun") -> bytes:
    """Upload a vector whose unused bits are not zero."""
    packed = message[_VECTOR_AT:]
    return _upload(message, packed[:-1] + bytes([packed[-1] | 0xF0]))


@_change
def other_view(message: bytes, _: "ServerRun") -> bytes:
    """Upload under another view."""
    at = _VECTOR_AT - 1
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


@_change
def other_vector(message: bytes, _: "ServerRun") -> bytes:
    """Upload another vector."""
    packed = message[_VECTOR_AT:]
    return _upload(message, bytes([packed[0] ^ 1]) + packed[1:])


_VECTOR_AT: Final = 1 + 8 + 32 + 32


def _upload(message: bytes, packed: bytes) -> bytes:
    view = message[_VECTOR_AT - 32 : _VECTOR_AT]
    named = Upload(len(packed), sha256(packed).digest(), view)
    return Envelope.of(named).tagged() + packed


@dataclass(frozen=True, kw_only=True)
class ServerCase:
    """One thing that an aggregator must do.

    Attributes:
        id: Its name.
        rules: Rule ids; the first one is its own.
        scene: Name of the task.
        message: Number of the message that a client changes; 0 for none.
        change: How it changes it.
        sender: A client without a place, which sends the changed message behind all
            adverts; "" where the first client of the session sends it.
        unseen: The changed message takes the honest one's place, and no aggregator can
            see by itself that it is wrong.
        after: The changed message follows the honest one.
        codes: With one of these it must be refused.
        lost: Before which message a client falls silent, by its name.
        aborted: Code of the end without a sum; "" for a sum.
        needs_restart: The aggregator is restarted at every step.
    """

    id: str
    rules: Sequence[str]
    scene: str
    message: int = 0
    change: str = ""
    sender: str = ""
    unseen: bool = False
    after: bool = False
    codes: Sequence[str] = ()
    lost: Mapping[str, int] | None = None
    aborted: str = ""
    needs_restart: bool = False


@cache
def server_cases() -> tuple[ServerCase, ...]:
    """Return all cases of this role, in order."""
    text = (files("secagg.conformance") / "cases.toml").read_text(encoding="utf-8")
    return tuple(ServerCase(**row) for row in tomllib.loads(text)["server"])


class ServerRun:
    """A session of a foreign aggregator.

    Args:
        case: What is changed.
        scene: The task.
        recorder: The aggregator.
        seed: Of the run, 32 bytes.
        restart: How the aggregator forgets: "memory" or "process".

    Raises:
        BrokenRuleError: It offers another session than it was told to.
    """

    def __init__(
        self,
        case: ServerCase,
        scene: Scene,
        recorder: Recorder,
        seed: bytes,
        *,
        restart: str = "memory",
    ) -> None:
        self._case, self._recorder, self.seed = case, recorder, seed
        self._scene, self._restarts = scene, restart
        told = recorder.call(
            {
                "do": "open",
                "parameters": scene.parameters.encode().hex(),
                "aggregator": AGGREGATOR,
                "task": _TASK,
                "session_number": 1,
                "now": NOW,
            }
        )
        try:
            self.offer = SessionDescriptor.decode(bytes.fromhex(told["offer"]))
        except (KeyError, TypeError, ValueError, RemoteProtocolError):
            raise BrokenRuleError("it offers nothing that decodes (§3.2)") from None
        expected = replace(
            self.offer,
            parameters=scene.parameters,
            aggregator=AGGREGATOR,
            task_id=_TASK,
            session_number=1,
        )
        if self.offer != expected:
            raise BrokenRuleError("it offers another session than it was told to")
        try:
            self.offer.check_clock(NOW)
        except RemoteProtocolError as error:
            raise BrokenRuleError(f"its clients refuse the offer: {error}") from None
        names = sorted((TESTED, *scene.peers))
        self.peers = {name: Peer(name, self.offer, seed=seed) for name in names}
        self._last_updates = dict.fromkeys(names, b"")
        self._restart()

    def play(self) -> None:
        """Play the session, and check its end.

        Raises:
            BrokenRuleError: The aggregator is at fault.
            ProgramFailedError: It gives no answer of the contract.
        """
        for name, peer in self.peers.items():
            self._send(name, peer.join())
        if self._case.sender:
            self._refused(self._case.sender, of_another(b"", self))
        for _ in range(_MOST_ROUNDS):
            self._restart()  # nothing that it has acknowledged is told again
            is_over = self._recorder.call({"do": "close_round"}).get("over") is True
            if self._case.needs_restart:
                self._check_memory(self._updates)
            if is_over:
                break
            for name in self.peers:
                self._step_client(name)
        if self._case.needs_restart:
            self._check_memory(self._total)
        self._check_end(self._total())

    def _restart(self) -> None:
        """Let the aggregator forget all but what it has stored, where the case does."""
        if not self._case.needs_restart:
            return
        if self._restarts == "process":
            self._recorder.restart()
        told = self._recorder.call({"do": "restart"})
        if told.get("offer") != self.offer.encode().hex():
            raise BrokenRuleError("after a restart it has another offer")

    def _check_memory(self, ask: Callable[[], Any]) -> None:
        before = ask()
        self._restart()
        if ask() != before:
            raise BrokenRuleError("after a restart it says something else (R5-1)")

    def _updates(self) -> list[bytes]:
        return [self._update(name) for name in self.peers]

    def _total(self) -> dict[str, Any]:
        return self._recorder.call({"do": "total"})

    def _step_client(self, name: str) -> None:
        """Hand a client its update, and send what it answers."""
        update = self._update(name)
        if update and update != self._last_updates[name] and update[0] != Aborted.KIND:
            self._last_updates[name] = update
            try:
                said = self.peers[name].receive(update)
            except (KeyError, RemoteProtocolError) as error:
                raise BrokenRuleError(f"{name} refuses its update: {error}") from None
            self._send(name, said)

    def _update(self, name: str) -> bytes:
        found = self._recorder.call({"do": "update_for", "name": name}).get("update")
        try:
            return bytes.fromhex(found or "")
        except (TypeError, ValueError):
            raise ProgramFailedError("its update is not hexadecimal") from None

    def _send(self, name: str, messages: tuple[bytes, ...]) -> None:
        """Send the messages of a client, changed where the case says so."""
        case = self._case
        for message in messages:
            if (case.lost or {}).get(name, _NEVER) <= message[0]:
                continue
            lies = name == _FIRST and message[0] == case.message and not case.sender
            changed = CHANGES[case.change](message, self) if lies else message
            if lies and not case.unseen and not case.after:
                self._refused(name, changed)
            sent = changed if case.unseen else message
            self._accepted(name, sent)
            if lies and not case.unseen:
                self._restart()
                if case.after:
                    self._refused(name, CHANGES[case.change](message, self))
            self._accepted(name, sent)  # R5-1: again, it is acknowledged

    def _submit(self, name: str, message: bytes) -> str:
        line = {"do": "receive", "sender": name, "message": message.hex()}
        found = self._recorder.call(line).get("refused", "")
        if not isinstance(found, str):
            raise ProgramFailedError("its refusal is no code")
        return found

    def _accepted(self, name: str, message: bytes) -> None:
        code = self._submit(name, message)
        if code:
            raise BrokenRuleError(
                f"it refuses the honest message {message[0]} of {name} with {code}"
            )

    def _refused(self, name: str, message: bytes) -> None:
        code, wanted = self._submit(name, message), sorted(self._case.codes)
        if code not in wanted:
            raise BrokenRuleError(
                f"it must refuse with {' or '.join(wanted)}, and says "
                f"{code or 'nothing'}"
            )

    def _check_end(self, content: Mapping[str, Any]) -> None:
        """Refuse a sum or an end that the case does not expect."""
        if self._case.aborted:
            if content.get("failed") != self._case.aborted:
                raise BrokenRuleError(f"it must end with {self._case.aborted}")
            return
        parameters = self.offer.parameters
        try:
            packed = bytes.fromhex(content["packed"])
            total = unpack(
                packed, parameters.dimension, parameters.bits, parameters.modulus
            ).astype(np.int64)
        except (KeyError, TypeError, ValueError):
            raise BrokenRuleError("it releases no sum that can be read") from None
        if (task := self._scene.task) is not None:
            self._check_noise(task, total)
            return
        expected = np.zeros(parameters.dimension, dtype=np.int64)
        for name in self._senders(Upload.KIND):
            expected += self.peers[name].vector()
        if np.any((expected - total) % parameters.modulus):
            raise BrokenRuleError("the sum is not that of the vectors (R5.5-12)")

    def _senders(self, kind: int) -> list[str]:
        lost = self._case.lost or {}
        return [name for name in self.peers if lost.get(name, _NEVER) > kind]

    def _check_noise(self, task: NoisyTask, total: npt.NDArray[np.int64]) -> None:
        """Check the noise of a sum of zeros: its law, and every entry (rule 3)."""
        survivors, m = self._senders(Upload.KIND), self.offer.parameters.modulus
        dealers = self._senders(Bundles.KIND)
        noise = task.session_noise(len(dealers))
        removed = noise.removed_layers(len(dealers) - len(survivors))
        kept = [v for i, v in enumerate(noise.layers) if i not in removed]
        variance = float(len(survivors) * (noise.base + sum(kept)))
        drawn = np.where(total >= (m + 1) // 2, total - m, total)
        if drawn.size >= LEAST_ENTRIES:
            for complaint in (noise_fault, law_complaint):
                if said := complaint(drawn, variance):
                    raise BrokenRuleError(f"of the sum, {said} (R6.7-1)")
        for name in survivors:
            drawn = drawn - self.peers[name].remaining_input(removed)
        if np.any(drawn % m):
            raise BrokenRuleError(
                "the sum is not that of the inputs without the layers that must leave"
            )
