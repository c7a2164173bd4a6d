"""The numbers of the planner: each with its unit, and where it comes from.

None of them decides how much noise is added; an accountant does. They decide where the
planner looks, when it stops looking, and which error is worth a bit. Numbers without
another source are choices. `benchmarks/search_plans.py` checks all of them together on
random plans. It reports how long each took, what it needs above a Gaussian, and whether
another choice would have needed less noise.
"""

from fractions import Fraction
from typing import Final

# --- The search for a grid (`planner`)
SEARCHES: Final = 3
"""Rounds of model and calibration."""
FINE_SEARCHES: Final = 6
"""Grids tried until the closed form wastes about a percent."""
FEW_BITS: Final = 4096
"""Bits of an upload below which no bit is worth a search: half a kilobyte."""
CLOSEST, CLOSE = 0.009, 0.010
"""Part of the noise that the closed form may waste on a fine grid."""
OVER_COUNTS: Final = 1.05
"""Error over noise that wrapping may cause in a sum of counts."""
COARSER: Final = (0.25, 1.0, 2.0, 4.0, 5.6, 8.0)
"""Steps of the grid on which the closed form wastes a percent, over those that are
tried where bits are given."""
ANOTHER_GRID: Final = 1.125
"""Ratio of scales from which on two rough calibrations tell a slope: their errors of a
thousandth would otherwise outweigh it."""
WORTHWHILE: Final = 1.005
"""Ratio of errors for which another calibration is made; no reader sees less."""
LITTLE_NOISE: Final = 16.0
"""Grid steps²: least noise that an answer's cost is foreseen at."""
WASTES_NOTHING: Final = 1.02
"""Times a Gaussian's noise, up to which no other accountant is asked at the end."""
WORTH_ASKING: Final = Fraction(63, 64)
"""Part of the noise found that another accountant must accept to be asked for more."""
SURELY_LESS: Final = Fraction(127, 128)
"""Part of roughly calibrated noise that surely is not enough; those are within 1e-3."""
LARGEST_VARIANCE: Final = Fraction(1 << 100)
"""Grid steps²: where calibrations end, far beyond all samplers."""

# --- The choice of accountants (`accountant_choice`)
CLOSED_FORM_WASTES: Final = 7.0
"""Part of the noise that the closed form wastes, times its deviation in grid steps:
measured in docs/accounting.md, "How tight"."""
FAR: Final = 0.25
"""Part of the noise that no accountant but the closed form ever wastes."""
ABOVE_LEAST: Final = 1.5
"""Times the least epsilon that an accountant can state; below, it asks for far more
noise than others."""
WIDE: Final = float(1 << 16)
"""Grid steps²: noise from which on a curve takes seconds."""
SHORT: Final = float(1 << 24)
"""Noise variance per squared norm from which on the closed form is within a few percent
of a curve."""
COARSE: Final = 1.0
"""Grid steps² that a Gaussian would need. On coarser grids the model is far from the
answer, so the cheapest accountant is asked first, and others begin where it ends."""
RETRIES: Final = 4
MORE: Final = 1 + Fraction(1, 1 << 12)
"""Times the noise in each retry, until the finished parameters keep the budget."""

# --- The forecast over all grids (`scale_search`)
UNBOUNDED_BITS: Final = 62
"""Bits of the largest modulus."""
LOWEST_STEPS: Final = 2.0**-12
"""Grid steps per clip on the coarsest grid; all entries but one in 10^7 are zero."""
STEPS_TO_TRUNCATE: Final = 8.0
"""Grid steps of a typical entry below which truncation takes away too much of it: half
a step is a sixteenth."""
POINTS_PER_OCTAVE: Final = 8
REFINEMENTS: Final = 40
"""Halvings of an interval of scales, down to 10^-12 of it."""
INDIFFERENCE: Final = 1.005
"""Ratio of errors within which scales are equally good."""
OVER_GAUSSIAN, OVER_BEST = 1.05, 1.02
"""Accepted error over the central Gaussian's and over the least: a bit of six or seven
is worth five percent of error."""
TOGETHER_OVER_GAUSSIAN, TOGETHER_OVER_BEST = 1.01, 1.006
"""The same where all entries are rounded together: a bit is then one of fifteen. Above
the indifference, or no bits would be enough."""
FINE_STEPS: Final = 2.0**16
"""Grid steps per clip on a grid where rounding costs nothing."""
CAPS_PER_OCTAVE: Final = 4
CAPS: Final = 40
"""Bounds on coordinates that are tried, from the clip down to a thousandth of it."""
MARGIN: Final = 0.8
"""Part of the accepted wrapping that is planned for: the calibrated noise may come out
a little above the model's."""
HELD: Final = 0.5
"""Part of what samplers hold that a grid may need by the model."""

# --- Refusals (`infeasible`)
LEAST_EPSILON: Final = 0.1
"""Smallest epsilon that is offered as the nearest one that works."""
LARGEST_EXPONENT: Final = -0.5
"""Decimal exponent of the largest delta that is offered."""
HOPELESS: Final = 100.0
"""Times the accepted squared error from which on a grid is refused: an error of ten
times the accepted one in every entry."""
SURELY_COVERED: Final = 1.02
"""Times the scale from which on the model says that a theorem covers it."""
HELD_BY_ADVICE: Final = 0.85
"""Part of what samplers hold on a grid that is named to the caller."""
HALVINGS: Final = 60
UNCOVERED: Final = 1.001
"""Excess of noise from which on a theorem counts as not covering a grid; a thousandth
is the model's own error."""

# --- Requests (`request`)
FLAG_WANTED, FLAG_WORST = 0.05, 0.5
"""Standard deviation of the share that a clip flag reads. The first is the aim; the
second is the most at which the clip still moves the right way on average."""
FLAG_LOUDEST: Final = 0.25
"""Largest amplitude of a clip flag, in clips: it costs 6 percent of the noise."""
FAR_OVER_GAUSSIAN: Final = 2.0
"""Noise over the Gaussian's from which on a plan notes what its theorem costs."""
