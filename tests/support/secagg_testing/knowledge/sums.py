"""Which sums of inputs the masked vectors reveal, and their values.

Under one ctx2, every vector of an honest client is its input plus masks.  Masks that
the adversary can compute are subtracted; the others are unknowns, one column each, and
a vector is a row of +1 and -1 over them.  A combination of rows in which every
unknown cancels is the same combination of inputs, in the clear.  Vectors under
different ctx2 have no mask in common, so that each ctx2 is a system of its own.

Nothing is a special case: an edge that only one end knows of, a second vector of the
same sender and one that came too late are just rows and columns.

Rows are combined modulo a large prime, which finds the integer combinations, and for
even m modulo 2 as well: where twice an unknown is left, m/2 times the sum is free of
it, and shows the parity of every entry.  Nothing else can hide.  A pair mask stands in
the rows of two clients, as +1 or -1: clearing along a spanning tree of a component
takes pivots of ±1 alone and leaves one row of entries 0, ±1 and ±2, whose greatest
common divisor is 0 (the sum shows), 1 (nothing does) or 2 (the parity does).

Source:
    Masks and signs: PROTOCOL §6.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.key_agreement import KeyPair
from secagg.crypto.key_derivation import pair_mask_key, self_mask_key
from secagg.crypto.modular import UnsignedArray, word_dtype
from secagg.crypto.prg import expand
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import InternalError
from secagg_testing.knowledge.closure import Closure, Kind
from secagg_testing.knowledge.facts import (
    MaskedVector,
    MaskName,
    MaskView,
    PairMask,
    SelfMask,
)
from secagg_testing.knowledge.null_space import left_null_space

_LARGE_PRIME: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, eq=False)
class RevealedSum:
    """A combination of honest inputs that the adversary can compute.

    Attributes:
        view: Session, roster and U2 of the vectors.
        terms: The vectors and their factors, none of which is 0.
        is_parity: Whether only m/2 times the combination shows: each entry modulo 2.
    """

    view: MaskView
    terms: tuple[tuple[MaskedVector, int], ...]
    is_parity: bool

    @property
    def members(self) -> frozenset[str]:
        """Whose inputs are in it."""
        return frozenset(vector.sender for vector, _ in self.terms)

    @property
    def is_plain_sum(self) -> bool:
        """Whether it adds up inputs, without factors."""
        return not self.is_parity and all(factor == 1 for _, factor in self.terms)


def revealed_sums(closure: Closure) -> tuple[RevealedSum, ...]:
    """Return a basis of everything that the adversary can compute about inputs.

    Corrupt clients' inputs are not in it: the adversary has them anyway.
    """
    systems: dict[bytes, list[MaskedVector]] = {}
    for vector in closure.facts.vectors:
        if vector.sender not in closure.facts.seeds:
            systems.setdefault(vector.view.ctx2, []).append(vector)
    return tuple(
        found for vectors in systems.values() for found in _solve(closure, vectors)
    )


def _solve(closure: Closure, vectors: list[MaskedVector]) -> Iterator[RevealedSum]:
    view = vectors[0].view
    rows = _rows(vectors, lambda mask: closure.mask_of(view, mask) is None)
    plain = left_null_space(rows, _LARGE_PRIME)
    # Residues near the prime are negative factors.
    plain = np.where(plain > _LARGE_PRIME // 2, plain - _LARGE_PRIME, plain)
    if np.any(plain @ rows):
        raise InternalError("a combination of masks has factors that are no integers")
    yield from _named(view, vectors, plain, is_parity=False)
    if view.roster.session.parameters.modulus % 2 == 0:
        modulo_2 = left_null_space(rows, 2)
        yield from _named(view, vectors, _beyond(plain, modulo_2), is_parity=True)


def _rows(
    vectors: Iterable[MaskedVector], is_unknown: Callable[[MaskName], bool]
) -> npt.NDArray[np.int64]:
    """Return one row per vector, with one column per unknown mask."""
    rows = list(vectors)
    names = {mask for vector in rows for mask in vector.masks}
    column_of = {mask: i for i, mask in enumerate(filter(is_unknown, names))}
    matrix = np.zeros((len(rows), len(column_of)), np.int64)
    for row, vector in enumerate(rows):
        for mask, sign in vector.masks.items():
            if mask in column_of:
                matrix[row, column_of[mask]] = sign
    return matrix


def _beyond(
    plain: npt.NDArray[np.int64], modulo_2: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return what the combinations modulo 2 give beside the integer ones."""
    echelon: dict[int, npt.NDArray[np.int64]] = {}  # by the place of the leading one

    def is_new(row: npt.NDArray[np.int64]) -> bool:
        rest = row % 2
        for place in sorted(echelon):
            if rest[place]:
                rest = (rest + echelon[place]) % 2
        if rest.any():
            echelon[int(np.flatnonzero(rest)[0])] = rest
        return bool(rest.any())

    for row in plain:
        is_new(row)
    return modulo_2[[is_new(row) for row in modulo_2]]


