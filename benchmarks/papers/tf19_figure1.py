"""Figure 1 of [TF19]: how the ε of a single example grows with the rounds.

Every client sends the clipped gradient of a few of its pictures, drawn again in every
round, and one Gaussian noise is added to the sum. The ε of a picture is counted in the
two ways of section V-B. Sequential counts all clients together: costs are added, at the
rate of a picture among all. Parallel counts the client that loses most: the largest
cost, at the rate of a picture among those of one client. The figure shows the growth
since the first round, as in the publication:

* as published, one factor for each round (Theorem 1), which bounds nothing;
* by Hölder's inequality, for the number of rounds that was planned.

The rate of the sequential count holds only against readers who do not know the client.
Data and model are those of `tf19_table1`. The publication estimates costs from a sample
of each client's pictures; here they are averages over all of them.
"""

import math
import os
import sys
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from digit_clients import (
    LONGEST_EXAMPLE,
    MODEL_SIZE,
    clipped,
    example_norms,
    gradient,
    make_digits,
    spread,
)
from figure import Curve, Figure, Panel
from numpy.typing import NDArray
from reproduction import Options, Reproduction, Usual, run

from dpnoise.accounting.bayesian import SampledGaussian
from dpnoise.accounting.bayesian.accountant import ORDERS
from dpnoise.accounting.gaussian import analytic_gaussian_stddev

ROUNDS: Final = 30
EXAMPLES: Final = 20
BATCH: Final = 5
CLIP: Final = 3.0
STEP: Final = 2.0
EPSILON: Final = 8.0
DELTA: Final = 1e-5
SEED: Final = 20191124

SETTINGS: Final = {
    "rounds": Usual((ROUNDS,), tiny=(3,), one=True),
    "clients": Usual((100, 1000), tiny=(20,)),
    "epsilon": Usual((EPSILON,), one=True),
    "delta": Usual((DELTA,), one=True),
}

Growth = dict[str, list[float]]


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    rounds, epsilon = options.count("rounds"), options.number("epsilon")
    delta = options.number("delta")
    # As much as hides one whole client that takes part in every round.
    stddev = analytic_gaussian_stddev(epsilon, delta, CLIP * math.sqrt(rounds))
    rows: list[dict[str, object]] = []
    for clients in options.counts("clients"):
        for iid in (False, True):
            distances = _train(clients, rounds, stddev, iid=iid)
            for counted in ("sequential", "parallel"):
                grown = _growth(distances, stddev, delta, counted)
                rows += [
                    {"clients": clients, "iid": iid, "counted": counted, "how": how}
                    | {"first": curve[0], "grown": [y - curve[0] for y in curve]}
                    for how, curve in grown.items()
                ]
    return Reproduction(
        name="tf19_figure1",
        stated={"clients": (100, 1000), "counted": ("sequential", "parallel")},
        assumed={
            "data": "digits of scikit-learn, softmax of 650 weights",
            "pictures of a client, and of a batch": (EXAMPLES, BATCH),
            "rounds": rounds,
            "clip of a client": CLIP,
            "standard deviation of the noise": stddev,
            "delta": delta,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def _train(
    clients: int, rounds: int, stddev: float, *, iid: bool
) -> NDArray[np.float64]:
    """Return how far each picture moves each sum, shape (rounds, clients, pictures)."""
    generator = np.random.default_rng((SEED, clients, iid))
    digits = make_digits(generator)
    places = spread(digits, clients, EXAMPLES, generator, iid=iid)
    model = np.zeros(MODEL_SIZE)
    distances = []
    for _ in range(rounds):
        inputs, labels = digits.inputs[places], digits.labels[places]
        # Clipping lengthens no difference: a picture's part is its own gradient.
        norms = example_norms(model, inputs, labels) / BATCH
        distances.append(np.minimum(norms, min(2.0 * CLIP, LONGEST_EXAMPLE / BATCH)))
        drawn = generator.permuted(places, axis=1)[:, :BATCH]
        updates, _ = clipped(
            gradient(model, digits.inputs[drawn], digits.labels[drawn]), CLIP
        )
        total = updates.sum(axis=0) + generator.normal(0.0, stddev, MODEL_SIZE)
        model = model - STEP * total / clients
    return np.array(distances)


def _growth(
    distances: NDArray[np.float64], stddev: float, delta: float, counted: str
) -> Growth:
    """Return ε after every round, in both ways to add rounds up."""
    rounds, clients, pictures = distances.shape
    rate = BATCH / pictures
    if counted == "sequential":
        rate /= clients
    noise = SampledGaussian(stddev, rate)
    orders = np.array(ORDERS, dtype=np.float64)
    grown: Growth = {}
    for how, planned in (("as published", 1), ("Hoelder", rounds)):
        spent, curve = np.zeros(orders.size), []
        for each in distances:
            costs = planned * noise.costs(ORDERS, each.ravel())
            of_clients = costs.reshape(-1, clients, pictures)
            top = of_clients.max(axis=2)
            means = np.exp(of_clients - top[:, :, None]).mean(axis=2)
            spending = (top + np.log(means)) / planned
            together = np.sum if counted == "sequential" else np.max
            spent = spent + together(spending, axis=1)
            curve.append(float(np.min((spent - math.log(delta)) / orders)))
        grown[how] = curve
    return grown


_FAMILIES: Final = {
    ("sequential", 100): "ours",
    ("sequential", 1000): "ours-rdp",
    ("parallel", 100): "ddgauss",
    ("parallel", 1000): "skellam",
}


def _figure(rows: list[dict[str, object]]) -> Figure:
    panels = []
    for how in ("as published", "Hoelder"):
        for iid in (False, True):
            curves = []
            for row in rows:
                if (row["how"], row["iid"]) != (how, iid):
                    continue
                grown = np.array(row["grown"], dtype=np.float64)[1:]
                key = (str(row["counted"]), int(str(row["clients"])))
                curves.append(
                    Curve(
                        f"{key[0]}, {key[1]} clients",
                        _FAMILIES.get(key, "other"),
                        list(range(2, grown.size + 2)),
                        grown.tolist(),
                        broken=how == "as published",
                    )
                )
            panels.append(
                Panel(
                    title=f"{how}; " + ("clients alike" if iid else "two digits each"),
                    curves=curves,
                    x_label="round",
                    y_label="growth of ε since the first",
                )
            )
    return Figure("An example's ε over the rounds ([TF19] Figure 1)", panels, 2)


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for row in rows:
        grown = np.array(row["grown"], dtype=np.float64)
        kind = "alike" if row["iid"] else "two digits each"
        found.append(
            f"{row['clients']} clients, {kind}, {row['counted']}, {row['how']}: "
            f"{row['first']:.3g} after the first round, {grown[-1]:.3g} more after "
            f"{grown.size}"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
