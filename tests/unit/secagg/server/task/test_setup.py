import math
from dataclasses import replace
from pathlib import Path

import pytest
from secagg_testing.crash_points import CrashingStore, CrashSwitch
from secagg_testing.inline_store import answer_of, inline_store

from secagg.config import load_server_settings
from secagg.distributed_dp import NoisyTask, plan, report
from secagg.errors import ErrorCode, ServiceError
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.protocol.profiles import Profile
from secagg.server.task.setup import Cohort, PreparedTask, prepare_task, settle_task
from secagg.server.task.stored import decode_settings, encode_settings, lookup, row_of
from secagg.simulation.in_process import InProcessEnrolment
from secagg.storage.changes import PutTask
from secagg.storage.queries import ListTasks
from secagg.storage.rows import Task, TaskState

BASE = """
[tls]
ca = "ca.pem"
certificate = "server.pem"
key = "server.key"
[task]
id = "t"
steps = 2
[vector]
dimension = 6
[cohort]
min_clients = 8
max_clients = 10
min_survivors = 7
"""
NOISE = (
    BASE + '[noise]\nmechanism = "skellam"\nepsilon = 4.0\ndelta = 1e-5\nl2_clip = 1.0'
)
EXACT = BASE + f'[noise]\nnone = "{NO_NOISE_ACKNOWLEDGEMENT}"\n'


def prepare(tmp_path: Path, text: str, *overrides: str):
    path = tmp_path / "server.toml"
    path.write_text(text)
    return prepare_task(
        load_server_settings(path, environment={}, overrides=overrides).settings
    )


def test_a_task_of_counts_requires_no_clip(tmp_path):
    text = BASE + (
        '[noise]\nmechanism = "skellam-counts"\nepsilon = 4.0\ndelta = 1e-5\n'
        "max_nonzero = 1\n"
    )
    noised = prepare(tmp_path, text).noised
    given = noised.mechanism.parameters
    assert (given.max_nonzero, given.linf_bound, given.signed) == (1, 1, False)
    assert noised.budget.accountant == "lattice-pld"
    # What a client reads from the session is what was planned.
    offered = NoisyTask.from_parameters(noised.parameters)
    assert offered.mechanism.parameters == given
    assert offered.report().server.epsilon <= 4.0
    ballot = prepare(tmp_path, text, "noise.max_nonzero=3", "noise.signed=true")
    assert ballot.noised.mechanism.parameters.signed


def test_the_stated_error_includes_noise_that_is_not_removed(tmp_path):
    prepared = prepare(tmp_path, NOISE)
    given = prepared.noised.mechanism.parameters
    rule, unit = given.noise_rule, given.scale_factor
    arriving = max(n * rule.session(n).upload for n in range(7, 11))
    kept = 10 * rule.session(10).remaining(0)
    stated = prepared.noised.sum_error(inputs=10, certificate=None).standard_error
    assert stated >= math.sqrt(arriving) / unit
    assert stated > 1.2 * math.sqrt(kept) / unit


@pytest.mark.parametrize("mechanism", ["gaussian", "discrete-gaussian"])
def test_central_mechanisms_are_rejected_for_a_task(tmp_path, mechanism):
    with pytest.raises(
        ServiceError, match="whose noise a trusted party adds"
    ) as caught:
        prepare(tmp_path, NOISE, f"noise.mechanism={mechanism}")
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "two-aggregators" in caught.value.next_step


def test_an_accountant_without_a_theorem_names_its_setting(tmp_path):
    with pytest.raises(ServiceError, match="has no theorem") as caught:
        prepare(tmp_path, NOISE, "noise.accountant=log-concave-gdp")
    assert "noise.accountant" in caught.value.next_step


def test_noise_is_calibrated_for_min_survivors_and_all_sessions(tmp_path):
    prepared = prepare(tmp_path, NOISE)
    noised = prepared.noised
    assert noised is not None
    assert noised.mechanism.parameters.noise_rule.min_survivors == 7
    assert noised.report().counted_shares == 6
    assert noised.budget.participations == prepared.sums == 2
    assert noised.report().server.epsilon <= 4.0
    assert noised.budget.charges == 3
    assert prepared.parameters.noise_block
    assert prepared.parameters.dimension == noised.mechanism.encoded_dim


