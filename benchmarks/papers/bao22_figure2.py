"""Figure 2 of [Bao22], panel (d): a network learns MNIST from noisy sums of one byte.

The setting is the publication's: 63 610 weights (784-80-10), one record for one
participant, batches of 240, 1000 steps, Adam at 0.005, clip 1, δ = 10⁻⁵, m = 2⁸. Two
things are not: batches are parts of permutations instead of Poisson samples, so that a
record takes part in 4 sums and ε holds against the server; and the product's planner
chooses the scale. The axis above says what the publication would claim for that noise.

Curves: the central Gaussian, the default mechanism, and two aggregators [DPSA24].

What is exact, and what is not:

* Noise of the default mechanism is one draw of the product's sampler for each
  coordinate, at the variance of all shares: Skellam noise adds up to Skellam noise, so
  this is the law of the sum of 240 shares. Both draws of two aggregators are drawn.
* Rounding of 240 rotated gradients is *not* drawn record by record, which takes much
  longer. The sum gets a normal error of the same variance, rounded to integers.
  The table has its part of all noise.
* Caps on coordinates are not applied: they lie 6 deviations away, and the forecast of
  their bias is 10⁻¹⁰. Fixed-point numbers of 16 bits are truncated after the sum, not
  before.
"""

import itertools
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figure import Figure, Panel
from mnist import CLASSES, Pictures, read_mnist, read_small_digits
from numpy.typing import NDArray
from reproduction import Options, Reproduction, Usual, run
from training_sums import (
    CENTRAL,
    EXACT,
    OURS,
    TWO,
    Noise,
    Task,
    accuracy_curves,
    findings,
    noise,
    number,
    row,
    sampled_epsilon,
    seed,
)

from dpnoise.encoding.rotation import make_rotation
from dpnoise.mechanisms.base import CentralMechanism, Mechanism

HIDDEN: Final = 80
BATCH: Final = 240
EPOCHS: Final = 4
BITS: Final = 8
CLIP: Final = 1.0
LEARNING_RATE: Final = 0.005
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
SEEDS: Final = 3
METHODS: Final = (CENTRAL, OURS, TWO)

SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=(8.0,)),
    "seeds": Usual((SEEDS,), tiny=(1,), one=True),
    "batch": Usual((BATCH,), tiny=(140,), one=True),
    "epochs": Usual((EPOCHS,), tiny=(1,), one=True),
    "bits": Usual((BITS,), one=True),
    "hidden": Usual((HIDDEN,), tiny=(8,), one=True),
    "learning_rate": Usual((LEARNING_RATE,), one=True),
    "delta": Usual((DELTA,), one=True),
}

_Array = NDArray[np.float64]
_FIRST_DECAY, _SECOND_DECAY, _TINY = 0.9, 0.999, 1e-8  # of Adam
_GRID_VARIANCE = 1.0 / 12.0  # that rounding to integers adds by itself
_WIDEST: Final = 2.0  # deviations in grid steps, beyond which 1/6 is exact enough


