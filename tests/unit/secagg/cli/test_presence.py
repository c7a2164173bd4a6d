"""How many devices a plan expects in the rounds after joining."""

import math

import pytest
from typer.testing import CliRunner

from secagg.cli.app import command_line
from secagg.cli.plan import Presence

# Simulated: 200 devices, stays of 10 minutes, 300 runs a row; part of the roster summed
# after three rounds, for the part of the time that a device is present.
SIMULATED = [
    (60, 0.2, 0.77),
    (60, 0.5, 0.78),
    (60, 0.7, 0.81),
    (60, 0.9, 0.92),
    (300, 0.7, 0.80),
    (300, 0.9, 1.0),
    (3600, 0.3, 0.85),
    (3600, 0.5, 1.0),
]


@pytest.mark.parametrize(("lasts", "part", "summed"), SIMULATED)
def test_the_model_agrees_with_a_simulation(lasts, part, summed):
    away = 600 * (1 - part) / part
    assert math.isclose(Presence(600, away, lasts).share(3), summed, abs_tol=0.03)


@pytest.mark.parametrize(("lasts", "part"), [(300, 0.2), (300, 0.5), (3600, 0.2)])
def test_rounds_of_intermediate_length_lose_more_than_a_third(lasts, part):
    away = 600 * (1 - part) / part
    devices = Presence(600, away, lasts)
    assert devices.share(3) < 2 / 3
    said = devices.sentences(clients=200, min_survivors=134)
    assert "without a sum" in said[1]


def test_a_round_of_suitable_length_causes_no_warning():
    said = Presence(600, 600, 6 * 3600).sentences(clients=100, min_survivors=90)
    (needed,) = said
    assert needed.startswith("90 of 100 devices must be present in each of 4 rounds")
    assert needed.endswith("expect 99 in all of them.")


def test_few_losses_at_intermediate_length_cause_a_warning_too():
    said = Presence(600, 66, 300).sentences(clients=100, min_survivors=70)
    assert "pass by" in said[1]


PLAN = ["plan", "--clients", "100", "--dimension", "16", "--l2-clip", "1"]
PLAN += ["--epsilon", "1", "--delta", "1e-5", "--min-survivors", "70"]


def test_a_plan_states_how_many_devices_must_be_present():
    given = ["--presence", "600", "--absence", "600", "--round-seconds", "300"]
    done = CliRunner().invoke(command_line(), [*PLAN, *given])
    assert done.exit_code == 0
    printed = " ".join(done.output.split())
    assert "70 of 100 devices must be present" in printed
    assert "without a sum" in printed


@pytest.mark.parametrize(
    "given",
    [["--presence", "600"], ["--absence", "1"], ["--presence", "0", "--absence", "1"]],
)
def test_an_incomplete_presence_option_is_rejected(given):
    done = CliRunner().invoke(command_line(), [*PLAN, *given])
    assert done.exit_code != 0
    assert "--presence" in done.output + str(done.exception)
