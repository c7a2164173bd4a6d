"""The settings that the demo hands its aggregator."""

import pytest

from secagg.pki.key_files import key_text
from secagg.protocol.parameters import Graph
from secagg.protocol.profiles import Profile
from secagg.server.task.setup import prepare_task
from secagg.simulation.driver import simulated_trust
from secagg.testbed.demo.layout import DemoLayout, DemoPlan


@pytest.mark.parametrize("profile", Profile, ids=lambda profile: profile.label)
def test_every_profile_has_a_demo_that_tolerates_a_tenth_of_dropouts(tmp_path, profile):
    planned = DemoPlan(
        clients=10,
        steps=4,
        epsilon=6.0,
        delta=1e-5,
        mechanism="skellam",
        round_seconds=3,
        join_seconds=12,
        profile=profile,
        enrolment_key=key_text(simulated_trust().enrolment_key),
    )
    settings = DemoLayout(tmp_path).write_settings(planned.settings())
    parameters = prepare_task(settings).parameters
    assert parameters.profile is profile
    assert parameters.graph is planned.graph
    assert parameters.graph is (Graph.K_OUT if profile == 3 else Graph.COMPLETE)
    assert parameters.noise_layers
    assert parameters.max_dropouts == 1
    assert parameters.max_omitted(10) == 0
