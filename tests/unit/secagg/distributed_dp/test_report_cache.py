"""A task's privacy report is computed once per party, block and accountant."""

import json
from dataclasses import replace
from importlib import resources

import pytest
from secagg_testing.cohorts import noised_task, parameters_for

from secagg.distributed_dp import NoisyTask, PrivacyReport, report, report_cache
from secagg.distributed_dp.report_cache import (
    _sources,
    accounting_digest,
    privacy_report,
)
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.policy import PrivacyLimits


def task_for(steps: int) -> NoisyTask:
    return noised_task(parameters_for(3, dimension=4, threshold=3), steps=steps)


@pytest.fixture(scope="module")
def task():
    return task_for(1)


@pytest.fixture
def counted(monkeypatch):
    """Counts accountants that are asked, as in a process that has just started."""
    asked = []
    make = report.make_accountant

    def counting(name, **rest):
        asked.append(name)
        return make(name, **rest)

    monkeypatch.setattr(report, "make_accountant", counting)
    report.statement.cache_clear()
    return asked


def test_a_second_start_reads_the_report_from_the_cache(tmp_path, task, counted):
    first = privacy_report(task, tmp_path)
    assert counted
    counted.clear()
    report.statement.cache_clear()
    assert privacy_report(task, tmp_path) == first
    assert not counted


def test_a_different_block_or_accountant_is_computed_again(
    tmp_path, task, counted, monkeypatch
):
    first = privacy_report(task, tmp_path)
    other = privacy_report(task_for(2), tmp_path)
    assert other.server.epsilon != first.server.epsilon
    counted.clear()
    report.statement.cache_clear()
    assert privacy_report(task, tmp_path) == first
    assert not counted  # the directory keeps the reports of several tasks
    monkeypatch.setattr(report_cache, "_KEPT", 1)
    privacy_report(task_for(3), tmp_path)
    report.statement.cache_clear()
    assert privacy_report(task, tmp_path) == first
    assert len(counted) == 2  # and no more than it is allowed to
    counted.clear()
    report.statement.cache_clear()
    monkeypatch.setattr(report_cache, "accounting_digest", lambda: "repaired")
    privacy_report(task, tmp_path)
    assert counted


def test_a_change_of_any_accounting_source_changes_the_digest(tmp_path):
    found = accounting_digest()
    assert accounting_digest.__wrapped__() == found
    names = _sources(resources.files("dpnoise"), "dpnoise")[::2]
    for part in (
        "accounting/tradeoff/rounded_shift.py",
        "events.py",
        "mechanisms/noise_share.py",
    ):
        assert f"dpnoise/{part}" in names
    # One letter in a file below, a file more, and a file that is gone.
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "proof.py").write_text("bound = 1")
    seen = [_sources(tmp_path, "copy")]
    (tmp_path / "below" / "proof.py").write_text("bound = 2")
    seen.append(_sources(tmp_path, "copy"))
    (tmp_path / "more.py").write_text("")
    seen.append(_sources(tmp_path, "copy"))
    (tmp_path / "below" / "proof.py").unlink()
    seen.append(_sources(tmp_path, "copy"))
    assert len({tuple(each) for each in seen}) == 4


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"key": 1}', None])
def test_a_damaged_cache_is_recomputed(tmp_path, task, counted, content):
    first = privacy_report(task, tmp_path)
    path = tmp_path / "privacy-reports.json"
    document = json.loads(path.read_text())
    ((kept, _),) = document.values()
    kept["server"]["epsilon"] /= 2  # a figure that nothing else would doubt
    path.write_text(json.dumps(document) if content is None else content)
    counted.clear()
    report.statement.cache_clear()
    assert privacy_report(task, tmp_path) == first
    assert counted


def test_an_unwritable_cache_directory_is_ignored(tmp_path, task):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a directory is needed")
    assert privacy_report(task, blocked) == task.report()
    assert privacy_report(task, tmp_path, keep=False) == task.report()
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]


def test_a_report_without_a_guarantee_survives_json(task):
    report = task.report()
    hopeless = replace(report, server=replace(report.server, epsilon=float("inf")))
    for each in (report, hopeless):
        assert PrivacyReport.from_dict(json.loads(json.dumps(each.to_dict()))) == each


def test_limits_are_checked_by_the_report_that_is_given(task):
    report = task.report()
    policy = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    assert task.check(policy, report=report) is report
    for epsilon in (9.0, float("nan")):
        worse = replace(report, server=replace(report.server, epsilon=epsilon))
        with pytest.raises(RemoteProtocolError) as caught:
            task.check(policy, report=worse)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
