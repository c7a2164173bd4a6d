"""The part of a session's noise that the core knows once U2 is fixed.

The core knows no mechanism.  It calls one function that reads a noise block for a
number of share holders, once, when U2 is fixed.  The client calls it before it makes
its masks, the server before it delivers bundles.  The result enters ctx2, so parties
that would draw other noise make masks that do not cancel (PROTOCOL §4).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.key_derivation import noise_seed
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import LocalProtocolError
from secagg.protocol.parameters import ProtocolParameters


@dataclass(frozen=True, slots=True)
class NoiseTerms:
    """What is known about the noise once U2 is fixed.

    Attributes:
        context: 32 bytes that cover how noise is drawn in this session; b"" for a task
            without noise.
        tolerated_losses: Most clients of U2 that may be missing from U3: with more, the
            noise left in the sum would be less than stated.
        reveals: For 0, 1, ... `tolerated_losses` dropouts the layers of noise that
            survivors reveal, ascending; () for a task without layers.
    """

    context: bytes
    tolerated_losses: int
    reveals: tuple[tuple[int, ...], ...] = ()

    def after(self, losses: int) -> Self:
        """Return these terms after some dropouts that are not counted elsewhere.

        Returns:
            Terms that tolerate so many dropouts less; a negative number refuses every
                session.
        """
        return replace(
            self,
            tolerated_losses=self.tolerated_losses - losses,
            reveals=self.reveals[losses:],
        )

    def revealed(self, losses: int) -> tuple[int, ...]:
        """Return the layers that survivors reveal after so many dropouts."""
        return self.reveals[losses] if self.reveals else ()


@dataclass(frozen=True, slots=True)
class NoiseSecrets:
    """The secrets from which one client draws the noise of one session.

    Attributes:
        sharers: |U2|, which determines how much noise that is.
        context: ctx2, which covers U2.
        seed: 32 bytes, bound to ctx2: another U2 gets other noise and other rounding.
        layers: The same for each layer of noise, from the g_i of the advert.
    """

    sharers: int
    context: bytes
    seed: SecretBytes = field(repr=False)
    layers: tuple[SecretBytes, ...] = field(default=(), repr=False)


def noise_secrets(
    seed: SecretBytes,
    layer_seeds: Sequence[SecretBytes],
    *,
    sharers: int,
    context: bytes,
    suite: CipherSuite,
) -> NoiseSecrets:
    """Return the secrets of one client's noise: the same after a restart.

    Args:
        seed: The client's seed of the session.
        layer_seeds: g_i of each layer.
        sharers: |U2|.
        context: ctx2.
        suite: The session's suite.
    """
    return NoiseSecrets(
        sharers=sharers,
        context=context,
        # Component 0 is the noise that is never removed, and the rounding.
        seed=noise_seed(seed, context=context, component=0, suite=suite),
        layers=tuple(
            layer_secret(each, layer, context=context, suite=suite)
            for layer, each in enumerate(layer_seeds)
        ),
    )


def layer_secret(
    seed: SecretBytes, layer: int, *, context: bytes, suite: CipherSuite
) -> SecretBytes:
    """Return the secret of a layer's noise, for drawing and for removing it.

    Args:
        seed: g_i.
        layer: i.
        context: ctx2.
        suite: The session's suite.
    """
    return noise_seed(seed, context=context, component=layer + 1, suite=suite)


NoiseReader = Callable[[ProtocolParameters, int], NoiseTerms]
"""Maps parameters with a noise block, and |U2|, to the terms of the noise."""


def no_noise(_: ProtocolParameters, __: int) -> NoiseTerms:
    """Refuse noise blocks: the default reader of a core.

    Raises:
        LocalProtocolError: Always; start the core with a reader.
    """
    raise LocalProtocolError(
        "this session adds noise, and its core was started without a reader of noise "
        "blocks",
        next_step="Start it with secagg.distributed_dp.read_noise_terms.",
    )


def noise_terms(
    parameters: ProtocolParameters,
    sharers: int,
    read_noise: NoiseReader,
    *,
    clients: int,
) -> NoiseTerms:
    """Return what |U2| determines; without noise every dropout is tolerable.

    Args:
        parameters: Of the session.
        sharers: |U2|.
        read_noise: Reads the noise block.
        clients: n.
    """
    if not parameters.noise_block:
        return NoiseTerms(b"", tolerated_losses=sharers)
    # R5.9-13: a client that a server can omit from the sum counts as a dropout.
    return read_noise(parameters, sharers).after(parameters.most_set_apart(clients))
