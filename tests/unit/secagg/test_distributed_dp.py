"""The join: noised tasks, their blocks, and what a client's privacy policy refuses."""

import inspect
import json
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from secagg_testing.cohorts import offer_of, parameters_for, with_noise

import secagg
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.modular import add_into, zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import (
    NoisyTask,
    PrivacyReport,
    SessionNoise,
    TaskNoiseVerifier,
    plan,
    read_noise_terms,
)
from secagg.distributed_dp.reader import _reveals
from secagg.errors import (
    ErrorCode,
    InputError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceError,
)
from secagg.protocol.client import states as client_states
from secagg.protocol.events import NoisyVector, input_digest
from secagg.protocol.messages import Round
from secagg.protocol.noise_terms import NoiseSecrets
from secagg.protocol.policy import PrivacyLimits
from secagg.protocol.profiles import HonestCuriousParameters, Profile
from secagg.simulation import InProcessSession, run_session

CLIENTS, DIM = 6, 20
CONTEXT = bytes(32)


def made_plan(**overrides):
    fields = {
        "clients": CLIENTS,
        "dimension": DIM,
        "l2_clip": 1.0,
        "epsilon": 6.0,
        "delta": 1e-4,
        "bits": 18,
        "mechanism": "skellam",
        "accountant": "skellam-paper",
        "steps": 3,
        "min_survivors": 4,
        "colluders": 1,
        "ladder": 0,
    }
    return plan(**(fields | overrides))


def protocol(**overrides):
    fields = {"threshold": 4, "min_clients": 4, "min_survivors": 4, "colluders": 1}
    return parameters_for(CLIENTS, dimension=1, **(fields | overrides))


@pytest.fixture(name="task", scope="module")
def _task():
    return NoisyTask.from_plan(made_plan(), protocol())


LENIENT = PrivacyLimits(max_epsilon=6.0, max_delta=1e-4)


def test_the_noise_block_carries_the_whole_task_to_the_client(task):
    read = NoisyTask.from_parameters(task.parameters)
    assert read.budget == task.budget
    assert read.mechanism.parameters == task.mechanism.parameters
    assert read.parameters.dimension == read.mechanism.encoded_dim == 32
    assert read.check(LENIENT).server.epsilon <= 6.0


def test_noise_depends_on_share_holders_losses_and_colluders(task):
    counted = task.mechanism.parameters.noise_rule.counted_variance
    assert counted >= made_plan().noise_variance
    # A third may be lost, four must survive, one colludes.
    for share_holders, losses in ((4, 0), (5, 1), (6, 2)):
        noise = task.session_noise(share_holders)
        assert (noise.tolerated_losses, noise.colluders) == (losses, 1)
        assert (share_holders - losses - 2) * noise.base >= counted
    for share_holders in (3, 7):
        with pytest.raises(RemoteProtocolError, match="roster") as caught:
            task.session_noise(share_holders)
        assert caught.value.code is ErrorCode.BAD_CONFIG


def test_noise_terms_cover_every_number_that_noise_depends_on(task):
    terms = read_noise_terms(task.parameters, 6)
    assert terms.tolerated_losses == 2
    assert len(terms.context) == 32
    other_law = NoisyTask.from_plan(made_plan(epsilon=5.0), protocol())
    contexts = {
        terms.context,
        task.noise_context(5),
        other_law.noise_context(6),
        replace(
            task, parameters=replace(task.parameters, suite=CipherSuite(2))
        ).noise_context(6),
    }
    assert len(contexts) == 4


def vectors():
    rows = np.sin(np.arange(CLIENTS * DIM, dtype=float)).reshape(CLIENTS, DIM)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def encoded(task, session_id):
    return [
        task.encode(
            row,
            session_id=session_id,
            secrets=NoiseSecrets(CLIENTS, CONTEXT, SecretBytes(bytes([number]) * 32)),
        ).vector
        for number, row in enumerate(vectors())
    ]


def as_if_for_its_u2(vectors):
    """Return what makes vectors of a session of those that were drawn for none."""
    return [partial(NoisyVector, each.residues, each.noise_block) for each in vectors]


