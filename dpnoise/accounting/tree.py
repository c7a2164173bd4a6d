"""Prefix sums over many steps with the noise of a tree: the loss of one member.

The running sum of many steps is released after each of them. Every node of a tree over
the steps has noise of its own, drawn once. Releases are functions of noisy nodes, so a
mechanism that protects all noisy nodes protects the running sums.

* A node is complete before it is used, and its noise is fresh. The members' inputs may
  depend on everything seen before, and so may the set of participants, within bounds.
* The shifts of the nodes are therefore not fixed in advance; only the sum of their
  squares is bounded. Gaussian shifts still add up, as [ST22] shows. Let W be a Brownian
  motion whose drift is 1 for one input and 0 for its neighbour. An increment of W over
  a time s² is a Gaussian shifted by s. The kernel that dominates a node maps it to the
  node's release. Take one increment after the other, each as long as the history
  determines. All of them are a function of W up to the bound μ² on the sum. W up to
  time μ² is equivalent to one Gaussian shifted by μ. Hence `skellam-gdp`; accountants
  that compose fixed releases do not apply.
* Only members present from the first step to the last are counted. Each of them keeps
  its noise secret: a party that learns old noise subtracts it.
* The members themselves enforce the bounds on participation, by their own ledgers. The
  server does not.
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
        event: One step of one member, as if it had noise of its own. It has the bounds
            of its vector, and the counted variance of the noise of *one node*.
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
            one step. It is valid only for an accountant that allows adaptively chosen
            shifts; `account_for_tree` ensures that.
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
        release: The release of all steps together.
        adversary: The adversary that the answer must hold against.
        adjacency: Which neighbouring inputs must look alike: all of one member's steps
            differ.

    Returns:
        The account; ask it for epsilon, delta or a statement.

    Raises:
        CertificateError: A certificate failed; a defect.
    """
    account = SkellamGDPAccountant(adversary=adversary, adjacency=adjacency)
    return account.compose(release.expanded())
