"""Figure 2 of [TF19], in small: accuracy over the rounds under noise for whom.

Four trainings of one model by 100 clients who all take part in every round:

* without noise;
* with the noise that hides a client in the sum;
* joint (section V-C): clients add shares of a noise that hides each of their examples
  in the sum, and it is counted for clients too; more only where they need more;
* split: every client adds all of the noise that hides its examples, and the noise that
  hides a client is added to it, without counting either for the other.

Noise is that of the worst case: the publication's figure leaves the ε of its curves
open, and a Bayesian figure never sets the noise here. Data and model are those of
`tf19_table1`; the panel of retina pictures needs those of a competition.
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
    gradient,
    make_digits,
    spread,
)
from figure import Curve, Figure, Panel
from numpy.typing import NDArray
from reproduction import Options, Reproduction, Usual, run

from dpnoise.accounting.gaussian import analytic_gaussian_stddev

ROUNDS: Final = 60
CLIENTS: Final = 100
EXAMPLES: Final = 20
CLIP: Final = 3.0
STEP: Final = 1.0
CLIENT: Final = (8.0, 1e-3)
EXAMPLE: Final = (1.0, 1e-5)
TRIALS: Final = 5
SEED: Final = 20191125

SETTINGS: Final = {
    "rounds": Usual((ROUNDS,), tiny=(3,), one=True),
    "clients": Usual((CLIENTS,), tiny=(20,), one=True),
    "trials": Usual((TRIALS,), tiny=(2,), one=True),
    "client_epsilon": Usual((CLIENT[0],), one=True),
    "client_delta": Usual((CLIENT[1],), one=True),
    "example_epsilon": Usual((EXAMPLE[0],), one=True),
    "example_delta": Usual((EXAMPLE[1],), one=True),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    rounds, clients = options.count("rounds"), options.count("clients")
    releases = math.sqrt(rounds)
    deltas = options.number("client_delta"), options.number("example_delta")
    for_client = analytic_gaussian_stddev(
        options.number("client_epsilon"), deltas[0], CLIP * releases
    )
    for_example = analytic_gaussian_stddev(
        options.number("example_epsilon"),
        deltas[1],
        min(2.0 * CLIP, LONGEST_EXAMPLE / EXAMPLES) * releases,
    )
    noises = {
        "no noise": 0.0,
        "clients only": for_client,
        "joint": max(for_client, for_example),
        "split": math.hypot(for_client, math.sqrt(clients) * for_example),
    }
    rows: list[dict[str, object]] = []
    for iid in (False, True):
        for name, stddev in noises.items():
            runs = np.array(
                [
                    _train(clients, rounds, stddev, trial, iid=iid)
                    for trial in range(options.count("trials"))
                ]
            )
            rows.append(
                {
                    "noise": name,
                    "iid": iid,
                    "standard deviation of the sum": stddev,
                    "accuracy": runs.mean(axis=0).tolist(),
                    "spread of a run": runs.std(axis=0).tolist(),
                }
            )
    return Reproduction(
        name="tf19_figure2",
        stated={
            "noise": ("none", "clients only", "joint", "split"),
            "pairs of a client and an example that the tables take": (CLIENT, EXAMPLE),
        },
        assumed={
            "data": "digits of scikit-learn, softmax of 650 weights",
            "clients": clients,
            "rounds": rounds,
            "pictures of a client": EXAMPLES,
            "clip of a client": CLIP,
            "step": STEP,
            "deltas of a client and an example": deltas,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def _train(
    clients: int, rounds: int, stddev: float, trial: int, *, iid: bool
) -> NDArray[np.float64]:
    """Return the accuracy after every round."""
    generator = np.random.default_rng((SEED, trial, iid))
    digits = make_digits(generator)
    places = spread(digits, clients, EXAMPLES, generator, iid=iid)
    inputs, labels = digits.inputs[places], digits.labels[places]
    model, reached = np.zeros(MODEL_SIZE), []
    for _ in range(rounds):
        updates, _ = clipped(gradient(model, inputs, labels), CLIP)
        total = updates.sum(axis=0) + generator.normal(0.0, 1.0, MODEL_SIZE) * stddev
        model = model - STEP * total / clients
        reached.append(digits.accuracy(model))
    return np.array(reached)


_FAMILIES: Final = {
    "no noise": "gaussian",
    "clients only": "skellam",
    "joint": "ours",
    "split": "ddgauss",
}


def _figure(rows: list[dict[str, object]]) -> Figure:
    panels = []
    for iid in (False, True):
        curves = []
        for row in rows:
            if row["iid"] is iid:
                reached = np.array(row["accuracy"], dtype=np.float64)
                curves.append(
                    Curve(
                        str(row["noise"]),
                        _FAMILIES[str(row["noise"])],
                        list(range(1, reached.size + 1)),
                        reached.tolist(),
                        spread=np.array(row["spread of a run"]).tolist(),
                    )
                )
        panels.append(
            Panel(
                title="clients alike" if iid else "two digits for each client",
                curves=curves,
                x_label="round",
                y_label="accuracy",
                log_y=False,
                y_limits=(0.0, 1.0),
            )
        )
    return Figure("Noise for whom ([TF19] Figure 2, in small)", panels, 2)


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for row in rows:
        reached = np.array(row["accuracy"], dtype=np.float64)
        kind = "alike" if row["iid"] else "two digits each"
        found.append(
            f"{kind}, {row['noise']}: {100 * reached[-1]:.1f} percent after the last "
            f"round, noise {row['standard deviation of the sum']:.3g}"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
