"""What a client makes of an offer, each floor by itself."""

import itertools
from dataclasses import dataclass, replace

import pytest
from secagg_testing.cohorts import noised_task, offer_of, parameters_for

from dpnoise.accounting import Proof, Status
from secagg.client.gate import GateRequest, GateStage, KnownFacts, OwnRules, admit
from secagg.distributed_dp import PrivacyReport
from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
)

DIMENSION = 5  # which the rotation of a noised task makes longer
LIMITS = PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
EXACT = parameters_for(3, dimension=DIMENSION, threshold=3)


@dataclass
class Computed:
    """Knows what the task costs, and that it was asked."""

    report: PrivacyReport | None
    asked: int = 0

    def report_of(self, _):
        self.asked += 1
        return self.report


@pytest.fixture(name="noised", scope="module")
def _noised():
    return noised_task(EXACT)


def stating(task, epsilon, status="certified", proof="own"):
    """Return what a task costs if its noise is worth that much."""
    honest = task.report()
    stated = replace(
        honest.server, epsilon=epsilon, status=Status(status), proof=Proof(proof)
    )
    return replace(honest, server=stated)


def judged(parameters, privacy_limits, report=None, *, storage=None, **cohort):
    storage = storage or Computed(report)
    offer = offer_of(parameters)
    request = GateRequest(
        offer=offer,
        stage=GateStage.OFFER,
        aggregator=offer.aggregator,
        trust_domain=None,
        now=offer.session_end - 1,
        own=OwnRules(
            limits=privacy_limits,
            cohort=ClientPolicy(**cohort),
            report_of=storage.report_of,
        ),
        known=KnownFacts(),
    )
    return admit(request).info, storage.asked


def refused(parameters, privacy_limits, report=None, **cohort):
    """Return why an offer is refused, and how often its epsilon was computed."""
    storage = Computed(report)
    with pytest.raises(RemoteProtocolError) as caught:
        judged(parameters, privacy_limits, storage=storage, **cohort)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    return str(caught.value), storage.asked


def test_an_admitted_task_is_reported_with_its_privacy_figures(noised):
    report = stating(noised, 8.0)
    session, asked = judged(noised.parameters, LIMITS, report)
    assert session.privacy is report
    assert asked == 1
    assert session.dimension == DIMENSION < noised.parameters.dimension
    assert session.payload == b""


def test_a_value_equal_to_its_limit_is_accepted(noised):
    privacy_limits = replace(
        LIMITS,
        min_local_noise_stddev=noised.local_noise_stddev,
        min_local_noise_multiplier=noised.local_noise_multiplier,
    )
    judged(noised.parameters, privacy_limits, stating(noised, 8.0))


@pytest.mark.parametrize("is_noised", [True, False])
def test_the_limits_of_the_cohort_are_checked_before_the_noise(noised, is_noised):
    parameters = noised.parameters if is_noised else EXACT
    privacy_limits = LIMITS if is_noised else WAIVER
    complaint, asked = refused(parameters, privacy_limits, min_clients=4)
    assert "min_clients is 3, at least 4" in complaint
    assert asked == 0


@pytest.mark.parametrize("require_noise", [True, False])
def test_the_privacy_limits_alone_determine_whether_noise_is_required(require_noise):
    cohort = ClientPolicy(require_noise=require_noise, min_clients=7)
    assert OwnRules(limits=LIMITS, cohort=cohort).policy == replace(
        cohort, require_noise=True
    )
    assert OwnRules(limits=WAIVER, cohort=cohort).policy == replace(
        cohort, require_noise=False
    )
    both = replace(WAIVER, noised=LIMITS)
    assert not OwnRules(limits=both, cohort=cohort).policy.require_noise
    complaint, _ = refused(EXACT, LIMITS, require_noise=require_noise)
    assert "without noise" in complaint


def test_an_accepted_exact_sum_has_no_privacy_figures():
    for waiver in (WAIVER, replace(WAIVER, noised=LIMITS)):
        session, asked = judged(EXACT, waiver)
        assert session.privacy is None
        assert session.dimension == DIMENSION
        assert asked == 0


def test_a_waiver_without_limits_still_reports_the_noise(noised):
    report = stating(noised, 100.0, "recalled")
    session, asked = judged(noised.parameters, WAIVER, report)
    assert session.privacy is report
    assert asked == 1


def with_and_without_a_waiver(privacy_limits):
    return privacy_limits, replace(WAIVER, noised=privacy_limits)


@pytest.mark.parametrize(
    ("privacy_limits", "complaint"),
    [
        ({"max_epsilon": 7.9}, "epsilon is 8, at most 7.9"),
        ({"max_delta": 1e-6}, "delta is 1e-05"),
        ({"min_colluder_fraction": 0.1}, "of a roster for colluders"),
        ({"min_local_noise_stddev": 100.0}, "of standard deviation"),
        ({"min_local_noise_multiplier": 100.0}, "of the longest vector as noise"),
        ({"max_local_epsilon": 100.0}, "no local randomiser"),
    ],
)
def test_stated_values_are_checked_before_epsilon_is_computed(
    noised, privacy_limits, complaint
):
    for demanded in with_and_without_a_waiver(replace(LIMITS, **privacy_limits)):
        words, asked = refused(noised.parameters, demanded, stating(noised, 8.0))
        assert complaint in words
        assert asked == 0


@pytest.mark.parametrize(
    ("grounds", "accepted"),
    [
        (("proven", "certified"), {"certified published", "certified own"}),
        (("published",), {"certified published"}),
        (("proven", "published"), {"certified published"}),
        (("certified", "published"), {"certified published", "certified own"}),
        (("published", "recalled"), {"certified published", "recalled published"}),
        (("proven",), set()),
    ],
)
def test_accepting_only_published_proofs_rejects_own_theorems(
    noised, grounds, accepted
):
    for status, proof in itertools.product(
        ("certified", "numerical", "recalled"), ("published", "own")
    ):
        if f"{status} {proof}" == "recalled own":
            continue  # no accountant has such a theorem
        privacy_limits = replace(LIMITS, statuses=frozenset(grounds))
        report = stating(noised, 8.0, status, proof)
        for demanded in with_and_without_a_waiver(privacy_limits):
            if f"{status} {proof}" in accepted:
                judged(noised.parameters, demanded, report)
                continue
            words, _ = refused(noised.parameters, demanded, report)
            assert f"epsilon is only {report.server.grounds}; accepted: " in words


@pytest.mark.parametrize(
    ("epsilon", "status", "complaint"),
    [
        (8.1, "certified", "the noise gives epsilon 8.1, the task claims 8"),
        (8.0, "recalled", "epsilon is only recalled (own proof); accepted: certified"),
    ],
)
def test_the_computed_privacy_figures_are_checked_against_the_limits(
    noised, epsilon, status, complaint
):
    for demanded in with_and_without_a_waiver(LIMITS):
        report = stating(noised, epsilon, status)
        words, asked = refused(noised.parameters, demanded, report)
        assert complaint in words
        assert asked == 1