def test_the_session_releases_exactly_the_sum_of_the_noisy_integers(task):
    blank = InProcessSession(task.parameters, [zeros(32, 1 << 18)] * CLIENTS)
    inputs = encoded(task, blank.descriptor.session_id)
    session = InProcessSession(task.parameters, as_if_for_its_u2(inputs))
    result = run_session(session, {5: Round.MASKED_INPUT_COLLECTION})
    assert result.survivors == (0, 1, 2, 3, 4)
    clean = zeros(32, 1 << 18)
    for number in result.survivors:
        add_into(clean, inputs[number].residues, 1 << 18)
    assert result.total.tolist() == (clean % (1 << 18)).tolist()
    estimate = task.decode(result.total, session_id=session.descriptor.session_id)
    # Six standard deviations of five noise shares: a false alarm in 10^7 runs, and
    # seeds are fixed.
    noise = 6 * task.report().local_noise_stddev * np.sqrt(5) + 0.2
    assert np.abs(estimate - vectors()[:5].sum(axis=0)).max() < noise


def test_a_restarted_client_encodes_the_same_residues(task):
    first = encoded(task, b"s" * 32)[0]
    second = encoded(task, b"s" * 32)[0]
    other = encoded(task, b"t" * 32)[0]
    assert input_digest(first) == input_digest(second)
    assert input_digest(first) != input_digest(other)


def test_the_client_receives_the_factor_by_which_its_vector_was_clipped(task):
    secrets = NoiseSecrets(CLIENTS, CONTEXT, SecretBytes(b"n" * 32))
    row = vectors()[0]
    for factor, expected in ((0.5, 1.0), (1.0, 1.0), (40.0, 40.0)):
        made = task.encode(factor * row, session_id=b"s" * 32, secrets=secrets)
        assert made.shortened_by == pytest.approx(expected, rel=1e-5)
        assert "shortened_by" not in repr(made)


@pytest.mark.parametrize(
    "vector",
    [
        np.full(DIM, np.nan),
        np.full(DIM, np.inf),
        np.zeros(DIM + 1),
        np.zeros((DIM, 1)),
        np.array(["a"] * DIM),
        np.zeros(DIM, complex),
    ],
    ids=["nan", "inf", "length", "shape", "text", "complex"],
)
def test_an_invalid_vector_raises_a_clear_error(task, vector):
    with pytest.raises(InputError) as caught:
        task.encode(
            vector,
            session_id=b"s" * 32,
            secrets=NoiseSecrets(CLIENTS, CONTEXT, SecretBytes(b"n" * 32)),
        )
    assert caught.value.code is ErrorCode.BAD_INPUT
    assert str(caught.value)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_epsilon": 5.0}, "epsilon"),
        ({"max_delta": 1e-5}, "delta"),
        ({"statuses": frozenset({"certified"})}, "epsilon is only proven; accepted"),
        ({"statuses": frozenset({"recalled"})}, "epsilon is only proven; accepted"),
        ({"min_local_noise_stddev": 1e3}, "standard deviation"),
        ({"min_colluder_fraction": 0.1}, "colluders"),
    ],
)
def test_the_client_sets_the_privacy_limits(task, change, word):
    task.check(LENIENT)
    task.check(replace(LENIENT, statuses=frozenset({"published"})))
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        task.check(replace(LENIENT, **change))
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert caught.value.next_step


def test_a_ring_adds_its_delta_and_the_limit_counts_it(task):
    ring = replace(task.parameters, degree=4, tail=HonestCuriousParameters(20))
    on_ring = replace(task, parameters=ring)
    added = 10 * task.budget.charges * 2.0**-20
    assert on_ring.max_rosters == 10 * task.budget.charges
    assert task.max_rosters is None
    assert task.report().graph_delta == 0.0
    assert on_ring.report().graph_delta == added
    roomy = PrivacyLimits(max_epsilon=6.0, max_delta=1e-4 + added)
    assert on_ring.check(roomy).graph_delta == added
    # A report that was computed for the complete graph hides nothing.
    for report in (None, task.report()):
        with pytest.raises(RemoteProtocolError, match="the graph adds") as caught:
            on_ring.check(LENIENT, report=report)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_every_figure_of_a_ring_includes_its_graph_delta(task):
    word = str(task.report().server.status)
    assert task.report().grounds() == word
    on_ring = replace(
        task,
        parameters=replace(task.parameters, degree=4, tail=HonestCuriousParameters(40)),
    )
    report = on_ring.report()
    assert report.grounds() == f"{word}, with {on_ring.graph_delta:.3g} added to delta"
    assert report.to_dict()["grounds"] == report.grounds()
    # One session whose ring could not be cut, and one whose ring might be.
    assert report.grounds(graph_delta=0.0) == word
    one = report.grounds(graph_delta=2.0**-40)
    assert one == f"{word}, with 9.09e-13 added to delta"
    # Nor what a verifier says of a receipt.
    cost = TaskNoiseVerifier().cost(offer_of(on_ring.parameters))
    assert cost.delta == report.server.delta + report.graph_delta > report.server.delta


