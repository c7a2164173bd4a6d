"""A session in one process that records its messages in a knowledge ledger.

Rule 1: what an honest client sends counts as received, also when a test drops it on
        its way: the adversary may be the one who loses it.
Rule 2: what a test sends in a client's name was made by the adversary, who learns
        nothing from it.
Rule 3: its store charges a client when its input is masked, and refunds what the
        client's end state says.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from secagg.crypto.secret_bytes import SecretBytes
from secagg.protocol.agreement import sign_bundles
from secagg.protocol.client import states as client_states
from secagg.protocol.events import (
    ClientEvent,
    ClientOutput,
    MaskAndUpload,
    Received,
    Send,
    SessionOffered,
)
from secagg.protocol.messages import BUNDLE_BYTES, Bundles, Envelope, Upload
from secagg.protocol.refund import ChargeOutcome
from secagg.simulation.driver import identity_of
from secagg_testing.cohorts import RecordedSession
from secagg_testing.knowledge.claims import check
from secagg_testing.knowledge.facts import Facts
from secagg_testing.knowledge.sums import RevealedSum


@dataclass
class ObservedSession(RecordedSession):
    """A session in one process; `facts` sees what passes between the parties.

    Attributes:
        facts: What the adversary sees; may be shared by several sessions of a task.
        corrupt: Clients whose secrets the adversary has; they run as the others do.
        garbage: For a corrupt client, to whom it sends bundles that no client can open.
        charged: How many sessions each client has paid for, by name.
    """

    facts: Facts = field(default_factory=Facts)
    corrupt: frozenset[int] = frozenset()
    garbage: Mapping[int, AbstractSet[int]] = field(default_factory=dict)
    charged: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Record the offer in the ledger."""
        super().__post_init__()
        self.session_id = self.descriptor.session_id
        self.facts.session(self.descriptor, self.read_noise)

    def to_client(self, number: int, event: ClientEvent) -> tuple[ClientOutput, ...]:
        """Apply an event at a client; record the event and the client's messages."""
        name = identity_of(number)
        match event:
            case SessionOffered(seed=seed) if number in self.corrupt:
                self.facts.corrupt(name, SecretBytes(seed.reveal()))
            case Received(envelope):
                self.facts.on_update(self.session_id, name, envelope)
        outputs = super().to_client(number, event)
        for output in outputs:
            match output:
                case Send(envelope):
                    self.facts.on_request(self.session_id, name, envelope)
                case MaskAndUpload():
                    self.charged[name] = 1
        ended = self.clients[number]
        if (
            isinstance(ended, client_states.Completed | client_states.Failed)
            and ended.charge is ChargeOutcome.GIVEN_BACK
        ):
            self.charged.pop(name, None)
        return outputs

    def message(self, number: int, output: ClientOutput) -> Received | None:
        """Return what the server receives; record a masked input."""
        received = super().message(number, output)
        if received is not None and isinstance(output, MaskAndUpload):
            digest = Upload.decode(received.envelope.data).digest
            vector = self.unpacked(self.uploads[digest])
            self.facts.on_vector(self.session_id, identity_of(number), vector)
        if received is not None and received.envelope.kind is Bundles:
            envelope = self._spoilt(number, received.envelope)
            return replace(received, envelope=envelope)
        return received

    def _spoilt(self, dealer: int, envelope: Envelope) -> Envelope:
        """Change the bundles of the clients that receive garbage."""
        state = self.clients[dealer]
        if dealer not in self.garbage or not isinstance(state, client_states.Shared):
            return envelope
        sealed = bytearray(Bundles.decode(envelope.data).sealed)
        view = state.roster
        receivers = [h for h in view.graph.holders(view.index) if h != view.index]
        for place, receiver in enumerate(receivers):
            name = view.adverts[receiver].identity
            if name in map(identity_of, self.garbage[dealer]):
                sealed[place * BUNDLE_BYTES] ^= 1
        signature = b""
        if state.agreement is not None:
            signature = sign_bundles(
                state.agreement.key,
                bytes(sealed),
                ctx1=view.ctx1,
                index=view.index,
                suite=self.parameters.suite,
            )
        return Envelope.of(Bundles(bytes(sealed), signature))

    def check(self) -> tuple[RevealedSum, ...]:
        """Check that the adversary knows no more than it may; see `knowledge.check`.

        For the only session of its `facts`, over or not.
        """
        return check(self.facts, charged=self.charged)
