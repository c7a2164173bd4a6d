"""Tables I, II and IV of [TF19]: learning under noise, and its privacy cost.

All clients send a clipped gradient in every round, and one Gaussian noise is added to
their sum. Its variance gives every client the (ε, δ) of the publication after all
rounds. The table compares that figure with those of a client, or an example, that is
drawn at random:

* as published: one factor for each round (Theorem 1), Student's interval (5);
* by Hölder's inequality, with the population known or estimated without assumptions;
* what all but a twentieth of the clients lose, without assumption on the population.

Data and model are others than the publication's (`digit_clients`); the split is the
same, two shards of one digit for each client. Table III needs other pictures.
"""

import math
import os
import sys
from dataclasses import dataclass
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from digit_clients import (
    LONGEST_EXAMPLE,
    MODEL_SIZE,
    Digits,
    clipped,
    example_norms,
    gradient,
    make_digits,
    spread,
)
from figure import Curve, Figure, Panel
from numpy.typing import NDArray
from reproduction import Options, Reproduction, Usual, run

from dpnoise.accounting.bayesian import (
    BayesianAccountant,
    Interval,
    Level,
    SampledGaussian,
    typical_epsilon,
    upper_mean,
)
from dpnoise.accounting.bayesian.accountant import ORDERS
from dpnoise.accounting.gaussian import analytic_gaussian_stddev

COHORTS: Final = ((100, 8.0, 1e-3), (1000, 3.0, 1e-5), (10_000, 1.0, 1e-6))
PUBLISHED: Final = {
    # clients: baseline, accuracy DP and BDP, epsilon BDP; not i.i.d., then i.i.d.
    100: ((97, 78, 88, 4.0), (97, 86, 92, 2.0)),
    1000: ((98, 95, 96, 1.5), (98, 97, 97, 1.0)),
    10_000: ((99, 96, 97, 0.6), (99, 97, 98, 0.5)),
}
ROUNDS: Final = 30
EXAMPLES: Final = 10
CLIP: Final = 3.0
STEP: Final = 2.0
TYPICAL: Final = 0.05
SEED: Final = 20191122


SETTINGS: Final = {
    "rounds": Usual((ROUNDS,), tiny=(3,), one=True),
    "clip": Usual((CLIP,), one=True),
    # One cohort after the other: the shortest of the three lists ends the table.
    "clients": Usual([clients for clients, _, _ in COHORTS], tiny=(100,)),
    "epsilons": Usual([epsilon for _, epsilon, _ in COHORTS]),
    "deltas": Usual([delta for _, _, delta in COHORTS]),
}