def with_block(task, **changes):
    entries = json.loads(task.parameters.noise_block)
    parts = (entries, entries["mechanism"], entries["noise"])
    for name, value in changes.items():
        where = next((part for part in parts if name in part), entries)
        where[name] = value
    block = json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()
    return replace(task.parameters, noise_block=block)


def test_a_claim_that_the_noise_does_not_satisfy_is_rejected(task):
    """The server states a small epsilon over too little noise: recomputed, refused."""
    with pytest.raises(RemoteProtocolError, match="the task claims"):
        NoisyTask.from_parameters(with_block(task, epsilon=1.0)).check(LENIENT)
    with pytest.raises(RemoteProtocolError, match="the task claims"):
        NoisyTask.from_parameters(with_block(task, participations=4)).check(LENIENT)
    with pytest.raises(RemoteProtocolError, match="the task claims"):
        NoisyTask.from_parameters(with_block(task, spare=1)).check(LENIENT)


def test_spare_sessions_are_planned_recomputed_and_reported():
    with_spare = NoisyTask.from_plan(made_plan(steps=3, spare=2), protocol())
    read = NoisyTask.from_parameters(with_spare.parameters)
    budget = read.budget
    assert (budget.participations, budget.spare, budget.charges) == (3, 2, 5)
    report = read.check(LENIENT)
    assert (report.participations, report.spare) == (3, 2)
    assert report.to_dict()["spare"] == 2
    # The noise is that of five sessions, whatever they are called.
    all_steps = NoisyTask.from_plan(made_plan(steps=5), protocol())
    assert report.server.epsilon == all_steps.report().server.epsilon > 4.0


