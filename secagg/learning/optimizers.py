"""What a server does with a mean update: server optimisers of federated learning.

Everything here works on released sums alone, so that it costs no privacy.

Source:
    Reddi et al., Adaptive Federated Optimization, 2021, algorithm 2.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum, unique
from typing import Protocol, cast

import numpy as np

from secagg.errors import ErrorCode
from secagg.learning.vectors import Flat
from secagg.protocol.arguments import check_real, did_you_mean

# By Reddi et al., where the noise is smaller.
_LEAST_TAU = 1e-3


class Optimizer(Protocol):
    """A rule that moves a model by the mean update of a step."""

    def to_dict(self) -> dict[str, object]:
        """Return what tells the rule from others, for a checkpoint: JSON."""

    def step(
        self, model: Flat, mean: Flat, state: Mapping[str, Flat], *, error: float
    ) -> tuple[Flat, dict[str, Flat]]:
        """Return the next model, and what the rule keeps in mind.

        Args:
            model: Shape (d,).
            mean: Mean update, shape (d,).
            state: From the step before; empty for the first.
            error: Standard error of an entry of `mean`.
        """


@unique
class OptimizerKind(StrEnum):
    """Which rule moves the model."""

    FEDAVG = "fedavg"
    """x + eta mean."""
    FEDAVGM = "fedavgm"
    """x + eta m, with the momentum m = beta m + mean."""
    FEDADAM = "fedadam"
    """x + eta m / (sqrt(v) + tau), with moving means m and v of mean and mean²."""


@dataclass(frozen=True, slots=True)
class ServerOptimizer:
    """A rule that moves the model by the mean update of a step.

    Args:
        kind: "fedavg", "fedavgm" or "fedadam".
        learning_rate: eta, above 0.
        momentum: beta of "fedavgm", beta1 of "fedadam", in [0, 1).
        beta2: Of "fedadam", in [0, 1).
        tau: Of "fedadam", above 0; None takes 0.001, or the standard error of the mean
            where that is larger: with less, noise alone would move every entry by eta.

    Raises:
        LocalProtocolError: An argument that cannot work.
    """

    kind: str = "fedavg"
    learning_rate: float = 1.0
    momentum: float = 0.9
    beta2: float = 0.99
    tau: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in set(OptimizerKind):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"optimizer is {str(self.kind)[:40]!r}, which is not known",
                fix=did_you_mean(self.kind, [str(one) for one in OptimizerKind]),
            )
        check_real("learning_rate", self.learning_rate, above=0.0)
        check_real("momentum", self.momentum, least=0.0, below=1.0)
        check_real("beta2", self.beta2, least=0.0, below=1.0)
        if self.tau is not None:
            check_real("tau", self.tau, above=0.0)

    def to_dict(self) -> dict[str, object]:
        """Return the arguments, as `Optimizer` says."""
        return asdict(self)

    def step(
        self, model: Flat, mean: Flat, state: Mapping[str, Flat], *, error: float
    ) -> tuple[Flat, dict[str, Flat]]:
        """Return the next model, as `Optimizer` says."""
        eta, beta = self.learning_rate, self.momentum
        if self.kind == OptimizerKind.FEDAVG:
            return model + eta * mean, {}
        before = state.get("momentum", np.zeros_like(mean))
        if self.kind == OptimizerKind.FEDAVGM:
            momentum = beta * before + mean
            return model + eta * momentum, {"momentum": momentum}
        tau = max(_LEAST_TAU, error) if self.tau is None else self.tau
        momentum = beta * before + (1.0 - beta) * mean
        squares = state.get("squares", np.full_like(mean, tau * tau))
        squares = self.beta2 * squares + (1.0 - self.beta2) * mean**2
        moved = model + eta * momentum / (np.sqrt(squares) + tau)
        return moved, {"momentum": momentum, "squares": squares}


def as_optimizer(given: object) -> Optimizer:
    """Return the rule that a caller has named, or made.

    Raises:
        LocalProtocolError: There is no such rule.
    """
    if isinstance(given, str):
        return ServerOptimizer(given)
    if not (hasattr(given, "step") and hasattr(given, "to_dict")):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"optimizer must be a name or an Optimizer, got {type(given).__name__}",
            fix='Pass "fedavg", "fedavgm" or "fedadam".',
        )
    return cast("Optimizer", given)
