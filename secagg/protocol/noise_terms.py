"""The noise of a session as the core knows it: its terms, and the certificate of a sum.

The core knows no mechanism.  It calls one function that reads a noise block for a
number of share holders, once, when U2 is fixed.  The client calls it before it makes
its masks, the server before it delivers bundles.  The result enters ctx2, so parties
that would draw other noise make masks that do not cancel (PROTOCOL §4).

A certificate states in exact rationals how much noise a released sum has.

Rule 1: everything but `given` follows from the noise block, |U2| and |U3|.  A party
        that knows these computes the certificate and compares. It trusts no other party
        except for the sets themselves.
Rule 2: `present` counts only noise that no party can remove.  It excludes the noise of
        colluders, that of the user whose privacy is at stake, and every layer that was
        requested.  A seed that was withheld, or that did not match its commitment,
        leaves more noise.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Self

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.key_derivation import noise_seed
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode
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

    def after_dropouts(self, losses: int) -> Self:
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
        share_holders: |U2|, which determines how much noise that is.
        context: ctx2, which covers U2.
        seed: 32 bytes, bound to ctx2: another U2 gets other noise and other rounding.
        layers: The same for each layer of noise, from the g_i of the advert.
    """

    share_holders: int
    context: bytes
    seed: SecretBytes = field(repr=False)
    layers: tuple[SecretBytes, ...] = field(default=(), repr=False)


def noise_secrets(
    seed: SecretBytes,
    layer_seeds: Sequence[SecretBytes],
    *,
    share_holders: int,
    context: bytes,
    suite: CipherSuite,
) -> NoiseSecrets:
    """Return the secrets of one client's noise: the same after a restart.

    Args:
        seed: The client's seed of the session.
        layer_seeds: g_i of each layer.
        share_holders: |U2|.
        context: ctx2.
        suite: The session's suite.
    """
    return NoiseSecrets(
        share_holders=share_holders,
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
    raise ErrorCode.LOCAL_MISUSE.error(
        "this session adds noise, and its core was started without a reader of noise "
        "blocks",
        fix="Start it with secagg.distributed_dp.read_noise_terms.",
    )


def noise_terms(
    parameters: ProtocolParameters,
    share_holders: int,
    read_noise: NoiseReader,
    *,
    clients: int,
) -> NoiseTerms:
    """Return what |U2| determines; without noise every dropout is tolerable.

    Args:
        parameters: Of the session.
        share_holders: |U2|.
        read_noise: Reads the noise block.
        clients: n.
    """
    if not parameters.noise_block:
        return NoiseTerms(b"", tolerated_losses=share_holders)
    # R5.9-13: a client that a server can omit from the sum counts as a dropout.
    terms = read_noise(parameters, share_holders)
    return terms.after_dropouts(parameters.max_omitted(clients))


@dataclass(frozen=True, slots=True)
class NoiseCost:
    """The cost of all sessions of a task to a client against the server.

    It is computed locally.

    Attributes:
        epsilon: At most the one that the task claims.
        delta: The delta of it, including the chance that a ring or drawn edges fail.
        status: How epsilon is known, for example "certified".
        proof: Whether its theorem is published, or an own one: "published" or "own".
    """

    epsilon: float
    delta: float
    status: str
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseCertificate:
    """The noise of one sum, per entry, in grid steps squared.

    For the mechanism `ddgauss` variances are parameters of discrete Gaussians, as in
    its noise block: the noise itself varies a little less.

    `NoisyTask.certificate` makes it.

    Attributes:
        share_holders: |U2|, among whom noise was divided.
        survivors: |U3|, whose noise is in the sum.
        unseen: Most honest clients that a server that lies can omit from the sum
            without being noticed.  They count as dropouts (R5.9-13); 0 without drawn
            neighbours.
        colluders: How many of them may know and subtract their own noise.
        required: Variance that privacy counts.
        base: Variance of a survivor's noise that no party can remove.
        layers: Variances of the removable layers.
        removed: The layers that survivors were asked for, ascending.
        given: For each of these, from how many survivors it was subtracted; None if
            only the server knows.
    """

    share_holders: int
    survivors: int
    unseen: int
    colluders: int
    required: Fraction
    base: Fraction
    layers: tuple[Fraction, ...]
    removed: tuple[int, ...]
    given: tuple[int, ...] | None = None

    @property
    def losses(self) -> int:
        """|U2 minus U3|."""
        return self.share_holders - self.survivors

    @property
    def remaining(self) -> Fraction:
        """The least noise that remains of one honest survivor's."""
        left = sum(v for i, v in enumerate(self.layers) if i not in self.removed)
        return self.base + left

    @property
    def present(self) -> Fraction:
        """The least noise in the sum beside the user's own and that of colluders."""
        return (self.survivors - self.unseen - self.colluders - 1) * self.remaining

    @property
    def total_noise(self) -> Fraction:
        """All noise that U3 has added, if each added what it should."""
        return self.survivors * (self.base + sum(self.layers))

    @property
    def total(self) -> Fraction | None:
        """All noise in the sum, if each of U3 added what it should; None if unknown."""
        if self.given is None:
            return None
        subtracted = sum(
            count * self.layers[layer]
            for layer, count in zip(self.removed, self.given, strict=True)
        )
        return self.total_noise - subtracted

    @property
    def is_sufficient(self) -> bool:
        """Whether the sum holds the noise that privacy counts."""
        return self.present >= self.required

    def to_dict(self) -> dict[str, object]:
        """Return the certificate as JSON values; rationals become "p/q"."""
        return {
            "share_holders": self.share_holders,
            "survivors": self.survivors,
            "losses": self.losses,
            "unseen": self.unseen,
            "colluders": self.colluders,
            "noise_required": _rational_text(self.required),
            "noise_present": _rational_text(self.present),
            "noise_total": None if self.total is None else _rational_text(self.total),
            "base": _rational_text(self.base),
            "layers": [_rational_text(layer) for layer in self.layers],
            "removed": list(self.removed),
            "given": None if self.given is None else list(self.given),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the certificate that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is impossible, or contradicts the values that it follows
                from.
        """
        given = document["given"]
        made = cls(
            share_holders=int(document["share_holders"]),
            survivors=int(document["survivors"]),
            unseen=int(document["unseen"]),
            colluders=int(document["colluders"]),
            required=Fraction(document["noise_required"]),
            base=Fraction(document["base"]),
            layers=tuple(Fraction(layer) for layer in document["layers"]),
            removed=tuple(int(layer) for layer in document["removed"]),
            given=None if given is None else tuple(int(count) for count in given),
        )
        if made.to_dict() != dict(document):
            raise ValueError("the certificate contradicts itself")
        return made

    def encode(self) -> bytes:
        """Return the canonical bytes: JSON with sorted keys and no white space."""
        return json.dumps(
            self.to_dict(), sort_keys=True, separators=(",", ":")
        ).encode()


def _rational_text(number: Fraction) -> str:
    """Return "p/q" in lowest terms."""
    return f"{number.numerator}/{number.denominator}"
