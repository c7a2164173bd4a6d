"""Mechanisms × bits × budgets, each planned, run many times, and measured.

* Plans are those of `dpnoise.plan`: noise against the same adversary, parameters that
  could be deployed. A cell that no plan covers is a row with the reason.
* Every row has cohorts, roundings and noise of its own, expanded from the seed, so that
  rows are independent and the table comes out again.
* A repeat yields one number, the mean of the squared errors of all coordinates. The
  interval is Student's over the repeats. Each row has the level by which all intervals
  of the table hold together (Z. Šidák, for independent rows). It takes such a mean as
  normal, which is true of many coordinates and not of two.
* How long a sum is decides what wrapping does to it, and depends on the cohort. As many
  pilot cohorts as repeats are drawn beforehand. Plans are made for their mean squared
  sum. A forecast is the mean of what is expected of each of them, with Student's
  interval at the same level. All rows have the pilots in common.

It draws nothing; `table` holds the result.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpnoise.bench.arguments import NO_SETTINGS, Inputs, Vectors, cohort, plan_keywords
from dpnoise.bench.table import Comparison, Row
from dpnoise.bench.trial import derived_seed, noisy_sum, refuse_one_draw
from dpnoise.checks import check_integer
from dpnoise.errors import DPNoiseError, ParameterError
from dpnoise.mechanisms import make_mechanism, mechanism_names
from dpnoise.mechanisms.parameter_checks import check_choice
from dpnoise.planning import Plan, plan
from dpnoise.student_t import student_quantile

_MOST_REPEATS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Cell:
    """A place of the table, and the plan or the refusal that belongs there."""

    mechanism: str
    bits: int | None
    epsilon: float
    found: Plan | DPNoiseError


def compare(  # noqa: PLR0913 - the settings of an experiment
    *,
    mechanisms: Sequence[str],
    epsilons: Sequence[float],
    clients: int,
    dimension: int,
    delta: float,
    seed: bytes,
    bits: Sequence[int | None] = (None,),
    l2_clip: float = 1.0,
    inputs: Inputs = "sphere",
    repeats: int = 20,
    one_draw: bool = False,
    confidence: float = 0.95,
    settings: Mapping[str, Any] = NO_SETTINGS,
    on_progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Plan and measure every mechanism at every bit width and budget.

    Args:
        mechanisms: Names, as in `dpnoise.mechanism_names()`.
        epsilons: Budgets to plan for.
        clients: Vectors in every sum; no client drops out.
        dimension: Coordinates of a vector.
        delta: Failure probability of every budget.
        seed: 32 bytes that all randomness of the table comes from.
        bits: Bits per coordinate; None lets the plan choose.
        l2_clip: Clip, caller's units.
        inputs: The vectors: "sphere", "same", or a function of a seed.
        repeats: Sums to measure each row by, at least 2.
        one_draw: Whether to draw the noise of all shares at once, which is faster.
            A mechanism whose shares add up to another law is refused then.
        confidence: Probability, in (0, 1), that all intervals hold together.
        settings: Further keywords of `dpnoise.plan`, such as `steps` or `rotation`.
            Unless given here, `sum_l2_norm` is that of the pilot cohorts.
        on_progress: Called after each plan and each measured row, with how many of them
            are done and how many there are.

    Returns:
        The table.

    Raises:
        ParameterError: A mechanism, `repeats`, `confidence` or the seed is invalid, or
            a setting repeats an argument. A plan that is refused becomes a row instead.
        InputError: `inputs` returned something else than a matrix of finite numbers
            of shape (clients, dimension).
    """
    _check_several(mechanisms=mechanisms, epsilons=epsilons, bits=bits)
    for name in mechanisms:
        check_choice("mechanism", name, mechanism_names())
    check_integer("repeats", repeats, 2, _MOST_REPEATS)
    if not 0.0 < confidence < 1.0:
        raise ParameterError.of(
            "confidence", confidence, "must lie in (0, 1)", nearest="0.95"
        )
    common = plan_keywords(
        settings,
        *("mechanism", "bits", "epsilon"),
        clients=clients,
        dimension=dimension,
        delta=delta,
        l2_clip=l2_clip,
    )

    def vectors(purpose: str) -> Vectors:
        return cohort(
            inputs,
            clients=clients,
            dimension=dimension,
            l2_clip=l2_clip,
            seed=derived_seed(seed, purpose),
        )

    pilots = np.array([_squares(vectors(f"pilot {pilot}")) for pilot in range(repeats)])
    typical = math.sqrt(float(pilots[:, 0].mean()))
    common = {"sum_l2_norm": typical or None} | common
    asked = list(itertools.product(mechanisms, bits, epsilons))
    done = itertools.count(1)

    def report_progress() -> None:
        if on_progress is not None:
            on_progress(next(done), 2 * len(asked))

    cells = []
    for name, width, epsilon in asked:
        cells.append(_planned(name, width, epsilon, common, one_draw=one_draw))
        report_progress()
    planned = sum(isinstance(cell.found, Plan) for cell in cells)
    tail = (1.0 - confidence ** (1.0 / max(1, planned))) / 2.0
    rows = []
    for place, cell in enumerate(cells):
        if not isinstance(cell.found, Plan):
            rows.append(_infeasible_row(cell, cell.found))
            report_progress()
            continue
        errors = np.empty(repeats)
        for repeat in range(repeats):
            here = vectors(f"row {place}, inputs {repeat}")
            estimate = noisy_sum(
                make_mechanism(cell.found.parameters),
                here,
                seed=derived_seed(seed, f"row {place}, noise {repeat}"),
                one_draw=one_draw,
                selection_rate=cell.found.request.selection,
            )
            errors[repeat] = np.mean((estimate - here.sum(axis=0)) ** 2)
        rows.append(_join_measured(cell, cell.found, errors, tail, pilots=pilots))
        report_progress()
    return Comparison(
        rows=tuple(rows),
        clients=clients,
        dimension=dimension,
        delta=delta,
        repeats=repeats,
        confidence=confidence,
        one_draw=one_draw,
    )


