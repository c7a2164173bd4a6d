"""An aggregator and its clients in one process keep the limits of the product."""

import warnings
from functools import cache

import numpy as np
import pytest

import secagg
from secagg import advanced

COHORT = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)


@cache
def prepared(epsilon=8.0, steps=1):
    made = secagg.plan(
        clients=3,
        dimension=4,
        l2_clip=2.0,
        epsilon=epsilon,
        delta=1e-5,
        steps=steps,
        mechanism="skellam",
    )
    return secagg.PreparedTask.from_plan(made, COHORT)


async def test_sums_run_one_after_another():
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    async with secagg.local(
        prepared(steps=2), clients=3, privacy_limits=privacy_limits
    ) as cohort:
        for number in (1, 2):
            total = await cohort.sum([np.ones(4)] * 3)
            assert (total.session_number, total.inputs) == (number, 3)
            assert total.values.shape == (4,)
            assert total.privacy.server.epsilon <= 8.0
        with pytest.raises(secagg.LocalProtocolError, match="all its sums"):
            await cohort.sum([np.ones(4)] * 3)


async def test_a_task_below_the_limits_is_rejected_in_process():
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    async with secagg.local(
        prepared(40.0), clients=3, privacy_limits=privacy_limits
    ) as cohort:
        with pytest.raises(secagg.RemoteProtocolError) as caught:
            await cohort.sum([np.ones(4)] * 3)
    assert caught.value.code is secagg.ErrorCode.POLICY_VIOLATION


async def test_clients_accept_the_claims_of_the_task_and_no_weaker_ones():
    async with secagg.local(prepared()) as cohort:
        assert len(cohort.clients) == 3
        for client in cohort.clients:
            limits = client._privacy_limits
            assert (limits.max_epsilon, limits.max_delta) == (8.0, 1e-5)


async def test_the_number_of_vectors_must_match_the_number_of_clients():
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    async with secagg.local(
        prepared(), clients=3, privacy_limits=privacy_limits
    ) as cohort:
        with pytest.raises(secagg.LocalProtocolError, match="2 vectors"):
            await cohort.sum([np.ones(4)] * 2)


async def test_server_and_clients_report_the_same_noise_of_a_sum(monkeypatch):
    made = secagg.plan(
        clients=4,
        dimension=1000,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        min_survivors=3,
        ladder=2,
    )
    planned = secagg.Cohort(min_clients=3, max_clients=4, min_survivors=3)
    task = secagg.PreparedTask.from_plan(made, planned)
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    contribute, got = secagg.Client.contribute, []

    async def watched(client, vector):
        got.append(await contribute(client, vector))
        return got[-1]

    monkeypatch.setattr(secagg.Client, "contribute", watched)
    async with secagg.local(task, clients=4, privacy_limits=privacy_limits) as cohort:
        released = await cohort.sum([np.ones(1000) / 16] * 4)
    noise = released.receipt.noise
    # No client was lost: all layers are taken back, and v/3 is left of v/2.
    assert (noise.share_holders, noise.survivors, noise.removed) == (4, 4, (0, 1, 2))
    assert noise.given == (4, 4, 4)
    assert noise.required <= noise.present < noise.required * 1.0001
    assert noise.total == 4 * noise.base
    assert advanced.NoiseCertificate.from_dict(noise.to_dict()) == noise
    for contribution in got:
        assert contribution.noise.present == noise.present
        assert contribution.noise.given is None
    # Five deviations of the mean of 1000 squared normals: false alarms 5.7e-7.
    scale = made.parameters.scale_factor
    measured = np.mean((scale * (released.values - 4 / 16)) ** 2)
    expected = float(noise.total) + 1.0  # rounding adds up to a quarter each
    assert abs(measured / expected - 1) < 5 * np.sqrt(2 / 1000) + 1.0 / expected


@pytest.mark.parametrize("clients", [2, 4])
async def test_the_number_of_clients_must_match_the_cohort(clients):
    """Fewer would wait for others for ever, more for a place."""
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    with pytest.raises(secagg.LocalProtocolError, match=f"not {clients}"):
        async with secagg.local(
            prepared(), clients=clients, privacy_limits=privacy_limits
        ):
            pass


