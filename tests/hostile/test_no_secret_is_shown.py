"""A39: no secret in any repr or error of the cores, in raw, hex, decimal or base64."""

import base64
import re

import pytest
from secagg_testing.cohorts import RecordedSession, one_hot, parameters_for

from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import SHARE_SIZE
from secagg.errors import SecAggError
from secagg.protocol.client.handlers import _own_secrets
from secagg.protocol.events import Received
from secagg.protocol.messages import (
    Delivery,
    Envelope,
    Roster,
    Round,
    Shares,
    Survivors,
)
from secagg.protocol.parameters import Profile
from secagg.protocol.rounds import rounds_of
from secagg.simulation import run_session

CLIENT_ROUNDS = rounds_of(Profile.HONEST_CURIOUS_SERVER)

CLIENTS = 4


def renderings(secret):
    """Return every way in which bytes may end up in text."""
    return {
        secret.hex(),
        secret.hex().upper(),
        base64.b64encode(secret).decode(),
        base64.urlsafe_b64encode(secret).decode(),
        repr(secret)[2:-1],
        str(list(secret))[1:-1],
        str(int.from_bytes(secret, "big")),
        str(int.from_bytes(secret, "little")),
    }


def secrets_of(session):
    """Collect every secret that the session has ever held, from its journals."""
    found = {}
    for number, journal in session.client_journals.items():
        seed = journal[0].seed
        facts = session.facts[number]
        encryption, masking, self_mask = _own_secrets(facts, seed)
        found[f"seed {number}"] = seed.reveal()
        found[f"encryption key {number}"] = encryption.private_bytes.reveal()
        found[f"masking key {number}"] = masking.private_bytes.reveal()
        found[f"self-mask seed {number}"] = self_mask.reveal()
    for number, held in session.held.items():
        for dealer, pair in zip(held.dealers, held.pairs, strict=True):
            found[f"key share of {dealer} at {number}"] = pair[:SHARE_SIZE]
            found[f"seed share of {dealer} at {number}"] = pair[SHARE_SIZE:]
    return found


class Watched(RecordedSession):
    """Writes down the repr of everything that passes."""

    def __post_init__(self):
        self.text, self.facts, self.held = [], {}, {}
        super().__post_init__()

    def step_server(self, event):
        self.text.append(repr(event))
        outputs = super().step_server(event)
        self.text += [repr(self.server_state), repr(outputs)]
        return outputs

    def to_client(self, number, event):
        self.text.append(repr(event))
        try:
            outputs = super().to_client(number, event)
        except SecAggError as error:
            self.text += [repr(error), str(error), error.next_step]
            raise
        state = self.clients[number]
        self.text += [repr(state), repr(outputs), str(state)]
        if hasattr(state, "facts"):
            self.facts[number] = state.facts
        if hasattr(state, "delivered"):
            self.held[number] = state.delivered.held
        return outputs


@pytest.fixture(name="session")
def _session():
    return Watched(
        parameters_for(CLIENTS, dimension=64, threshold=2, modulus=1 << 32),
        [one_hot(number, 64, 1 << 32) for number in range(CLIENTS)],
    )


def assert_clean(session):
    text = "\n".join(session.text)
    secrets = secrets_of(session)
    assert len(secrets) >= 4 * CLIENTS
    for name, secret in secrets.items():
        for rendering in renderings(secret):
            assert rendering not in text, name


def test_a_full_run_with_dropouts_prints_no_secret(session):
    result = run_session(session, {3: Round.MASKED_INPUT_COLLECTION})
    assert result.total is not None
    assert session.held
    assert_clean(session)


def test_forced_errors_in_every_round_print_no_secret(session):
    for which in CLIENT_ROUNDS:
        session.play(which)
        if which is Round.MASKED_INPUT_COLLECTION:
            session.inputs[0] = one_hot(9, 64, 1 << 32)
            with pytest.raises(SecAggError):
                session.supply_input(0)
        session.close(which)
    for number, kind in enumerate((Roster, Delivery, Survivors)):
        session.to_client(number, Received(Envelope(kind, b"\xff")))
    assert_clean(session)


def test_the_search_would_find_a_secret(session):
    """The test can fail: print one secret on purpose."""
    run_session(session)
    session.text.append(f"debug: {session.client_journals[0][0].seed.reveal().hex()}")
    with pytest.raises(AssertionError, match="seed 0"):
        assert_clean(session)


def test_values_that_hold_secrets_redact_them():
    pair = KeyPair.from_private_bytes(SecretBytes(bytes(range(32))))
    shown = f"{pair!r} {pair.private_bytes!r} {pair.private_bytes}"
    assert not re.search("000102|AAEC", shown)
    shown = repr(Shares(b"revealed shares")) + repr(
        Envelope(Shares, b"revealed shares")
    )
    assert "revealed shares" not in shown