@pytest.mark.parametrize("quantile", [None, "0.5"])
def test_a_randomiser_requires_a_fixed_clip(tmp_path, quantile):
    words = ["noise.randomiser=privunit2", "noise.randomiser_epsilon=8"]
    if quantile is None:
        task = prepare(tmp_path, NOISE, *words).noised
        assert task.randomiser.parameters.epsilon == 8.0
        assert not task.mechanism.has_clip_flag
        return
    words.append(f"noise.clip_quantile={quantile}")
    with pytest.raises(ServiceError, match="exclude each other") as caught:
        prepare(tmp_path, NOISE, *words)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert "choose noise.l2_clip beforehand" in caught.value.next_step


@pytest.mark.parametrize(
    ("overrides", "spare"),
    [
        ([], 1),
        (["task.steps=20", "cohort.colluders=2"], 3),
        (["task.steps=21"], 2),
        (["task.attempts=1", "cohort.colluders=2"], 0),
        (["task.spare_sessions=4", "task.attempts=1"], 4),
        (["task.spare_sessions=0"], 0),
    ],
)
def test_spare_sessions_allow_retries_after_faults(tmp_path, overrides, spare):
    noised = prepare(tmp_path, NOISE, *overrides).noised
    assert noised.budget.spare == spare
    assert noised.report().server.epsilon <= 4.0


def test_unset_parameters_get_safe_defaults(tmp_path):
    parameters = prepare(tmp_path, EXACT).parameters
    assert parameters.threshold == 6  # one more than half of ten
    assert parameters.max_dropouts == 3
    assert parameters.modulus == 1 << 32
    on_ring = prepare(tmp_path, EXACT, "cohort.degree=6").parameters
    assert on_ring.threshold == 4


WIDE = EXACT.replace("min_clients = 8", "min_clients = 900").replace(
    "max_clients = 10", "max_clients = 1000"
).replace("min_survivors = 7", "min_survivors = 700\ncolluders = 100")  # fmt: skip


def test_the_degree_auto_is_the_smallest_safe_one(tmp_path):
    found = prepare(tmp_path, WIDE, "cohort.degree=auto").parameters
    assert (found.degree % 2, found.graph_bits) == (0, 40)
    assert 39 < found.threshold < 60 < found.degree < 140
    stricter = prepare(
        tmp_path, WIDE, "cohort.degree=auto", "cohort.graph_bits=80"
    ).parameters
    assert stricter.degree > found.degree
    # Another task's threshold asks for another degree.
    wanted = f"cohort.threshold={found.threshold + 5}"
    other = prepare(tmp_path, WIDE, "cohort.degree=auto", wanted).parameters
    assert (other.threshold, other.degree > found.degree) == (found.threshold + 5, True)
    # What was found is what an operator may write down, and one step less is refused.
    written = f"cohort.degree={found.degree}", f"cohort.threshold={found.threshold}"
    assert prepare(tmp_path, WIDE, *written).parameters == found
    fewer = f"cohort.threshold={found.threshold - 1}"
    with pytest.raises(ServiceError, match="threshold"):
        prepare(tmp_path, WIDE, written[0], fewer)


def test_a_degree_in_settings_is_a_number_or_auto(tmp_path):
    in_file = WIDE.replace("colluders = 100", 'colluders = 100\ndegree = "auto"')
    assert prepare(tmp_path, in_file).parameters.degree > 0
    with pytest.raises(ServiceError, match='whole number or "auto"'):
        prepare(tmp_path, WIDE.replace("colluders = 100", 'degree = "car"'))
    with pytest.raises(ServiceError, match='whole number or "auto"'):
        prepare(tmp_path, WIDE, "cohort.degree=")


def test_the_quorum_exceeds_min_survivors_by_the_omittable_clients():
    # R3.2-9
    parameters = Cohort(
        min_clients=132,
        max_clients=150,
        min_survivors=131,
        degree="auto",
        profile=Profile.MALICIOUS_SERVER_SPARSE,
        enrolment=InProcessEnrolment().published,
    ).parameters(dimension=4, modulus=1 << 16)
    parameters.validate()
    assert parameters.max_omitted(150) == 1
    assert parameters.quorum == 132


