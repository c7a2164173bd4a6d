"""Figure 3 of [Bho18]: logistic regression by gradients that hide themselves.

One example after the other: its gradient, direction and length randomised apart, is a
step of the model; the average of the models is the estimate. Drawn are the excess risk
over the steps, and the distance of the estimate from the truth over ε, beside gradients
without privacy and the estimate of maximal likelihood.

100 000 examples in 500 dimensions and the ε of the direction are stated. The length of
the truth, the length of steps and the ε of the length are lost: here the truth is as
long as √d, steps are in proportion to the typical length of what is sent, as the
publication says of its own, and a length has ε = 10, as in its other experiments.

All experiments of a level run beside each other, so the cosines of the cap are drawn
from its law on a grid instead of from secret bits; probabilities are the mechanism's.
"""

import itertools
import math
import os
import sys
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figure import Curve, Figure, Panel
from numpy.typing import NDArray
from published_caps import PublishedPrivUnit2
from reproduction import Options, Reproduction, Usual, run

from dpnoise.local import LocalParameters
from dpnoise.local.magnitude import ScalarDP
from dpnoise.local.unit_vector import PrivUnit2

DIM: Final = 500
EXAMPLES: Final = 100_000
EPSILONS: Final = (250.0, 125.0, 62.5, 31.2, 15.6, 7.8)
MAGNITUDE_EPSILON: Final = 10.0
LONGEST: Final = 1.0  # of a gradient: examples lie on the unit sphere
POWER: Final = 0.51  # steps fall as k^-0.51, and models are averaged
TRIALS: Final = 3
SHARES: Final = (0.25, 0.5, 0.75, 1.0)
SEED: Final = 20180312
_FEWEST: Final = 4  # examples for each dimension
_NEWTON_STEPS: Final = 3  # from the truth, which is near
_TESTED: Final = 20_000
_GRID: Final = 1 << 14
_BLOCK: Final = 1000
_POLE: Final = 1.0 - 1e-9

Floats = NDArray[np.float64]


SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=EPSILONS[:1]),
    "dimension": Usual((DIM,), tiny=(20,), one=True),
    "examples": Usual((EXAMPLES,), tiny=(400,), one=True),
    "trials": Usual((TRIALS,), tiny=(2,), one=True),
    "magnitude_epsilon": Usual((MAGNITUDE_EPSILON,), one=True),
}


class Senders:
    """Sends the gradients of many experiments at once, one pair of levels for each row.

    Args:
        directions: PrivUnit2 with its numbers, for each level.
        trials: Experiments of each level, in rows beside each other.
        spent: Level of a length.
    """

    def __init__(self, directions: list[PrivUnit2], trials: int, spent: float) -> None:
        self._generator = np.random.default_rng((SEED, 1))
        self._magnitude = ScalarDP(
            LocalParameters(randomiser="scalar-dp", dim=1, bound=LONGEST, epsilon=spent)
        )

        def rows(values: list[float]) -> Floats:
            return np.repeat(values, trials)

        self._agreements = rows([each.mean_agreement for each in directions])
        self._lies = rows([float(each.lie) for each in directions])
        self._tables = np.array(
            [
                (
                    _quantiles(each.cap.edge, 1.0, each.cap.dim),
                    _quantiles(-1.0, each.cap.edge, each.cap.dim),
                )
                for each in directions
            ]
        )
        self._level_of = np.repeat(np.arange(len(directions)), trials)

    @property
    def typical(self) -> Floats:
        """Root mean square of what is sent for a gradient of half length, each row."""
        half = LONGEST / 2.0
        square = self._magnitude.mse(half) + half * half
        return np.asarray(np.sqrt(square) / self._agreements)

    def send(self, directions: Floats, lengths: Floats) -> Floats:
        """Return what is sent.

        Args:
            directions: Unit vectors, shape (rows, dim).
            lengths: Shape (rows,).
        """
        draw, rows = self._generator, self._level_of
        lies = (draw.random(len(rows)) < self._lies).astype(np.int64)
        places = draw.random(len(rows)) * (_GRID - 1)
        below = places.astype(np.int64)
        left = self._tables[rows, lies, below]
        right = self._tables[rows, lies, below + 1]
        cosines = left + (places - below) * (right - left)
        points = draw.standard_normal(directions.shape)
        along = np.einsum("ij,ij->i", points, directions)
        squares = np.einsum("ij,ij->i", points, points) - along**2
        points *= np.sqrt((1.0 - cosines**2) / squares)[:, None]
        along *= np.sqrt((1.0 - cosines**2) / squares)
        points += (cosines - along)[:, None] * directions
        points *= (self._lengths(lengths) / self._agreements)[:, None]
        return np.asarray(points)

    def _lengths(self, lengths: Floats) -> Floats:
        """ScalarDP of many lengths."""
        made, draw = self._magnitude, self._generator
        count = len(lengths)
        position = np.clip(lengths / LONGEST, 0.0, 1.0) * made.levels
        points = np.floor(position)
        points += draw.random(count) < position - points
        others = draw.integers(0, made.levels, count)
        others += others >= points
        points = np.where(draw.random(count) < float(made.lie), others, points)
        centre = float(made.lie) * (made.levels + 1) / 2.0
        return np.asarray((points - centre) / made.slope * LONGEST / made.levels)


