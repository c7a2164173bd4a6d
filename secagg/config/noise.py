"""Settings of the noise of a task: its budget, its mechanism, or its absence.

Rule 1: releasing a sum without noise takes a sentence, not a flag: the operator has to
        write down what it means.

Ranges here catch typing errors early.  The planner decides which mechanisms are
possible.
"""

from dataclasses import dataclass

from secagg.config.loader import setting
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT


@dataclass(frozen=True, slots=True)
class NoiseSection:
    """The privacy budget of the whole task, or the sentence that waives it."""

    none: str = setting(
        f'To release exact sums, write "{NO_NOISE_ACKNOWLEDGEMENT}".',
        default="",
        choices=("", NO_NOISE_ACKNOWLEDGEMENT),
    )
    mechanism: str = setting(
        "Mechanism that encodes and adds noise.", default="skellam-mixture"
    )
    epsilon: float | None = setting(
        "Budget of the whole task against the server.",
        default=None,
        low=1e-6,
        high=1e4,
    )
    delta: float | None = setting(
        "Probability beyond epsilon; well below one over the number of people.",
        default=None,
        low=1e-300,
        high=0.999999,
    )
    l2_clip: float | None = setting(
        "Longest vector of one client; longer ones are shortened to it.",
        default=None,
        low=1e-70,
        high=1e70,
        unit="caller's units",
    )
    max_nonzero: int | None = setting(
        "For skellam-counts instead of l2_clip: how many entries of one client may "
        "differ from zero; 1 for a histogram.",
        default=None,
        low=1,
        high=1 << 30,
        unit="entries",
    )
    linf_bound: int | None = setting(
        "Largest entry of one client; empty lets the mechanism choose, which is 1 for "
        "skellam-counts.",
        default=None,
        low=1,
        high=1 << 25,
        unit="grid steps",
    )
    signed: bool = setting(
        "Whether entries of skellam-counts may be below 0.", default=False
    )
    scale_factor: float | None = setting(
        "Grid steps per unit; empty lets the planner choose.",
        default=None,
        low=1e-300,
        high=1e300,
    )
    accountant: str | None = setting(
        "Accountant that vouches for the budget; empty for the default of the "
        "mechanism.",
        default=None,
    )
    clip_quantile: float | None = setting(
        "Part of the vectors that should fit the clip. l2_clip is then that of the "
        "first session, and later clips follow the sums. The privacy cost is that of "
        "a slightly longer vector. Empty for a fixed clip.",
        default=None,
        low=1e-6,
        high=0.999999,
    )
    lowest_clip: float | None = setting(
        "Smallest clip of any session with clip_quantile; empty means l2_clip / 16.",
        default=None,
        low=1e-70,
        high=1e70,
        unit="caller's units",
    )
    highest_clip: float | None = setting(
        "Largest clip of any session with clip_quantile; empty means 16 l2_clip.",
        default=None,
        low=1e-70,
        high=1e70,
        unit="caller's units",
    )
    selection_rate: str = setting(
        'Part of the vectors that count in a sum, such as "1/10". All clients add '
        "noise, and a secret Bernoulli selection of each decides whether its vector "
        "is added. A smaller part needs less noise and gives a less exact estimate.",
        default="1",
    )
    loss_fraction: float | None = setting(
        "Part of the clients of one session that may drop out after sharing; empty "
        "means what min_survivors leaves of max_clients. Less of it is less noise in "
        "sessions that are not full.",
        default=None,
        low=0.0,
        high=0.999999,
    )
    ladder: int | None = setting(
        "Rungs by which survivors remove noise that no dropout has made necessary; 0 "
        "for none. Empty means 4 where dropouts are allowed and the mechanism "
        "supports it. That leaves 1 percent too much noise where a tenth may drop "
        "out, 2 percent where three tenths may.",
        default=None,
        low=0,
        high=8,
        unit="rungs",
    )
    colluder_fraction: float | None = setting(
        "Part of the clients of one session that is taken for colluders where that "
        "is more than cohort.colluders; clients may demand it. Empty means 0.1 in "
        "profiles that distrust the server, else 0.",
        default=None,
        low=0.0,
        high=0.999999,
    )
    rotation: str = setting(
        "How vectors are spread before rounding.",
        default="hadamard",
        choices=("hadamard", "hadamard-kronecker", "dft", "none"),
    )
    randomiser: str | None = setting(
        "What makes every vector private on its own, in case masks are broken: "
        "separated, privunit2, privunit-inf, scalar-dp; empty for none. l2_clip then "
        "bounds its input. The noise is planned for its output, which is longer, so "
        "there is more of it.",
        default=None,
    )
    randomiser_epsilon: float | None = setting(
        "Its level for one session, without a delta; the levels of sessions add up.",
        default=None,
        low=1e-3,
        high=1e3,
    )
    randomiser_magnitude_epsilon: float | None = setting(
        "The part of that level that separated spends on the length of a vector. "
        "Empty for the best part for vectors of a fifth of l2_clip.",
        default=None,
        low=1e-3,
        high=1e3,
    )
