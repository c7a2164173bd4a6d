"""What a noised task costs its users, adversary by adversary."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from dpnoise.accounting import PrivacyStatement, make_accountant
from dpnoise.errors import DPNoiseError
from dpnoise.events import Adversary, Repeated
from secagg.distributed_dp.noise_block import (
    bad_block,
    check_cost,
    check_sampler,
    decode_block,
)

__all__ = ["PrivacyReport", "statement"]


@dataclass(frozen=True, slots=True)
class PrivacyReport:
    """Privacy figures, each with the adversary that it holds against.

    Attributes:
        server: Against the server and its colluders.
        model_reader: Against readers of the released sums.  Neither counts any
            amplification by sampling.
        local_noise_stddev: The least noise of one client, over all rosters, caller's
            units: all that is left if secure aggregation is broken.
        counted_shares: The fewest noise shares that the figures rely on, over all
            rosters.
        steps: Sums that the task is to release.
        spare: Sessions that the figures cover beyond them.
        graph_delta: What a ring adds to delta, see `NoisedTask.graph_delta`; 0 on the
            complete graph.
    """

    server: PrivacyStatement
    model_reader: PrivacyStatement
    local_noise_stddev: float
    counted_shares: int
    steps: int
    spare: int
    graph_delta: float = 0.0

    def grounds(self, *, graph_delta: float | None = None) -> str:
        """Say how the figure against the server is known, never without the graph.

        The accountant's word is about the noise alone.  On a ring it holds but for the
        chance that a session unmasks more than one sum.

        Args:
            graph_delta: That chance; by default over the whole task.  For one session
                2^-graph_bits, or 0 if nobody could have cut its ring.
        """
        added = self.graph_delta if graph_delta is None else graph_delta
        word = str(self.server.status)
        return f"{word}, with {added:.3g} added to delta" if added else word

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "server": self.server.to_dict(),
            "model_reader": self.model_reader.to_dict(),
            "local_noise_stddev": self.local_noise_stddev,
            "counted_shares": self.counted_shares,
            "steps": self.steps,
            "spare": self.spare,
            "graph_delta": self.graph_delta,
            "grounds": self.grounds(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the report that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is none that a report can have.
        """
        return cls(
            server=PrivacyStatement.from_dict(document["server"]),
            model_reader=PrivacyStatement.from_dict(document["model_reader"]),
            local_noise_stddev=float(document["local_noise_stddev"]),
            counted_shares=int(document["counted_shares"]),
            steps=int(document["steps"]),
            spare=int(document["spare"]),
            graph_delta=float(document["graph_delta"]),
        )


@lru_cache(maxsize=64)  # one task has one block; an epsilon takes up to seconds
def statement(noise_block: bytes, adversary: Adversary) -> PrivacyStatement:
    """Compute what all sessions that a block's budget covers cost together.

    Args:
        noise_block: Of the task.
        adversary: Against whom.

    Raises:
        RemoteProtocolError: BAD_CONFIG; the block cannot be used, or is too dear to
            judge.
    """
    mechanism, budget, _ = decode_block(noise_block)
    try:
        check_cost(mechanism, budget.accountant)
        # No figure for noise that this release does not draw.
        check_sampler(noise_block)
        accountant = make_accountant(budget.accountant, adversary=adversary)
        accountant.compose(Repeated(mechanism.event(), budget.sessions))
        return accountant.statement(budget.delta)
    except DPNoiseError as error:
        # The block names accountant and numbers: whoever offers it is at fault.
        raise bad_block(str(error)) from None