def _quantiles(low: float, high: float, dim: int) -> Floats:
    """Return quantiles of a uniform point's cosine, between two cosines.

    Its density is (1 - t²)^((dim - 3)/2), next to nothing beyond ten deviations.
    """
    reach = 12.0 / np.sqrt(dim)
    low, high = max(low, -reach, -_POLE), min(high, max(low, 0.0) + reach, _POLE)
    cosines = np.linspace(low, high, _GRID)
    logs = (dim - 3) / 2.0 * np.log1p(-(cosines**2))
    density = np.exp(logs - logs.max())
    mass = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    shares = np.linspace(0.0, 1.0, _GRID)
    return np.asarray(np.interp(shares, mass / mass[-1], cosines))


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    dim, examples = options.count("dimension"), options.count("examples")
    trials, levels = options.count("trials"), options.numbers("epsilons")
    spent = options.number("magnitude_epsilon")
    stream = _Examples(dim, examples, trials)
    labels = [(epsilon, kind) for epsilon in levels for kind in ("published", "best")]
    directions = [_direction(kind, dim, each) for each, kind in labels]
    learnt = _learn(stream, Senders(directions, trials, spent))
    rows: list[dict[str, object]] = [
        {"epsilon": epsilon, "numbers": kind, **found}
        for (epsilon, kind), found in zip(
            [(None, "none"), *labels], learnt, strict=True
        )
    ]
    rows.append({"epsilon": None, "numbers": "likelihood", **_likeliest(stream)})
    guessing = np.zeros_like(stream.truths)
    rows.append(
        {
            "epsilon": None,
            "numbers": "guessing",
            "excess risk": [float(stream.excess(guessing).mean())],
            **_distances(stream, guessing),
        }
    )
    return Reproduction(
        name="bho18_figure3",
        stated={
            "dimension": dim,
            "examples": examples,
            "epsilons of the direction": levels,
            "split of the published numbers": "0.99 cap, 0.01 side",
        },
        assumed={
            "length of the truth": "square root of the dimension",
            "epsilon of the length": spent,
            "steps": f"k^-{POWER} · length of the truth / typical length sent",
            "estimate": "average of all models",
            "trials": trials,
        },
        rows=rows,
        findings=_findings(rows),
        figure=_figure(rows),
    )


def _direction(kind: str, dim: int, epsilon: float) -> PrivUnit2:
    made = PublishedPrivUnit2 if kind == "published" else PrivUnit2
    return made(
        LocalParameters(randomiser="privunit2", dim=dim, bound=1.0, epsilon=epsilon)
    )


