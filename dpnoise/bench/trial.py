"""One noisy sum of a whole cohort, from vectors to the estimate.

* Every client is encoded as in a deployment: clipped, rotated, rounded, with a noise
  share of its own. No client drops out, so all layers of a ladder that survivors would
  remove are removed.
* `one_draw` adds the noise of all shares at once, if a sum of shares has the law of one
  draw. The sum has the same law, in a fraction of the time.
* All randomness is expanded from one seed: equal arguments give equal estimates.

It measures nothing; `comparison` does.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.bench.arguments import Vectors
from dpnoise.encoding import sum_residues, wrap
from dpnoise.encoding.clipping import check_matrix
from dpnoise.errors import ParameterError
from dpnoise.mechanisms import (
    ALL_CLIENTS,
    CentralMechanism,
    Mechanism,
    Residues,
    SessionNoise,
    is_selected,
)
from dpnoise.samplers import SEED_BYTES, BitSource

_LABEL: Final = b"dpnoise/v1/bench/"
_ONE_DRAW: Final = _LABEL + b"one draw"
_BLOCK: Final = 1 << 22  # residues held at once


def noisy_sum(
    mechanism: Mechanism,
    vectors: Vectors,
    *,
    seed: bytes,
    one_draw: bool = False,
    selection_rate: Fraction = ALL_CLIENTS,
) -> NDArray[np.float64]:
    """Encode every client, add modulo m, and decode; central noise included.

    Args:
        mechanism: What every client runs.
        vectors: One client's vector a row, shape (n, dim), caller's units; n is a
            roster that the mechanism allows.
        seed: 32 bytes that all randomness of the run comes from.
        one_draw: Whether to draw the noise of all shares at once.
        selection_rate: Probability that a vector counts, selected by its client.

    Returns:
        The estimate of the sum of all vectors, shape (dim,), caller's units: with a
        selection rate q, the sum of those that count over q.

    Raises:
        InputError: The vectors are no matrix of finite numbers, or the seed is not 32
            bytes.
        ParameterError: The roster is not allowed, or `one_draw` asks for a law that
            the sum of shares does not have.
    """
    if not isinstance(mechanism, Mechanism):
        raise ParameterError(
            f"a mechanism derives from dpnoise.Mechanism, {type(mechanism).__name__} "
            "does not; see register_mechanism",
            parameter="mechanism",
        )
    check_matrix(vectors, mechanism.dim)
    noise = mechanism.session(len(vectors))
    public = derived_seed(seed, "public")
    private = _seeds(seed, "private", len(vectors))
    if one_draw:
        refuse_one_draw(mechanism)
        total = _quantised_sum(mechanism, vectors, private, public, selection_rate)
        if not mechanism.noise_is_central:
            _add_all_shares(mechanism, total, noise, seed)
        residues = wrap(total, mechanism.modulus)
    else:
        residues = _encoded_sum(
            mechanism, vectors, private, public, selection_rate, seed=seed
        )
    if isinstance(mechanism, CentralMechanism):
        residues = mechanism.add_noise(
            residues, private_seed=derived_seed(seed, "central")
        )
    estimate = mechanism.decode(residues, public_seed=public)
    return estimate / float(selection_rate)


def refuse_one_draw(mechanism: Mechanism) -> None:
    """Refuse to replace noise shares by one draw of another law.

    Args:
        mechanism: Whose shares.

    Raises:
        ParameterError: A sum of its shares does not have the law of one draw.
    """
    if mechanism.takes_ladder or mechanism.noise_is_central:
        return
    raise ParameterError(
        f"a sum of noise shares of {mechanism.name} has another law than one draw of "
        "the summed variance",
        parameter="one_draw",
        value=True,
        nearest="False",
    )


def derived_seed(seed: bytes, purpose: str) -> bytes:
    """Return 32 bytes for one purpose of a run.

    Args:
        seed: 32 bytes.
        purpose: ASCII, at most 200 characters; others give independent seeds.

    Raises:
        ParameterError: The seed is not 32 bytes, or the purpose is too long.
    """
    return _seeds(seed, purpose, 1)[0]


def _seeds(seed: bytes, purpose: str, count: int) -> list[bytes]:
    source = BitSource(seed, _LABEL + purpose.encode("ascii"))
    words = source.bytes_at(0, SEED_BYTES * count)
    return [words[at : at + SEED_BYTES] for at in range(0, len(words), SEED_BYTES)]


def _encoded_sum(  # noqa: PLR0913 - what a run depends on
    mechanism: Mechanism,
    vectors: Vectors,
    private: Sequence[bytes],
    public: bytes,
    selection_rate: Fraction,
    *,
    seed: bytes,
) -> Residues:
    """Add up what the clients send, less the layers that no loss has made necessary."""
    noise = mechanism.session(len(vectors))
    layers = [
        _seeds(seed, f"layer {layer}", len(vectors))
        for layer in range(len(noise.layers))
    ]
    of_rows = list(zip(*layers, strict=True)) or [()] * len(vectors)
    total = np.zeros((1, mechanism.encoded_dim), np.uint64)
    rows = max(1, _BLOCK // mechanism.encoded_dim)
    for start in range(0, len(vectors), rows):
        block = slice(start, start + rows)
        sent = mechanism.encode_many(
            vectors[block],
            private_seeds=private[block],
            public_seed=public,
            session_noise=noise,
            layer_seeds=of_rows[block],
            selection_rate=selection_rate,
        )
        both = np.concatenate([total, sent])
        total[0] = sum_residues(both, mechanism.modulus)
    steps = total[0].astype(np.int64)
    for layer in noise.removed_layers(0):
        drawn = mechanism.layer_noise(
            [(noise.layers[layer], each) for each in layers[layer]],
            start=0,
            count=steps.size,
        )
        steps -= drawn.astype(np.int64)
        steps %= mechanism.modulus
    return wrap(steps, mechanism.modulus)


def _quantised_sum(
    mechanism: Mechanism,
    vectors: Vectors,
    private: Sequence[bytes],
    public: bytes,
    selection_rate: Fraction,
) -> NDArray[np.int64]:
    """Add up the integers of the clients whose vectors count, without noise."""
    total = np.zeros(mechanism.encoded_dim, np.int64)
    for vector, each in zip(vectors, private, strict=True):
        steps = mechanism.quantise(vector, private_seed=each, public_seed=public)
        total += steps * int(is_selected(each, selection_rate))
    return total


def _add_all_shares(
    mechanism: Mechanism, total: NDArray[np.int64], noise: SessionNoise, seed: bytes
) -> None:
    """Add what is left of all shares, as few draws as the sampler holds, in place."""
    kept = noise.remaining(0)
    at_once = int(mechanism.largest_variance // kept)
    left = noise.roster
    while left:
        shares = min(left, at_once)
        mechanism.sampler(shares * kept).add_to(
            total, derived_seed(seed, f"shares {left}"), _ONE_DRAW
        )
        left -= shares
