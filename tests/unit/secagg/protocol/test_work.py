"""Work is done once: per round for all clients, per message, never per question."""

import subprocess
import sys

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.protocol.messages import Round
from secagg.protocol.parameters import Profile
from secagg.protocol.rounds import rounds_of
from secagg.protocol.server import machine as server
from secagg.protocol.share_bundles import SharesAnswer
from secagg.simulation import InProcessSession, identity_of

CLIENT_ROUNDS = rounds_of(Profile.HONEST_CURIOUS_SERVER)

CLIENTS = 5


@pytest.fixture
def session():
    parameters = parameters_for(CLIENTS, dimension=4, threshold=3)
    return InProcessSession(parameters, [np.zeros(4, np.uint32)] * CLIENTS)


def open_round(session, wanted):
    for which in CLIENT_ROUNDS:
        if which is wanted:
            return
        session.play(which)
        session.close(which)


@pytest.mark.parametrize("which", [Round.SHARE_KEYS, Round.UNMASKING])
def test_an_update_for_all_clients_is_encoded_once(session, which):
    open_round(session, which)
    first, *others = (
        server.update_for(session.server_state, identity_of(number))
        for number in range(CLIENTS)
    )
    assert all(other is first for other in others)


def test_the_set_of_share_holders_is_encoded_once(session, monkeypatch):
    open_round(session, Round.MASKED_INPUT_COLLECTION)
    monkeypatch.setattr("numpy.packbits", None)
    for number in range(CLIENTS):
        update = server.update_for(session.server_state, identity_of(number))
        assert update.open().share_holders == bytes([0b11111])


def test_an_answer_is_decoded_once(session, monkeypatch):
    parsed, parse = [], SharesAnswer.parse.__func__

    def counted(cls, *args, **kwargs):
        parsed.append(args)
        return parse(cls, *args, **kwargs)

    monkeypatch.setattr(SharesAnswer, "parse", classmethod(counted))
    open_round(session, Round.UNMASKING)
    session.play(Round.UNMASKING)
    session.play(Round.UNMASKING)  # repeated
    session.close(Round.UNMASKING)
    assert session.total is not None
    assert len(parsed) == CLIENTS


def test_the_first_polynomial_of_a_client_imports_nothing():
    program = (
        "import sys\n"
        "import numpy as np\n"
        "from secagg.crypto.shamir import check_abscissae\n"
        "before = set(sys.modules)\n"
        "check_abscissae(np.arange(1, 100))\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
