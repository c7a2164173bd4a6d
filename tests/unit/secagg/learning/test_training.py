"""Training by private sums: the mean, the optimisers, and what survives a crash."""

from functools import cache, partial

import numpy as np
import pytest

import secagg
from secagg import advanced, blocking
from secagg.learning import (
    FederatedAveraging,
    Learner,
    LearningStep,
    ServerOptimizer,
    Update,
    VectorSpec,
)
from secagg.learning.weights import Weighting

CLIENTS = 6
# The planner's search takes most of the time of a small task.
QUICK = {"mechanism": "skellam", "bits": 30, "scale_factor": 1000.0, "ladder": 0}
BUDGET = {"clients": CLIENTS, "epsilon": 8.0, "delta": 1e-5}
# No privacy, where noise must not decide whether a test passes.
QUIET = BUDGET | {"epsilon": 60.0}
SHARES = [slice(n, 1200, CLIENTS) for n in range(CLIENTS)]


@cache  # not where tests are collected: the import takes long
def data():
    """Pictures of 16 entries in [0, 1], shape (1797, 16), and their digits."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    pictures, digits = load_digits(return_X_y=True)
    pictures = pictures.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16
    return pictures, digits


def numpy_update(step, mine):
    """Gradient descent on the squared error."""
    weights = step.model["w"].copy()
    pictures, answers = data()[0][mine], np.eye(10)[data()[1][mine]]
    for _ in range(10):
        weights -= 0.4 * pictures.T @ (pictures @ weights - answers) / len(pictures)
    return {"w": weights}


def sklearn_update(step, mine):
    """A fitted classifier that continues from the model's coefficients."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    fitted = LogisticRegression(C=0.1, max_iter=200, warm_start=True, tol=0.1)
    fitted.coef_ = step.model["coef"].copy()
    fitted.intercept_ = step.model["intercept"].copy()
    pictures, digits = data()
    fitted.fit(pictures[mine], digits[mine])
    return {"coef": fitted.coef_, "intercept": fitted.intercept_}


