"""Which combinations of rows vanish modulo a prime: Gauss, on small dense matrices."""

import numpy as np
import numpy.typing as npt

_Matrix = npt.NDArray[np.int64]


def left_null_space(matrix: _Matrix, prime: int) -> _Matrix:
    """Return all combinations of rows that are zero, as a basis.

    Args:
        matrix: Integers, shape (rows, columns).
        prime: Below 2^31, so that products fit into int64.

    Returns:
        Reduced echelon form of the left null space, shape (dimension, rows), entries
        in [0, prime).  Where it is spanned by disjoint sets of rows, the basis
        vectors are these sets.
    """
    rows = matrix.shape[0]
    work = np.concatenate([matrix % prime, np.eye(rows, dtype=np.int64)], axis=1)
    columns = matrix.shape[1]
    vanished = []
    for row in range(rows):
        pivots = np.flatnonzero(work[row, :columns])
        if not pivots.size:
            vanished.append(work[row, columns:])
            continue
        _clear(work, row, int(pivots[0]), range(row + 1, rows), prime)
    return _reduced(np.array(vanished, np.int64).reshape(-1, rows), prime)


def _reduced(basis: _Matrix, prime: int) -> _Matrix:
    """Bring independent rows into reduced echelon form."""
    work, top = basis.copy(), 0
    for column in range(work.shape[1]):
        candidates = np.flatnonzero(work[top:, column])
        if not candidates.size:
            continue
        chosen = top + int(candidates[0])
        work[[top, chosen]] = work[[chosen, top]]
        others = [row for row in range(len(work)) if row != top]
        _clear(work, top, column, others, prime)
        top += 1
    return work


def _clear(
    work: _Matrix, row: int, column: int, others: "range | list[int]", prime: int
) -> None:
    """Make the pivot one and the column zero in all other rows given."""
    inverse = pow(int(work[row, column]), -1, prime)
    work[row] = work[row] * inverse % prime
    targets = np.array([o for o in others if work[o, column]], np.intp)
    factors = work[targets, column][:, None]
    work[targets] = (work[targets] - factors * work[row]) % prime
