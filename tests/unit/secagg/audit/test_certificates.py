"""What noise a receipt claims is computed again from block and sets (R5.8-1)."""

import json
from dataclasses import replace
from fractions import Fraction

import pytest

from secagg.audit.verifier import ReceiptError, Step, verify_receipt
from secagg.distributed_dp import NoisedTask, noise_certificate, read_noise_terms
from secagg.errors import LocalProtocolError
from secagg.messages import Round
from secagg.noise_certificate import NoiseCertificate
from secagg.primitives.secret_bytes import SecretBytes
from secagg.protocol import client, server
from secagg.protocol.events import InputReady
from secagg.server.session_facts import SessionFacts
from secagg.simulation import InProcessSession, run_session
from secagg.testing.cohorts import parameters_for, with_noise

CLIENTS = 8
PARAMETERS = with_noise(
    parameters_for(CLIENTS, dimension=16, threshold=5, min_survivors=5), ladder=3
)


class FactualSession(InProcessSession):
    """A session with layers of noise whose facts are gathered as a server does."""

    def __post_init__(self):
        super().__post_init__()
        self.task = NoisedTask.from_parameters(self.parameters)
        self.facts = SessionFacts(self.descriptor, frozenset())

    def supply_input(self, number):
        seed = SecretBytes(self.seed_of(number))
        made = self.task.encode(
            [1.0] + [0.0] * 15,
            session_id=self.descriptor.session_id,
            secrets=client.noise_secrets(self.clients[number], seed),
        )
        return self.to_client(number, InputReady(made.vector))

    def step_server(self, event):
        before = self.server_state
        outputs = super().step_server(event)
        if type(before) is not type(self.server_state):
            self.facts.enter(before, self.server_state, outputs, seconds=1.0)
        return outputs


@pytest.fixture(name="receipt", scope="module")
def _receipt():
    session = FactualSession(PARAMETERS, [None] * CLIENTS)
    run_session(session, {7: Round.MASKED_INPUT_COLLECTION})
    assert isinstance(session.server_state, server.Completed)
    return session.facts.audit(session.server_state)


def verified(receipt):
    return verify_receipt(
        receipt.encode(), read_noise=read_noise_terms, certify=noise_certificate
    )


def test_the_certificate_of_a_sum_holds(receipt):
    certificate = NoiseCertificate.decode(verified(receipt).receipt.certificate)
    assert (certificate.sharers, certificate.losses) == (8, 1)
    assert certificate.given == (7,) * len(certificate.removed)
    assert certificate.removed
    assert certificate.suffices
    # What a client writes says nothing of what the server subtracted.
    own = replace(certificate, given=None)
    verified(replace(receipt, certificate=own.encode()))


@pytest.mark.parametrize(
    "change",
    [
        {"required": Fraction(1)},
        {"base": Fraction(1000)},
        {"colluders": 1},
        {"sharers": 9},
        {"survivors": 6},
        {"removed": (0,), "given": (7,)},
        {"layers": (Fraction(1),) * 4},
        {"given": "more"},
        {"given": "negative"},
    ],
    ids=str,
)
def test_any_other_certificate_is_refused(receipt, change):
    stated = NoiseCertificate.decode(receipt.certificate)
    counts = {"more": 8, "negative": -1}
    if change.get("given") in counts:
        change = {"given": (counts[change["given"]],) * len(stated.removed)}
    forged = replace(stated, **change).encode()
    with pytest.raises(ReceiptError) as caught:
        verified(replace(receipt, certificate=forged))
    assert caught.value.step is Step.CERTIFICATE


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"{", b"[" * 60_000, b"\xff"],
    ids=["none", "object", "list", "null", "cut", "deep", "bytes"],
)
def test_what_is_no_certificate_is_refused(receipt, data):
    with pytest.raises(ReceiptError) as caught:
        verified(replace(receipt, certificate=data))
    assert caught.value.step is Step.CERTIFICATE


def test_a_certificate_in_other_words_is_refused(receipt):
    fields = json.loads(receipt.certificate)
    for other in (
        json.dumps(fields).encode(),
        receipt.certificate.replace(b'"losses":1', b'"losses":1.0'),
        receipt.certificate.replace(b'"losses":1', b'"losses":2'),
    ):
        assert other != receipt.certificate
        with pytest.raises(ReceiptError) as caught:
            verified(replace(receipt, certificate=other))
        assert caught.value.step is Step.CERTIFICATE


def test_whoever_verifies_layers_says_how_to_compute_them(receipt):
    with pytest.raises(LocalProtocolError, match="taken back"):
        verify_receipt(receipt.encode(), read_noise=read_noise_terms)
