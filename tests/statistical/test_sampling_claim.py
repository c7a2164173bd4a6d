"""Why no accountant counts Poisson sampling where the noise comes in shares.

A task as publications run it: every user joins a session by a coin of its own, and who
joins adds a share of the noise. Readers see the sums and, as every mean needs, how many
inputs each has. Differential privacy grants them all others' data, too; here all
others hold the vector w, and u holds x, orthogonal to it. Then the number of inputs
less the sum along w is u's coin in noise, the same in both worlds, and tells when to
look along x. Amplification assumed that nothing tells.

Nothing is drawn, so the false-alarm rate is zero: laws are summed exactly and losses
are rounded down. Given the number of inputs, the variance of the noise is fixed; that
one number and the next are equally likely is the only simplification.
"""

from fractions import Fraction

import numpy as np
import scipy

from dpnoise.accounting import make_accountant
from dpnoise.events import Adversary, PoissonSampled, Repeated, SkellamMixtureEvent

RATE, STEPS, EPSILON, DELTA = 0.004, 1000, 1.0, 1e-5
GRID = 8  # steps per unit, the norm of every vector
VARIANCE = 52.0  # per coordinate, steps²
REACH = 120  # of the integers that are looked at; what lies outside is left out
LOSS_STEP = 1e-5
EVENT = SkellamMixtureEvent(
    dim=64,
    aggregate_noise_variance=Fraction(VARIANCE),
    l2_clip_squared_steps=float(GRID**2),
    linf_bound=float(GRID),
)


def skellam(shift):
    """The law of the noise, shifted, on -REACH … REACH."""
    y = np.abs(np.arange(-REACH, REACH + 1) - shift)
    return scipy.special.ive(y, VARIANCE)


def delta_of_a_reader():
    """A lower bound on delta at EPSILON for x against zeros, over all steps."""
    absent, present = skellam(0), skellam(GRID)
    # First index: what the number of inputs and the sum along w say about the coin.
    without = (1 - RATE) * np.outer(absent, absent)
    with_x = without + RATE * np.outer(present, present)
    with_zeros = without + RATE * np.outer(present, absent)
    seen = with_x > 1e-300
    losses = np.floor(np.log(with_x[seen] / with_zeros[seen]) / LOSS_STEP).astype(int)
    # Sums of losses are kept within ±10.5. What wraps around from above makes delta
    # smaller; from below comes less than e^-10.5 = 3e-5, since P(L < -t) <= e^-t.
    size = 1 << 21
    law = np.bincount(losses % size, weights=with_x[seen], minlength=size)
    composed = np.fft.irfft(np.fft.rfft(law) ** STEPS, size)
    sums = np.fft.fftfreq(size, 1.0 / size) * LOSS_STEP
    above = sums > EPSILON
    return float(composed[above] @ -np.expm1(EPSILON - sums[above]))


def account(name):
    made = make_accountant(name, adversary=Adversary.MODEL_READER)
    return made.compose(Repeated(PoissonSampled(EVENT, RATE), STEPS))


def test_readers_of_sums_and_counts_detect_the_sample():
    published, ours = account("hypothetical-mixture-pld"), account("mixture-pld")
    claimed = published.delta(EPSILON)
    assert claimed <= DELTA
    assert published.statement(DELTA).status == "hypothetical"
    found = delta_of_a_reader()
    assert found > 200.0 * claimed
    # The same release without the claim: what is stated holds.
    assert ours.statement(DELTA).status == "certified"
    assert found <= ours.delta(EPSILON)