def torch_update(step, mine):
    """Ten steps of PyTorch's own optimiser."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(16, 10)
    net.load_state_dict(step.model)
    rule = torch.optim.SGD(net.parameters(), lr=0.5)
    pictures = torch.tensor(data()[0][mine], dtype=torch.float32)
    digits = torch.tensor(data()[1][mine])
    for _ in range(10):
        rule.zero_grad()
        torch.nn.functional.cross_entropy(net(pictures), digits).backward()
        rule.step()
    return net.state_dict()


def torch_model():
    torch = pytest.importorskip("torch")
    return {"weight": torch.zeros(10, 16), "bias": torch.zeros(10)}


def jax_update(step, mine):
    """Gradient descent by the derivative that JAX finds."""
    jax = pytest.importorskip("jax")
    pictures, answers = data()[0][mine], np.eye(10)[data()[1][mine]]

    def loss(weights):
        return ((pictures @ weights - answers) ** 2).sum() / len(pictures)

    weights, slope = step.model["w"], jax.grad(loss)
    for _ in range(10):
        weights = weights - 0.2 * slope(weights)
    return {"w": weights}


def jax_model():
    return {"w": pytest.importorskip("jax.numpy").zeros((16, 10))}


MODELS = {
    "numpy": (lambda: {"w": np.zeros((16, 10))}, numpy_update),
    "sklearn": (
        lambda: {"coef": np.zeros((10, 16)), "intercept": np.zeros(10)},
        sklearn_update,
    ),
    "torch": (torch_model, torch_update),
    "jax": (jax_model, jax_update),
}


@pytest.mark.parametrize("framework", MODELS)
def test_a_step_equals_plain_averaging_within_the_stated_noise(framework):
    make, update = MODELS[framework]
    model = make()
    averaging = FederatedAveraging(model)
    # At epsilon 8 the noise of so few clients would make the next updates too long.
    task = averaging.plan(**QUIET, l2_clip=40.0, steps=2, **QUICK)
    functions = [partial(update, mine=one) for one in SHARES]
    with blocking.local(task) as people:
        for number in (1, 2):
            flat = averaging.spec.flatten
            before, step = (
                flat(averaging.model),
                LearningStep(number, averaging.model, {}),
            )
            plain = np.mean([flat(one(step)) for one in functions], axis=0) - before
            made = averaging.train(people, functions, steps=1).steps[-1]
            assert (made.shortened, made.replaced, made.inputs) == (0, 0, CLIENTS)
            moved = flat(averaging.model) - before
            # Normal noise in 160 entries or more: the mean square has a deviation of
            # 0.11 at most, of which six are one false alarm in 10^8.  A model of
            # float32 adds its rounding, far below.
            error = np.mean((moved - plain) ** 2) / made.standard_error**2
            assert 0.33 < error < 1.67
    assert type(averaging.model) is type(model)


def test_a_training_on_digits_is_compared_with_one_without_privacy():
    def accuracy(model):
        pictures, digits = data()
        right = (pictures[1200:] @ model["w"]).argmax(axis=1) == digits[1200:]
        return {"accuracy": right.mean(), "norm": np.linalg.norm(model["w"])}

    averaging = FederatedAveraging(
        {"w": np.zeros((16, 10))}, evaluate=accuracy, compare_without_noise=True
    )
    task = averaging.plan(**QUIET, l2_clip=1.0, steps=3, **QUICK)
    with blocking.local(task) as people:
        curve = averaging.train(people, [partial(numpy_update, mine=s) for s in SHARES])
    private, plain = curve.scores("accuracy"), curve.plain_scores("accuracy")
    # Guessing gives 0.1.  In 300 simulated runs with normal noise of this variance the
    # last score had mean 0.58 and deviation 0.066: below 0.18 is a false alarm of six.
    assert private[-1] > 0.18
    assert min(plain) > 0.65
    assert "step 3" in str(curve)
    assert "without privacy" in str(curve)
    with pytest.raises(secagg.LocalProtocolError, match="no score 'loss'"):
        curve.scores("loss")
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    curve.plot("accuracy", axes)
    assert [line.get_label() for line in axes.get_lines()] == [
        "epsilon 60",
        "not private",
    ]


def test_the_adaptive_clip_follows_the_updates():
    averaging = FederatedAveraging({"w": np.zeros((16, 10))})
    task = averaging.plan(
        **(BUDGET | {"clients": 12}), l2_clip=0.1, steps=2, clip_quantile=0.5, **QUICK
    )
    shares = [slice(n, 1200, 12) for n in range(12)]
    with blocking.local(task) as people:
        curve = averaging.train(people, [partial(numpy_update, mine=s) for s in shares])
    first, second = curve.steps
    # No update fits, so that the share that does is read as 0 ± 0.05, and the clip
    # grows unless noise of ten deviations says that more than half do.
    assert first.shortened == 12
    assert second.l2_clip > first.l2_clip


# --- weights --------------------------------------------------------------------------


def test_every_weighted_update_stays_within_the_clip():
    weighting, clip = Weighting.of(10.0, 64), 3.0
    rows = np.random.default_rng(1).normal(size=(50, 64))  # noqa: TID251
    for length in (1e-9, 1.0, 2.9, 3.0, 1e9):
        for weight in (0.0, 0.1, 10.0, 1e300):
            for row in rows[:5]:
                made = weighting.vector(row * length, weight, l2_clip=clip)
                assert np.linalg.norm(made) <= clip * (1 + 1e-12)
    update = np.full(64, 0.1)
    sent = [weighting.vector(s * update, w, l2_clip=clip) for s, w in ((1, 5), (2, 20))]
    mean, mass, is_enough = weighting.mean(np.sum(sent, axis=0), inputs=2, l2_clip=clip)
    np.testing.assert_allclose(mean, update * (0.5 * 1 + 1.0 * 2) / 1.5)
    assert mass == pytest.approx(1.5)
    assert is_enough
    _, _, is_enough = weighting.mean(np.zeros(65), inputs=2, l2_clip=clip)
    assert not is_enough
    for weight in (-1.0, np.nan):
        with pytest.raises(secagg.InputError, match="weight"):
            weighting.vector(update, weight, l2_clip=clip)


def test_weights_dominated_by_noise_are_rejected_with_a_sufficient_cohort():
    averaging = FederatedAveraging(np.zeros(400), max_weight=100.0)
    asked = BUDGET | QUICK | {"l2_clip": 1.0, "steps": 2}
    with pytest.raises(secagg.LocalProtocolError, match="hides the sum of") as caught:
        averaging.plan(**asked)
    assert caught.value.code is secagg.ErrorCode.INFEASIBLE
    enough = int(caught.value.next_step.split("some ")[1].split()[0])
    assert CLIENTS < enough < 200
    averaging.plan(**(asked | {"clients": enough + 2}))


def test_a_client_of_weight_0_does_not_move_the_model():
    averaging = FederatedAveraging(np.zeros(50), max_weight=30.0)
    task = averaging.plan(**QUIET, l2_clip=2.2, steps=1, **QUICK)

    def train(_, sign):
        weight = 0.0 if sign > 0 else 99.0
        return Update(np.full(50, 0.3 * sign), weight=weight, is_difference=True)

    with blocking.local(task) as people:
        signs = [1, 1, 1, -1, -1, -1]
        curve = averaging.train(people, [partial(train, sign=sign) for sign in signs])
    step = curve.steps[0]
    # Their weights are 3 with a deviation of 0.41, by which all entries are divided.
    # The mean of 50 entries adds 0.02.  With equal weights it would be 0 in place of
    # -0.3.  Five deviations are one false alarm in a million.
    assert step.weight == pytest.approx(3.0, abs=5 * 0.41)
    assert -1.1 < averaging.model.mean() < -0.15
    assert step.is_applied


# --- optimisers -----------------------------------------------------------------------


def moved(rule, *means, error=0.0):
    model, state = np.zeros(1), {}
    for mean in means:
        model, state = rule.step(model, np.array([mean]), state, error=error)
    return float(model[0])


def test_optimisers_follow_the_publication():
    assert moved(ServerOptimizer("fedavg", 0.5), 1.0, 2.0) == 1.5
    assert moved(ServerOptimizer("fedavgm", momentum=0.5), 1.0, 2.0) == 1 + 2.5
    rule = ServerOptimizer("fedadam", 0.1, momentum=0.9, beta2=0.99, tau=0.01)
    first = 0.1 * 0.1 / (np.sqrt(0.99 * 0.0001 + 0.01) + 0.01)
    assert moved(rule, 1.0) == pytest.approx(first)
    # Noise alone must not move every entry by the learning rate.
    adam = ServerOptimizer("fedadam")
    assert moved(adam, 0.5, error=0.5) < 0.06 < moved(adam, 0.5)


# --- over the wire and over crashes ---------------------------------------------------


def train_half(step):
    return {"w": step.model["w"] + step.config["rate"]}


async def serve(averaging, task, state, client_dirs, on_step):
    """Run a server and its clients until the task is over, or `on_step` raises."""
    import asyncio  # noqa: PLC0415

    limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    async with secagg.Server(None, state_dir=state) as server:
        running = await server.add_task("train", task, payload=averaging.payload)
        async with asyncio.TaskGroup() as group:

            async def give(name, directory):
                async with secagg.Client(
                    server.connection(name),
                    task="train",
                    privacy_limits=limits,
                    state_dir=directory,
                ) as one:
                    learner = Learner(train_half, like={"w": np.zeros(4)})
                    async for given in one.contributions(learner):
                        assert given.replaced is None

            giving = [group.create_task(give(*each)) for each in client_dirs.items()]
            try:
                async for step in averaging.train_served(running):
                    on_step(step)
            except RuntimeError:
                for one in giving:
                    one.cancel()
                return


class Averaging(FederatedAveraging):
    """Records the sums that it receives, and may die with one."""

    given: list
    dies_at = None

    def apply_sum(self, total):
        self.given.append(total)
        if self.dies_at == (len(self.given), "before"):
            raise RuntimeError("killed")
        step = super().apply_sum(total)
        if self.dies_at == (len(self.given), "after"):
            raise RuntimeError("killed")
        return step


@pytest.mark.parametrize("dies_at", [(2, "before"), (2, "after")])
async def test_a_restarted_process_continues_bit_for_bit_from_its_sum(
    tmp_path, dies_at
):
    given = []

    def made(directory, **changes):
        one = Averaging(
            {"w": np.zeros(4)},
            optimizer=ServerOptimizer("fedadam", 0.1),
            config={"rate": 0.25},
            checkpoint_dir=directory,
            evaluate=lambda model: model["w"].sum(),
            **changes,
        )
        one.given = given
        return one

    first = made(tmp_path / "run")
    task = first.plan(
        clients=3, l2_clip=2.0, epsilon=8.0, delta=1e-5, steps=3, spare=2, **QUICK
    )
    first.dies_at = dies_at
    clients = {name: tmp_path / name for name in ("ann", "bob", "cyd")}
    await serve(first, task, tmp_path / "server", clients, lambda _: None)
    second = made(tmp_path / "run")
    assert len(second.curve.steps) == 1 + (dies_at[1] == "after")
    await serve(second, task, tmp_path / "server", clients, lambda _: None)
    numbers = [total.session_number for total in given]
    assert numbers[1] == numbers[2]  # the sum was given again
    # The same sums without a crash.
    third = made(tmp_path / "straight")
    third.given = []
    for total in {total.session_number: total for total in given}.values():
        third.apply_sum(total)
    assert third.model["w"].tobytes() == second.model["w"].tobytes()
    assert third.curve == second.curve
    assert [step.number for step in second.curve.steps] == [1, 2, 3]
    resumed = made(tmp_path / "run")
    assert resumed.curve == second.curve
    with pytest.raises(secagg.LocalProtocolError, match="released 1 sums, and the"):
        resumed.payload(1)
    with pytest.raises(secagg.LocalProtocolError, match="another optimizer"):
        FederatedAveraging({"w": np.zeros(4)}, checkpoint_dir=tmp_path / "run")
    newest = max((tmp_path / "run").glob("session-*"))
    modes = [one.stat().st_mode & 0o777 for one in (newest, *newest.iterdir())]
    assert modes == [0o700, 0o600, 0o600]
    (newest / "state.json").write_text("{}")
    with pytest.raises(secagg.ServiceError, match="cannot be read") as caught:
        made(tmp_path / "run")
    assert caught.value.code is secagg.ErrorCode.STATE_DAMAGED


def test_a_run_without_its_ledger_cannot_be_continued(tmp_path):
    def made():
        return FederatedAveraging({"w": np.zeros(4)}, checkpoint_dir=tmp_path / "run")

    def run(averaging):
        task = averaging.plan(**BUDGET, l2_clip=2.0, steps=2, **QUICK)
        with blocking.local(task) as people:
            averaging.train(people, [lambda step: step.model] * CLIENTS, steps=1)

    run(made())
    with pytest.raises(secagg.LocalProtocolError, match="not one of this training"):
        run(made())


def test_a_learner_rejects_an_invalid_payload():
    averaging = FederatedAveraging({"w": np.zeros(4)})
    task = averaging.plan(**BUDGET, l2_clip=2.0, steps=1, **QUICK)
    offer = secagg.StepServer(
        task, aggregator="hub", task_id="train", session_number=1
    ).offer
    with secagg.StepClient(
        "ann",
        aggregator="hub",
        tasks=["train"],
        privacy_limits=secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
        state_dir=None,
    ) as one:
        session = one.check_offer(offer)
    from dataclasses import replace  # noqa: PLC0415

    def learn(payload, train=train_half, **changes):
        return Learner(train, **changes)(replace(session, payload=payload))

    good = averaging.payload(0)
    with pytest.raises(secagg.InputError, match="not the model of a training task"):
        learn(b"")
    with pytest.raises(secagg.InputError, match="another schema"):
        learn(good, like={"w": np.zeros(5)})
    five = FederatedAveraging({"w": np.zeros(5)}).payload(0)
    with pytest.raises(secagg.InputError, match="adds up vectors of 4, its model"):
        learn(five)
    with pytest.raises(secagg.InputError, match="no array 'w'"):
        learn(good, lambda _: {"v": np.zeros(4)})
    with pytest.raises(secagg.InputError, match="NaN"):
        learn(good, lambda _: {"w": np.full(4, np.nan)})
    np.testing.assert_array_equal(
        learn(good, lambda step: {"w": step.model["w"] + 1}), np.ones(4)
    )


def test_an_error_of_a_function_is_raised_before_any_client_joins():
    averaging = FederatedAveraging({"w": np.zeros(4)})
    task = averaging.plan(**BUDGET, l2_clip=2.0, steps=1, **QUICK)
    with blocking.local(task) as people:
        with pytest.raises(KeyError):
            averaging.train(people, [lambda step: step.model["no"]] * CLIENTS)
        with pytest.raises(secagg.LocalProtocolError, match="2 vectors"):
            averaging.train(people, [lambda step: step.model] * 2)
        averaging.train(people, [lambda step: step.model] * CLIENTS)


def test_a_sum_with_a_warning_raised_as_an_error_still_counts_as_a_step():
    averaging = FederatedAveraging({"w": np.zeros(4)})
    task = averaging.plan(**BUDGET, l2_clip=0.1, steps=1, **QUICK)
    functions = [lambda step: {"w": step.model["w"] + 1}] * CLIENTS
    with (
        blocking.local(task) as people,
        pytest.raises(advanced.ClippingWarning, match="6 of 6"),
    ):
        averaging.train(people, functions)
    assert [step.shortened for step in averaging.curve.steps] == [CLIENTS]


def test_a_sum_of_another_task_is_rejected_as_a_step():
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    cohort = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
    exact = secagg.PreparedTask.exact(waiver, cohort, dimension=4)
    averaging = FederatedAveraging({"w": np.zeros(4)})
    with (
        blocking.local(exact, privacy_limits=waiver) as people,
        pytest.raises(secagg.LocalProtocolError, match="is without noise"),
    ):
        averaging.apply_sum(people.sum([[1, 2, 3, 4]] * 3))
    assert averaging.curve.steps == ()
    assert VectorSpec.of(averaging.model).dim == 4