def _named(
    view: MaskView,
    vectors: list[MaskedVector],
    combinations: npt.NDArray[np.int64],
    *,
    is_parity: bool,
) -> Iterator[RevealedSum]:
    for factors in combinations.tolist():
        terms = tuple(
            (vector, factor)
            for vector, factor in zip(vectors, factors, strict=True)
            if factor
        )
        yield RevealedSum(view, terms, is_parity)


def recover(closure: Closure, revealed: RevealedSum) -> UnsignedArray:
    """Compute a revealed sum as the adversary would: from vectors and known secrets.

    It shows that the claim of `revealed_sums` is real.  Slow; for small d.

    Returns:
        The combination of inputs modulo m, shape (d,); m/2 times it for a parity.
    """
    parameters = revealed.view.roster.session.parameters
    modulus, dimension = parameters.modulus, parameters.dimension
    total: npt.NDArray[Any] = np.zeros(dimension, object)
    for vector, factor in revealed.terms:
        clear = vector.residues.astype(object)
        for mask, sign in vector.masks.items():
            known = expanded(closure, revealed.view, mask)
            if known is not None:
                clear -= sign * known.astype(object)
        total += factor * clear
    if revealed.is_parity:
        total *= modulus // 2
    return (total % modulus).astype(word_dtype(modulus))


def expanded(closure: Closure, view: MaskView, mask: MaskName) -> UnsignedArray | None:
    """Compute a mask from known secrets alone; None where they do not give it."""
    derived = (
        _self_key(closure, view, mask)
        if isinstance(mask, SelfMask)
        else _pair_key(closure, view, mask)
    )
    if derived is None:
        return None
    parameters = view.roster.session.parameters
    return expand(*derived, parameters.dimension, parameters.modulus)


def _self_key(
    closure: Closure, view: MaskView, mask: SelfMask
) -> tuple[SecretBytes, bytes] | None:
    session = view.roster.session
    seed = closure.has_secret(Kind.SELF_MASK_SEED, view.roster.adverts[mask.client])
    if seed is None:
        return None
    return self_mask_key(
        seed.secret,
        session_id=session.session_id,
        context=view.ctx2,
        client=mask.client,
        suite=session.parameters.suite,
    )


def _pair_key(
    closure: Closure, view: MaskView, mask: PairMask
) -> tuple[SecretBytes, bytes] | None:
    session, adverts = view.roster.session, view.roster.adverts
    for own, peer in ((mask.low, mask.high), (mask.high, mask.low)):
        private = closure.has_secret(Kind.MASK_KEY, adverts[own])
        if private is not None:
            keys = KeyPair.from_private_bytes(private.secret)
            return pair_mask_key(
                keys.agree(adverts[peer].masking_key),
                session_id=session.session_id,
                context=view.ctx2,
                low=mask.low,
                high=mask.high,
                suite=session.parameters.suite,
            )
    return None
