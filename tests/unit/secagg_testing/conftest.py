"""Sessions of the real cores that tell a knowledge ledger what is said and heard.

The only place of these tests that knows a driver.
"""

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import pytest
from secagg_testing import observed_session
from secagg_testing.cohorts import parameters_for, signing_parameters_for, with_noise
from secagg_testing.knowledge.facts import Facts

from secagg.crypto.entropy import Entropy
from secagg.crypto.modular import word_dtype
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.transcript import encode_set
from secagg.distributed_dp import read_noise_terms
from secagg.protocol import context, share_bundles
from secagg.protocol.client import handlers as client_rounds
from secagg.protocol.client.checks import RosterView
from secagg.protocol.events import InputReady, NoisyVector, PlainVector, Received, Send
from secagg.protocol.graphs.neighbours import sharing_graph
from secagg.protocol.messages import (
    BUNDLE_BYTES,
    Bundles,
    Delivery,
    Envelope,
    Quorum,
    Roster,
    RosterFrame,
    Round,
    Survivors,
)
from secagg.protocol.rounds import rounds_of
from secagg.simulation.driver import SessionResult, identity_of, run_session

MODULUS = 1 << 20


class ObservedSession(observed_session.ObservedSession):
    """An observed session that can be driven to where no real server goes."""

    def run(self, lost_before: Mapping[int, Round] | None = None) -> SessionResult:
        """Run to the end, as the real server does."""
        return run_session(self, lost_before)

    def reach(self, last: Round, lost: Mapping[int, Round] | None = None) -> None:
        """Run until all clients have sent their message of a round; leave that open."""
        for which in rounds_of(self.parameters.profile):
            self.play(
                which,
                [
                    n
                    for n in self.clients
                    if (lost or {}).get(n, Round.FINISHED) > which
                ],
            )
            if which is last:
                return
            self.close(which)

    def supply_input(self, number):
        """Hand a client its vector, with a noise share of nothing if one is wanted."""
        block, vector = self.parameters.noise_block, self.inputs[number]
        given = PlainVector(vector)
        if block:
            ctx2 = self.clients[number].delivered.ctx2
            given = NoisyVector(vector, block, ctx2)
        return self.to_client(number, InputReady(given))

    def ask(self, holders: Iterable[int], survivors: Iterable[int]) -> None:
        """Ask for shares as a server that checks nothing; only the ledger hears."""
        places = map(self.index_of, survivors)
        bitmap = encode_set(places, len(self.inputs))
        for number in holders:
            self.tell(number, Survivors(bitmap))

    def tell_share_holders(
        self,
        number: int,
        share_holders: Iterable[int],
        dealt: Mapping[int, Bundles] | None = None,
    ) -> None:
        """Tell a client a set U2 of one's choice, and let it mask its input.

        With `dealt`, the bundles of who is not in there are zeros.
        """
        others = [n for n in self.clients if n != number]
        if dealt is None:
            told = self.fetch(number).open().bundles
        else:
            told = b"".join(
                dealt[n].sealed[BUNDLE_BYTES * (number - (number > n)) :][:BUNDLE_BYTES]
                if n in dealt
                else bytes(BUNDLE_BYTES)
                for n in others
            )
        bundles = b"".join(
            told[BUNDLE_BYTES * place :][:BUNDLE_BYTES]
            for place, other in enumerate(others)
            if other in share_holders
        )
        bitmap = encode_set(share_holders, len(self.inputs))
        self.tell(number, Delivery(bitmap, bundles))
        for output in self.supply_input(number):
            self.message(number, output)

    def tell(self, number, message):
        """Say something to a client; only the ledger hears what it says to that."""
        return self.to_client(number, Received(Envelope.of(message)))

    def deal(self, dealer: int, roster: Roster, polynomials: Entropy) -> None:
        """Let a client, which has advertised, deal under a roster of one's choice."""
        state, frame = self.clients[dealer], RosterFrame.decode(roster.encode())
        keys, mask_keys, seed = client_rounds._own_secrets(state.facts, state.seed)
        view = RosterView(
            size=len(roster),
            index=[a.identity for a in roster.adverts].index(identity_of(dealer)),
            graph=sharing_graph(self.parameters, len(roster), roster.graph_seed),
            adverts=dict(enumerate(roster.adverts)),
            ctx1=context.roster_context(state.facts.ctx0, frame, self.parameters.suite),
        )
        dealing = share_bundles.deal(
            self.parameters,
            session_id=self.session_id,
            roster=view,
            encryption_keys=keys,
            mask_private_key=mask_keys.private_bytes,
            self_mask_seed=seed,
            polynomials=polynomials,
        )
        to = (self.session_id, identity_of(dealer))
        self.facts.on_roster(*to, roster.encode())
        self.facts.on_bundles(*to, dealing.bundles)

    def sign(self, numbers: Iterable[int], survivors: Iterable[int]) -> None:
        """Show clients a set U3, and those who sign it a quorum of what they sign."""
        bitmap, signatures = encode_set(survivors, len(self.inputs)), {}
        for number in numbers:
            for output in self.tell(number, Survivors(bitmap)):
                if isinstance(output, Send):
                    signatures[number] = output.envelope.open().signature
        known = self.server_state.roster_proofs
        others = sorted(set(survivors) - set(signatures))
        quorum = Quorum(
            tuple(sorted(signatures.items())), tuple(known[n] for n in others)
        )
        for number in signatures:
            self.tell(number, quorum)

    def held_shares(self, number: int) -> bytes:
        """Return the shares of others that a client holds until it has answered."""
        return b"".join(self.clients[number].delivered.held.pairs)

    def seed(self, number: int) -> SecretBytes:
        """Return the seed from which all secrets of a client derive."""
        return SecretBytes(self.seed_of(number))

    def names(self, numbers: Iterable[int]) -> frozenset[str]:
        """Return the names of clients."""
        return frozenset(map(identity_of, numbers))

    def sum_of(self, numbers: Iterable[int]) -> list[int]:
        """Add up inputs in the clear."""
        chosen = [self.inputs[number].tolist() for number in numbers]
        return [
            sum(column) % self.parameters.modulus
            for column in zip(*chosen, strict=True)
        ]


