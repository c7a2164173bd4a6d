"""Prefix sums over many steps with the noise of a tree: what one member shows.

The running sum of many steps is released after each of them. Every node of a tree over
the steps has noise of its own, drawn once; what is released is made of noisy nodes, so
whatever protects all noisy nodes protects the running sums.

* A node is complete before it is used, and its noise is fresh. The members' inputs may
  depend on everything seen before, and so may who takes part, within the bounds.
* Then the shifts of the nodes are not fixed in advance; only the sum of their squares
  is bounded. Gaussian shifts add up all the same, as [ST22] says: let W be a Brownian
  motion whose drift is 1 in one world and 0 in the other. An increment of W over a time
  s² is a Gaussian shifted by s, and the kernel that dominates a node turns it into what
  the node shows. Take one increment after the other, each as long as the history asks
  for: all of them together are made of W up to the bound on the sum, and W up to time
  μ² is worth one Gaussian shifted by μ. Hence `skellam-gdp`, and no accountant that
  composes fixed releases.
* Only members present from the first step to the last are counted, and every one of
  them keeps its noise to itself: a party that learns old noise takes it off.
* The bounds on participation are the members' own promise, kept by their own books, not
  the server's.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from dpnoise.accounting.tradeoff.skellam_gdp import SkellamGDPAccountant
from dpnoise.errors import ParameterError
from dpnoise.events import MAX_EVENT_DIM, Adjacency, Adversary, SkellamEvent
from dpnoise.step_tree import StepTree


@dataclass(frozen=True, slots=True)
class TreeRelease:
    """All noisy nodes of a tree, and how often one member takes part.

    Args:
        event: One step of one member, as if it had noise of its own: the bounds of its
            vector, and the counted variance of the noise of *one node*.
        tree: Over the steps.
        participations: Largest number of steps that one member takes part in.
        separation: Steps from one of them to the next, at least.

    Raises:
        ParameterError: A number is below 1, or all nodes together are too long.
    """

    event: SkellamEvent
    tree: StepTree
    participations: int
    separation: int

    def __post_init__(self) -> None:
        if self.event.dim * self.tree.node_count > MAX_EVENT_DIM:
            raise ParameterError(
                f"{self.tree.node_count} nodes of {self.event.dim} coordinates are "
                f"more than {MAX_EVENT_DIM} together",
                parameter="steps",
                value=self.tree.steps,
                nearest=None,
            )
        _ = self.weight

    @property
    def weight(self) -> int:
        """Bound on the sum over nodes of the squared number of a member's steps."""
        return self.tree.heaviest_weight(
            participations=self.participations, separation=self.separation
        )

    def expanded(self) -> SkellamEvent:
        """Return all noisy nodes as one vector.

        Returns:
            One release. Its L2 bound is the root of the heaviest weight times that of
            one step; only an accountant that adapts to shifts chosen on the way may
            judge it, which `account_for_tree` sees to.
        """
        one, nodes = self.event, self.tree.node_count
        often = min(self.participations, self.tree.widths[-1])
        squared = self.weight * Fraction(one.l2_sensitivity) ** 2
        norm = math.sqrt(squared)
        while Fraction(norm) ** 2 < squared:
            norm = math.nextafter(norm, math.inf)
        largest = one.linf_sensitivity
        return SkellamEvent(
            dim=nodes * one.dim,
            aggregate_noise_variance=one.aggregate_noise_variance,
            l2_sensitivity=norm,
            linf_sensitivity=None if largest is None else often * largest,
            # One draw for each node, however often it is used.
            sampler_distance=min(nodes * one.sampler_distance, 1.0 - 2.0**-53),
        )


def account_for_tree(
    release: TreeRelease,
    *,
    adversary: Adversary,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> SkellamGDPAccountant:
    """Account for a tree of noise.

    Args:
        release: What is released over all steps.
        adversary: Whom the answer must hold against.
        adjacency: Which two worlds must look alike: all of one member's steps differ.

    Returns:
        The account; ask it for epsilon, delta or a statement.

    Raises:
        CertificateError: A certificate failed; a defect.
    """
    account = SkellamGDPAccountant(adversary=adversary, adjacency=adjacency)
    return account.compose(release.expanded())
