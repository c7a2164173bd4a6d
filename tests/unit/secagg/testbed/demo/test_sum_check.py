import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from secagg.crypto.modular import word_dtype
from secagg.runtime.vector_files import write_vector
from secagg.testbed.demo.layout import DemoLayout
from secagg.testbed.demo.model import Shard, SoftmaxModel
from secagg.testbed.demo.sum_check import check_session
from secagg.testbed.demo.trainer import _Trainer
from secagg.testbed.run_folder import client_name

MODULUS = 1 << 8
WORD = word_dtype(MODULUS)
PARAMETERS = parameters_for(4, dimension=5, threshold=2, modulus=MODULUS)
TEST = Shard(np.eye(65)[:4], np.zeros(4, np.int64))


@pytest.fixture
def layout(tmp_path):
    layout = DemoLayout(tmp_path)
    for client in (1, 2, 3):
        vector = np.full(5, 100 + client, WORD)
        write_vector(layout.audit(client_name(client), 1), vector)
    write_vector(layout.model(1), SoftmaxModel.initial().weights)
    return layout


@pytest.fixture
def check(layout, capsys):
    """Check a sum by what the aggregator's process says of it."""

    def check(released, *, dropped=(), inputs=3):
        write_vector(layout.residues(1), np.array(released, WORD))
        noise = SimpleNamespace(share_holders=4, removed=())
        given = SimpleNamespace(
            session_number=1,
            inputs=inputs,
            receipt=SimpleNamespace(noise=noise),
            l2_clip=1.5,
            fitted=None,
            standard_error=0.25,
        )
        asyncio.run(_Trainer(layout).apply_sum(given))
        return check_session(
            layout,
            1,
            clients=4,
            dropped=dropped,
            claimed=json.loads(capsys.readouterr().out),
            parameters=PARAMETERS,
            test=TEST,
        )

    return check


def lost(name, where):
    return {"name": name, "round": where, "reason": "gone"}


def test_a_sum_of_all_inputs_modulo_m_is_exact(check):
    result = check([(101 + 102 + 103) % MODULUS] * 5)
    assert result.is_exact
    assert result.survivors == 3
    assert (result.l2_clip, result.fitted) == (1.5, None)
    assert result.standard_error == 0.25


def test_one_wrong_entry_is_detected(check):
    released = [(101 + 102 + 103) % MODULUS] * 5
    released[3] += 1
    assert not check(released).is_exact


def test_a_client_lost_before_its_upload_is_not_in_the_sum(check):
    dropped = (lost("client-2", "MASKED_INPUT_COLLECTION"),)
    assert check([101 + 103] * 5, dropped=dropped, inputs=2).is_exact
    whole = [(101 + 102 + 103) % MODULUS] * 5
    assert not check(whole, dropped=dropped, inputs=2).is_exact


def test_a_client_lost_after_its_upload_is_in_the_sum(check):
    dropped = (lost("client-2", "UNMASKING"),)
    assert check([(101 + 102 + 103) % MODULUS] * 5, dropped=dropped).is_exact


def test_a_wrong_number_of_inputs_is_detected(check):
    assert not check([(101 + 102 + 103) % MODULUS] * 5, inputs=4).is_exact