@pytest.fixture(scope="session")
def observe():
    """Return a function that makes an observed session of n clients.

    With `is_signed` it is of profile malicious-server, with the least threshold.
    """

    def observed(  # noqa: PLR0913 - what a session may differ in
        clients,
        *,
        threshold=None,
        facts=None,
        corrupt=(),
        garbage=None,
        number=1,
        ladder=None,
        is_signed=False,
        read_noise=read_noise_terms,
        **parameters,
    ):
        fields = {"dimension": 4, "modulus": MODULUS, "colluders": len(corrupt)}
        if is_signed:
            given = {} if threshold is None else {"threshold": threshold}
            fields |= given | parameters
            settings = signing_parameters_for(clients, **fields)
        else:
            fields |= {"min_clients": clients}
            fields |= {"min_survivors": max(threshold, len(corrupt) + 2)}
            fields |= parameters
            settings = parameters_for(clients, threshold=threshold, **fields)
        if ladder is not None:
            settings = with_noise(settings, ladder=ladder)
        return ObservedSession(
            settings,
            [_input(n, number, settings) for n in range(clients)],
            session_number=number,
            seed_of=lambda n: _digest(b"seed", n, number),
            facts=facts or Facts(),
            read_noise=read_noise,
            corrupt=frozenset(corrupt),
            garbage=garbage or {},
        )

    return observed


def _digest(what, client, session):
    return hashlib.sha256(what + b"%d/%d" % (client, session)).digest()


def _input(client, session, settings):
    """Return a vector that tells clients and sessions apart."""
    data = _digest(b"input", client, session)
    entries = [
        int.from_bytes(data[8 * i : 8 * i + 8], "big") % settings.modulus
        for i in range(settings.dimension)
    ]
    return np.array(entries, word_dtype(settings.modulus))
