"""Options of `secagg server` that train a model by its sums."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from secagg.config import ServerSettings
    from secagg.learning.served_training import ServedTraining
    from secagg.server.task.setup import PreparedTask


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Values of --learn, --update-with and the options that go with them.

    Attributes:
        rule: Of --learn.
        command: Of --update-with.
        model: Of --model.
        learning_rate: Of --learning-rate.
        max_weight: Of --max-weight.
        seconds: Of --update-seconds.
    """

    rule: str | None
    command: str | None
    model: Path | None
    learning_rate: float | None
    max_weight: float | None
    seconds: float

    def check(self, *, until_done: bool) -> None:
        """Refuse options that do not go together.

        Raises:
            typer.BadParameter: In words.
        """
        if self.rule is None and self.command is None:
            others = (self.model, self.learning_rate, self.max_weight)
            if any(given is not None for given in others):
                raise typer.BadParameter(
                    "--model, --learning-rate and --max-weight go with --learn or "
                    "--update-with"
                )
            return
        if self.rule is not None and self.command is not None:
            raise typer.BadParameter("--learn and --update-with exclude each other")
        if self.model is None:
            raise typer.BadParameter("--learn and --update-with need --model")
        if self.learning_rate is not None and self.rule is None:
            raise typer.BadParameter("--learning-rate goes with --learn")
        if not until_done:
            raise typer.BadParameter("--learn and --update-with go with --until-done")

    def training(
        self, settings: "ServerSettings", prepared: "PreparedTask"
    ) -> "ServedTraining | None":
        """Return the training; None where none was asked for.

        Raises:
            SecAggError: The model, the command or the task cannot work.
        """
        if self.model is None:
            return None
        from secagg.learning.optimizers import Optimizer, ServerOptimizer
        from secagg.learning.served_training import (
            ProgramOptimizer,
            ServedTraining,
            read_model,
        )
        from secagg.learning.vectors import VectorSpec
        from secagg.runtime.external_program import ExternalProgram, split_command

        first = read_model(self.model)
        state_dir = settings.server.state_dir
        rule: Optimizer
        if self.command is None:
            rate = 1.0 if self.learning_rate is None else self.learning_rate
            rule = ServerOptimizer(self.rule or "", rate)
        else:
            rule = ProgramOptimizer(
                ExternalProgram(split_command("--update-with", self.command)),
                VectorSpec.of(first),
                directory=state_dir / "update",
                seconds=self.seconds,
            )
        return ServedTraining(
            first,
            rule,
            state_dir=state_dir,
            output_dir=settings.server.output_dir,
            max_weight=self.max_weight,
            prepared=prepared,
        )
