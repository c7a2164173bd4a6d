"""Vectors that a program makes: `secagg client --exec`.

Rule 1: the program runs after the client has joined, in the round of masked inputs.
        Its failure becomes zeros with the whole noise (R3.5-5), so that no aggregator
        learns from a model of its choice on whose data training fails.
Rule 2: its time ends when the vector is due.  Later its vector would be dropped, and
        further sessions would find it still at work.
Rule 3: a vector is on the disk before it leaves.  A client that was stopped gives the
        same vector again, and trains once.
Rule 4: what programs read and write lies in directories that no other user may open,
        and is removed when they have ended, or at the next start.
"""

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.client.gate import SessionInfo
from secagg.errors import ErrorCode, ServiceError
from secagg.learning.array_files import read_array, read_arrays, read_file, write_arrays
from secagg.learning.learner import Update, check_session, clip_of, difference
from secagg.learning.payload import StepPayload, is_step
from secagg.protocol.arguments import as_vector
from secagg.runtime.external_program import ExternalProgram
from secagg.runtime.files import disk, replace_file

# What the command may say that the program writes; exactly one.
_MODEL, _UPDATE, _VECTOR = "model", "update", "vector"
_RESULTS: Final = (_MODEL, _UPDATE, _VECTOR)
_PAYLOAD: Final = "payload"
WEIGHT: Final = "secagg.weight"
# As `secagg.Client` has it where no time is set.
_DUE_AT: Final = 0.7
_BYTES_OF_NUMBER: Final = 8
# The head of a file, and the directory of an archive with short names.
_HEAD_BYTES: Final = 1 << 20
_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600
_READ_ONLY: Final = 0o400