class _Examples:
    """The same examples for every level, block by block."""

    def __init__(self, dim: int, examples: int, trials: int) -> None:
        self.dim, self.count, self.trials = dim, examples, trials
        truths = _on_sphere(np.random.default_rng((SEED, 0)), (trials, dim))
        self.truths: Floats = truths * np.sqrt(dim)
        self._tested = _on_sphere(np.random.default_rng((SEED, 2)), (_TESTED, dim))

    def blocks(self) -> "list[tuple[int, int]]":
        """Return number and size of each block."""
        starts = range(0, self.count, _BLOCK)
        return [
            (number, min(_BLOCK, self.count - start))
            for number, start in enumerate(starts)
        ]

    def block(self, number: int, size: int) -> tuple[Floats, Floats]:
        """Return examples, shape (size, trials, dim), and signs (size, trials)."""
        generator = np.random.default_rng((SEED, 3, number))
        inputs = _on_sphere(generator, (size, self.trials, self.dim))
        likely = _logistic((inputs * self.truths).sum(axis=2))
        return inputs, np.where(generator.random(likely.shape) < likely, 1.0, -1.0)

    def excess(self, models: Floats) -> Floats:
        """Return the excess risk of models, shape (trials,), on fresh examples."""
        likely = _logistic(self._tested @ self.truths.T)
        risks = [
            (likely * _softplus(-margins) + (1.0 - likely) * _softplus(margins)).mean(
                axis=0
            )
            for margins in (self._tested @ models.T, self._tested @ self.truths.T)
        ]
        return np.asarray(risks[0] - risks[1])


