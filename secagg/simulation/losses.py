"""Dropouts of a simulated session, by client and round.

Rule 1: dropouts are spread evenly over the rounds in which a client sends a message, so
        that every round has some.
Rule 2: a plan is data: the same entropy gives the same plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.crypto.entropy import Entropy
from secagg.protocol.messages import Round
from secagg.protocol.profiles import Profile
from secagg.protocol.rounds import rounds_of


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Client number -> the first round in which it sends nothing.

    Later rounds cost the server more.  Clients that are absent stay to the end.
    """

    losses: Mapping[int, Round]

    def count(self, which: Round) -> int:
        """Return how many clients vanish before they send their message of a round."""
        return sum(1 for each in self.losses.values() if each is which)


def plan_losses(
    clients: int,
    dropout_rate: float,
    entropy: Entropy,
    *,
    profile: Profile = Profile.HONEST_CURIOUS_SERVER,
) -> LossPlan:
    """Choose the clients that drop out.

    Args:
        clients: Size of the cohort.
        dropout_rate: Fraction that vanishes, 0 to 1; rounded down to whole clients.
        entropy: Source of the choice.

    Returns:
        A plan with floor(clients * dropout_rate) dropouts, distributed in turn over the
            rounds.

    Raises:
        ValueError: The rate lies outside [0, 1].
    """
    if not 0.0 <= dropout_rate <= 1.0:
        raise ValueError(f"dropout_rate must be between 0 and 1, not {dropout_rate}")
    # Sorting by 128-bit keys is a uniform order: no bias, no rejection loop.
    keys = [entropy.token(16) for _ in range(clients)]
    order = sorted(range(clients), key=keys.__getitem__)
    lost = order[: int(clients * dropout_rate)]
    rounds = rounds_of(profile)
    return LossPlan({each: rounds[i % len(rounds)] for i, each in enumerate(lost)})