class ProgramInput:
    """Supplies the vector that a program makes to each session.

    Args:
        program: Whose command has ``{model}``, ``{update}`` or ``{vector}``.
        state_dir: Of the client.
        seconds: Longest time of one run; None for as long as the vector is waited for.
        answer_at: As in `secagg.Client`.

    Raises:
        ServiceError: BAD_SETTINGS; the command does not say what the program writes.
    """

    def __init__(
        self,
        program: ExternalProgram,
        *,
        state_dir: Path,
        seconds: float | None = None,
        answer_at: float | None = None,
    ) -> None:
        results = [name for name in _RESULTS if program.uses(name)]
        if len(results) != 1:
            raise ErrorCode.BAD_SETTINGS.error(
                "--exec says in no way, or in several, what the program writes",
                kind=ServiceError,
                fix="Give it one of {model} (the new model, .npz), {update} (the "
                "difference, .npz) and {vector} (one vector, .npy).",
            )
        self._program = program
        self._result = results[0]
        self._seconds = seconds
        self._part = _DUE_AT if answer_at is None else answer_at
        self._home = Path.cwd()  # where a relative path of the command begins
        self._work = state_dir.absolute() / "work"
        self._inputs = state_dir.absolute() / "inputs"

    def __str__(self) -> str:
        """Return the program as it may be shown."""
        return f"the program {self._program}"

    def describe(self) -> str:
        """Say what the input is, in a few words."""
        return f"what {self._program} trains in each session"

    def ready(self) -> None:
        """Forget what sessions that are over have left."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.rmtree(self._inputs, ignore_errors=True)

    def check(self, session: SessionInfo) -> None:
        """Refuse a session that adds up no updates, before the client joins.

        Raises:
            InputError: It has no noise, and the program writes a model.
        """
        if self._result != _VECTOR and not session.descriptor.parameters.noise_block:
            raise ErrorCode.BAD_INPUT.error(
                "the session adds up whole numbers, and the program trains a model",
                fix="Let it write {vector}, or take part in a task with noise.",
            )

    def vector(self, session: SessionInfo) -> npt.NDArray[Any]:
        """Return the vector that the program makes, or that it has made before.

        Raises:
            InputError: The program failed, or has written no vector of the session.
            ServiceError: STORAGE_FAILED.
        """
        name = session.descriptor.session_id.hex()
        kept = self._inputs / f"{name}.npy"
        if kept.exists():
            size = session.dimension * _BYTES_OF_NUMBER + _HEAD_BYTES
            return read_array(
                read_file(kept, max_bytes=size, what="the kept vector"),
                what="the kept vector",
            )
        work = self._work / name
        self.ready()  # sessions of a task follow one another
        with disk(work):
            for place in (self._work, self._inputs, work):
                place.mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        try:
            vector = self._run_program(session, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        with disk(kept):
            replace_file(kept, _npy(vector), mode=_PRIVATE_FILE)
        return vector

    def was_assigned(self, task: str, session_number: int) -> bool:
        """Return True: a program has no other file that might have been meant."""
        del task, session_number
        return True

    def stop(self) -> None:
        """End the program, if it runs."""
        self._program.stop()

    def _run_program(self, session: SessionInfo, work: Path) -> npt.NDArray[Any]:
        """Run the program on the payload, and return its vector."""
        step = StepPayload.decode(session.payload) if is_step(session.payload) else None
        payload = work / ("payload.npz" if step else "payload")
        given = write_arrays(step.arrays) if step else session.payload
        with disk(payload):
            replace_file(payload, given, mode=_READ_ONLY)
        suffix = "npy" if self._result == _VECTOR else "npz"
        result = work / f"{self._result}.{suffix}"
        seconds, why = self._limit(session)
        self._program.run(
            places={_PAYLOAD: payload, self._result: result},
            facts=_environment_of(session, step, payload, result),
            directory=self._home,
            seconds=seconds,
            why=why,
        )
        size = session.dimension * _BYTES_OF_NUMBER + _HEAD_BYTES
        what = f"the file of {{{self._result}}}"
        data = read_file(result, max_bytes=size, what=what)
        if self._result == _VECTOR:
            noisy = bool(session.descriptor.parameters.noise_block)
            array = read_array(data, what=what)
            return as_vector(array, session.dimension, noisy=noisy, name=what)
        if step is None:
            raise ErrorCode.BAD_INPUT.error(
                "the payload of the session is not a model",
                fix="Let the program write {vector}.",
            )
        check_session(session, step.spec, step.weighting)
        arrays = read_arrays(data, max_bytes=size, what=what)
        update, weight = difference(
            step.spec, step.spec.flatten(step.arrays), self._read_update(step, arrays)
        )
        return step.weighting.vector(update, weight, l2_clip=clip_of(session))

    def _read_update(
        self, step: StepPayload, arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Update:
        """Return the arrays of the program as an update of the model."""
        named = dict(arrays)
        weight = np.asarray(named.pop(WEIGHT, 1.0))
        if weight.size != 1 or set(named) != set(step.arrays):
            raise ErrorCode.BAD_INPUT.error(
                f"the program wrote other arrays than the model has, or a {WEIGHT} "
                "that is not one number",
                fix="Write the arrays of the payload under their names.",
            )
        is_difference = self._result == _UPDATE
        return Update(named, weight=float(weight.item()), is_difference=is_difference)

    def _limit(self, session: SessionInfo) -> tuple[float, str]:
        """Return how long a run may take, and why."""
        due = self._part * session.descriptor.parameters.deadlines.masked_input
        if self._seconds is not None and self._seconds < due:
            return self._seconds, "--exec-seconds"
        return due, "the vector is due then"


def _environment_of(
    session: SessionInfo, step: StepPayload | None, payload: Path, result: Path
) -> dict[str, str]:
    """Return the environment variables of the program."""
    return {
        "SECAGG_TASK": session.task,
        "SECAGG_SESSION": str(session.session_number),
        "SECAGG_DIMENSION": str(session.dimension),
        "SECAGG_PAYLOAD": str(payload),
        "SECAGG_OUTPUT": str(result),
        "SECAGG_STEP": str(step.step) if step else "",
        "SECAGG_CONFIG": json.dumps(dict(step.config)) if step else "{}",
    }


def _npy(vector: npt.NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, vector, allow_pickle=False)
    return buffer.getvalue()