@dataclass(frozen=True, slots=True)
class Training:
    """What all runs have in common."""

    pictures: Pictures
    hidden: int
    batch: int
    epochs: int
    learning_rate: float

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of weights and constants of both layers."""
        pixels = self.pictures.inputs.shape[1]
        hidden = self.hidden
        return (pixels, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)

    @property
    def dim(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def ends(self) -> list[int]:
        """Where the entries of all weights but the last end in a vector."""
        sizes = [math.prod(shape) for shape in self.shapes[:-1]]
        return list(itertools.accumulate(sizes))

    @property
    def steps(self) -> int:
        """Sums of one training."""
        return self.epochs * (self.pictures.labels.size // self.batch)

    def batches(self, generator: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        """Yield the records of every step; in one epoch each comes once at most."""
        records = self.pictures.labels.size
        for _ in range(self.epochs):
            order = generator.permutation(records)[: records // self.batch * self.batch]
            yield from order.reshape(-1, self.batch)


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    training = Training(
        pictures=read_small_digits() if options.tiny else read_mnist(),
        hidden=options.count("hidden"),
        batch=options.count("batch"),
        epochs=options.count("epochs"),
        learning_rate=options.number("learning_rate"),
    )
    task = Task(
        members=training.batch,
        dim=training.dim,
        clip=CLIP,
        sums=training.steps,
        participations=training.epochs,
        delta=options.number("delta"),
    )
    seeds = range(options.count("seeds"))
    rows = [_row(training, EXACT, None, seeds)]
    for epsilon in options.numbers("epsilons"):
        for method in METHODS:
            bits = options.count("bits") if method == OURS else None
            planned = noise(method, task, epsilon, bits)
            rows.append(_row(training, method, planned, seeds, epsilon))
            if method == CENTRAL:
                rate = training.batch / training.pictures.labels.size
                rows[-1]["epsilon_if_sampled"] = sampled_epsilon(
                    task, planned.variance, rate
                )
    return Reproduction(
        name="bao22_figure2",
        stated={
            "weights": 63_610,
            "batch": BATCH,
            "steps": 1000,
            "epochs": EPOCHS,
            "optimizer": "Adam, learning rate 0.005",
            "clip": CLIP,
            "delta": DELTA,
            "bits of the modulus": BITS,
        },
        assumed={
            "pictures": training.pictures.name,
            "network": f"{training.shapes[0][0]}-{training.hidden}-{CLASSES}, ReLU",
            "batches": f"permutations, {training.epochs} participations of a record",
            "epsilon": "against the server, or against either of two aggregators",
            "noise": "exact law of the sum of all shares, by the product's samplers",
            "rounding": "normal of equal variance, a batch at once",
            "fixed point": "16 bits, truncated after the sum",
            "scale": "the planner's",
        },
        rows=rows,
        findings=findings(rows),
        figure=_figure(rows, training),
    )


def _row(
    training: Training,
    method: str,
    planned: Noise | None,
    seeds: Sequence[int],
    epsilon: float | None = None,
) -> dict[str, object]:
    runs = [train(training, planned, each) for each in seeds]
    made = row(method, epsilon, planned, [accuracy for accuracy, _ in runs])
    if planned is not None:
        made["participations"] = training.epochs
        made["rounding_part_of_noise"] = float(np.mean([part for _, part in runs]))
    return made


def train(
    training: Training, planned: Noise | None, run_number: int
) -> tuple[float, float]:
    """Train once.

    Args:
        training: The setting.
        planned: The noise, or None for exact sums.
        run_number: Equal numbers give equal batches and first weights.

    Returns:
        The share of test pictures that are read right in the end, and the mean variance
        of rounding over that of the noise.
    """
    generator = np.random.default_rng(run_number)
    weights = [
        generator.normal(0.0, math.sqrt(2.0 / shape[0]), shape).astype(np.float32)
        if len(shape) == 2
        else np.zeros(shape, np.float32)
        for shape in training.shapes
    ]
    first, second = np.zeros(training.dim), np.zeros(training.dim)
    pictures, parts = training.pictures, []
    for step, batch in enumerate(training.batches(generator), start=1):
        total, norms = clipped_sum(
            weights, pictures.inputs[batch], pictures.labels[batch]
        )
        label = f"bao22_figure2/{run_number}/{step}"
        noisy, part = release(planned, total, norms, generator, label)
        parts.append(part)
        mean = noisy / training.batch
        first += (1.0 - _FIRST_DECAY) * (mean - first)
        second += (1.0 - _SECOND_DECAY) * (mean * mean - second)
        move = first / (1.0 - _FIRST_DECAY**step)
        move /= np.sqrt(second / (1.0 - _SECOND_DECAY**step)) + _TINY
        moves = np.split(move, training.ends)
        for weight, change in zip(weights, moves, strict=True):
            np.subtract(
                weight,
                training.learning_rate * change.reshape(weight.shape),
                out=weight,
            )
    _, scores = _scores(weights, pictures.test_inputs)
    right = scores.argmax(axis=1) == pictures.test_labels
    return float(right.mean()), float(np.mean(parts))


def clipped_sum(
    weights: Sequence[NDArray[np.float32]],
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> tuple[_Array, _Array]:
    """Add up the gradients of single records, each shortened to the clip.

    Args:
        weights: Of both layers.
        inputs: Shape (records, pixels).
        labels: Shape (records,).

    Returns:
        The sum, shape (dim,), and the norms of its summands, shape (records,).
    """
    hidden, scores = _scores(weights, inputs)
    scores -= scores.max(axis=1, keepdims=True)
    errors = np.exp(scores)
    errors /= errors.sum(axis=1, keepdims=True)
    errors[np.arange(labels.size), labels] -= 1.0
    back = (errors @ weights[2].T) * (hidden > 0.0)
    # The gradient of a layer is an outer product: its norm needs no matrix.
    squares = _square(inputs) * (back**2).sum(axis=1)
    squares += _square(hidden) * (errors**2).sum(axis=1)
    norms = np.sqrt(squares, dtype=np.float64)
    kept = np.minimum(1.0, CLIP / np.maximum(norms, _TINY))
    back *= kept[:, None].astype(np.float32)
    errors *= kept[:, None].astype(np.float32)
    total = np.concatenate(
        [
            (inputs.T @ back).ravel(),
            back.sum(axis=0),
            (hidden.T @ errors).ravel(),
            errors.sum(axis=0),
        ]
    )
    return total.astype(np.float64), norms * kept


def _scores(
    weights: Sequence[NDArray[np.float32]], inputs: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    hidden = np.maximum(inputs @ weights[0] + weights[1], 0.0)
    return hidden, hidden @ weights[2] + weights[3]


def _square(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squared norms with the constant input."""
    return np.asarray((inputs**2).sum(axis=1) + 1.0)


