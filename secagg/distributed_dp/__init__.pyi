from dpnoise.accounting import PrivacyStatement as PrivacyStatement
from dpnoise.accounting.accountant import GaussianLoss as GaussianLoss
from dpnoise.accounting.cross_task import (
    GAUSSIAN_PROOF as GAUSSIAN_PROOF,
    GAUSSIAN_STATUS as GAUSSIAN_STATUS,
    BudgetSpent as BudgetSpent,
    LossLimit as LossLimit,
    RequiredChange as RequiredChange,
    TaskLoss as TaskLoss,
    fits as fits,
    required_change as required_change,
    spent as spent,
)
from dpnoise.errors import (
    DPNoiseError as DPNoiseError,
    ParameterError as ParameterError,
    UnknownEventError as UnknownEventError,
)
from dpnoise.events import Adjacency as Adjacency
from dpnoise.floats import (
    error_text as error_text,
    text_above as text_above,
    text_below as text_below,
)
from dpnoise.local import (
    LocalParameters as LocalParameters,
    LocalRandomiser as LocalRandomiser,
    best_magnitude_epsilon as best_magnitude_epsilon,
    make_randomiser as make_randomiser,
)
from dpnoise.mechanisms import (
    ClippingSchedule as ClippingSchedule,
    SessionNoise as SessionNoise,
    SumError as SumError,
    fixed_point_parameters as fixed_point_parameters,
)
from dpnoise.planning import (
    CurvePoint as CurvePoint,
    Plan as Plan,
    PlanRequest as PlanRequest,
    clip_flag_amplitude as clip_flag_amplitude,
    error_curve as error_curve,
    root_text as root_text,
    plan as plan,
)
from secagg.distributed_dp.aggregator_noise import (
    AggregatorNoise as AggregatorNoise,
    TwoAggregatorReport as TwoAggregatorReport,
)
from secagg.distributed_dp.data_budget import (
    loss_against_broken_masks as loss_against_broken_masks,
    loss_against_server as loss_against_server,
    loss_between_two as loss_between_two,
)
from secagg.distributed_dp.estimate import EXACT as EXACT, SumEstimate as SumEstimate
from secagg.distributed_dp.noise_block import NoiseBudget as NoiseBudget
from secagg.distributed_dp.reader import (
    TaskNoiseVerifier as TaskNoiseVerifier,
    central_gaussian_variance as central_gaussian_variance,
    certify as certify,
    following_terms as following_terms,
    offered_terms as offered_terms,
    read_noise_terms as read_noise_terms,
    subtract_layers as subtract_layers,
    table_hashes as table_hashes,
)
from secagg.distributed_dp.report import (
    LocalPrivacy as LocalPrivacy,
    PrivacyReport as PrivacyReport,
    local_parameters as local_parameters,
    local_privacy as local_privacy,
    randomised_mse as randomised_mse,
    randomised_sum as randomised_sum,
)
from secagg.distributed_dp.task import (
    NoisyInput as NoisyInput,
    NoisyTask as NoisyTask,
    ReplacedInput as ReplacedInput,
    Unusable as Unusable,
    UnusableKind as UnusableKind,
    encode_or_zeros as encode_or_zeros,
)
from secagg.distributed_dp.units import UnitBounds as UnitBounds
