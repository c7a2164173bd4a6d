"""Noise of a tree for prefix sums over many steps, one member's part.

* Every member has one seed for all steps. The noise of a node is drawn from it under
  the node's own label. So it can be drawn again, and subtracted when a longer node
  replaces shorter ones. The seed never leaves the member.
* In step t a member adds the noise of the nodes of the first t steps and subtracts that
  of the first t − 1. The running sum of all that was sent carries the noise of at most
  b − 1 nodes for each base-b digit of t.
* The roster is fixed: a member that leaves takes its noise with it, and the remaining
  members would have to begin a new tree. This module does neither that nor messages.

It states no privacy: `dpnoise.accounting.tree` does.
"""

from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpnoise.errors import ParameterError
from dpnoise.mechanisms.base import check_seed
from dpnoise.samplers.skellam import skellam_table
from dpnoise.step_tree import StepTree, TreeNode

TREE_LABEL: Final = b"dpnoise/v1/tree"
"""Prefix of the labels of the streams that nodes are drawn from."""


class TreeMember:
    """One member's noise over all steps.

    Args:
        seed: 32 secret bytes, fresh for this tree.
        tree: Over the steps.
        dim: Coordinates of a vector.
        share_variance: Variance of this member's noise in one node, grid steps².

    Raises:
        InputError: The seed is not 32 bytes.
        ParameterError: The sampler does not hold such a variance.
    """

    def __init__(
        self, seed: bytes, *, tree: StepTree, dim: int, share_variance: Fraction
    ) -> None:
        check_seed("seed", seed)
        self._seed = seed
        self._tree = tree
        self._dim = dim
        self._table = skellam_table(share_variance)

    def __repr__(self) -> str:
        return f"TreeMember(dim={self._dim}, seed=<redacted>)"

    def noise(self, step: int) -> NDArray[np.int64]:
        """Return what the member adds to its vector in one step.

        Args:
            step: The step, 1 … T.

        Returns:
            Integers, shape (dim,): noise that is new in this step, less noise of before
            that is no longer needed.

        Raises:
            ParameterError: There is no such step.
        """
        if not 1 <= step <= self._tree.steps:
            raise ParameterError(
                f"step must be between 1 and {self._tree.steps}, got {step}",
                parameter="step",
                value=step,
                nearest=str(min(max(1, step), self._tree.steps)),
            )
        now = set(self._tree.nodes_of_prefix(step))
        before = set(self._tree.nodes_of_prefix(step - 1))
        return self._drawn(now - before) - self._drawn(before - now)

    def _drawn(self, nodes: set[TreeNode]) -> NDArray[np.int64]:
        """Return the sum of the noise of some nodes."""
        drawn = np.zeros(self._dim, np.int64)
        for node in sorted(nodes):
            label = TREE_LABEL + b"/%d/%d" % (node.level, node.index)
            self._table.add_to(drawn, self._seed, label)
        return drawn
