"""Where secure sums and differential privacy meet: the only importer of `dpnoise`.

A *noised task* is a task whose parameters hold a noise block: the mechanism with all
its numbers, and the budget that it claims to meet.  The block enters the configuration
hash, so all clients add noise for the same claim or their masks do not cancel.

Rule 1: a task fixes the variance that counts.  What one client adds follows from the
        session's own U2: the honest others carry that variance after every loss that
        is tolerated, whatever colluders and the user itself add.
Rule 2: only `NoisyTask.encode` makes a `NoisyVector`, and a session with a noise
        block takes nothing else; zeros in the place of an unusable vector go the same
        way. Where a task has a local randomiser, it comes first:
        no vector leaves a client that has not gone through it.
Rule 3: a client recomputes epsilon from the mechanism; it never believes the claim.
Rule 4: no amplification by sampling: the server knows who takes part, and readers see
        it in the noise that every participant adds.  Where a task selects vectors, all
        add their noise, and a client's coin is as secret as its vector: it is in no
        message, log, error or receipt.
Rule 5: noise, rounding and coin derive from one secret seed per session and U2, so that
        a restarted client sends the same bytes; the rotation from the public session
        id.
Rule 6: who draws other noise for the same U2 has another ctx2 (PROTOCOL §4): builds
        that disagree make masks that do not cancel, never a sum with another noise.

Nothing in here does input or output.
"""

from dpnoise.accounting import PrivacyStatement
from dpnoise.accounting.accountant import GaussianLoss
from dpnoise.accounting.cross_task import (
    BudgetSpent,
    LossLimit,
    RequiredChange,
    TaskLoss,
    fits,
    room_for,
    spent,
)
from dpnoise.errors import DPNoiseError, ParameterError, UnknownEventError
from dpnoise.events import Adjacency
from dpnoise.floats import error_text, text_above, text_below
from dpnoise.local import (
    LocalParameters,
    LocalRandomiser,
    best_magnitude_epsilon,
    make_randomiser,
)
from dpnoise.mechanisms import (
    ClippingSchedule,
    SessionNoise,
    SumError,
    fixed_point_parameters,
)
from dpnoise.planning import (
    CurvePoint,
    Plan,
    PlanRequest,
    clip_flag_amplitude,
    error_curve,
    per_entry,
    plan,
)
from secagg.distributed_dp.aggregator_noise import (
    AggregatorNoise,
    TwoAggregatorReport,
)
from secagg.distributed_dp.data_budget import (
    loss_against_broken_masks,
    loss_against_server,
    loss_between_two,
)
from secagg.distributed_dp.estimate import EXACT, SumEstimate
from secagg.distributed_dp.local_layer import (
    local_parameters,
    local_privacy,
    randomised_mse,
    randomised_sum,
)
from secagg.distributed_dp.noise_block import NoiseBudget
from secagg.distributed_dp.reader import (
    TaskNoiseVerifier,
    central_gaussian_variance,
    certify,
    following_terms,
    offered_terms,
    read_noise_terms,
    subtract_layers,
    table_hashes,
)
from secagg.distributed_dp.replacement import (
    ReplacedInput,
    Unusable,
    UnusableKind,
    encode_or_zeros,
)
from secagg.distributed_dp.report import LocalPrivacy, PrivacyReport
from secagg.distributed_dp.task import NoisyInput, NoisyTask
from secagg.distributed_dp.units import UnitBounds

__all__ = [
    "EXACT",
    "Adjacency",
    "AggregatorNoise",
    "BudgetSpent",
    "ClippingSchedule",
    "CurvePoint",
    "DPNoiseError",
    "GaussianLoss",
    "LocalParameters",
    "LocalPrivacy",
    "LocalRandomiser",
    "LossLimit",
    "NoiseBudget",
    "NoisyInput",
    "NoisyTask",
    "ParameterError",
    "Plan",
    "PlanRequest",
    "PrivacyReport",
    "PrivacyStatement",
    "ReplacedInput",
    "RequiredChange",
    "SessionNoise",
    "SumError",
    "SumEstimate",
    "TaskLoss",
    "TaskNoiseVerifier",
    "TwoAggregatorReport",
    "UnitBounds",
    "UnknownEventError",
    "Unusable",
    "UnusableKind",
    "best_magnitude_epsilon",
    "central_gaussian_variance",
    "certify",
    "clip_flag_amplitude",
    "encode_or_zeros",
    "error_curve",
    "error_text",
    "fits",
    "fixed_point_parameters",
    "following_terms",
    "local_parameters",
    "local_privacy",
    "loss_against_broken_masks",
    "loss_against_server",
    "loss_between_two",
    "make_randomiser",
    "offered_terms",
    "per_entry",
    "plan",
    "randomised_mse",
    "randomised_sum",
    "read_noise_terms",
    "room_for",
    "spent",
    "subtract_layers",
    "table_hashes",
    "text_above",
    "text_below",
]