def _on_sphere(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    drawn = generator.standard_normal(shape)
    return np.asarray(drawn / np.linalg.norm(drawn, axis=-1, keepdims=True))


def _logistic(margins: Floats) -> Floats:
    return np.asarray(0.5 * (1.0 + np.tanh(margins / 2.0)))


def _softplus(margins: Floats) -> Floats:
    return np.asarray(np.logaddexp(0.0, margins))


def _learn(stream: _Examples, senders: Senders) -> list[dict[str, object]]:
    """One pass over the examples: gradients in the clear, then under each level."""
    trials, dim = stream.trials, stream.dim
    typical = np.concatenate([np.full(trials, LONGEST / 2.0), senders.typical])
    first = np.sqrt(dim) / typical
    models = np.zeros((len(typical), dim))
    average = np.zeros_like(models)
    wanted = [max(1, round(share * stream.count)) for share in SHARES]
    seen, excess = 0, []
    for number, size in stream.blocks():
        inputs, signs = stream.block(number, size)
        for row in range(size):
            given = np.tile(
                -signs[row][:, None] * inputs[row], (len(typical) // trials, 1)
            )
            lengths = _logistic(np.einsum("ij,ij->i", given, models))
            seen += 1
            sent = np.empty_like(given)
            sent[:trials] = given[:trials] * lengths[:trials, None]
            sent[trials:] = senders.send(given[trials:], lengths[trials:])
            sent *= (first * seen**-POWER)[:, None]
            models -= sent
            average += (models - average) / seen
            if seen in wanted:
                excess.append(
                    [
                        float(stream.excess(each).mean())
                        for each in average.reshape(-1, trials, dim)
                    ]
                )
    return [
        {"excess risk": list(risks), **_distances(stream, each)}
        for risks, each in zip(
            zip(*excess, strict=True), average.reshape(-1, trials, dim), strict=True
        )
    ]


def _likeliest(stream: _Examples) -> dict[str, object]:
    """The estimate of maximal likelihood, by Newton's steps from the truth.

    Of few examples a plane parts the signs, and there is no such estimate.
    """
    models, dim = stream.truths.copy(), stream.dim
    if stream.count < _FEWEST * dim:
        away = dict.fromkeys(("distance", "nearest", "farthest"), math.inf)
        return {"excess risk": [math.inf], **away}
    for _ in range(_NEWTON_STEPS):
        slopes = np.zeros_like(models)
        bends = np.zeros((stream.trials, dim, dim))
        for number, size in stream.blocks():
            inputs, signs = stream.block(number, size)
            margins = (inputs * models).sum(axis=2)
            wrong = signs * _logistic(-signs * margins)
            weights = _logistic(margins) * _logistic(-margins)
            for trial in range(stream.trials):
                given = inputs[:, trial]
                slopes[trial] += wrong[:, trial] @ given
                bends[trial] += given.T @ (given * weights[:, trial][:, None])
        models = models + np.linalg.solve(bends, slopes[:, :, None])[:, :, 0]
    return {
        "excess risk": [float(stream.excess(models).mean())],
        **_distances(stream, models),
    }


def _distances(stream: _Examples, models: Floats) -> dict[str, object]:
    """Distances from the truth, over its length."""
    away = np.linalg.norm(models - stream.truths, axis=1) / np.sqrt(stream.dim)
    return {
        "distance": float(away.mean()),
        "nearest": float(away.min()),
        "farthest": float(away.max()),
    }


def _figure(rows: list[dict[str, object]]) -> Figure:
    learnt = [row for row in rows if row["numbers"] in {"none", "best"}]
    # Few levels have a style of their own: the lower ones are paler.
    looks = [("ours", style) for style in ("-", "--", "-.", ":")]
    looks += [("ours-rdp", style) for _, style in looks]
    over_steps = [
        Curve(
            "no privacy" if row["epsilon"] is None else f"ε = {row['epsilon']:g}",
            family,
            SHARES,
            _list(row["excess risk"]),
            style=style,
        )
        for row, (family, style) in zip(
            learnt,
            itertools.chain([("gaussian", "-")], itertools.cycle(looks)),
            strict=False,
        )
    ]
    (guessing,) = (row for row in rows if row["numbers"] == "guessing")
    over_steps.append(
        Curve("guessing", "other", SHARES, _list(guessing["excess risk"]) * len(SHARES))
    )
    levels = [float(str(row["epsilon"])) for row in rows if row["numbers"] == "best"]
    over_levels = [
        Curve(
            "as published" if kind == "published" else "best cap, exact level",
            family,
            levels,
            [float(str(row["distance"])) for row in rows if row["numbers"] == kind],
            spread=[
                (float(str(row["farthest"])) - float(str(row["nearest"]))) / 2.0
                for row in rows
                if row["numbers"] == kind
            ],
        )
        for kind, family in (("published", "other"), ("best", "ours"))
    ]
    for kind, style in (("none", "-"), ("likelihood", ":")):
        (row,) = (row for row in rows if row["numbers"] == kind)
        over_levels.append(
            Curve(
                "no privacy" if kind == "none" else "maximal likelihood",
                "gaussian",
                levels,
                [float(str(row["distance"]))] * len(levels),
                style=style,
            )
        )
    return Figure(
        "[Bho18] Figure 3: logistic regression",
        [
            Panel("excess risk", over_steps, "share of the examples", "L − L*"),
            Panel(
                "distance from the truth, over its length",
                over_levels,
                "ε of the direction",
                "distance",
                log_x=True,
                x_ticks=levels,
            ),
        ],
        2,
    )


def _list(value: object) -> list[float]:
    if not isinstance(value, list):
        raise TypeError("a row of excess risks is a list")
    return value


def _findings(rows: list[dict[str, object]]) -> list[str]:
    found = []
    for row in rows:
        epsilon, kind = row["epsilon"], row["numbers"]
        said = kind if epsilon is None else f"ε = {epsilon:g}, {kind} numbers"
        found.append(
            f"{said}: distance {float(str(row['distance'])):.3g} of the truth's length"
            f", excess risk {_list(row['excess risk'])[-1]:.3g} in the end"
        )
    return found


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
