"""Mechanisms and accountants that a program registers."""

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import dpnoise
import secagg
from dpnoise import bench
from dpnoise.accounting import Proof, Status, catalogue
from dpnoise.accounting.tradeoff.skellam_gdp import SkellamGDPAccountant
from dpnoise.errors import ParameterError
from dpnoise.events import SkellamEvent
from dpnoise.mechanisms import registry
from dpnoise.mechanisms.skellam import SkellamMechanism
from dpnoise.own_parts import register_own
from secagg import blocking
from secagg.distributed_dp import NoisyTask
from secagg.errors import ErrorCode


class Mine(SkellamMechanism):
    """Skellam under another name."""

    name: ClassVar[str] = "own-skellam"


class MyAccountant(SkellamGDPAccountant):
    """Claims more than its author can."""

    name = "own-gdp"


@pytest.fixture(autouse=True)
def own_parts(monkeypatch):
    """Register both, for one test alone."""
    monkeypatch.setattr(registry, "_OWN", {})
    monkeypatch.setattr(catalogue, "_OWN", {})
    monkeypatch.setattr(catalogue, "_OWN_ROWS", {})
    dpnoise.register_mechanism(Mine)
    dpnoise.register_accountant(MyAccountant, covers=[SkellamEvent])


ASKED = {
    "clients": 3,
    "dimension": 4,
    "l2_clip": 2.0,
    "epsilon": 8.0,
    "delta": 1e-6,
    "bits": 24,
    "scale_factor": 1000.0,
}


@pytest.mark.parametrize(
    "named",
    [
        {"mechanism": "own-skellam"},
        {"mechanism": "skellam", "accountant": "own-gdp"},
        {"mechanism": "own-skellam", "accountant": "own-gdp"},
    ],
)
def test_registered_parts_are_labelled_and_accepted_on_request(named, tmp_path):
    plan = secagg.plan(**ASKED, **named)
    stated = plan.statement_server
    assert stated.status is Status.NUMERICAL
    assert stated.proof is Proof.OWN
    assert stated.epsilon <= 8.0
    task = secagg.PreparedTask.from_plan(plan)
    assert task.report.server.grounds == "numerical (own proof)"
    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-6)
    opened = {"clients": 3, "ledger": tmp_path}
    with (
        blocking.local(task, privacy_limits=limits, **opened) as people,
        pytest.raises(secagg.RemoteProtocolError, match="numerical"),
    ):
        people.sum([[0.5] * 4] * 3)
    asked = secagg.PrivacyLimits(
        max_epsilon=8.0, max_delta=1e-6, statuses={"proven", "certified", "numerical"}
    )
    with blocking.local(task, privacy_limits=asked, **opened) as people:
        assert people.sum([[0.5] * 4] * 3).privacy.server.proof is Proof.OWN
    assert not list(tmp_path.rglob("privacy-reports.json"))


def test_an_offer_with_parts_the_client_has_not_registered_is_rejected():
    """The block comes from a program that has registered both parts."""
    named = {"mechanism": "own-skellam", "accountant": "own-gdp"}
    made = secagg.plan(**ASKED, **named)
    server = secagg.StepServer(made, aggregator="hub", task_id="a", session_number=1)
    known = NoisyTask.from_parameters(server.descriptor.parameters)
    assert known.report().server.accountant == "own-gdp"
    client = """
import sys
import secagg
limits = secagg.PrivacyLimits(
    max_epsilon=8.0, max_delta=1e-6, statuses={"proven", "certified", "numerical"}
)
with secagg.StepClient(
    "ann", aggregator="hub", privacy_limits=limits, tasks=["a"], state_dir=None
) as ann:
    try:
        ann.step(sys.stdin.buffer.read())
    except secagg.RemoteProtocolError as error:
        sys.exit(f"{error.code.name} {error}")
"""
    done = subprocess.run(
        [sys.executable, "-c", client],
        input=server.offer,
        capture_output=True,
        check=False,
    )
    refusal = done.stderr.decode()
    assert refusal.startswith(ErrorCode.BAD_CONFIG.name), refusal
    assert "own-skellam" in refusal


def test_registered_parts_cannot_replace_existing_names():
    assert dpnoise.mechanism_names()[-1] == "own-skellam"
    assert dpnoise.accountant_names()[-1] == "own-gdp"
    assert dpnoise.register_mechanism(Mine) is Mine
    other = type("Other", (SkellamMechanism,), {"name": "own-skellam"})
    with pytest.raises(ParameterError, match="choose another"):
        dpnoise.register_mechanism(other)
    for name in ("skellam", "own-", "own-A", "own-a\n", "own-" + "a" * 61, "xown-a", 3):
        named = type("Named", (SkellamMechanism,), {"name": name})
        with pytest.raises(ParameterError, match="begins with own-"):
            dpnoise.register_mechanism(named)
        with pytest.raises(ParameterError, match="begins with own-"):
            register_own({}, name, named)
    for part in (3, object, "own-skellam"):
        with pytest.raises(ParameterError, match="derives from"):
            dpnoise.register_mechanism(part)
        with pytest.raises(ParameterError, match="derives from"):
            dpnoise.register_accountant(part, covers=[])
    assert "own-gdp" not in secagg.plan(**ASKED, mechanism="skellam").accountant


@pytest.mark.parametrize(
    "named", [{"mechanism": "own-skellan"}, {"accountant": "own-gdb"}]
)
def test_an_error_does_not_list_registered_parts(named):
    """It may go to the peer whose offer is refused."""
    with pytest.raises(secagg.LocalProtocolError) as caught:
        secagg.plan(**ASKED, **named)
    texts = str(caught.value) + caught.value.next_step
    assert "own-skellam" not in texts
    assert "own-gdp" not in texts


def test_experiments_run_with_a_registered_mechanism():
    told = []
    table = bench.compare(
        mechanisms=["own-skellam"],
        epsilons=[8.0],
        clients=3,
        dimension=4,
        delta=1e-6,
        seed=bytes(32),
        repeats=2,
        on_progress=lambda done, of: told.append((done, of)),
    )
    assert not table.rows[0].refused
    assert told == [(1, 2), (2, 2)]
    mechanism = dpnoise.make_mechanism(secagg.plan(**ASKED).parameters)
    assert bench.noisy_sum(mechanism, np.ones((3, 4)), seed=bytes(32)).shape == (4,)


def test_the_python_of_the_page_runs(capsys):
    page = Path(__file__).parents[3] / "docs" / "mechanisms.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(block, page.name, "exec"), {})
    assert capsys.readouterr().out == "numerical (own proof)\n"