@pytest.mark.parametrize("degree", [0, "auto"])
def test_against_a_malicious_server_the_threshold_exceeds_half(degree):
    cohort = Cohort(
        min_clients=80,
        max_clients=100,
        min_survivors=65,
        colluders=9,
        degree=degree,
        profile=Profile.MALICIOUS_SERVER,
    )
    chosen = cohort._graph(max_losses=35)
    assert (chosen.degree, chosen.threshold) == (0, 55)  # 2 * 55 > 100 + 9
    with pytest.raises(ServiceError, match="at least 70 shares"):
        replace(cohort, colluders=39)._graph(max_losses=35)


def test_without_a_safe_ring_the_degree_auto_gives_the_complete_graph(tmp_path):
    parameters = prepare(tmp_path, EXACT, "cohort.degree=auto").parameters
    assert parameters.is_complete_graph
    assert (parameters.threshold, parameters.graph_bits) == (6, 0)
    with pytest.raises(ServiceError, match="fewer than two honest") as caught:
        prepare(tmp_path, EXACT, "cohort.degree=auto", "cohort.colluders=6")
    assert caught.value.code is ErrorCode.INFEASIBLE


def test_a_task_without_noise_has_no_noise_block(tmp_path):
    prepared = prepare(tmp_path, EXACT, "vector.modulus_bits=12")
    assert prepared.noised is None
    assert prepared.parameters.noise_block == b""
    assert prepared.parameters.modulus == 1 << 12


def test_the_payload_is_read_from_its_file(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"weights")
    text = EXACT.replace('id = "t"', 'id = "t"\npayload = "model.bin"')
    assert prepare(tmp_path, text).payload == b"weights"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["cohort.min_survivors=9"], "min_survivors"),
        (["cohort.threshold=8"], "threshold"),
        (["cohort.colluders=6"], "colluders|survivors"),
        (["cohort.degree=7"], "degree"),
        (["cohort.min_clients=12"], "min_clients"),
    ],
)
@pytest.mark.parametrize("text", [NOISE, EXACT], ids=["noise", "exact"])
def test_an_impossible_cohort_is_a_settings_error(tmp_path, text, overrides, expected):
    with pytest.raises(ServiceError, match=expected) as caught:
        prepare(tmp_path, text, *overrides)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    assert caught.value.next_step


@pytest.fixture(name="store")
def _store():
    return inline_store()


def settings_of(tmp_path, text, *overrides):
    path = tmp_path / "server.toml"
    path.write_text(text)
    overrides = [f"server.state_dir={tmp_path / 'state'}", *overrides]
    return load_server_settings(path, environment={}, overrides=overrides).settings


def test_a_restart_runs_the_same_task_without_a_new_plan(tmp_path, monkeypatch, store):
    def prepared(text, *overrides):
        settings = settings_of(tmp_path, text, *overrides)
        reports = settings.server.state_dir
        return answer_of(settle_task(settings.own_task, store, reports=reports))

    first = prepared(NOISE)

    def forbidden(*_, **__):
        raise AssertionError("planned again")

    monkeypatch.setattr("secagg.server.task.setup.plan", forbidden)
    # The accountant is not asked again either, and it would take as long.
    monkeypatch.setattr("secagg.distributed_dp.report.make_accountant", forbidden)
    report.statement.cache_clear()
    again = prepared(NOISE, "server.listen=127.0.0.1:1")
    assert again.parameters == first.parameters
    assert again.report == first.report
    with pytest.raises(AssertionError, match="planned again"):
        prepared(NOISE, "noise.epsilon=3.0")


def test_new_settings_of_a_task_replace_the_stored_plan(tmp_path, store):
    for dimension in (6, 7):
        settings = settings_of(tmp_path, EXACT, f"vector.dimension={dimension}")
        answer_of(settle_task(settings.own_task, store, reports=None))
    (row,) = answer_of(store.read(ListTasks()))
    assert row.version == 2
    assert lookup(row, settings.own_task).parameters.dimension == 7
    assert lookup(row, settings_of(tmp_path, EXACT).own_task) is None