async def test_enrolled_clients_of_one_process_do_not_rely_on_the_server():
    cohort_enrolment = advanced.InProcessEnrolment()
    made = secagg.plan(
        clients=4,
        dimension=4,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        colluder_fraction=0.1,
    )
    cohort = secagg.Cohort(
        profile=secagg.Profile.MALICIOUS_SERVER,
        enrolment=cohort_enrolment.published,
        min_clients=4,
        max_clients=4,
        min_survivors=4,
    )
    task = secagg.PreparedTask.from_plan(made, cohort)
    assert task.parameters.threshold == 3  # 2t > n + c
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    opened = secagg.local(
        task, clients=4, privacy_limits=privacy_limits, enrolment=cohort_enrolment
    )
    async with opened as people:
        total = await people.sum([np.ones(4)] * 4)
    assert total.inputs == 4
    for other in (None, advanced.InProcessEnrolment()):
        with pytest.raises(secagg.LocalProtocolError, match="another enrolment"):
            async with secagg.local(
                task, clients=4, privacy_limits=privacy_limits, enrolment=other
            ):
                pass


def sparse_cohort(cohort_enrolment, **changes):
    fields = {
        "profile": secagg.Profile.MALICIOUS_SERVER_SPARSE,
        "enrolment": cohort_enrolment.published,
        "degree": "auto",
        "min_clients": 8,
        "max_clients": 8,
        "min_survivors": 7,
    }
    return secagg.Cohort(**fields | changes)


async def test_clients_of_one_process_draw_their_neighbours():
    cohort_enrolment = advanced.InProcessEnrolment()
    made = secagg.plan(
        clients=8,
        dimension=4,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
        min_survivors=7,
        colluder_fraction=0.1,
        ladder=2,
    )
    task = secagg.PreparedTask.from_plan(made, sparse_cohort(cohort_enrolment))
    parameters = task.parameters
    assert parameters.graph is advanced.Graph.K_OUT
    assert parameters.threshold <= parameters.degree < 8
    assert parameters.quorum == 7
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-4)
    opened = secagg.local(
        task, clients=8, privacy_limits=privacy_limits, enrolment=cohort_enrolment
    )
    async with opened as people:
        total = await people.sum([np.ones(4)] * 8)
    assert total.inputs == 8
    # Of the sum as of every contribution: whose proof the figure rests on.
    assert total.privacy.server.grounds == "certified (own proof)"
    assert "(own proof)" in total.privacy.lines()[1]
    assert total.privacy.to_dict()["server"]["proof"] == "own"


def test_options_of_drawn_neighbours_are_rejected_elsewhere():
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    cohort_enrolment = advanced.InProcessEnrolment()

    def exact(**changes):
        cohort = sparse_cohort(cohort_enrolment, **changes)
        return secagg.PreparedTask.exact(waiver, cohort, dimension=4).parameters

    assert exact(quorum=8).quorum == 8
    assert exact(degree=5).degree == 5
    with pytest.raises(secagg.RemoteProtocolError, match="quorum"):
        exact(quorum=6)
    for degree in (0, 8, 20):
        with pytest.raises(secagg.ServiceError, match="degree"):
            exact(degree=degree)
    with pytest.raises(secagg.ServiceError, match="agree on the members of the sum"):
        exact(min_survivors=4)
    with pytest.raises(secagg.LocalProtocolError, match="no quorum"):
        exact(profile=secagg.Profile.MALICIOUS_SERVER, degree=0, quorum=7)


def test_profile_and_enrolment_of_a_cohort_must_match():
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    published = advanced.InProcessEnrolment().published
    for profile, enrolment in (
        (secagg.Profile.MALICIOUS_SERVER, None),
        (secagg.Profile.HONEST_CURIOUS_SERVER, published),
    ):
        cohort = secagg.Cohort(
            min_clients=3,
            max_clients=3,
            min_survivors=3,
            profile=profile,
            enrolment=enrolment,
        )
        with pytest.raises(secagg.LocalProtocolError, match=profile.label):
            secagg.PreparedTask.exact(waiver, cohort, dimension=4)