def _check_several(**given: object) -> None:
    """Refuse one value in the place of several, and one text for its letters."""
    for parameter, values in given.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ParameterError(
                f"{parameter} must be several, got {type(values).__name__}: give "
                f"{parameter}=[...]",
                parameter=parameter,
            )


def _planned(
    name: str,
    bits: int | None,
    epsilon: float,
    keywords: Mapping[str, Any],
    *,
    one_draw: bool,
) -> _Cell:
    """Plan one cell of a comparison, or keep the refusal."""
    found: Plan | DPNoiseError
    try:
        found = plan(mechanism=name, bits=bits, epsilon=epsilon, **keywords)
        if one_draw:
            refuse_one_draw(make_mechanism(found.parameters))
    except DPNoiseError as refusal:
        found = refusal
    return _Cell(name, bits, epsilon, found)


def _squares(vectors: Vectors) -> tuple[float, float]:
    """Return the squared norm of the sum, and the sum of the squared norms."""
    total = vectors.sum(axis=0)
    return float(total @ total), float(np.square(vectors).sum())


def _infeasible_row(cell: _Cell, refusal: DPNoiseError) -> Row:
    """Return the row of a setting for which no plan exists."""
    return Row(
        mechanism=cell.mechanism,
        bits=cell.bits,
        epsilon=cell.epsilon,
        refused=str(refusal),
    )


def _join_measured(
    cell: _Cell,
    made: Plan,
    errors: NDArray[np.float64],
    tail: float,
    *,
    pilots: NDArray[np.float64],
) -> Row:
    """Join a plan, its measured errors, and what is expected of the pilot cohorts."""
    mechanism, rate = make_mechanism(made.parameters), float(made.request.selection)
    # Mean squared norm of a sum in which each vector counts by its own selection.
    selected = pilots @ [rate * rate, rate * (1.0 - rate)]
    expected = [
        replace(made, forecast=mechanism.forecast(sum_l2_norm=math.sqrt(square)))
        for square in selected
    ]
    measured = _Interval.of(errors, tail)
    forecast = _Interval.of([each.estimate_mse for each in expected], tail)
    wrapped = _Interval.of([each.forecast.wrap_probability for each in expected], tail)
    return Row(
        mechanism=cell.mechanism,
        bits=made.parameters.bits,
        epsilon=cell.epsilon,
        scale_factor=made.parameters.scale_factor,
        noise_variance=float(made.parameters.noise_rule.counted_variance),
        accountant=made.accountant,
        mse=measured.middle,
        mse_low=measured.low,
        mse_high=measured.high,
        forecast=forecast.middle,
        forecast_low=forecast.low,
        forecast_high=forecast.high,
        gaussian=made.gaussian_mse,
        wrap_probability=wrapped.middle,
        wrap_low=wrapped.low,
        wrap_high=min(1.0, wrapped.high),
    )


@dataclass(frozen=True, slots=True)
class _Interval:
    """A mean of numbers that are not below 0, and Student's interval around it."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, found: ArrayLike, tail: float) -> Self:
        """Return the mean of some numbers; `tail` is the chance at either end."""
        numbers = np.asarray(found, np.float64)
        middle = float(numbers.mean())
        half = student_quantile(tail, numbers.size - 1)
        half *= float(numbers.std(ddof=1)) / math.sqrt(numbers.size)
        return cls(max(0.0, middle - half), middle, middle + half)
