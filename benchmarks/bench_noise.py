"""Speed of the exact noise sampler beside numpy's Poisson difference.

numpy's samplers are neither exact nor cryptographic. An implementation that needs
neither would use them. Targets: at least 8 times their speed at local variances 1 to
10^5, and 150 million samples a second.
"""

import sys
import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
from measurement import cpu_seconds, emit
from secagg_testing import reference_samplers as reference

from dpnoise.samplers import (
    BitSource,
    discrete_gaussian_sampler,
    fresh_seed,
    skellam_table,
)

VARIANCES = (Fraction(1, 100), 1, 10, 100, 1000, 10**4, 10**5, 10**6, 10**7)

_FIXED_STEPS_LIMIT = 10_000  # above, one call takes longer than all the rest


def main(*, tiny: bool = False) -> None:
    """Print one line per variance and task."""
    count = 1 << 12 if tiny else 1 << 20
    repeats = 1 if tiny else 7
    seed = fresh_seed()
    generator = np.random.default_rng()
    for variance in VARIANCES:
        baseline = cpu_seconds(
            partial(_poisson_difference, generator, float(variance) / 2, count),
            repeats=repeats,
        )
        begin = time.process_time()
        table = skellam_table(variance)
        building = time.process_time() - begin
        parameters: dict[str, object] = {
            "noise_variance": float(variance),
            "count": count,
        }
        promised = not tiny and 1 <= variance <= 10**5
        vector = np.zeros(count, np.int64)
        for name, task in (
            ("noise/draw", partial(table.draw, seed, b"noise", count)),
            ("noise/add_to", partial(table.add_to, vector, seed, b"noise")),
        ):
            seconds = cpu_seconds(task, repeats=repeats)
            emit(
                name,
                parameters=parameters,
                value=seconds / count * 1e9,
                unit="ns/sample",
                baseline="numpy Poisson difference",
                ratio=baseline / seconds,
                target_met=baseline >= 8 * seconds if promised else None,
            )
        few = min(count, 1 << 13)
        if table.num_thresholds < _FIXED_STEPS_LIMIT:
            steps = partial(table.draw_fixed_steps, seed, b"noise", few)
            seconds = cpu_seconds(steps, repeats=1)
            emit(
                "noise/draw_fixed_steps",
                parameters={**parameters, "count": few},
                value=seconds / few * 1e9,
                unit="ns/sample",
                baseline="numpy Poisson difference",
                ratio=baseline / count / (seconds / few),
            )
        emit(
            "noise/build",
            parameters=parameters,
            value=building * 1e3,
            unit="ms",
            baseline="numpy drawing a million Poisson differences",
            ratio=baseline / count * 1e6 / max(building, 1e-9),
        )
    _compare_with_reference(tiny=tiny)


def _poisson_difference(
    generator: np.random.Generator, poisson_rate: float, count: int
) -> object:
    """The baseline."""
    return generator.poisson(poisson_rate, count) - generator.poisson(
        poisson_rate, count
    )


def _compare_with_reference(*, tiny: bool) -> None:
    """The tables beside exact rejection samplers in Python."""
    slow_count = 20 if tiny else 2000
    count = 1 << 12 if tiny else 1 << 20
    seed = fresh_seed()
    for name, parameter, sampler, sample in (
        ("skellam", Fraction(4), skellam_table, reference.sample_skellam),
        (
            "discrete-gaussian",
            Fraction(4),
            discrete_gaussian_sampler,
            reference.sample_discrete_gaussian,
        ),
        (
            "wide-discrete-gaussian",
            Fraction(1 << 40),
            discrete_gaussian_sampler,
            reference.sample_discrete_gaussian,
        ),
    ):
        table = sampler(parameter)
        bits = reference.FairBits(BitSource(seed, b"reference"))
        one_by_one = partial(_repeat, partial(sample, parameter, bits), slow_count)
        baseline = cpu_seconds(one_by_one, repeats=1 if tiny else 3) / slow_count
        seconds = cpu_seconds(partial(table.draw, seed, b"noise", count)) / count
        emit(
            f"noise/{name}",
            parameters={"parameter": float(parameter), "count": count},
            value=seconds * 1e9,
            unit="ns/sample",
            baseline="exact rejection sampler in Python",
            ratio=baseline / seconds,
        )


def _repeat(sample: Callable[[], int], count: int) -> list[int]:
    return [sample() for _ in range(count)]


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv)
