from secagg.distributed_dp import (
    AggregatorNoise as AggregatorNoise,
    fixed_point_parameters as fixed_point_parameters,
)
from secagg.two_aggregators.client import (
    SharedContribution as SharedContribution,
    TwoAggregatorClient as TwoAggregatorClient,
)
from secagg.two_aggregators.helper import Helper as Helper
from secagg.two_aggregators.leader import Leader as Leader
from secagg.two_aggregators.leader_outcome import TwoAggregatorSum as TwoAggregatorSum
from secagg.two_aggregators.offers import cohort_parameters as cohort_parameters
from secagg.two_aggregators.party import receipt_key_in as receipt_key_in
from secagg.two_aggregators.party_server import PartyServer as PartyServer
from secagg.two_aggregators.receipt import (
    TwoAggregatorVerdict as TwoAggregatorVerdict,
    verify_shared_receipt as verify_shared_receipt,
)
