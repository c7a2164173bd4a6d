"""Skellam and binomial noise too wide for a table: independent draws, added up.

* Variances of Skellam variables add up, and so do numbers of trials: a sum of draws
  from narrower tables has the law itself. Its distance is at most the sum of theirs.
* Each draw reads streams of its own, by a label that counts them.
* At most sixteen draws: a peer that states the noise determines how long they take.

A sum of discrete Gaussians is not such a law; see `wide_discrete_gaussian`.
"""

import functools
import hashlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from dpnoise.samplers.binomial import MAX_NUM_TRIALS, binomial_table, even_trials
from dpnoise.samplers.inversion_table import InversionTable
from dpnoise.samplers.parameters import CACHED_TABLES, exact_parameter
from dpnoise.samplers.skellam import (
    MAX_TABLE_VARIANCE,
    MIN_TABLE_VARIANCE,
    skellam_table,
)

_MOST_DRAWS: Final = 16
MAX_ADDED_VARIANCE: Final = _MOST_DRAWS * MAX_TABLE_VARIANCE
MAX_ADDED_TRIALS: Final = _MOST_DRAWS * MAX_NUM_TRIALS
_DIGEST_DOMAIN: Final = b"dpnoise/v1/added-draws"


@dataclass(frozen=True, slots=True, eq=False)
class AddedDraws:
    """The sum of one draw from each of several tables.

    Args:
        tables: From which; the same one may stand there several times.
    """

    tables: tuple[InversionTable, ...]

    @property
    def variance(self) -> Fraction:
        """Variance of one sum, exactly."""
        return sum((table.variance for table in self.tables), Fraction(0))

    @property
    def distance_bound(self) -> float:
        """Upper bound of the total variation distance per sum."""
        # Rounded up: each addition is right to 2^-53 of the sum.
        return sum(table.distance_bound for table in self.tables) * (1.0 + 2.0**-40)

    @property
    def digest(self) -> bytes:
        """32 bytes that identify the law and how it is sampled."""
        digests = b"".join(table.digest for table in self.tables)
        return hashlib.sha256(_DIGEST_DOMAIN + digests).digest()

    def add_to(
        self,
        vector: npt.NDArray[np.int64],
        seed: bytes,
        label: bytes,
        *,
        start: int = 0,
    ) -> None:
        """Add one sum to every entry, in place; see `InversionTable.add_to`."""
        for index, table in enumerate(self.tables):
            table.add_to(vector, seed, label + b"/" + bytes([index]), start=start)


def skellam_sampler(noise_variance: Fraction | int) -> InversionTable | AddedDraws:
    """Build, or fetch, the sampler of Skellam noise of any supported width.

    Args:
        noise_variance: Variance of one draw, grid steps squared: an exact rational in
            [2^-20, 2^32].

    Returns:
        The table up to 2^28; beyond, the fewest equal draws, a power of two.

    Raises:
        ParameterError: Not a rational number, or out of range.
    """
    exact = exact_parameter(
        "noise_variance", noise_variance, MIN_TABLE_VARIANCE, MAX_ADDED_VARIANCE
    )
    return skellam_table(exact) if exact <= MAX_TABLE_VARIANCE else _skellam(exact)


@functools.lru_cache(maxsize=CACHED_TABLES)
def _skellam(exact: Fraction) -> AddedDraws:
    """Return the sum of tables for a variance."""
    draws = 2
    while exact > draws * MAX_TABLE_VARIANCE:
        draws *= 2
    return AddedDraws((skellam_table(exact / draws),) * draws)


def binomial_sampler(num_trials: int) -> InversionTable | AddedDraws:
    """Build, or fetch, the sampler of centred binomial noise of any supported width.

    Args:
        num_trials: Number N of fair trials: even, in [2, 2^34].

    Returns:
        The table up to 2^30 trials; beyond, the fewest draws, as equal as possible.

    Raises:
        ParameterError: Not an even integer in range.
    """
    trials = even_trials(num_trials, MAX_ADDED_TRIALS)
    if trials <= MAX_NUM_TRIALS:
        return binomial_table(trials)
    draws = -(-trials // MAX_NUM_TRIALS)
    pairs, more = divmod(trials // 2, draws)
    wider, narrower = (binomial_table(2 * each) for each in (pairs + (more > 0), pairs))
    return AddedDraws((wider,) * more + (narrower,) * (draws - more))
