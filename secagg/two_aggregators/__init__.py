"""Noisy sums between two aggregators, by additive shares.

A client splits its encoded vector into two shares modulo m. The *helper* receives one
share as a seed of 32 bytes. The *leader* receives the vector minus the expansion of the
seed. Each aggregator adds up its shares over one set of clients whose shares both hold,
and adds noise. Both results together are the noisy sum of the vectors. Clients share no
secrets with each other, so a dropout needs no recovery.

Rule 1: either aggregator alone learns one sum over a set of at least `min_survivors`
        clients, with the other one's noise, and nothing else, whatever it does. Both
        together read every vector: run them in separate organisations.
Rule 2: the helper answers for one set in a session, and for no second one. Its noise is
        in the answer before it is sent. The leader adds its own before it releases.
Rule 3: persist, then send. A share counts when it is durable, and a noise seed is in
        the store before its noise is in a sum.

protos/TWO_AGGREGATORS.md describes the messages and their order,
docs/two-aggregators.md the trust assumptions.
"""

from dpnoise.lazy_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
