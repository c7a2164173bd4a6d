"""The noise of a released sum, as exact rationals that any party can recompute.

Rule 1: everything but `given` follows from the noise block, |U2| and |U3|.  A party
        that knows these computes the certificate and compares. It trusts no other party
        except for the sets themselves.
Rule 2: `present` counts only noise that no party can remove.  It excludes the noise of
        colluders, that of the user whose privacy is at stake, and every layer that was
        requested.  A seed that was withheld, or that did not match its commitment,
        leaves more noise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self


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
        sharers: |U2|, among whom noise was divided.
        survivors: |U3|, whose noise is in the sum.
        unseen: Most honest clients that a server that lies can omit from the sum
            without being noticed, in the profile with drawn neighbours; counted as
            dropouts (R5.9-13).
        colluders: How many of them may know and subtract their own noise.
        required: Variance that privacy counts.
        base: Variance of a survivor's noise that no party can remove.
        layers: Variances of the removable layers.
        removed: The layers that survivors were asked for, ascending.
        given: For each of these, from how many survivors it was subtracted; None if
            only the server knows.
    """

    sharers: int
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
        return self.sharers - self.survivors

    @property
    def kept(self) -> Fraction:
        """The least noise that remains of one honest survivor's."""
        left = sum(v for i, v in enumerate(self.layers) if i not in self.removed)
        return self.base + left

    @property
    def present(self) -> Fraction:
        """The least noise in the sum beside the user's own and that of colluders."""
        return (self.survivors - self.unseen - self.colluders - 1) * self.kept

    @property
    def most(self) -> Fraction:
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
        return self.most - subtracted

    @property
    def suffices(self) -> bool:
        """Whether the sum holds the noise that privacy counts."""
        return self.present >= self.required

    def to_dict(self) -> dict[str, object]:
        """Return the certificate as JSON values; rationals become "p/q"."""
        return {
            "sharers": self.sharers,
            "survivors": self.survivors,
            "losses": self.losses,
            "unseen": self.unseen,
            "colluders": self.colluders,
            "noise_required": _text(self.required),
            "noise_present": _text(self.present),
            "noise_total": None if self.total is None else _text(self.total),
            "base": _text(self.base),
            "layers": [_text(layer) for layer in self.layers],
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
            sharers=int(document["sharers"]),
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


def _text(number: Fraction) -> str:
    return f"{number.numerator}/{number.denominator}"
