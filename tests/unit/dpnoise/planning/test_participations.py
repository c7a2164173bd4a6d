"""Noise is counted over the sessions of one client, and not over the sums of a task."""

import pytest

from dpnoise.errors import ParameterError
from dpnoise.events import Repeated
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import PlanRequest, plan

ASKED = {
    "clients": 20,
    "dimension": 8,
    "l2_clip": 1.0,
    "epsilon": 1.0,
    "delta": 1e-6,
    "mechanism": "skellam",
    "scale_factor": 64.0,
}


@pytest.mark.parametrize("spare", [0, 1])
def test_the_noise_covers_the_sessions_of_one_client(spare):
    some = plan(**ASKED, steps=40, participations=2, spare=spare)
    few = plan(**ASKED, steps=2 + spare)
    assert some.parameters == few.parameters
    assert some.statement_server == few.statement_server
    assert some.request.charges == few.request.charges == 2 + spare


def test_without_participations_all_sums_count():
    made = plan(**ASKED, steps=4, spare=1)
    assert (made.request.sums_of_one_client, made.request.charges) == (4, 5)
    event = make_mechanism(made.parameters).event()
    assert made.request.releases(event) == Repeated(event, 5)


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"steps": 4, "participations": 5}, "4"),
        ({"participations": 2}, "1"),
        ({"steps": 4, "participations": 0}, "1"),
        ({"spare": -1}, "0"),
    ],
)
def test_participations_cannot_exceed_the_sums(change, nearest):
    with pytest.raises(ParameterError) as refused:
        PlanRequest(**ASKED | change)
    assert refused.value.nearest == nearest


def test_a_plan_states_its_privacy_unit_and_the_number_of_clients():
    made = plan(**ASKED, steps=40, participations=3, spare=1)
    said = made.to_dict()
    unit = (
        "one client's data, in at most 4 sessions; which of them does not depend on "
        "its data or its noise"
    )
    assert made.privacy_unit == said["privacy_unit"] == unit
    assert unit in made.in_words
    assert (said["steps"], said["participations"], said["spare"]) == (40, 3, 1)
    # 40 sums of 20 vectors are 800 vectors, three of each client.
    assert any("at least 267 clients" in note for note in made.notes)
    assert not any("clients." in note for note in plan(**ASKED, steps=2).notes)
    assert "in at most 1 session; which one" in plan(**ASKED).privacy_unit
