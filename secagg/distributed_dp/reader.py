"""Readers of noise blocks other than clients: core, server, verifiers."""

from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from dpnoise.errors import DPNoiseError
from dpnoise.mechanisms import SessionNoise
from secagg.crypto.modular import subtract_into
from secagg.distributed_dp.noise_block import bad_block, decode_block
from secagg.distributed_dp.task import NoisyTask
from secagg.distributed_dp.units import read_unit, unit_terms
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.events import NoiseRemoval
from secagg.protocol.noise_terms import NoiseCertificate, NoiseCost, NoiseTerms
from secagg.protocol.parameters import ProtocolParameters

if TYPE_CHECKING:  # a client plans nothing
    from dpnoise.planning import Plan

# The draws of all clients for so many entries fit into the processor's cache.
_LAYER_CHUNK: Final = 1 << 16


def subtract_layers(
    total: npt.NDArray[np.unsignedinteger[Any]], removal: NoiseRemoval | None
) -> None:
    """Subtract the noise that survivors have revealed, in place (R6.7-1).

    Args:
        total: A sum, or a part of it: residues of shape (d,), words of the modulus.
        removal: An output of the state machine, or a part of it; None for nothing.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is invalid, or has no such layer.
    """
    if removal is None or not removal.seeds:
        return
    mechanism = decode_block(removal.noise_block).mechanism
    try:
        noise = mechanism.session(removal.share_holders)
        layers = [(noise.layers[layer], seed.reveal()) for layer, seed in removal.seeds]
    except (DPNoiseError, IndexError) as error:
        raise bad_block(str(error)) from None
    for start in range(0, total.size, _LAYER_CHUNK):
        target = total[start : start + _LAYER_CHUNK]
        drawn = mechanism.layer_noise(layers, start=start, count=target.size)
        subtract_into(target, drawn, mechanism.modulus)


@lru_cache(maxsize=256)  # every client of a simulated session needs the same
def read_noise_terms(parameters: ProtocolParameters, share_holders: int) -> NoiseTerms:
    """Return what |U2| determines about the noise of a session, for the core.

    Args:
        parameters: With a noise block.
        share_holders: |U2|.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is malformed, or describes no noise
            for so many share holders.
    """
    task = NoisyTask.from_parameters(parameters)
    noise = task.session_noise(share_holders)
    return NoiseTerms(
        context=task.noise_context(share_holders),
        tolerated_losses=noise.tolerated_losses,
        reveals=_reveals(noise),
    )


def table_hashes(
    parameters: ProtocolParameters, share_holders: int
) -> tuple[bytes, ...]:
    """Return the hashes of the tables that noise is drawn with here, 32 bytes each.

    None for a task without noise.

    Args:
        parameters: Of the session.
        share_holders: |U2|.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block describes no noise for so many.
    """
    if not parameters.noise_block:
        return ()
    return NoisyTask.from_parameters(parameters).table_hashes(share_holders)


def _reveals(noise: SessionNoise) -> tuple[tuple[int, ...], ...]:
    """Return which layers are removed, by the number of dropouts."""
    if not noise.layers:
        return ()
    end = noise.tolerated_losses + 1
    found: list[tuple[int, ...]] = []
    # The more clients drop out, the less is removed. There are as many changes as sums
    # of layers, while the dropouts may be tens of thousands.
    while (start := len(found)) < end:
        here = noise.removed_layers(start)
        change = bisect_left(
            range(start, end), x=True, key=lambda d: noise.removed_layers(d) != here
        )
        found += [here] * change
    return tuple(found)


def offered_terms(parameters: ProtocolParameters, known: bytes) -> bytes:
    """Return what the next offer of a task states about its session's noise.

    Args:
        parameters: Parameters of the task.
        known: Terms that follow from the last sum; b"" before the first one.

    Returns:
        `known`, or the task's first terms if its block no longer allows that.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the noise block is malformed.
    """
    if not parameters.noise_block:
        return b""
    units = decode_block(parameters.noise_block).units
    if units is None:
        return b""
    try:
        if units.lowest <= read_unit(known) <= units.highest:
            return known
    except ValueError:
        pass  # there was no sum before
    return unit_terms(units.start)


def following_terms(
    session: SessionDescriptor,
    residues: npt.NDArray[np.unsignedinteger[Any]],
    *,
    inputs: int,
) -> bytes:
    """Return the noise terms of the offer that follows a released sum.

    Args:
        session: The offer of the session with the sum.
        residues: The sum modulo m.
        inputs: Number of vectors in the sum.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the noise of the offer cannot be read.
    """
    if not session.parameters.noise_block:
        return b""
    task = NoisyTask.of_session(session)
    if task.units is None or task.unit is None:
        return b""
    fitted = task.fitted(residues, inputs=inputs)
    if fitted is None:
        raise ErrorCode.INTERNAL.error(
            "an adaptive clip needs a flag that shows which vectors fit"
        )
    parameters = task.mechanism.parameters
    return unit_terms(task.units.following(task.unit, parameters, fitted=fitted))


def certify(
    parameters: ProtocolParameters, clients: int, share_holders: int, survivors: int
) -> NoiseCertificate:
    """Return the noise that a sum must hold, for receipts and their verifiers.

    Args:
        parameters: With a noise block.
        clients: |U1|.
        share_holders: |U2|.
        survivors: |U3|.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block is malformed, or has no answer for
            such sets.
    """
    task = NoisyTask.from_parameters(parameters)
    return task.certificate(
        clients=clients, share_holders=share_holders, survivors=survivors
    )


class TaskNoiseVerifier:
    """Verifier of a session's noise from its offer, with the code that clients run.

    `secagg.protocol.receipts.verifier.verify_receipt` needs it for receipts of sessions
    with noise. It keeps no state.
    """

    def check_block(self, offer: SessionDescriptor) -> None:
        """Refuse a noise block or noise terms that no client accepts.

        Args:
            offer: Offer of a session with a noise block.

        Raises:
            RemoteProtocolError: BAD_CONFIG (R3.2-10, R3.5-3, R3.5-4); or the block
                contradicts the parameters.
        """
        NoisyTask.of_session(offer)

    def terms(self, parameters: ProtocolParameters, share_holders: int) -> NoiseTerms:
        """Return what |U2| determines about the noise, as `read_noise_terms`."""
        return read_noise_terms(parameters, share_holders)

    def cost(self, offer: SessionDescriptor) -> NoiseCost:
        """Compute what the noise of a task costs; takes up to seconds.

        Args:
            offer: Offer of a session with a noise block that `check_block` accepts.

        Raises:
            RemoteProtocolError: POLICY_VIOLATION, if epsilon is hypothetical or larger
                than the block's; BAD_CONFIG, if this release draws other noise than the
                block describes.
        """
        report = NoisyTask.of_session(offer).kept_claim()
        stated = report.server
        return NoiseCost(
            stated.epsilon,
            stated.delta + report.graph_delta,
            str(stated.status),
            str(stated.proof),
        )

    certificate = staticmethod(certify)


def central_gaussian_variance(made: "Plan") -> float:
    """Return the variance of the central Gaussian with the same budget and steps.

    Returns:
        Per coordinate of the sum, caller's units squared: the baseline with a
        trusted party.
    """
    return made.gaussian_mse
