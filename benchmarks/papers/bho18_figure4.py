"""Figure 4a of [Bho18], in small: accuracy under the separated mechanism.

Clients take five local steps on ten pictures, clip what has changed, randomise length
and direction apart, and a server averages. Curves: without privacy, with the published
numbers of PrivUnit2, and with the best cap at the same level. The magnitude has ε = 10,
as in the publication; the level of the direction is on the axis.

The publication trains a CNN of millions of weights on MNIST. Here it is a softmax on
the digits of scikit-learn, which runs anywhere in a minute. The central noise of the
publication is not included: its formula is lost, and it hides what is compared.
"""

import os
import sys
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from digit_clients import MODEL_SIZE, Digits, gradient, make_digits
from figure import Curve, Figure, Panel
from published_caps import PublishedPrivUnit2
from reproduction import Options, Reproduction, Usual, run

from dpnoise.local import LocalParameters
from dpnoise.local.separated import Separated

MAGNITUDE_EPSILON: Final = 10.0
BOUND: Final = 5.0  # r_max of section 5
EPSILONS: Final = (1.0, 2.5, 5.0, 10.0, 25.0, 100.0)
ROUNDS: Final = 40
CLIENTS: Final = 50  # of one round
EXAMPLES: Final = 10
LOCAL_STEPS: Final = 5
STEP: Final = 0.5
TRIALS: Final = 3
SEED: Final = 20180612


SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=EPSILONS[2:3]),
    "rounds": Usual((ROUNDS,), tiny=(2,), one=True),
    "trials": Usual((TRIALS,), tiny=(1,), one=True),
    "clients": Usual((CLIENTS,), one=True),
    "magnitude_epsilon": Usual((MAGNITUDE_EPSILON,), one=True),
    "bound": Usual((BOUND,), one=True),
}


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    levels = options.numbers("epsilons")
    rounds, trials = options.count("rounds"), options.count("trials")
    clients, bound = options.count("clients"), options.number("bound")
    spent = options.number("magnitude_epsilon")
    rows: list[dict[str, object]] = []
    for epsilon in (None, *levels):
        for kind in ("none",) if epsilon is None else ("published", "best"):
            reached = [
                _train(
                    _mechanism(kind, epsilon, spent, bound),
                    bound,
                    rounds,
                    clients,
                    trial,
                )
                for trial in range(trials)
            ]
            rows.append(
                {
                    "epsilon": epsilon,
                    "randomiser": kind,
                    "accuracy": float(np.mean(reached)),
                    "half width": _half_width(reached),
                }
            )
    return Reproduction(
        name="bho18_figure4",
        stated={
            "epsilon of the magnitude": spent,
            "largest magnitude": bound,
            "local steps": LOCAL_STEPS,
        },
        assumed={
            "data": "digits of scikit-learn, softmax of 650 weights",
            "clients of a round": clients,
            "rounds": rounds,
            "pictures of a client": EXAMPLES,
            "step": STEP,
            "trials": trials,
            "epsilons of the direction": levels,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def _mechanism(
    kind: str, epsilon: float | None, spent: float, bound: float
) -> Separated | None:
    if epsilon is None:
        return None
    made = Separated(
        LocalParameters(
            randomiser="separated",
            dim=MODEL_SIZE,
            bound=bound,
            epsilon=epsilon + spent,
            magnitude_epsilon=spent,
        )
    )
    if kind == "published":
        made.direction = PublishedPrivUnit2(made.direction.parameters)
    return made


def _train(
    randomiser: Separated | None, bound: float, rounds: int, clients: int, trial: int
) -> float:
    """Return the accuracy after the last round."""
    generator = np.random.default_rng((SEED, trial))
    digits: Digits = make_digits(generator)
    model = np.zeros(MODEL_SIZE)
    for step in range(rounds):
        chosen = generator.integers(0, digits.labels.size, (clients, EXAMPLES))
        inputs, labels = digits.inputs[chosen], digits.labels[chosen]
        local = np.repeat(model[None, :], clients, axis=0)
        for _ in range(LOCAL_STEPS):
            local -= STEP * gradient(local, inputs, labels)
        changes = (local - model) / STEP  # the gradient mapping of (12)
        lengths = np.linalg.norm(changes, axis=1, keepdims=True)
        changes *= np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
        if randomiser is not None:
            changes = np.array(
                [
                    randomiser.randomise(change, private_seed=_seed(trial, step, each))
                    for each, change in enumerate(changes)
                ]
            )
        model = model + STEP * changes.mean(axis=0)
    return digits.accuracy(model)


def _seed(trial: int, step: int, client: int) -> bytes:
    return b"".join(each.to_bytes(8, "big") for each in (SEED, trial, step, client))


def _half_width(reached: list[float]) -> float:
    if len(reached) < 2:
        return 0.0
    return float(1.96 * np.std(reached, ddof=1) / np.sqrt(len(reached)))


def _figure(rows: list[dict[str, object]]) -> Figure:
    plain = float(str(rows[0]["accuracy"]))
    levels = sorted({float(str(row["epsilon"])) for row in rows[1:]})
    curves = [Curve("no privacy", "gaussian", levels, [plain] * len(levels))]
    for kind, family in (("published", "other"), ("best", "ours")):
        mine = [row for row in rows if row["randomiser"] == kind]
        curves.append(
            Curve(
                "as published" if kind == "published" else "best cap, exact level",
                family,
                levels,
                [float(str(row["accuracy"])) for row in mine],
                spread=[float(str(row["half width"])) for row in mine],
                marks_only=False,
            )
        )
    panel = Panel(
        title=f"separated mechanism, {MODEL_SIZE} weights",
        curves=curves,
        x_label="ε of the direction, one session",
        y_label="accuracy",
        log_x=True,
        log_y=False,
        y_limits=(0.0, 1.0),
        x_ticks=levels,
    )
    return Figure("[Bho18] Figure 4a, in small", [panel], 1)


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = [f"without privacy {100 * float(str(rows[0]['accuracy'])):.1f} percent"]
    for epsilon in sorted({float(str(row["epsilon"])) for row in rows[1:]}):
        here = {
            row["randomiser"]: 100 * float(str(row["accuracy"]))
            for row in rows
            if row["epsilon"] == epsilon
        }
        found.append(
            f"ε = {epsilon:g} for the direction: {here['published']:.1f} percent as "
            f"published, {here['best']:.1f} percent with the best cap"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
