"""Whatever is planned, a client with default settings checks, in bounded time.

Planner and client count an answer's cost by one rule; a block that a plan leads to is
read, let through by the guard, and costs at most the epsilon that was asked for. What
the guard would refuse is refused by the plan, in the same words.
"""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpnoise.accounting import MAX_ACCOUNTING_COST, accounting_cost, make_accountant
from dpnoise.errors import CalibrationError, ParameterError
from dpnoise.events import Adversary, Repeated
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import plan
from secagg.distributed_dp.noise_block import (
    NoiseBlock,
    NoiseBudget,
    bad_block,
    check_cost,
    decode_block,
)
from secagg.errors import RemoteProtocolError

# Two of its words are expensive alone: coordinates above a step, orders with selection.
COARSE = {
    "clients": 162,
    "dimension": 92_454_665,
    "epsilon": 2.2,
    "delta": 5.1e-4,
    "l2_clip": 1.0,
    "scale_factor": 0.0525,
    "linf_bound": Fraction(5919, 4096),
    "rotation": "dft",
    "selection_rate": Fraction(1, 892),
    "colluder_fraction": 0.119,
    "accountant": "mixture-rdp",
}


def log_uniform(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def requests(draw):
    rate = draw(st.sampled_from([None, Fraction(1, 8), Fraction(1, 600)]))
    names = [None, "mixture-gdp", "mixture-rdp", "mixture-pld"]
    asked = {
        "clients": round(draw(log_uniform(2, 1 << 20))),
        "dimension": round(draw(log_uniform(1, 1 << 24))),
        "l2_clip": 1.0,
        "epsilon": draw(log_uniform(0.02, 30.0)),
        "delta": draw(log_uniform(1e-11, 1e-4)),
        # Behind a coin what a Gaussian needs over many steps is a search of its own.
        "steps": 1 if rate else round(draw(log_uniform(1, 10_000))),
        "selection_rate": rate,
        "accountant": draw(st.sampled_from(names)),
    }
    if draw(st.booleans()):
        asked["scale_factor"] = draw(log_uniform(0.05, 64.0))
    if draw(st.booleans()):
        asked["linf_bound"] = Fraction(round(draw(log_uniform(1 << 10, 1 << 18))), 4096)
    return asked


def block_of(made):
    budget = NoiseBudget(
        epsilon=float(made.request.epsilon),
        delta=float(made.request.delta),
        participations=made.request.sums_of_one_client,
        spare=made.request.spare,
        accountant=made.accountant,
    )
    mechanism = make_mechanism(made.parameters)
    return NoiseBlock(
        mechanism=mechanism,
        budget=budget,
        selection_rate=made.request.selection,
        sampler="of no matter here",
    ).encode()


@given(asked=requests())
@example(asked=COARSE)
@settings(max_examples=8, derandomize=True)  # benchmarks/search_plans.py draws more
def test_a_client_confirms_the_epsilon_of_every_plan(asked):
    try:
        made = plan(**asked)
    except (ParameterError, CalibrationError):
        return  # that its advice is good is tested elsewhere
    block = decode_block(block_of(made))
    check_cost(block.mechanism, block.budget, block.selection_rate)
    account = make_accountant(block.budget.accountant, adversary=Adversary.SERVER)
    account.compose(Repeated(block.release, block.budget.charges))
    found = account.epsilon(block.budget.delta)
    assert found <= made.epsilon_server <= asked["epsilon"]


@pytest.mark.parametrize(
    ("accountant", "scale_factor", "rate"),
    [
        ("mixture-contour", 256.0, 1),
        ("mixture-pld", 2048.0, 1),
        ("mixture-rdp", 1024.0, 1),
        ("mixture-rdp", 64.0, Fraction(1, 100)),
    ],
)
def test_planner_and_client_check_reject_with_the_same_text(
    accountant, scale_factor, rate
):
    asked = {
        "clients": 100,
        "dimension": 32,
        "l2_clip": 1.0,
        "epsilon": 0.1,
        "delta": 1e-5,
        "scale_factor": scale_factor,
        "selection_rate": rate,
    }
    made = plan(**asked)
    mechanism = make_mechanism(made.parameters)
    budget = NoiseBudget(
        epsilon=0.1, delta=1e-5, participations=1, spare=0, accountant=accountant
    )
    with pytest.raises(RemoteProtocolError) as guarded:
        check_cost(mechanism, budget, Fraction(rate))
    cost = accounting_cost(mechanism.event(), accountant, delta=1e-5, rate=float(rate))
    assert cost > MAX_ACCOUNTING_COST
    with pytest.raises(ParameterError) as refused:
        plan(**asked, accountant=accountant)
    said, told = str(refused.value), str(guarded.value)
    cells = "table cells to check it"
    assert told.endswith(said[said.index(cells) :])
    assert told.startswith(str(bad_block(said))[: -len(said)] + accountant)