@pytest.mark.parametrize("spare", [0, 1])
def test_all_figures_count_the_sessions_of_one_client(spare):
    """The report of n participations in N sums is that of n + spare releases."""
    some = NoisyTask.from_plan(
        made_plan(steps=40, participations=2, spare=spare), protocol()
    )
    whole = NoisyTask.from_plan(made_plan(steps=2 + spare), protocol())
    for stated, other in zip(
        (some.report().server, some.report().model_reader),
        (whole.report().server, whole.report().model_reader),
        strict=True,
    ):
        assert stated == other
    assert "steps" not in json.loads(some.parameters.noise_block)
    assert some.report().privacy_unit.startswith(
        f"one client's data, in at most {2 + spare} sessions; which of them"
    )
    ring = [
        replace(
            task,
            parameters=replace(
                task.parameters, degree=4, tail=HonestCuriousParameters(20)
            ),
        )
        for task in (some, whole)
    ]
    assert ring[0].max_rosters == ring[1].max_rosters == 10 * (2 + spare)
    assert ring[0].report().graph_delta == ring[1].report().graph_delta > 0.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"modulus": 1 << 19}, "modulus"),
        ({"dim": 70}, "coordinates"),
        ({"min_survivors": 5}, "survivors"),
        ({"colluders": 0}, "colluders"),
        ({"num_clients": 5}, "clients"),
        ({"version": 1}, "version"),
        ({"delta": 2.0}, "delta"),
        ({"epsilon": -1.0}, "epsilon"),
        # whole numbers that no float can hold
        ({"epsilon": 10**400}, "epsilon"),
        ({"delta": 10**400}, "delta"),
        ({"participations": 10**400}, "participations"),
        ({"dim": 10**400}, "dim"),
        ({"modulus": 10**400}, "modulus"),
        ({"participations": 1.5}, "participations"),
        ({"participations": True}, "participations"),
        ({"participations": 0}, "participations"),
        ({"steps": 2}, "keys"),
        ({"linf_bound": None}, "linf_bound"),
        ({"spare": -1}, "spare"),
        ({"spare": 0.5}, "spare"),
        ({"spare": 10**400}, "spare"),
        ({"selection_rate": 0.5}, "rate"),
        ({"selection_rate": "0/1"}, "rate"),
        ({"selection_rate": "3/2"}, "rate"),
        ({"selection_rate": "2/4"}, "canonical"),
        ({"selection_rate": "1/1000001"}, "million"),
        ({"selection_rate": "1e99999999"}, "rate"),
        ({"selection_rate": "1/" + 400 * "9"}, "rate"),
        ({"surprise": 1}, "keys"),
        ({"mechanism": []}, "object"),
        ({"noise": []}, "noise"),
        ({"noise": {}}, "lacks"),
        ({"counted_variance": "1/0"}, "counted_variance"),
        ({"counted_variance": "14/8"}, "canonical"),
        ({"loss_fraction": "2/6"}, "canonical"),
        ({"loss_fraction": 0.25}, "canonical"),
        ({"colluder_fraction": "1/2"}, "leaves no other client"),
        ({"ladder": 4}, "ladder"),
        ({"share_bits": 21}, "share_bits"),
        ({"mechanism": {"mechanism": "skellam"}}, "lacks"),
        ({"mechanism": {"noise_rule": {}}}, "holds the noise"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_block_that_contradicts_the_session_is_bad_config(task, changes, word):
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        NoisyTask.from_parameters(with_block(task, **changes))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_layers_without_a_ladder_are_bad_config(task):
    layered = replace(task.parameters, noise_layers=3)
    with pytest.raises(RemoteProtocolError, match="ladder") as caught:
        NoisyTask.from_parameters(layered)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_noise_of_an_unknown_sampler_has_no_epsilon(task):
    """Refused when a figure is asked for: building a table costs time."""
    other = NoisyTask.from_parameters(with_block(task, noise_sampler="00" * 32))
    for question in (other.report, lambda: other.check(LENIENT)):
        with pytest.raises(RemoteProtocolError, match="sampler") as caught:
            question()
        assert caught.value.code is ErrorCode.BAD_CONFIG


def test_profiles_with_a_malicious_server_count_a_fraction_as_colluders():
    assert LENIENT.colluder_fraction(Profile.HONEST_CURIOUS_SERVER) == 0.0
    for profile in (Profile.MALICIOUS_SERVER, Profile.MALICIOUS_SERVER_SPARSE):
        assert LENIENT.colluder_fraction(profile) == 0.1
        chosen = replace(LENIENT, min_colluder_fraction=0.05)
        assert chosen.colluder_fraction(profile) == 0.05
    # A tenth as a fraction is a tenth as a number.
    tenth = NoisyTask.from_plan(
        made_plan(min_survivors=5, colluder_fraction=0.1),
        protocol(min_survivors=5, min_clients=5),
    )
    tenth.check(replace(LENIENT, min_colluder_fraction=0.1))
    with pytest.raises(RemoteProtocolError, match="colluders"):
        tenth.check(replace(LENIENT, min_colluder_fraction=0.1001))


def test_inexpensive_limits_are_checked_before_any_computation(task, monkeypatch):
    monkeypatch.setattr("secagg.distributed_dp.task.statement", None)
    monkeypatch.setattr("secagg.distributed_dp.report.check_sampler", None)
    with pytest.raises(RemoteProtocolError, match="colluders"):
        task.check(replace(LENIENT, min_colluder_fraction=0.01))


def test_the_stated_noise_of_one_client_is_its_actual_variance():
    """A discrete Gaussian varies less than its parameter, far less below a quarter."""
    made = made_plan(
        mechanism="ddgauss", accountant=None, epsilon=60.0, scale_factor=0.5, steps=1
    )
    task = NoisyTask.from_plan(made, protocol())
    share = task.session_noise(CLIENTS).base
    assert share == task.mechanism.parameters.noise_rule.least_variance(CLIENTS)
    # Six deviations of the mean square of 2^18 draws: false alarms 2e-9.
    draws = np.zeros(1 << 18, np.int64)
    task.mechanism.sampler(share).add_to(draws, b"n" * 32, b"noise")
    stated = (task.local_noise_stddev * 0.5) ** 2
    spread = np.std(draws.astype(float) ** 2) / 2**9
    assert abs(np.mean(draws.astype(float) ** 2) - stated) < 6 * spread
    assert stated < 0.9 * float(share)


def test_a_certificate_is_computed_from_the_survivor_sets():
    made = made_plan(ladder=3)
    task = NoisyTask.from_plan(made, protocol())
    assert task.parameters.noise_layers == 4
    noise = task.session_noise(6)
    for losses in (0, 1, 2):
        certificate = task.certificate(clients=6, share_holders=6, survivors=6 - losses)
        assert certificate.remaining == noise.remaining(losses)
        assert certificate.removed == noise.removed_layers(losses)
        assert certificate.required == noise.counted_variance
        assert certificate.is_sufficient
    for given in ({0: 7}, {9: 1}):
        with pytest.raises(RemoteProtocolError, match="no survivor was asked"):
            task.certificate(clients=6, share_holders=6, survivors=6, given=given)
    with pytest.raises(RemoteProtocolError, match="losses"):
        task.certificate(clients=6, share_holders=6, survivors=3)


def test_parameters_outside_the_theorem_are_a_server_error(task):
    """The mechanism is built, and states no release: found before it is checked."""
    mechanism = json.loads(task.parameters.noise_block)["mechanism"]
    lying = mechanism | {"rounding_bias": 5e-324}
    with pytest.raises(RemoteProtocolError, match="rounding_bias") as caught:
        NoisyTask.from_parameters(with_block(task, mechanism=lying))
    assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize("accountant", ["no-such-accountant", "smm-paper", ""])
def test_an_accountant_without_a_theorem_for_the_mechanism_is_a_server_error(
    task, accountant
):
    offered = with_block(task, accountant=accountant)
    with pytest.raises(RemoteProtocolError) as caught:
        NoisyTask.from_parameters(offered).check(LENIENT)
    assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize(
    "block",
    [b"", b"{", b"[" * 4000, b"\xff\xfe", b"{} ", b"NaN", b"null", b"1" * 4090],
    ids=["none", "cut", "deep", "bytes", "space", "nan", "null", "number"],
)
def test_a_malformed_block_is_bad_config(task, block):
    with pytest.raises(RemoteProtocolError) as caught:
        NoisyTask.from_parameters(replace(task.parameters, noise_block=block))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_readers_of_the_sums_get_the_unsampled_composition(task):
    report = task.report()
    assert report.model_reader.adversary.value == "model-reader"
    assert report.model_reader.epsilon == report.server.epsilon
    assert report.counted_shares == 2
    assert json.dumps(report.to_dict())


def test_a_noised_vector_is_accepted_only_with_a_noise_block(task):
    given = as_if_for_its_u2(encoded(task, b"s" * 32))
    session = InProcessSession(task.parameters, given)
    for which in (Round.ADVERTISE_KEYS, Round.SHARE_KEYS):
        session.play(which)
        session.close(which)
    session.update(0)
    assert isinstance(session.clients[0], client_states.Masked)


def test_a_block_that_is_expensive_to_check_is_bad_config(task):
    dear = with_block(task, scale_factor=2.0**24, accountant="mixture-contour")
    with pytest.raises(RemoteProtocolError, match="cells to check") as caught:
        NoisyTask.from_parameters(dear)
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_long_coordinates_with_little_noise_are_rejected_without_computation(
    task, monkeypatch
):
    """No order has a bound for them, and looking at all orders takes seconds."""
    monkeypatch.setattr("secagg.distributed_dp.task.statement", None)
    monkeypatch.setattr("secagg.distributed_dp.report.check_sampler", None)
    long = {"linf_bound": "40/1", "scale_factor": 64.0, "accountant": "mixture-rdp"}
    for counted_variance, cells in (("19/524288", "4e"), ("1023/1024", "4e")):
        little = with_block(task, counted_variance=counted_variance, **long)
        with pytest.raises(RemoteProtocolError, match=f"{cells}.* cells to check"):
            NoisyTask.from_parameters(little)
    # A grid step of noise is not refused for what it costs.
    NoisyTask.from_parameters(with_block(task, counted_variance="1/1", **long))


@pytest.mark.parametrize("ladder", [0, 2])
def test_layer_reveals_match_the_reference_for_every_loss(ladder, monkeypatch):
    clients = 60_000 if ladder else 40
    parameters = with_noise(
        parameters_for(clients, dimension=8, threshold=clients * 2 // 3), ladder=ladder
    )
    noise = NoisyTask.from_parameters(parameters).session_noise(clients)
    asked = []
    honest = SessionNoise.removed_layers

    def counting(self, losses):
        asked.append(losses)
        return honest(self, losses)

    monkeypatch.setattr(SessionNoise, "removed_layers", counting)
    reveals = _reveals(noise)
    assert len(asked) < 200
    if not ladder:
        assert reveals == ()
        return
    assert len(reveals) == noise.tolerated_losses + 1
    changes = [d for d in range(1, len(reveals)) if reveals[d] != reveals[d - 1]]
    for d in {0, len(reveals) - 1, *range(0, len(reveals), 997), *changes}:
        assert reveals[d] == honest(noise, d)
        assert d == 0 or reveals[d - 1] == honest(noise, d - 1)


def test_planner_errors_are_raised_as_errors_of_this_package():
    asked = {"clients": 20, "dimension": 4, "l2_clip": 1.0, "delta": 1e-6}
    with pytest.raises(LocalProtocolError, match="epsilon") as caught:
        secagg.plan(**asked, epsilon=-1.0)
    assert caught.value.code is ErrorCode.BAD_SETTINGS
    with pytest.raises(ServiceError) as caught:
        secagg.plan(**asked, epsilon=1.0, mechanism="ddgauss", accountant="skellam-gdp")
    assert caught.value.code is ErrorCode.INFEASIBLE
    # What people see at the call are the planner's own parameters.
    assert "l2_clip" in inspect.signature(secagg.plan).parameters


# --- secret selection -----------------------------------------------------------------


@pytest.fixture(name="selecting", scope="module")
def _selecting():
    made = made_plan(accountant="skellam-gdp", selection_rate=Fraction(1, 4), bits=20)
    return NoisyTask.from_plan(made, protocol())


def secrets_for(number):
    return NoiseSecrets(CLIENTS, CONTEXT, SecretBytes(bytes([number]) * 32))


def test_a_selection_rate_is_in_the_block_and_in_every_figure(selecting):
    read = NoisyTask.from_parameters(selecting.parameters)
    assert read.selection_rate == Fraction(1, 4)
    report = read.check(LENIENT)
    assert report.server.epsilon == report.model_reader.epsilon <= 6.0
    assert report.to_dict()["selection_rate"] == "1/4"
    assert PrivacyReport.from_dict(report.to_dict()) == report
    # A block that claims the same without the coins is caught, one with fewer too.
    for rate in ("1/1", "1/2"):
        with pytest.raises(RemoteProtocolError, match="the task claims"):
            NoisyTask.from_parameters(with_block(selecting, selection_rate=rate)).check(
                LENIENT
            )


def test_the_estimate_of_a_selected_task_is_that_of_the_full_sum(selecting):
    """Six deviations of six shares: a false alarm in 10^7 runs; seeds are fixed."""
    session_id = bytes(32)
    total, chosen = zeros(32, 1 << 20), np.zeros(DIM)
    coins = [selecting.is_selected(secrets_for(number)) for number in range(CLIENTS)]
    assert set(coins) == {True, False}
    for number, (row, coin) in enumerate(zip(vectors(), coins, strict=True)):
        given = selecting.encode(
            row, session_id=session_id, secrets=secrets_for(number)
        ).vector
        add_into(total, given.residues, 1 << 20)
        chosen += coin * row
    estimate = selecting.decode(total % (1 << 20), session_id=session_id)
    given = selecting.mechanism.parameters
    noise = float(selecting.session_noise(CLIENTS).base) * CLIENTS
    deviation = np.sqrt(noise) / given.scale_factor
    assert np.abs(estimate * 0.25 - chosen).max() < 6.0 * deviation