def test_showing_a_task_writes_nothing(tmp_path):
    settings = settings_of(tmp_path, NOISE)
    state = settings.server.state_dir
    shown = prepare_task(settings, reports=state, keep=False)
    assert shown.report is not None
    assert not state.exists()


def test_an_unreadable_stored_plan_is_an_error(tmp_path, store):
    settings = settings_of(tmp_path, EXACT)
    text = encode_settings(settings.own_task)
    unreadable = Task("t", TaskState.RUNNING, text, b"{}")
    answer_of(store.commit(PutTask(unreadable, expect_version=0)))
    with pytest.raises(ServiceError, match="plan") as caught:
        answer_of(settle_task(settings.own_task, store, reports=None))
    assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_a_cohort_that_cannot_be_is_a_fault_of_the_settings(tmp_path):
    """And no misuse by a program, which would end the process of all other tasks."""
    settings = settings_of(tmp_path, EXACT, "cohort.quorum=2")
    with pytest.raises(ServiceError, match="no quorum of its own") as caught:
        prepare_task(settings)
    assert caught.value.code is ErrorCode.BAD_SETTINGS


def test_two_concurrent_starts_do_not_overwrite_each_others_plan(tmp_path, store):
    settings = settings_of(tmp_path, EXACT)

    class Racing(CrashingStore):
        async def read(self, query):
            return () if isinstance(query, ListTasks) else await super().read(query)

    answer_of(settle_task(settings.own_task, store, reports=None))
    racing = Racing(store, CrashSwitch())
    with pytest.raises(ServiceError, match="another operator or server"):
        answer_of(settle_task(settings.own_task, racing, reports=None))


def test_changes_of_clients_schedule_and_payload_need_no_new_plan(
    tmp_path, monkeypatch, store
):
    settings = settings_of(tmp_path, EXACT).own_task
    answer_of(settle_task(settings, store, reports=None))
    monkeypatch.setattr("secagg.server.task.setup._plan_task", lambda *_: 1 / 0)
    later = settings_of(
        tmp_path,
        EXACT,
        "task.invited=client-1,client-2",
        "task.schedule=every 1h",
        "task.window=5m",
        "task.ends=2030-01-01T00:00:00Z",
    ).own_task
    answer_of(settle_task(later, store, reports=None))
    row = answer_of(row_of(store, "t"))
    assert (row.version, row.task.settings) == (2, encode_settings(later))
    assert decode_settings(row.task) == later


def test_the_operator_state_of_a_task_survives_new_settings(tmp_path, store):
    settings = settings_of(tmp_path, EXACT).own_task
    answer_of(settle_task(settings, store, reports=None))
    (row,) = answer_of(store.read(ListTasks()))
    stopped = replace(row.task, state=TaskState.STOPPED, reason="enough")
    assert answer_of(store.commit(PutTask(stopped, expect_version=1)))
    longer = settings_of(tmp_path, EXACT, "task.steps=9").own_task
    answer_of(settle_task(longer, store, reports=None))
    (row,) = answer_of(store.read(ListTasks()))
    assert (row.task.state, row.task.reason) == (TaskState.STOPPED, "enough")


def test_stored_settings_of_another_release_are_an_error():
    for text in ("", "[]", '{"task": {"id": "t", "colour": "red"}}'):
        task = Task("t", TaskState.RUNNING, text, b"{}")
        with pytest.raises(ServiceError, match="stored settings") as caught:
            decode_settings(task)
        assert caught.value.code is ErrorCode.STORAGE_FAILED


def test_a_plan_without_a_cohort_uses_exactly_its_own_clients():
    made = plan(
        clients=5,
        min_survivors=4,
        colluders=1,
        dimension=4,
        l2_clip=1.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    cohort = Cohort(min_clients=5, max_clients=5, min_survivors=4, colluders=1)
    given = PreparedTask.from_plan(made, cohort)
    assert PreparedTask.from_plan(made).parameters == given.parameters