def release(
    planned: Noise | None,
    total: _Array,
    norms: _Array,
    generator: np.random.Generator,
    label: str,
) -> tuple[_Array, float]:
    """Release one sum.

    Args:
        planned: The noise, or None for the exact sum.
        total: The exact sum, shape (dim,).
        norms: Of its summands.
        generator: For the central Gaussian and for rounding.
        label: Names the sum; equal labels give equal noise.

    Returns:
        The estimate, and the variance of rounding over that of the noise.
    """
    if planned is None:
        return total, 0.0
    mechanism = planned.mechanism
    if mechanism is None:
        deviation = math.sqrt(planned.variance)
        return total + generator.normal(0.0, deviation, total.size), 0.0
    public_seed = seed(f"{label}/public")
    scale = mechanism.parameters.scale_factor
    if isinstance(mechanism, CentralMechanism):
        residues = _residues(np.trunc(total * scale).astype(np.int64), mechanism)
        for party in "ab":
            private_seed = seed(f"{label}/{party}")
            residues = mechanism.add_noise(residues, private_seed=private_seed)
        return mechanism.decode(residues, public_seed=public_seed), 0.0
    rotation = make_rotation(mechanism.parameters.rotation, mechanism.dim, public_seed)
    rotated = rotation.forward(total) * scale
    variance = rounding_variance(norms * scale / math.sqrt(rotated.size))
    spread = math.sqrt(max(0.0, variance - _GRID_VARIANCE))
    steps = np.rint(rotated + generator.normal(0.0, spread, rotated.size))
    integers = steps.astype(np.int64)
    drawn = mechanism.expected_noise_variance
    mechanism.sampler(drawn).add_to(integers, seed(f"{label}/noise"), b"sum of shares")
    estimate = mechanism.decode(_residues(integers, mechanism), public_seed=public_seed)
    return estimate, variance / float(drawn)


def _residues(steps: NDArray[np.int64], mechanism: Mechanism) -> NDArray[np.uint64]:
    kind = np.min_scalar_type(mechanism.modulus - 1)
    return np.asarray((steps % mechanism.modulus).astype(kind))


def rounding_variance(deviations: _Array) -> float:
    """Return the variance that stochastic rounding adds to a coordinate of a sum.

    Args:
        deviations: Of the summands' coordinates, each a centred normal, grid steps.
    """
    return float(np.interp(deviations, *_rounding_table()).sum())


def _rounding_table() -> tuple[_Array, _Array]:
    """E f(1 − f) over the deviation of a normal with fractional part f."""
    if not _TABLE:
        points = np.linspace(-8.0, 8.0, 4001)
        density = np.exp(-0.5 * points**2)
        density /= density.sum()
        deviations = np.linspace(0.0, _WIDEST, 401)
        fractions = np.abs(deviations[:, None] * points)
        fractions -= np.floor(fractions)
        _TABLE.extend([deviations, (fractions * (1.0 - fractions)) @ density])
    return _TABLE[0], _TABLE[1]


_TABLE: Final[list[_Array]] = []


def _figure(rows: Sequence[Mapping[str, object]], training: Training) -> Figure:
    central = [each for each in rows if each["method"] == CENTRAL]
    return Figure(
        f"A network learns {training.pictures.name} from noisy sums\n"
        "(setting of [Bao22] Figure 2 (d))",
        [
            Panel(
                f"{training.steps} sums of {training.batch} records",
                accuracy_curves(rows),
                f"ε against the server, {training.epochs} participations of a record",
                "accuracy on test pictures",
                log_x=True,
                log_y=False,
                x_ticks=[number(each, "epsilon") for each in central],
                top_label="ε as published: sampled batches, central noise",
                top_ticks=[
                    float(f"{number(each, 'epsilon_if_sampled'):.2g}")
                    for each in central
                ],
            )
        ],
        columns=1,
        zoom=1.6,
    )


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
