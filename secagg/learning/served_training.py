"""Training by `secagg server`: with a rule of ours, or by a program of the operator.

Rule 1: a sum is on the disk before anything is done with it, and the next model before
        the next session opens.
Rule 2: a program that fails ends the server.  Its sum is given again at the next start;
        the budget of the sum is spent either way.
Rule 3: models are files of plain arrays: nothing in them is ever executed.
"""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from secagg.errors import ErrorCode, InputError, LocalProtocolError
from secagg.learning.array_files import read_arrays_in, write_arrays
from secagg.learning.averaging import FederatedAveraging
from secagg.learning.curve import TrainingStep
from secagg.learning.optimizers import Optimizer
from secagg.learning.vectors import Flat, Tree, VectorSpec
from secagg.runtime.external_program import ExternalProgram
from secagg.runtime.files import disk, replace_file
from secagg.runtime.vector_files import write_bytes
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask

# As many bytes as the largest payload of a client by default.
_MOST_BYTES: Final = 1 << 30
_MODEL, _MEAN, _NEXT = "model", "mean", "next"
_PRIVATE_DIRECTORY: Final = 0o700


def read_model(path: Path) -> Tree:
    """Read a model from an ``.npz`` file: nested dicts, by the parts of the names.

    Raises:
        InputError: It is no such file, or two names contradict each other.
    """
    what = f"the model {path}"
    arrays = read_arrays_in(path, max_bytes=_MOST_BYTES, what=what)
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, last = (
            part.replace("~1", "/").replace("~0", "~") for part in name.split("/")
        )
        place: Any = tree
        for part in parents:
            place = place.setdefault(part, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last in place:
            raise ErrorCode.BAD_INPUT.error(
                f"the model has an array {name!r} inside of another array",
                fix="Rename one of them.",
            )
        place[last] = array
    return tree


class ProgramOptimizer:
    """A rule that is a program: `secagg server --update-with`.

    Args:
        program: Its command has ``{next}``, and ``{model}`` or ``{mean}`` or both.
        spec: Schema of the model.
        directory: Where it works; removed and made for each run.
        seconds: Longest time of one run.

    Raises:
        LocalProtocolError: BAD_SETTINGS; the command writes no model.
    """

    def __init__(
        self,
        program: ExternalProgram,
        spec: VectorSpec,
        *,
        directory: Path,
        seconds: float,
    ) -> None:
        if not (program.uses(_NEXT) and program.uses(_MEAN)):
            raise ErrorCode.BAD_SETTINGS.error(
                "--update-with does not name {mean} and {next}",
                kind=LocalProtocolError,
                fix="Give it {model} and {mean} to read, and {next} to write.",
            )
        self._program = program
        self._spec = spec
        self._directory = directory.absolute()
        self._seconds = seconds

    def to_dict(self) -> dict[str, object]:
        """Return what tells it from our rules; a command may be corrected."""
        return {"kind": "program"}

    def stop(self) -> None:
        """End the program, if it runs."""
        self._program.stop()

    def step(
        self, model: Flat, mean: Flat, state: Mapping[str, Flat], *, error: float
    ) -> tuple[Flat, dict[str, Flat]]:
        """Return the model that the program writes, as `Optimizer` says.

        Raises:
            InputError: It failed, or has written another model.
            ServiceError: STORAGE_FAILED.
        """
        del state
        place = self._directory
        paths = {name: place / f"{name}.npz" for name in (_MODEL, _MEAN, _NEXT)}
        try:
            with disk(place):
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(mode=_PRIVATE_DIRECTORY, parents=True)
                for name, flat in ((_MODEL, model), (_MEAN, mean)):
                    arrays = self._spec.unflatten(flat)
                    replace_file(paths[name], write_arrays(arrays))
            self._program.run(
                places=paths,
                facts={"SECAGG_STANDARD_ERROR": repr(error)},
                directory=Path.cwd(),
                seconds=self._seconds,
                why="--update-seconds",
            )
            what = "the file of {next}"
            written = read_arrays_in(paths[_NEXT], max_bytes=_MOST_BYTES, what=what)
            return self._spec.flatten(written), {}
        except InputError as fault:
            raise ErrorCode.BAD_INPUT.error(
                f"{fault}; the sum is kept, and its budget is spent",
                fix="Correct the program, and start the server again.",
            ) from None
        finally:
            shutil.rmtree(place, ignore_errors=True)


class ServedTraining:
    """A model that the sums of a server train.

    Args:
        model: To start from; see `read_model`.
        optimizer: The rule.
        state_dir: Of the server; checkpoints are below it.
        output_dir: Where ``model-<n>.npz`` goes, of each session n.
        max_weight: As in `FederatedAveraging`.
        prepared: The task.

    Raises:
        SecAggError: As `FederatedAveraging`, and its `check_task`.
    """

    def __init__(  # noqa: PLR0913 - one argument per decision of the operator
        self,
        model: Tree,
        optimizer: Optimizer,
        *,
        state_dir: Path,
        output_dir: Path,
        max_weight: float | None,
        prepared: PreparedTask,
    ) -> None:
        self._averaging = FederatedAveraging(
            model,
            optimizer=optimizer,
            max_weight=max_weight,
            checkpoint_dir=state_dir / "training",
        )
        self._averaging.check_task(prepared)
        self._output_dir = output_dir
        self._optimizer = optimizer
        self.payload: Final = self._averaging.payload

    async def apply_sum(self, total: ReleasedSum) -> tuple[TrainingStep, Path]:
        """Move the model by a sum, and write it.

        Returns:
            The step, and the file of the model after it.

        Raises:
            SecAggError: As `FederatedAveraging.apply_sum`; the sum is given again.
        """
        try:
            return await asyncio.to_thread(self._apply_and_write, total)
        except asyncio.CancelledError:
            self.stop()  # else the process would wait for its thread
            raise

    def stop(self) -> None:
        """End a program that is still at work."""
        if isinstance(self._optimizer, ProgramOptimizer):
            self._optimizer.stop()

    def _apply_and_write(self, total: ReleasedSum) -> tuple[TrainingStep, Path]:
        """Apply a sum to the model, and write the model."""
        step = self._averaging.apply_sum(total)
        spec = self._averaging.spec
        arrays = spec.unflatten(spec.flatten(self._averaging.model))
        path = self._output_dir / f"model-{total.session_number}.npz"
        write_bytes(path, write_arrays(arrays))
        return step, path