# --- vectors that cannot be used ------------------------------------------------------

LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)


class Short:
    """A sequence whose iteration is shorter than its length."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter([np.ones(4)] * 2)


class Table:
    """Iterates over the names of its columns, as a data frame does."""

    columns = ("a", "b", "c")

    def __iter__(self):
        return iter(self.columns)


def endless():
    while True:
        yield np.ones(4)


@pytest.mark.parametrize(
    ("vectors", "kind", "complaint"),
    [
        (Short(), secagg.LocalProtocolError, "2 vectors were passed for 3 clients"),
        (endless(), secagg.LocalProtocolError, "more vectors were passed for 3"),
        (None, secagg.LocalProtocolError, "NoneType is not a sequence"),
        (7, secagg.LocalProtocolError, "int is not a sequence"),
        ("abc", secagg.LocalProtocolError, "str is not a sequence"),
        (Table(), secagg.LocalProtocolError, "Table is not a sequence"),
        ({"a": [1] * 4, "b": [1] * 4, "c": 1}, secagg.InputError, "vector 1 of 3 is"),
        ([np.ones(4)] * 2 + [None], secagg.LocalProtocolError, "3 to 3 vectors, not 2"),
        ([np.ones(4)] * 2 + [[np.nan] * 4], secagg.InputError, "first at entry 0"),
        ([np.ones(4)] * 2 + [np.ones(5)], secagg.InputError, "5 entries"),
        ([np.ones(4)] * 2 + [[1 << 60] * 4], secagg.InputError, "float64 cannot hold"),
    ],
)
async def test_invalid_vectors_do_not_end_a_cohort(vectors, kind, complaint):
    async with secagg.local(prepared(), clients=3, privacy_limits=LIMITS) as cohort:
        with pytest.raises(kind, match=complaint) as caught:
            await cohort.sum(vectors)
        assert caught.value.next_step
        total = await cohort.sum(iter([np.ones(4)] * 3))
    assert (total.session_number, total.inputs) == (1, 3)
    assert (total.shortened, total.replaced) == (0, 0)


async def test_an_input_function_must_return_a_vector_and_no_coroutine():
    async def make(_):
        return np.ones(4)

    async with secagg.local(prepared(), clients=3, privacy_limits=LIMITS) as cohort:
        with pytest.raises(secagg.InputError, match="asynchronous"):
            await cohort.sum([make] * 3)
        assert (await cohort.sum([lambda _: np.ones(4)] * 3)).inputs == 3


async def test_failed_input_functions_are_counted():
    def fails(_):
        raise ZeroDivisionError

    made = [lambda _: np.ones(4), fails, lambda _: np.full(4, np.nan)]
    async with secagg.local(prepared(), clients=3, privacy_limits=LIMITS) as cohort:
        total = await cohort.sum(made)
    assert (total.inputs, total.shortened, total.replaced) == (3, 0, 2)
    with pytest.raises(secagg.LocalProtocolError, match="zeros replaced 2 of 3"):
        total.interval()


async def test_clipped_vectors_are_counted_and_warned_of():
    vectors = [np.ones(4), np.full(4, 10.0), np.full(4, 1e300)]
    async with secagg.local(prepared(), clients=3, privacy_limits=LIMITS) as cohort:
        with pytest.warns(advanced.ClippingWarning, match=r"2 of 3 .*l2_clip = 2\)"):
            total = await cohort.sum(vectors)
    assert (total.inputs, total.shortened, total.replaced) == (3, 2, 0)
    with pytest.raises(secagg.LocalProtocolError, match="2 of 3 vectors were shorten"):
        total.interval()


async def test_clipping_a_quarter_of_the_vectors_raises_no_warning():
    made = secagg.plan(
        clients=4,
        dimension=4,
        l2_clip=2.0,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam",
    )
    async with secagg.local(made) as cohort:
        total = await cohort.sum([*[np.ones(4)] * 3, np.full(4, 10.0)])
    assert (total.inputs, total.shortened) == (4, 1)


async def test_a_warning_raised_as_an_error_loses_no_sum():
    """It comes after the release, when the sum is charged."""
    vectors = [np.ones(4), np.full(4, 10.0), np.ones(4)]
    async with secagg.local(prepared(), clients=3, privacy_limits=LIMITS) as cohort:
        with (
            warnings.catch_warnings(action="error"),
            pytest.raises(advanced.ClippingWarning, match="1 of 3") as caught,
        ):
            await cohort.sum(vectors)
    total = caught.value.total
    assert (total.inputs, total.shortened, total.replaced) == (3, 1, 0)
    assert total.values.shape == (4,)


async def test_fractions_are_rejected_where_integers_are_summed():
    made = secagg.plan(
        clients=3,
        dimension=4,
        epsilon=8.0,
        delta=1e-5,
        mechanism="skellam-counts",
        max_nonzero=1,
    )
    task = secagg.PreparedTask.from_plan(made, COHORT)
    async with secagg.local(task, clients=3, privacy_limits=LIMITS) as cohort:
        with pytest.raises(secagg.InputError, match="integer entries"):
            await cohort.sum([[1, 0, 0, 0], [0, 1, 0, 0], [0.5, 0, 0, 0]])
        total = await cohort.sum([[1, 0, 0, 0], [0, 1, 0, 0], lambda _: [0.5, 0, 0, 0]])
    assert (total.inputs, total.replaced) == (3, 1)


# --- budgets that outlive a block ------------------------------------------------


async def test_a_ledger_persists_after_its_context_closes(tmp_path):
    """A task that is planned for two sums releases two, in any number of contexts."""
    task, inputs = prepared(steps=2), [np.ones(4)] * 3
    for number in (1, 2):
        async with secagg.local(
            task, clients=3, privacy_limits=LIMITS, ledger=tmp_path
        ) as cohort:
            assert (await cohort.sum(inputs)).session_number == number
    async with secagg.local(
        task, clients=3, privacy_limits=LIMITS, ledger=tmp_path
    ) as cohort:
        with pytest.raises(secagg.LocalProtocolError, match="all its sums"):
            await cohort.sum(inputs)


async def test_a_total_budget_covers_all_tasks_of_a_ledger(tmp_path):
    total = advanced.TotalBudget(data="people", epsilon=9.0, delta=1e-4)
    inputs = [np.ones(4)] * 3
    async with secagg.local(
        prepared(), clients=3, privacy_limits=LIMITS, total=total, ledger=tmp_path
    ) as cohort:
        await cohort.sum(inputs)
        (claim,) = (await cohort.clients[0].data_use()).claims
    assert claim.epsilon <= 8.0
    async with secagg.local(
        prepared(7.0), clients=3, privacy_limits=LIMITS, total=total, ledger=tmp_path
    ) as cohort:
        with pytest.raises(advanced.TotalBudgetExceededError):
            await cohort.sum(inputs)


async def test_a_total_budget_shared_by_all_clients_is_rejected(tmp_path):
    total = advanced.TotalBudget(
        data="people", epsilon=9.0, delta=1e-4, directory=tmp_path
    )
    with pytest.raises(secagg.LocalProtocolError, match="shared by all clients"):
        async with secagg.local(
            prepared(), clients=3, privacy_limits=LIMITS, total=total
        ):
            pass


async def test_a_budget_without_a_ledger_is_warned_of_once(caplog, tmp_path):
    task = prepared(epsilon=6.25)
    warnings = []
    for ledger in (None, None, tmp_path, None):
        async with secagg.local(task, clients=3, privacy_limits=LIMITS, ledger=ledger):
            pass
        warnings.append(
            sum(getattr(r, "event", "") == "budget_forgotten" for r in caplog.records)
        )
    assert warnings == [0, 1, 1, 1]
