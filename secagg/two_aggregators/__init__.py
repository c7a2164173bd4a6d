"""Sums between two aggregators: additive shares, and noise from both.

A client cuts its encoded vector into two shares modulo m. The *helper* gets one as a
seed of 32 bytes, the *leader* the vector minus what the seed expands to. Each adds up
what it holds, over one set of clients that both hold shares of, and adds noise; the sum
of both is the noisy sum of the vectors. No share of a secret goes from client to
client, and whoever is lost is lost: nothing has to be recovered.

Rule 1: either aggregator alone learns one sum over a set of at least `min_survivors`
        clients, with the other one's noise, and nothing else, whatever it does. Both
        together read every vector: run them apart, under different people.
Rule 2: the helper answers one set for a session, and no second one; its noise is in the
        answer before it leaves. The leader adds its own before it releases.
Rule 3: persist, then send, as everywhere: a share counts when it is durable, a noise
        seed is in the book before its noise is in a sum.

What is sent, in which order, and who can break what: docs/two-aggregators.md.
"""

from secagg.distributed_dp import AggregatorNoise, fixed_point_parameters
from secagg.two_aggregators.client import SharedContribution, TwoAggregatorClient
from secagg.two_aggregators.helper import Helper
from secagg.two_aggregators.leader import Leader
from secagg.two_aggregators.offers import cohort_parameters
from secagg.two_aggregators.party_server import PartyServer
from secagg.two_aggregators.receipt_key import receipt_key_in
from secagg.two_aggregators.shared_sum import TwoAggregatorSum
from secagg.two_aggregators.verification import (
    TwoAggregatorVerdict,
    verify_shared_receipt,
)

__all__ = [
    "AggregatorNoise",
    "Helper",
    "Leader",
    "PartyServer",
    "SharedContribution",
    "TwoAggregatorClient",
    "TwoAggregatorSum",
    "TwoAggregatorVerdict",
    "cohort_parameters",
    "fixed_point_parameters",
    "receipt_key_in",
    "verify_shared_receipt",
]
