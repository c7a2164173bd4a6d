"""How much of the noise in a revealed sum the adversary cannot subtract.

What counts is not who should have kept its noise but whose seeds have been seen: every
32 bytes behind the shares of an answer are compared with what the client's advert
commits to, whatever the client was asked for.
"""

from fractions import Fraction

from secagg.distributed_dp import NoisyTask, SessionNoise
from secagg.protocol import context
from secagg.protocol.share_bundles import NOISE_SEED_BYTES
from secagg_testing.knowledge.facts import Facts, MaskView
from secagg_testing.knowledge.sums import RevealedSum


def noise_shortfall(facts: Facts, revealed: RevealedSum) -> str | None:
    """Describe the noise that a sum lacks; None if it has enough.

    Args:
        facts: What the adversary saw.
        revealed: A sum of honest inputs of a session with noise.

    Raises:
        RemoteProtocolError: The noise block cannot be read.
    """
    view = revealed.view
    task = NoisyTask.from_parameters(view.roster.session.parameters)
    noise = task.session_noise(len(view.share_holders))
    unknown = [
        _unknown_noise(facts, view, view.roster.index_of[name], noise)
        for name in revealed.members
    ]
    # The observed client may know or choose its own input: its noise does not count.
    present = sum(unknown, Fraction(0)) - max(unknown, default=Fraction(0))
    required = noise.counted_variance
    if present >= required:
        return None
    return (
        f"noise of variance {float(present):.6g} beside an observed client, the report "
        f"counts {float(required):.6g}"
    )


def _unknown_noise(
    facts: Facts, view: MaskView, index: int, noise: SessionNoise
) -> Fraction:
    """Return the variance of one client's noise that no other party can draw again."""
    advert = view.roster.adverts[index]
    session = view.roster.session
    seen = {
        answer.data[at : at + NOISE_SEED_BYTES]
        for answer in facts.answers
        if answer.holder == index and answer.view.roster is view.roster
        for at in _seed_places(answer.data)
    }
    known = {
        layer
        for layer, commitment in enumerate(advert.noise_commitments)
        for seed in seen
        if commitment
        == context.noise_commitment(
            session.session_id, advert.identity, layer, seed, session.parameters.suite
        )
    }
    return noise.base + sum(
        variance for layer, variance in enumerate(noise.layers) if layer not in known
    )


def _seed_places(data: bytes) -> range:
    # Seeds end an answer; before them stand shares, which no commitment fits.
    return range(len(data) % NOISE_SEED_BYTES, len(data), NOISE_SEED_BYTES)
