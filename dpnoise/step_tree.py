"""A tree over steps: which sums of steps get noise, and how much a member weighs.

Notation: T steps, branching b; a node of level l covers b^l consecutive steps, from a
multiple of b^l on. Only nodes that some prefix uses exist. Excluded are nodes that the
T steps do not fill, and those as long as all steps. So is the last child of a node,
since the prefix that ends with it takes the parent.

* The first t steps are a union of at most b − 1 nodes from each level, by the base-b
  digits of t. All T steps, where T is a power of b, are a union of b nodes. A prefix
  sum carries the noise of these nodes; with independent noise for every step it would
  carry that of t steps.
* A member of a step contributes to every node that covers the step. If c steps of a
  node are a member's, its shift there is at most c times that of one step. Its total
  shift is at most that of one step times the root of the sum of c² over all nodes.

It draws no noise and states no privacy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dpnoise.checks import check_integer
from dpnoise.errors import ParameterError

MAX_STEPS: Final = 1 << 20
"""Largest number of steps."""


@dataclass(frozen=True, slots=True, order=True)
class TreeNode:
    """Consecutive steps with noise of their own.

    Args:
        level: Level l, 0 for a single step.
        index: Position among the nodes of its level, from 0.
    """

    level: int
    index: int


@dataclass(frozen=True, slots=True)
class StepTree:
    """A tree over a fixed number of steps.

    Args:
        steps: Number of steps T, 1 … 2^20, fixed in advance.
        branching: Children b of a node, at least 2.

    Raises:
        ParameterError: A number is out of range.
    """

    steps: int
    branching: int

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1)
        check_integer("branching", self.branching, 2)
        if self.steps > MAX_STEPS:
            raise ParameterError(
                f"steps must be at most {MAX_STEPS}, got {self.steps}",
                parameter="steps",
                value=self.steps,
                nearest=str(MAX_STEPS),
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Steps that a node of each level covers: 1, b, b², … below T."""
        widths = [1]
        while widths[-1] * self.branching < self.steps:
            widths.append(widths[-1] * self.branching)
        return tuple(widths)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Nodes of each level: of b children of one parent all but the last."""
        filled = [self.steps // width for width in self.widths]
        return (*(n - n // self.branching for n in filled[:-1]), filled[-1])

    @property
    def node_count(self) -> int:
        """Number of nodes of all levels."""
        return sum(self.level_sizes)

    def nodes_of_prefix(self, step: int) -> Iterator[TreeNode]:
        """Yield the nodes whose steps are the first ones, each step once.

        Args:
            step: Number of steps, 0 … T.
        """
        covered = 0
        for level, width in reversed(tuple(enumerate(self.widths))):
            while covered + width <= step:
                yield TreeNode(level, covered // width)
                covered += width

    def heaviest_weight(self, *, participations: int, separation: int) -> int:
        """Bound how much one member weighs on all nodes together.

        On each level the worst is to fill nodes as densely as the separation allows,
        one after the other. Levels need not have it in common, so the sum is a bound.

        Args:
            participations: Largest number k of steps that one member takes part in.
            separation: Steps from one of them to the next, at least.

        Returns:
            An upper bound on the sum over nodes of the squared number of the member's
            steps in each.

        Raises:
            ParameterError: A number is below 1.
        """
        check_integer("participations", participations, 1)
        check_integer("separation", separation, 1)
        most = min(participations, -(-self.steps // separation))
        weight = 0
        for width, nodes in zip(self.widths, self.level_sizes, strict=True):
            densest = min(most, -(-width // separation))
            full = min(most // densest, nodes)
            rest = most - full * densest if full < nodes else 0
            weight += full * densest**2 + rest**2
        return weight
