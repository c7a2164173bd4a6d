"""The reproductions of published figures: they run, and their numbers are right.

Reference values were computed independently of this repository, by other code.
"""

import importlib
import io
import json
import math
import pickle
import re
import zipfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy

ROOT = Path(__file__).parents[3]
PAPERS = ROOT / "benchmarks" / "papers"
SCRIPTS = (
    "aga21_figure1",
    "aga21_figure2",
    "aga21_figure3",
    "aga21_figure4",
    "aga21_figure5",
    "bao22_federated_noise",
    "bao22_figure1",
    "bao22_figure2",
    "bho18_figure3",
    "bho18_figure4",
    "bho18_table1",
    "tf19_figure1",
    "tf19_figure2",
    "tf19_table1",
)
LARGEST_PICTURE = 150_000
TWO_PERCENT = 0.02


@pytest.fixture(autouse=True)
def _scripts_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPERS))


def load(name):
    return importlib.import_module(name)


def test_the_list_of_scripts_is_complete():
    found = {path.stem for path in PAPERS.glob("*_figure*.py")}
    found |= {path.stem for path in PAPERS.glob("*_noise.py")} - {"required_noise"}
    found |= {path.stem for path in PAPERS.glob("*_table?.py")}
    assert found == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_writes_its_table_and_its_picture(name, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    arguments = ["--tiny", "--allow-invalid-theorem", "--out", str(tmp_path)]
    script = load(name)
    code = load("reproduction").run(
        script.reproduce, script.__doc__, script.SETTINGS, arguments
    )
    assert code == 0
    table = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert table["rows"]
    assert table["stated"]
    assert table["assumed"]
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < LARGEST_PICTURE
    assert name in capsys.readouterr().out


def test_without_matplotlib_the_error_states_how_to_install_it(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    script = load("aga21_figure2")
    code = load("reproduction").run(
        script.reproduce,
        script.__doc__,
        script.SETTINGS,
        ["--tiny", "--out", str(tmp_path)],
    )
    assert code == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_table_alone_does_not_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    script = load("aga21_figure2")
    arguments = ["--tiny", "--table-only", "--out", str(tmp_path)]
    assert (
        load("reproduction").run(script.reproduce, "", script.SETTINGS, arguments) == 0
    )
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


OWN = {
    "aga21_figure1": (
        {"stddevs": (3.0,), "releases": (5,), "delta": (1e-4,)},
        "stddev",
    ),
    "aga21_figure2": ({"scales": (3,), "stddevs": (1.5,), "shares": (7,)}, "scale"),
    "aga21_figure3": (
        {"multipliers": (5.0,), "grid_steps": (9.0,), "dimension": (64,)},
        "grid_steps_per_clip",
    ),
    "aga21_figure4": (
        {"epsilons": (3.0,), "bits": (13,), "clients": (9,), "data_sets": (3,)}
        | {"dimension": (60,), "radius": (2.0,), "delta": (1e-4,)},
        "epsilon",
    ),
    "aga21_figure5": (
        {"epsilons": (5.0,), "clients": (30,), "pictures": (4,), "members": (15,)}
        | {"passes": (2,), "dirichlet": (1.0,), "clip": (2.0,), "delta": (1e-4,)},
        "epsilon",
    ),
    "bao22_federated_noise": (
        {"scales": (6.0,), "our_scale": (6.0,), "steps": (10,), "delta": (1e-4,)}
        | {"sampling_rate": (0.01,), "batch": (50,), "dimension": (512,)},
        "scale",
    ),
    "bao22_figure1": (
        {"epsilons": (2.0,), "bits": (9, 10), "scales": (2.5,), "dimension": (256,)},
        "scale",
    ),
    "bao22_figure2": (
        {"epsilons": (5.0,), "batch": (350,), "epochs": (2,), "hidden": (4,)}
        | {"bits": (9,), "learning_rate": (0.01,), "delta": (1e-4,)},
        "epsilon",
    ),
    "bho18_figure3": (
        {"epsilons": (9.0,), "dimension": (10,), "examples": (50,), "trials": (1,)}
        | {"magnitude_epsilon": (4.0,)},
        "epsilon",
    ),
    "bho18_figure4": (
        {"epsilons": (7.0,), "clients": (4,)}
        | {"magnitude_epsilon": (3.0,), "bound": (2.0,)},
        "epsilon",
    ),
    "bho18_table1": ({"dimensions": (50,), "epsilons": (3.0,)}, "dim"),
    "tf19_figure1": ({"clients": (7,), "rounds": (2,), "delta": (1e-3,)}, "clients"),
    "tf19_figure2": (
        {"rounds": (2,), "trials": (1,), "example_epsilon": (4.0,)}
        | {"client_delta": (1e-2,), "example_delta": (1e-4,)},
        "",
    ),
    "tf19_table1": (
        {"rounds": (2,), "clip": (1.5,), "clients": (30,), "deltas": (1e-4,)},
        "clients",
    ),
    "tree_gain": ({"steps": (9,), "participations": (3,), "branchings": (3,)}, "steps"),
}
"""For every script settings of a caller, and the column that shows the scarcest one."""


def test_every_script_has_settings():
    assert set(OWN) == {*SCRIPTS, "tree_gain"}


@pytest.mark.parametrize("name", OWN)
def test_a_caller_can_override_settings(name, tmp_path):
    own, column = OWN[name]
    script = load(name)
    arguments = ["--tiny", "--table-only", "--out", str(tmp_path)]
    for setting, values in own.items():
        arguments += ["--set", f"{setting}={','.join(map(str, values))}"]
    assert (
        load("reproduction").run(script.reproduce, "", script.SETTINGS, arguments) == 0
    )
    table = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    said = table["assumed"]["set by the caller, whatever stands above"]
    assert said.count(" = ") == len(own)
    if column:
        # Rows of the publication stand beside the caller's in one of the tables.
        rows = [row for row in table["rows"] if not row.get("data")]
        expected = own.get(column) or own.get(f"{column}s") or own.get("dimensions")
        if name == "aga21_figure3":
            expected = own["grid_steps"]
        found = {row[column] for row in rows} - {None}
        assert found == set(expected)


def test_noise_that_no_mechanism_accepts_still_has_a_row():
    """The published formula may ask for less than the weakest order needs."""
    script, reproduction = load("bao22_figure1"), load("reproduction")
    own = {"epsilons": (6.0,), "measured_at": (6.0,), "bits": (12,), "scales": (4.0,)}
    own |= {"clients": (20,), "dimension": (256,)}
    made = script.reproduce(
        reproduction.Options(script.SETTINGS, allow_invalid_theorem=True, own=own)
    )
    refused = [row["accountant"] for row in made.rows if "refused" in row]
    assert refused == ["smm-formula-only"]
    assert len(made.rows) == 7


@pytest.mark.parametrize("kind", ["published", "best"])
def test_the_average_of_many_randomised_gradients_is_the_gradient(kind):
    """False alarm of both kinds together: 3e-6."""
    script = load("bho18_figure3")
    dim, many = 30, 20_000
    made = script._direction(kind, dim, 12.0)
    senders = script.Senders([made], many, 10.0)
    direction = np.zeros((many, dim))
    direction[:, 0] = 1.0
    sent = senders.send(direction, np.full(many, 0.3))
    for values, mean in ((sent[:, 0], 0.3), (sent[:, 1], 0.0)):
        error = values.std() / math.sqrt(many)
        assert abs(values.mean() - mean) < 5 * error
    # The length of what is sent does not vary but with that of the gradient.
    lengths = np.linalg.norm(sent, axis=1) * made.mean_agreement
    assert np.ptp(np.round(lengths, 9)) <= 2.0
    assert len(np.unique(np.round(lengths, 9))) <= senders._magnitude.levels + 1


def test_help_lists_the_settings_and_invalid_ones_fail_at_once(tmp_path, capsys):
    script, run = load("bho18_table1"), load("reproduction").run

    def refuse(_):
        raise AssertionError("invalid settings must be rejected before the computation")

    with pytest.raises(SystemExit):
        run(script.reproduce, script.__doc__, script.SETTINGS, ["--help"])
    assert "  dimensions=100,10000,1000000\n" in capsys.readouterr().out
    for wrong, words in (
        ("dimension=50", "it has dimensions, epsilons"),
        ("dimensions=many", "such as dimensions=100,10000,1000000"),
        ("dimensions=1.5", "whole numbers"),
        ("epsilons=inf", "finite"),
        ("dimensions=0", "above 0"),
        ("epsilons", "NAME=NUMBERS"),
    ):
        arguments = ["--out", str(tmp_path), "--table-only", "--set", wrong]
        assert run(refuse, "", script.SETTINGS, arguments) == 2
        assert words in capsys.readouterr().err
    arguments = ["--out", str(tmp_path), "--table-only", "--set", "epsilons=1e9"]
    assert run(script.reproduce, "", script.SETTINGS, arguments) == 2
    assert "cannot be computed: epsilon" in capsys.readouterr().err
    one = load("bho18_figure4").SETTINGS
    assert run(refuse, "", one, ["--table-only", "--set", "rounds=1,2"]) == 2
    assert "one number" in capsys.readouterr().err


def test_the_probabilities_of_the_published_table_are_reproduced():
    script = load("bho18_table1")
    for (data, epsilon), printed in script.PUBLISHED.items():
        dim = {name: size for name, size, _ in script.TABLE}[data]
        row = script.row(dim, epsilon)
        assert row["published p"] == pytest.approx(printed, abs=6e-4)
        # Sound, and never better than the best cap at the same level.
        assert row["published, exact epsilon"] <= epsilon
        assert row["error ratio"] >= 0.999
        tail = scipy.special.betainc(
            (dim - 1) / 2, (dim - 1) / 2, (1 - row["published edge"]) / 2
        )
        chance = row["published p"]
        if tail > 0.0:
            exact = math.log(chance / (1 - chance)) + math.log((1 - tail) / tail)
            assert row["published, exact epsilon"] == pytest.approx(exact, rel=1e-6)


def test_the_unproven_mixture_curve_appears_only_on_request():
    script, options = load("bao22_figure1"), load("reproduction").Options
    shown = [
        {
            curve.label: curve.broken
            for panel in script.reproduce(
                options(script.SETTINGS, tiny=True, allow_invalid_theorem=asked)
            ).figure.panels
            for curve in panel.curves
        }
        for asked in (False, True)
    ]
    assert not any(shown[0].values())
    assert [label for label, broken in shown[1].items() if broken] == [
        "SMM, formula only (no theorem)"
    ]


# One release: n = 100, d = 65 536, clip 1, delta = 1e-5, m = 2^10, scale 4, epsilon 1.


def setting_of_figure_1(scale=4.0):
    noise = load("required_noise")
    setting = noise.Setting(dim=65_536, radius=1.0, scale_factor=scale, clients=100)
    return noise, setting, noise.Budget(1.0, 1e-5)


def test_the_central_gaussian_needs_13_92():
    noise, _, budget = setting_of_figure_1()
    found = noise.gaussian_variance(budget, 1.0)
    assert found == pytest.approx(13.92, rel=1e-3)


def test_the_published_formula_gives_20_5_outside_its_theorem():
    noise, setting, budget = setting_of_figure_1()
    found = noise.smm_formula_only(setting.squared_steps, budget)
    assert found / 16.0 == pytest.approx(20.5, rel=TWO_PERCENT)
    order = noise.smm_order(setting.squared_steps, budget)
    assert noise.largest_admitted_bound(order, found) < 1.0
    stated = setting.stated_epsilon("smm-paper", 1e-5, setting.smm(Fraction(found)))
    assert stated > 1.4


def test_within_its_theorem_the_published_mixture_needs_about_twice_that_noise():
    noise, setting, budget = setting_of_figure_1()
    variance = setting.noise("smm-paper", budget, gaussian_variance=13.92)
    order = 16
    assert float(variance) / 16.0 == pytest.approx(39.8, rel=TWO_PERCENT)
    assert noise.largest_admitted_bound(order, float(variance)) >= 0.5


@pytest.mark.parametrize(
    ("accountant", "most", "error"),
    [("mixture-contour", 1.02, 14.3), ("mixture-rdp", 1.22, None)],
)
def test_the_default_mechanism_is_close_to_the_gaussian(accountant, most, error):
    _, setting, budget = setting_of_figure_1()
    variance = setting.noise(accountant, budget, gaussian_variance=13.92)
    assert float(variance) / 16.0 <= most * 13.92
    if error is not None:
        experiment = load("sum_experiment")
        mechanism = experiment.build_mechanism(
            "skellam-mixture",
            dim=65_536,
            radius=1.0,
            scale_factor=4.0,
            bits=10,
            clients=100,
            noise_variance=variance,
        )
        # A sum of 100 independent directions has norm 10.
        sphere = experiment.Cohort(np.full((1, 100), 1.0), 1.0)
        found = experiment.predicted_mse(mechanism, sphere)
        # A tighter cap on coordinates may still improve the value computed elsewhere.
        assert 13.92 < found <= error * (1 + TWO_PERCENT)


def test_the_formula_agrees_with_the_accountant_where_the_theorem_holds():
    noise, setting, budget = setting_of_figure_1(scale=64.0)
    by_formula = noise.smm_formula_only(setting.squared_steps, budget)
    by_theorem = setting.noise("smm-paper", budget, gaussian_variance=13.92)
    # The formula is minimised over integer orders, the accountant over real ones too.
    assert float(by_theorem) == pytest.approx(by_formula, rel=1e-3)
    assert float(by_theorem) <= by_formula * (1 + 1e-9)


# 1000 sampled steps: q = 0.004, delta = 1e-5, clip 1, epsilon 1, model reader.


@pytest.mark.parametrize(
    ("accountant", "scale", "expected"),
    [
        ("gaussian-pld", 64.0, 0.7451),
        ("smm-formula-only", 64.0, 1.4617),
        ("smm-paper", 64.0, 1.4617),
        ("skellam-paper", 64.0, 5.590),
        ("skellam-gdp", 64.0, 3.760),
    ],
)
def test_noise_of_a_thousand_sampled_steps(accountant, scale, expected):
    script = load("bao22_federated_noise")
    found = script.noise_per_unit(script.Training(), accountant, scale, 1.0)
    assert found == pytest.approx(expected, rel=TWO_PERCENT)


def test_renyi_noise_of_the_default_over_a_thousand_steps():
    script = load("bao22_federated_noise")
    found = script.noise_per_unit(script.Training(), "mixture-rdp", 8.0, 1.0)
    # A tighter cap on coordinates may still improve the value computed elsewhere, but
    # nothing improves on the Gaussian.
    assert 0.7451 < found <= 1.085 * (1 + TWO_PERCENT)


@pytest.mark.parametrize(("scale", "expected"), [(8.0, 0.7600), (32.0, 0.7482)])
def test_loss_distribution_of_the_default_over_a_thousand_steps(scale, expected):
    noise = load("required_noise")
    setting = noise.Setting(dim=65_536, radius=1.0, scale_factor=scale, clients=240)
    budget = noise.Budget(1.0, 1e-5, steps=1000, sampling_rate=0.004)

    def suffices(per_unit):
        variance = Fraction(per_unit * scale**2)
        return setting.suffices("mixture-pld", budget, variance)

    assert suffices(expected * (1 + TWO_PERCENT))
    assert not suffices(0.7451 * (1 - TWO_PERCENT))


def test_a_budget_near_the_largest_possible_loss_needs_the_same_noise():
    # In the direction from the sampled world no loss exceeds -T·log(1-q) = 4.008.
    noise = load("required_noise")
    setting = noise.Setting(dim=65_536, radius=1.0, scale_factor=8.0, clients=240)
    for epsilon in (3.9, 4.0, 4.1):
        budget = noise.Budget(epsilon, 1e-5, steps=1000, sampling_rate=0.004)
        assert setting.suffices("mixture-pld", budget, Fraction(0.37 * 64.0))


# Training through noisy sums.


def small_training():
    script, mnist = load("bao22_figure2"), load("mnist")
    pictures = mnist.read_small_digits()
    return script, script.Training(pictures, 6, 20, 1, 0.005)


def test_a_clipped_sum_equals_that_of_single_gradients():
    """Gradients by differences of the loss, in 482 directions."""
    script, training = small_training()
    generator = np.random.default_rng(3)  # noqa: TID251 - cases, no noise
    weights = [0.4 * generator.standard_normal(shape) for shape in training.shapes]
    inputs = training.pictures.inputs[:5].astype(np.float64)
    labels = training.pictures.labels[:5]

    def losses(flat):
        parts = np.split(flat, training.ends)
        own = [p.reshape(s) for p, s in zip(parts, training.shapes, strict=True)]
        _, scores = script._scores(own, inputs)
        return scipy.special.logsumexp(scores, axis=1) - scores[np.arange(5), labels]

    flat = np.concatenate([weight.ravel() for weight in weights])
    step = 1e-5
    gradients = np.array(
        [
            (losses(flat + step * row) - losses(flat - step * row)) / (2 * step)
            for row in np.eye(training.dim)
        ]
    ).T
    norms = np.linalg.norm(gradients, axis=1)
    assert norms.max() > script.CLIP
    expected = (gradients * np.minimum(1.0, script.CLIP / norms)[:, None]).sum(axis=0)
    total, kept = script.clipped_sum(weights, inputs, labels)
    np.testing.assert_allclose(total, expected, atol=1e-5)
    np.testing.assert_allclose(kept, np.minimum(norms, script.CLIP), atol=1e-5)


def test_each_record_occurs_once_per_epoch():
    script, training = small_training()
    three = script.Training(training.pictures, 6, 300, 3, 0.005)
    generator = np.random.default_rng(0)  # noqa: TID251 - cases, no noise
    batches = list(three.batches(generator))
    assert len(batches) == three.steps == 12
    for start in range(0, 12, 4):
        epoch = np.concatenate(batches[start : start + 4])
        assert len(np.unique(epoch)) == epoch.size == 1200


def test_rounding_the_sum_has_the_variance_of_rounding_each_vector():
    """Fixed seeds; five deviations of a mean of 45 000 squares."""
    script, sums = load("bao22_figure2"), load("training_sums")
    task = sums.Task(40, 3000, 1.0, 1, 1, 1e-5)
    planned = sums.noise(sums.OURS, task, 40.0, 8)
    mechanism = planned.mechanism
    generator = np.random.default_rng(5)  # noqa: TID251 - cases, rounding
    vectors = generator.standard_normal((40, 3000))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scale = mechanism.parameters.scale_factor
    norms = np.ones(40)
    rounding = script.rounding_variance(norms * scale / math.sqrt(4096))
    exact = vectors.sum(axis=0)
    noise = float(mechanism.expected_noise_variance)
    ways = {
        "each": load("aga21_figure5").release,
        "at once": lambda given, _, __, *rest: script.release(
            given, exact, norms, *rest
        )[0],
    }
    # Padding spreads the error over 4096 coordinates.
    expected = (noise + rounding) / scale**2
    for name, release in ways.items():
        errors = [
            release(planned, vectors, 1.0, generator, f"{name} {number}") - exact
            for number in range(15)
        ]
        found = float(np.mean(np.square(errors)))
        accuracy = 5 * math.sqrt(2 / (15 * 3000))
        assert found == pytest.approx(expected, rel=accuracy), name
    assert accuracy < 0.4 * rounding / noise  # otherwise nothing would be seen


@pytest.mark.parametrize("name", ["central Gaussian", "ours", "Skellam [Aga21]"])
def test_the_noise_of_a_training_depends_only_on_its_participations(name):
    sums = load("training_sums")
    few = sums.noise(name, sums.Task(40, 100, 1.0, 50, 4, 1e-5), 2.0)
    same = sums.noise(name, sums.Task(40, 100, 1.0, 4, 4, 1e-5), 2.0)
    assert few.variance == same.variance
    assert few.epsilon <= 2.0


def test_two_aggregators_leave_twice_the_noise_in_the_sum():
    sums = load("training_sums")
    task = sums.Task(40, 100, 0.5, 50, 4, 1e-5)
    central = sums.noise(sums.CENTRAL, task, 2.0)
    both = sums.noise(sums.TWO, task, 2.0)
    assert both.variance == pytest.approx(2 * central.variance, rel=1e-3)
    # Against either of them, who knows half of it.
    assert both.epsilon == pytest.approx(2.0, rel=1e-3)


def test_the_division_deals_each_picture_once_and_unequal_labels():
    script = load("aga21_figure5")
    labels = np.arange(1200) % 10
    shares = script.divide(labels, 60, 20, 0.3, 0)
    assert len(np.unique(shares)) == 1200
    most = [np.bincount(labels[share], minlength=10).max() for share in shares[:30]]
    assert np.mean(most) > 8.0  # of 20; about 4 if clients were alike


def test_without_mnist_the_error_states_how_to_get_it(tmp_path, monkeypatch, capsys):
    script, mnist = load("bao22_figure2"), load("mnist")
    monkeypatch.setattr(
        script, "read_mnist", lambda: mnist.read_mnist(tmp_path / "none.whl")
    )
    arguments = ["--table-only", "--out", str(tmp_path)]
    run = load("reproduction").run
    assert run(script.reproduce, "", script.SETTINGS, arguments) == 2
    assert "run make papers" in capsys.readouterr().err


def test_unknown_data_and_unsafe_pickles_are_rejected(tmp_path):
    mnist, missing = load("mnist"), load("reproduction").MissingDataError
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("mnist/data/mnist.pkl.gz", b"other")
    with pytest.raises(missing, match="other pictures"):
        mnist.read_mnist(wheel)
    hostile = pickle.dumps(print)
    with pytest.raises(pickle.UnpicklingError, match="no array"):
        mnist._ArraysOnly(io.BytesIO(hostile)).load()
    arrays = pickle.dumps(np.arange(3), protocol=2)
    assert mnist._ArraysOnly(io.BytesIO(arrays)).load().tolist() == [0, 1, 2]


# The tools behind the figures.


@pytest.mark.parametrize("noise", [10.0, 1e3, 1e5, 1e7])
def test_the_wrapped_error_equals_its_integral(noise):
    experiment = load("sum_experiment")
    modulus, signal = 1024, 300.0
    spread = math.sqrt(signal + noise)
    x = np.linspace(-9.0 * spread, 9.0 * spread, 400_001)
    density = np.exp(-0.5 * (x / spread) ** 2)
    density /= density.sum()
    wrapped = (x + modulus / 2) % modulus - modulus / 2
    # Given S + N = x, S is normal with this mean and variance.
    mean, rest = x * signal / (signal + noise), signal * noise / (signal + noise)
    expected = float(density @ ((wrapped - mean) ** 2)) + rest
    found = experiment.wrapped_error(signal, noise, modulus)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_measured_sum_has_the_forecast_error():
    experiment = load("sum_experiment")
    cohort = experiment.Cohort.on_sphere(clients=8, dim=4096, radius=1.0, label="test")
    for bits in (20, 8):  # the second one wraps all the time
        mechanism = experiment.build_mechanism(
            "skellam-mixture",
            dim=4096,
            radius=1.0,
            scale_factor=16.0,
            bits=bits,
            clients=8,
            noise_variance=Fraction(9000),
        )
        measured = experiment.measured_mse(mechanism, cohort, label="test")
        forecast = experiment.predicted_mse(mechanism, cohort)
        # Five standard deviations of a mean of 4096 squares; seeds are fixed.
        assert measured == pytest.approx(forecast, rel=5 * math.sqrt(2 / 4096))


def test_the_published_clip_keeps_only_a_little_of_a_flat_vector():
    experiment = load("sum_experiment")
    cohort = experiment.Cohort.on_sphere(
        clients=1, dim=65_536, radius=1.0, label="test"
    )
    coarse = experiment.mixture_clip_gain(cohort, scale_factor=4.0, linf_bound=1)
    fine = experiment.mixture_clip_gain(cohort, scale_factor=2048.0, linf_bound=64)
    # For |x| < 1 the clip bounds sum|x| = 4·√(2d/π) by 16.
    assert coarse == pytest.approx(16.0 / (4.0 * math.sqrt(2 * 65_536 / math.pi)), 0.02)
    assert fine > 0.99


@pytest.mark.parametrize("variance", [1.0, 16.0, 400.0])
def test_the_scalar_pmf_matches_the_bessel_functions(variance):
    log_pmf = load("scalar_release").skellam_log_pmf(variance)
    reach = (log_pmf.size - 1) // 2
    k = np.arange(-20, 21)
    expected = scipy.special.ive(np.abs(k), variance)
    found = np.exp(log_pmf[reach - 20 : reach + 21])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_exact_scalar_losses_agree_with_a_direct_sum():
    scalar = load("scalar_release")
    variance, delta = 9.0, 1e-6
    pair = scalar.loss_pair(scalar.skellam_log_pmf(variance), 2)
    epsilon = scalar.pair_epsilon(pair, count=1, delta=delta)
    k = np.arange(-150, 151)
    shifted = scipy.special.ive(np.abs(k - 2), variance)
    plain = scipy.special.ive(np.abs(k), variance)
    attained = np.maximum(shifted - math.exp(epsilon) * plain, 0.0).sum()
    assert attained == pytest.approx(delta, rel=1e-6)
    assert scalar.direct_epsilon(variance, delta, shift=2) >= epsilon
    twice = scalar.pair_epsilon(pair, count=2, delta=delta)
    both = np.convolve(pair.upper, pair.upper)
    assert both.sum() == pytest.approx(1.0)
    assert epsilon < twice < 2 * epsilon


def test_the_composed_direct_bound_is_never_below_the_exact_composition():
    scalar = load("scalar_release")
    pair = scalar.loss_pair(scalar.skellam_log_pmf(100.0), 1)
    for count in (1, 16, 256):
        exact = scalar.pair_epsilon(pair, count=count, delta=1e-6)
        direct = scalar.composed_direct_epsilon(100.0, count=count, delta=1e-6)
        assert direct >= exact


# The page that shows it.


def test_the_page_includes_every_figure_and_every_picture_is_small():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", page)
    assert {Path(path).stem for path in shown} == set(SCRIPTS)
    for path in shown:
        assert (ROOT / "docs" / path).stat().st_size < LARGEST_PICTURE
    for name in SCRIPTS:
        assert (ROOT / "docs" / "pictures" / f"{name}.json").exists()


def test_the_numbers_on_the_page_match_the_table():
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    table = json.loads(
        (ROOT / "docs" / "pictures" / "bao22_figure1.json").read_text("utf-8")
    )
    cells = {
        (row["scale"], row["method"]): row["predicted_mse"]
        for row in table["rows"]
        if row["epsilon"] == 1.0
    }
    methods = (
        "DDG [KLS21]",
        "Skellam [Aga21]",
        "SMM [Bao22], theorem holds",
        "SMM, formula only (no theorem)",
        "ours, mixture-rdp",
        "ours, mixture-contour",
    )
    for scale in (4.0, 16.0, 64.0, 256.0, 1024.0):
        numbers = " | ".join(f"{cells[scale, name]:.4g}" for name in methods)
        assert f"| {scale:g} | {numbers} |" in page


@pytest.mark.parametrize("name", ["aga21_figure5", "bao22_figure2"])
def test_accuracies_on_the_page_match_the_tables(name):
    page = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    section = page[page.index(f"(pictures/{name}.png)") :].partition("\n### ")[0]
    table = json.loads((ROOT / "docs" / "pictures" / f"{name}.json").read_text("utf-8"))
    exact, *rows = table["rows"]
    assert f"{100 * exact['accuracy']:.1f} without noise" in section
    for method in {row["method"] for row in rows}:
        found = [row for row in rows if row["method"] == method]
        assert all(row["epsilon_stated"] <= row["epsilon"] for row in found)
        assert all(len(row["accuracies"]) == 3 for row in found)
        cells = " | ".join(f"{100 * row['accuracy']:.1f}" for row in found)
        assert re.search(
            rf"\| {re.escape(method)}[^|]* \| {re.escape(cells)} \|", section
        )
