"""A kit that catches nothing proves nothing: its cases catch each planted fault."""

import planted_faults
import pytest

from secagg.distributed_dp import reader, report


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    """What was computed with a fault is not what later tests are given."""
    yield
    report.statement.cache_clear()
    reader.read_noise_terms.cache_clear()


@pytest.mark.parametrize("plant", planted_faults.FAULTS, ids=lambda each: each.__name__)
def test_each_planted_fault_is_detected_by_a_case_of_its_rule(plant, play):
    fault = plant()
    verdicts = play(rule=fault.rule, make=fault.driver, patches=fault.patches)
    assert fault.fired, "the fault was never reached"
    assert any(each.is_bad for each in verdicts), "no case of its rule has noticed it"


def test_there_are_forty_faults_of_many_rules():
    rules = {plant().rule for plant in planted_faults.FAULTS}
    assert len(planted_faults.FAULTS) >= 40
    assert len(rules) >= 30