@dataclass(frozen=True, slots=True)
class Training:
    """One run: its accuracies, and how far each client and example moved each sum.

    Attributes:
        baseline: Accuracy without noise.
        accuracy: With it.
        clients: Distances of clients, shape (rounds, clients).
        examples: Distances of examples, shape (rounds, clients, examples).
    """

    baseline: float
    accuracy: float
    clients: NDArray[np.float64]
    examples: NDArray[np.float64]


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    rounds, clip = options.count("rounds"), options.number("clip")
    cohorts = tuple(
        zip(
            options.counts("clients"),
            options.numbers("epsilons"),
            options.numbers("deltas"),
            strict=False,
        )
    )
    smallest = min(clients for clients, _, _ in cohorts)
    rows: list[dict[str, object]] = []
    for clients, epsilon, delta in cohorts:
        stddev = analytic_gaussian_stddev(epsilon, delta, clip * math.sqrt(rounds))
        for iid in (False, True):
            run_of = _train(
                clients,
                rounds,
                clip,
                stddev,
                iid=iid,
                # Table IV has the smallest cohort alone.
                of_examples=clients == smallest,
            )
            rows.append(
                {
                    "clients": clients,
                    "iid": iid,
                    "delta": delta,
                    "baseline": run_of.baseline,
                    "accuracy": run_of.accuracy,
                    **_clients_of(run_of, clip, stddev, delta),
                    **_examples_of(run_of, stddev, delta),
                }
            )
    return Reproduction(
        name="tf19_table1",
        stated={
            "clients, epsilon and delta in the worst case": cohorts,
            "printed: baseline, DP, BDP in percent, epsilon of BDP": [
                [clients, *values] for clients, values in PUBLISHED.items()
            ],
        },
        assumed={
            "data": "digits of scikit-learn, softmax of 650 weights",
            "examples of a client": EXAMPLES,
            "rounds": rounds,
            "clip": clip,
            "step": STEP,
            "participation": "all clients in every round",
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def _train(  # noqa: PLR0913  # a cohort and a noise
    clients: int,
    rounds: int,
    clip: float,
    stddev: float,
    *,
    iid: bool,
    of_examples: bool,
) -> Training:
    generator = np.random.default_rng((SEED, clients, iid))
    digits: Digits = make_digits(generator)
    places = spread(digits, clients, EXAMPLES, generator, iid=iid)
    inputs, labels = digits.inputs[places], digits.labels[places]
    noisy, plain = np.zeros(MODEL_SIZE), np.zeros(MODEL_SIZE)
    lengths, examples = [], []
    for _ in range(rounds):
        plain -= STEP * clipped(gradient(plain, inputs, labels), clip)[0].mean(axis=0)
        updates, norms = clipped(gradient(noisy, inputs, labels), clip)
        lengths.append(norms)
        if of_examples:
            # Clipping lengthens no difference: an example's part is its own gradient.
            examples.append(example_norms(noisy, inputs, labels) / EXAMPLES)
        total = updates.sum(axis=0) + generator.normal(0.0, stddev, MODEL_SIZE)
        noisy = noisy - STEP * total / clients
    return Training(
        digits.accuracy(plain),
        digits.accuracy(noisy),
        np.array(lengths),
        np.array(examples),
    )


def _clients_of(
    trained: Training, clip: float, stddev: float, delta: float
) -> dict[str, object]:
    rounds = len(trained.clients)
    noise = SampledGaussian(stddev)
    figures: dict[str, object] = {}
    for name, interval in (
        ("Hoelder, known", Interval.ALL_CLIENTS),
        ("Hoelder, estimated", Interval.BOUNDED),
    ):
        made = BayesianAccountant(
            release_noise=noise,
            l2_clip=clip,
            rounds=rounds,
            level=Level.CLIENT,
            failure=delta / 10,
            interval=interval,
        )
        for distances in trained.clients:
            made.add_release(distances)
        stated = made.statement(delta)
        figures["worst case"] = stated.worst_case.epsilon
        figures[name] = stated.epsilon
    figures["as published"] = published_epsilon(noise, trained.clients, delta)
    # The order that suits the worst case, fixed before the first release.
    order = math.sqrt(2.0 * stddev**2 * -math.log(delta) / (rounds * clip**2))
    totals = (order + 1.0) * (trained.clients**2).sum(axis=0) / (2.0 * stddev**2)
    figures["all but a twentieth"] = typical_epsilon(
        totals, order=order, delta=delta, share=TYPICAL
    )
    return figures


def _examples_of(trained: Training, stddev: float, delta: float) -> dict[str, object]:
    """Table IV: the same noise, counted for single examples of any client."""
    if not trained.examples.size:
        return {}
    made = BayesianAccountant(
        release_noise=SampledGaussian(stddev),
        l2_clip=LONGEST_EXAMPLE / EXAMPLES,
        rounds=len(trained.examples),
        level=Level.INSTANCE_PARALLEL,
        failure=delta / 10,
        interval=Interval.ALL_CLIENTS,
    )
    for release in trained.examples:
        made.add_release(list(release))
    stated = made.statement(delta)
    return {
        "an example, worst case": stated.worst_case.epsilon,
        "an example, Hoelder": stated.epsilon,
    }


def published_epsilon(
    noise: SampledGaussian, distances: NDArray[np.float64], delta: float
) -> float:
    """Evaluate Theorem 1 and the interval (5) of [TF19]; it bounds nothing.

    Args:
        noise: Of every round.
        distances: Shape (rounds, people).
        delta: Of which the intervals take a tenth.
    """
    failure = delta / 10 / len(distances)
    epsilons = []
    for order in ORDERS:
        total = 0.0
        for each in distances:
            costs = noise.costs((order,), each)[0]
            top = float(costs.max())
            mean = upper_mean(
                np.exp(costs - top), failure=failure, interval=Interval.STUDENT
            )
            total += top + math.log(mean)
        epsilons.append((total - math.log(0.9 * delta)) / order)
    return min(epsilons)


_CURVES: Final = (
    ("worst case", "gaussian"),
    ("as published", "other"),
    ("Hoelder, known", "ours"),
    ("Hoelder, estimated", "ours-rdp"),
    ("all but a twentieth", "skellam"),
)


def _figure(rows: list[dict[str, object]]) -> Figure:
    panels = []
    for iid in (False, True):
        mine = [row for row in rows if row["iid"] is iid]
        x = [float(str(row["clients"])) for row in mine]
        panels.append(
            Panel(
                title="clients alike" if iid else "two digits for each client",
                curves=[
                    Curve(
                        name,
                        family,
                        x,
                        [float(str(row[name])) for row in mine],
                        broken=name == "as published",
                    )
                    for name, family in _CURVES
                ],
                x_label="clients",
                y_label="ε after all rounds",
                log_x=True,
                x_ticks=x,
            )
        )
    return Figure("One noise, five figures ([TF19] Tables I and II)", panels, 2)


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for row in rows:
        numbers = {key: float(str(value)) for key, value in row.items() if key != "iid"}
        kind = "i.i.d." if row["iid"] else "not i.i.d."
        sentence = (
            f"{row['clients']} clients, {kind}: {100 * numbers['accuracy']:.1f} percent"
            f" ({100 * numbers['baseline']:.1f} without noise); epsilon "
            f"{numbers['worst case']:.3g} in the worst case, "
            f"{numbers['as published']:.3g} as published, "
            f"{numbers['Hoelder, known']:.3g} by Hoelder with the population known, "
            f"{numbers['Hoelder, estimated']:.3g} estimated, "
            f"{numbers['all but a twentieth']:.3g} for all but a twentieth"
        )
        if "an example, worst case" in numbers:
            sentence += (
                f"; an example {numbers['an example, worst case']:.3g} in the worst"
                " case, "
                f"{numbers['an example, Hoelder']:.3g} by Hoelder"
            )
        found.append(sentence)
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
