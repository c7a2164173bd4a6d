"""What training has come to, step by step, beside the same training without privacy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secagg.errors import ErrorCode

# Of the one figure that an evaluation without names returns.
SCORE = "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step of a model.

    Attributes:
        number: From 1.
        session_number: Of the session whose sum it used.
        inputs: How many vectors the sum adds up.
        weight: Sum of their weights: `inputs`, or with `max_weight` an estimate in
            multiples of it.
        is_applied: Whether the model was moved; False where the weights were lost in
            noise.
        update_norm: L2 norm of the mean update, noise included.
        standard_error: Of one entry of the mean update, at most.
        l2_clip: Longest vector that was not shortened in this session.
        fitted: Released part of the vectors that were not shortened; None where it is
            not stated.
        shortened: How many vectors were shortened; None over a network.
        replaced: In the place of how many vectors zeros were given; None likewise.
        epsilon: What the whole task costs each client against the server.
        delta: That goes with it.
        scores: What `evaluate` said of the model after the step.
        plain_scores: The same of a model that was trained without clip and noise; None
            without `compare_without_noise`.  It is not private.
    """

    number: int
    session_number: int
    inputs: int
    weight: float
    is_applied: bool
    update_norm: float
    standard_error: float
    l2_clip: float
    fitted: float | None
    shortened: int | None
    replaced: int | None
    epsilon: float
    delta: float
    scores: Mapping[str, float] = field(default_factory=dict)
    plain_scores: Mapping[str, float] | None = None

    def __str__(self) -> str:
        """Return one line about the step."""
        scores = "".join(f", {name} {value:.4g}" for name, value in self.scores.items())
        plain = "".join(
            f", {name} without privacy {value:.4g}"
            for name, value in (self.plain_scores or {}).items()
        )
        lost = "" if self.is_applied else ", not applied: its weights are lost in noise"
        return (
            f"step {self.number} (session {self.session_number}): {self.inputs} "
            f"updates{scores}{plain}{lost}"
        )


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """All steps of a model so far.

    Attributes:
        steps: In order.
    """

    steps: tuple[TrainingStep, ...]

    def __str__(self) -> str:
        """Return one line for each step, and what they cost."""
        lines = [str(step) for step in self.steps]
        if self.steps:
            last = self.steps[-1]
            lines.append(
                f"the task costs each client epsilon {last.epsilon:.4g}, delta "
                f"{last.delta:.3g} against the server"
            )
        return "\n".join(lines)

    def scores(self, name: str = SCORE) -> list[float]:
        """Return one score of every step.

        Raises:
            LocalProtocolError: No step has it.
        """
        return [step.scores[name] for step in self._steps_with(name)]

    def plain_scores(self, name: str = SCORE) -> list[float]:
        """Return one score of every step of the training without privacy.

        Raises:
            LocalProtocolError: There was none.
        """
        steps = self._steps_with(name)
        plain = [one.plain_scores for one in steps if one.plain_scores is not None]
        if len(plain) != len(steps):
            raise ErrorCode.LOCAL_MISUSE.error(
                "the model was not trained without privacy beside it",
                fix="Pass FederatedAveraging compare_without_noise=True.",
            )
        return [one[name] for one in plain]

    def plot(self, name: str | None = None, axes: Any = None) -> Any:  # noqa: ANN401 - an extra
        """Draw a score over the steps, by matplotlib.

        Args:
            name: Which score; by default the only one that the steps have.
            axes: Where to draw; None for a new picture.

        Returns:
            The axes.

        Raises:
            ServiceError: MISSING_EXTRA; matplotlib is not installed.
            LocalProtocolError: No step has this score.
        """
        if axes is None:
            try:
                import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra, on demand
            except ImportError:
                raise ErrorCode.MISSING_EXTRA.error(
                    "a picture needs matplotlib, which is not installed",
                    fix="pip install 'secagg[viz]'",
                ) from None
            axes = plt.subplots()[1]
        names = {each for step in self.steps for each in step.scores}
        if name is None:
            name = names.pop() if len(names) == 1 else SCORE
        steps = self._steps_with(name)
        numbers = [step.number for step in steps]
        label = f"epsilon {steps[-1].epsilon:.3g}"
        axes.plot(numbers, self.scores(name), marker="o", label=label)
        if steps[-1].plain_scores is not None:
            axes.plot(
                numbers, self.plain_scores(name), linestyle="--", label="not private"
            )
        axes.set_xlabel("step")
        axes.set_ylabel(name)
        axes.legend()
        return axes

    def _steps_with(self, name: str) -> tuple[TrainingStep, ...]:
        """Return the steps, if all of them have this score."""
        if not self.steps or any(name not in step.scores for step in self.steps):
            known = sorted({each for step in self.steps for each in step.scores})
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the steps have no score {name!r}",
                fix=f"Choose among {', '.join(known)}."
                if known
                else "Pass FederatedAveraging evaluate=..., and train.",
            )
        return self.steps
