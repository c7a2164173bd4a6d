"""A tree over steps against plain counting, drawing again, and enumeration."""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.accounting import make_accountant
from dpnoise.accounting.tree import TreeRelease, account_for_tree
from dpnoise.errors import ParameterError
from dpnoise.events import Adversary, SkellamEvent
from dpnoise.mechanisms.tree import TreeMember
from dpnoise.samplers import skellam_table
from dpnoise.step_tree import MAX_STEPS, StepTree

SHAPES = [(1, 2), (3, 2), (8, 2), (9, 3), (10, 3), (17, 4), (30, 5)]


@pytest.mark.parametrize(("steps", "branching"), SHAPES)
def test_the_nodes_of_a_prefix_cover_each_of_its_steps_once(steps, branching):
    tree, used = StepTree(steps, branching), set()
    for step in range(steps + 1):
        nodes = list(tree.nodes_of_prefix(step))
        used |= set(nodes)
        covered = [
            one
            for node in nodes
            for width in [branching**node.level]
            for one in range(node.index * width, (node.index + 1) * width)
        ]
        assert sorted(covered) == list(range(step))
        assert len(nodes) <= branching * len(tree.widths)
    levels = [node.level for node in used]
    assert tree.level_sizes == tuple(map(levels.count, range(len(tree.widths))))
    assert tree.node_count == len(used)


def test_the_number_of_nodes_of_a_prefix_is_its_digit_sum():
    tree = StepTree(1024, 4)
    assert tree.widths == (1, 4, 16, 64, 256)
    assert len(list(tree.nodes_of_prefix(1023))) == 15
    # Five digits of 0 … 3, and the last prefix of four nodes.
    nodes = sum(len(list(tree.nodes_of_prefix(step))) for step in range(1, 1025))
    assert nodes == 1024 * 7.5 + 4


@functools.cache
def heaviest(steps, branching, participations, separation):
    """The heaviest of all patterns, one by one."""
    tree, worst = StepTree(steps, branching), 0
    used = {node for step in range(steps + 1) for node in tree.nodes_of_prefix(step)}
    for count in range(1, participations + 1):
        for taken in itertools.combinations(range(steps), count):
            gaps = itertools.pairwise(taken)
            if any(after - before < separation for before, after in gaps):
                continue
            weight = 0
            for node in used:
                width = branching**node.level
                weight += sum(one // width == node.index for one in taken) ** 2
            worst = max(worst, weight)
    return worst


@pytest.mark.parametrize(("steps", "branching"), [(8, 2), (9, 3), (10, 3), (12, 4)])
@pytest.mark.parametrize("participations", [1, 2, 3, 12])
@pytest.mark.parametrize("separation", [1, 2, 3, 5])
def test_no_participation_pattern_exceeds_the_weight_bound(
    steps, branching, participations, separation
):
    exact = heaviest(steps, branching, participations, separation)
    bound = StepTree(steps, branching).heaviest_weight(
        participations=participations, separation=separation
    )
    assert exact <= bound <= 1.5 * exact


def test_the_weight_bound_is_attained_where_levels_agree():
    for participations, separation in [(1, 1), (4, 2), (8, 1), (2, 4)]:
        bound = StepTree(8, 2).heaviest_weight(
            participations=participations, separation=separation
        )
        assert bound == heaviest(8, 2, participations, separation)


def test_running_sums_contain_exactly_the_noise_of_their_nodes():
    steps, share = 11, Fraction(7, 2)
    seeds = (bytes(32), bytes([1]) * 32)
    vectors = np.arange(steps * 3, dtype=np.int64).reshape(steps, 3)
    tree = StepTree(steps, 3)
    members = [
        TreeMember(seed, tree=tree, dim=3, share_variance=share) for seed in seeds
    ]
    sent = [
        vectors[step - 1] + sum(member.noise(step) for member in members)
        for step in range(1, steps + 1)
    ]
    found = np.cumsum(sent, axis=0)
    for step in range(1, steps + 1):
        expected = vectors[:step].sum(axis=0)
        for seed in seeds:
            for node in StepTree(steps, 3).nodes_of_prefix(step):
                label = b"dpnoise/v1/tree/%d/%d" % (node.level, node.index)
                skellam_table(share).add_to(expected, seed, label)
        np.testing.assert_array_equal(found[step - 1], expected)


def test_the_repr_of_a_member_contains_no_seed():
    member = TreeMember(
        b"s" * 32, tree=StepTree(4, 2), dim=2, share_variance=Fraction(1)
    )
    assert "sss" not in repr(member)
    for step in (0, 5):
        with pytest.raises(ParameterError):
            member.noise(step)


def exact_delta(shifts, variance, epsilon):
    outcomes = np.arange(-60, 61)
    law = scipy.special.ive(np.abs(outcomes), variance)
    moved = [scipy.special.ive(np.abs(outcomes - shift), variance) for shift in shifts]
    upper = functools.reduce(np.multiply.outer, moved)
    lower = functools.reduce(np.multiply.outer, [law] * len(shifts))
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_the_account_covers_the_release_of_the_nodes(epsilon):
    # Three steps in pairs: nodes of the first and the third, and one of the first two.
    # All three steps shift two short nodes by one and the long one by two.
    one = SkellamEvent(1, Fraction(30), 1.0, linf_sensitivity=1)
    release = TreeRelease(one, StepTree(3, 2), participations=3, separation=1)
    assert release.weight == 6
    assert release.expanded().dim == 3
    exact = exact_delta((1, 1, 2), 30.0, epsilon)
    account = account_for_tree(release, adversary=Adversary.SERVER)
    assert exact <= account.delta(epsilon) <= 1.2 * exact
    # An account of one step alone would state too little.
    fewer = TreeRelease(one, StepTree(3, 2), participations=1, separation=1)
    assert account_for_tree(fewer, adversary=Adversary.SERVER).delta(epsilon) < exact


def test_one_step_equals_one_release():
    one = SkellamEvent(5, Fraction(30), 2.0, sampler_distance=2.0**-100)
    release = TreeRelease(one, StepTree(1, 2), participations=1, separation=1)
    plain = make_accountant("skellam-gdp", adversary=Adversary.SERVER).compose(one)
    made = account_for_tree(release, adversary=Adversary.SERVER)
    assert made.epsilon(1e-5) == plain.epsilon(1e-5)
    assert release.expanded().sampler_distance == one.sampler_distance
    three = TreeRelease(one, StepTree(3, 2), participations=1, separation=1)
    assert three.expanded().sampler_distance == 3 * one.sampler_distance


@pytest.mark.parametrize(
    "ask",
    [
        functools.partial(StepTree, 0, 2),
        functools.partial(StepTree, 4, 1),
        functools.partial(StepTree, MAX_STEPS + 1, 2),
        functools.partial(
            StepTree(4, 2).heaviest_weight, participations=0, separation=1
        ),
        functools.partial(
            StepTree(4, 2).heaviest_weight, participations=1, separation=0
        ),
        functools.partial(
            TreeRelease,
            SkellamEvent(1 << 40, Fraction(1), 1.0),
            StepTree(4, 2),
            participations=1,
            separation=1,
        ),
    ],
)
def test_an_invalid_tree_is_rejected(ask):
    with pytest.raises(ParameterError):
        ask()
