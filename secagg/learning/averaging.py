"""Federated averaging over private sums: one model, moved by the mean of each session.

Rule 1: everything after the released sum works on the sum alone, so that no optimiser,
        evaluation or checkpoint costs privacy.
Rule 2: a sum is used once.  The checkpoint of its step is on the disk before the next
        session opens; a sum that is given again finds it.
Rule 3: a session that releases no sum is no step: the model stays as it is.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.blocking import BlockingCohort
from secagg.client.gate import SessionInfo
from secagg.distributed_dp import (
    ClippingSchedule,
    DPNoiseError,
    PlanRequest,
    clip_flag_amplitude,
)
from secagg.distributed_dp.planning import plan
from secagg.errors import ErrorCode, LocalProtocolError
from secagg.learning.checkpoints import Checkpoint, CheckpointDirectory
from secagg.learning.curve import SCORE, LearningCurve, TrainingStep
from secagg.learning.learner import LearningStep, Train, clip_of, difference
from secagg.learning.optimizers import Optimizer, as_optimizer
from secagg.learning.payload import StepPayload, encode_config
from secagg.learning.vectors import Flat, Tree, VectorSpec
from secagg.learning.weights import Weighting
from secagg.protocol.arguments import (
    as_path,
    check_kind,
    check_real,
    check_whole,
    validates_arguments,
)
from secagg.server.server import RunningTask
from secagg.server.task.outputs import ReleasedSum
from secagg.server.task.setup import PreparedTask
from secagg.simulation.in_process import ClippingWarning

# Of a clip that follows the sums, from the one to start with.
_CLIPS_REACH: Final = 16.0
_MODEL: Final = "model"
_PLAIN: Final = "plain"

Evaluate = Callable[[Tree], float | Mapping[str, float]]


@dataclass(slots=True)
class _Moving:
    """A model, and what its optimiser keeps in mind."""

    model: Flat
    state: dict[str, Flat] = field(default_factory=dict)


@validates_arguments
class FederatedAveraging:
    """A model that private sums train: the side of the server.

    Args:
        model: To start from: nested dicts, lists and tuples of arrays of floats.
        optimizer: What is done with the mean update of a step: "fedavg", "fedavgm",
            "fedadam", a `ServerOptimizer`, or an `Optimizer` of one's own.
        max_weight: Weight from which on all clients count alike, chosen from what is
            public.  None counts all clients alike, at no cost of accuracy.
        evaluate: Called with the model before the first step, so that its errors cost
            nothing, and after each; returns a score, or several by name.  It sees data
            of the server alone.
        checkpoint_dir: Where every step is kept, for a process that continues; None
            keeps nothing.
        config: What clients are told about training, such as a learning rate: a dict
            of at most 64 KiB of JSON.
        select: Which arrays are trained, by their names; all by default.
        compare_without_noise: Train a second model in `train`, without clip and noise,
            by the same functions.  Its scores are not private.

    Raises:
        InputError: The model cannot be a vector.
        LocalProtocolError: An argument that cannot work, or a checkpoint of another
            training.
        ServiceError: STATE_DAMAGED or STORAGE_FAILED, of `checkpoint_dir`.

    Example:
        fed = FederatedAveraging(np.zeros((16, 10)), evaluate=accuracy)
        task = fed.plan(clients=40, l2_clip=0.5, epsilon=8.0, delta=1e-5, steps=8)
        with secagg.blocking.local(task) as people:
            print(fed.train(people, updates))
    """

    def __init__(  # noqa: PLR0913 - one argument per decision
        self,
        model: Tree,
        *,
        optimizer: str | Optimizer = "fedavg",
        max_weight: float | None = None,
        evaluate: Evaluate | None = None,
        checkpoint_dir: Path | str | None = None,
        config: Mapping[str, Any] | None = None,
        select: Callable[[str], bool] | None = None,
        compare_without_noise: bool = False,
    ) -> None:
        self.spec: Final = VectorSpec.of(model, select=select)
        self._like = model
        self._optimizer = as_optimizer(optimizer)
        self._weighting = Weighting.of(max_weight, self.spec.dim)
        self._evaluate = evaluate
        self._config = {} if config is None else config
        encode_config(self._config)
        first = self.spec.flatten(model)
        self._private = _Moving(first)
        self._plain = _Moving(first) if compare_without_noise else None
        self._steps: tuple[TrainingStep, ...] = ()
        self._sum_hash = ""
        self._wanted: int | None = None
        self._task: str | None = None
        path = as_path("checkpoint_dir", checkpoint_dir)
        self._checkpoints = None if path is None else CheckpointDirectory(path)
        if self._checkpoints and (found := self._checkpoints.newest()) is not None:
            self._resume(found)

    @property
    def model(self) -> Tree:
        """The model as it is now, with the containers and types it began with."""
        return self.spec.restore(self._private.model, like=self._like)

    @property
    def curve(self) -> LearningCurve:
        """All steps so far, those of earlier processes included."""
        return LearningCurve(self._steps)

    def plan(  # noqa: PLR0913 - what a plan asks for
        self,
        *,
        clients: int,
        l2_clip: float,
        epsilon: float,
        delta: float,
        steps: int,
        clip_quantile: float | None = None,
        clip_range: tuple[float, float] | None = None,
        **more: Any,  # noqa: ANN401 - fields of `PlanRequest`
    ) -> PreparedTask:
        """Plan the task that trains this model; takes up to seconds.

        Args:
            clients: In a session.
            l2_clip: Longest update that counts in full, units of the model.
            epsilon: Of one client over all its steps.
            delta: That goes with it.
            steps: Sums that are to be released.
            clip_quantile: Lets the clip follow the released sums, so that this part of
                the updates is not shortened, in (0, 1).  None keeps `l2_clip`.
            clip_range: Smallest and largest clip then; `l2_clip` over 16 and times 16
                by default.  Clients accept no clip outside.
            more: As in `secagg.plan`.  `rotation` is "hadamard-kronecker" unless it is
                given, which adds fewer coordinates than "hadamard".

        Returns:
            The task, for `secagg.local` or `Server.add_task`.

        Raises:
            LocalProtocolError: As `secagg.plan`; `max_weight` together with
                `clip_quantile`; or INFEASIBLE where noise would hide the weights.
        """
        asked = {
            "rotation": "hadamard-kronecker",
            "clients": clients,
            "dimension": self.spec.dim + self._weighting.extra,
            "l2_clip": check_real("l2_clip", l2_clip, above=0.0)
            * self._weighting.stretch,
            "epsilon": epsilon,
            "delta": delta,
            "steps": steps,
            **more,
        }
        schedule = None
        if clip_quantile is not None:
            if self._weighting.extra:
                raise _both_excluded()
            lowest, highest = clip_range or (
                l2_clip / _CLIPS_REACH,
                l2_clip * _CLIPS_REACH,
            )
            schedule = ClippingSchedule(
                l2_clip=l2_clip,
                lowest_clip=lowest,
                highest_clip=highest,
                target_quantile=check_real(
                    "clip_quantile", clip_quantile, above=0.0, below=1.0
                ),
            )
            asked["clip_flag_amplitude"] = _flag_amplitude(asked)
        made = plan(**asked)
        prepared = PreparedTask.from_plan(made, clip=schedule)
        self._check_weights(prepared, l2_clip=asked["l2_clip"])
        self._wanted = steps
        return prepared

    def check_task(self, prepared: PreparedTask) -> None:
        """Refuse a task that was planned elsewhere and cannot train this model.

        Args:
            prepared: Of `l2_clip` as it was planned; with `max_weight` the update's
                part of it is that over the square root of 1 + d^(-1/2).

        Raises:
            LocalProtocolError: It has no noise or another dimension; or INFEASIBLE, as
                `plan`.
        """
        wanted, noised = self.spec.dim + self._weighting.extra, prepared.noised
        if noised is None or noised.dim != wanted:
            found = "no noise" if noised is None else f"{noised.dim} entries"
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the task has {found}, and the model needs {wanted} with noise",
                fix=f"Plan it for vectors of {wanted} entries.",
            )
        if self._weighting.extra and noised.units is not None:
            raise _both_excluded()
        self._check_weights(prepared, l2_clip=noised.l2_clip)

    def _check_weights(self, prepared: PreparedTask, *, l2_clip: float) -> None:
        """Refuse a task whose most noise hides the weights of its smallest sum."""
        if not self._weighting.extra or prepared.noised is None:
            return
        fewest = prepared.parameters.min_survivors
        error = prepared.noised.sum_error(inputs=fewest, certificate=None)
        self._weighting.check_error(
            standard_error=error.standard_error, l2_clip=l2_clip, fewest=fewest
        )

    def payload(self, sums: int) -> bytes:
        """Return what the next session hands out: for `Server.add_task`.

        Args:
            sums: Sums that the task has released so far.

        Raises:
            LocalProtocolError: The model has not used as many.
        """
        if sums != len(self._steps):
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the task has released {sums} sums, and the model used "
                f"{len(self._steps)}",
                fix="Continue with the checkpoint_dir of that training, or begin "
                "a new task.",
            )
        arrays = self.spec.unflatten(self._private.model)
        return StepPayload(sums + 1, self._weighting, self._config, arrays).encode()

    def apply_sum(self, total: ReleasedSum) -> TrainingStep:
        """Move the model by the mean of a session, and keep the step.

        A sum that was taken before changes nothing.

        Args:
            total: The released sum.

        Returns:
            The step.

        Raises:
            LocalProtocolError: The sum is of another task or dimension, or without
                noise.
            ServiceError: STORAGE_FAILED; the model is not moved.
        """
        return self._apply_once(total, None)

    def train(
        self,
        people: BlockingCohort,
        updates: Sequence[Train],
        *,
        steps: int | None = None,
    ) -> LearningCurve:
        """Train in this process, by one function for each client.

        An error of a function is raised before any client joins.  A process that dies
        between a sum and its checkpoint has spent the sum: `train_served` has not.

        Args:
            people: Open, from `secagg.blocking.local`.
            updates: Trains for one client each; as in `Learner`.
            steps: How many more steps; by default what is left of those planned.

        Returns:
            All steps so far.

        Raises:
            LocalProtocolError: The number of steps is not known.
            SecAggError: As `BlockingCohort.sum`.
        """
        check_kind("people", people, BlockingCohort, make="secagg.blocking.local(...)")
        if not all(map(callable, updates)):
            raise ErrorCode.LOCAL_MISUSE.error(
                "updates holds something that is not a function",
                fix="Pass one function for each client, which trains.",
            )
        self._scores(self._private)  # what fails here has cost nothing yet
        if steps is None:
            if self._wanted is None:
                raise ErrorCode.LOCAL_MISUSE.error(
                    "the number of steps is not known: the task is planned elsewhere",
                    fix="Pass steps=..., or plan with FederatedAveraging.plan.",
                )
            steps = max(0, self._wanted - len(self._steps))
        for _ in range(check_whole("steps", steps, least=0)):
            made = self._updates(updates, self._private)
            beside = self._plain
            plain = None if beside is None else self._updates(updates, beside)
            makers = [partial(self._vector, update=u, weight=w) for u, w in made]
            try:
                total = people.sum(makers)
            except ClippingWarning as warning:  # the sum is released, and is spent
                self._apply_once(warning.total, plain)
                raise
            self._apply_once(total, plain)
        return self.curve

    async def train_served(self, running: RunningTask) -> AsyncIterator[TrainingStep]:
        """Train by the sums of a task of a server, to the task's end.

        The task was added with ``payload=fed.payload``.  With `checkpoint_dir` a
        process that was killed at any moment continues bit for bit.

        Args:
            running: From `secagg.Server.add_task`.

        Yields:
            Each step, when its checkpoint is on the disk.

        Raises:
            SecAggError: As `RunningTask.sums`, or `apply_sum`.
        """
        await asyncio.to_thread(self._scores, self._private)
        async for total in running.sums():
            yield await asyncio.to_thread(self.apply_sum, total)

    def _vector(self, session: SessionInfo, *, update: Flat, weight: float) -> Flat:
        return self._weighting.vector(update, weight, l2_clip=clip_of(session))

    def _updates(
        self, updates: Sequence[Train], moving: _Moving
    ) -> list[tuple[Flat, float]]:
        """Let every function train a model of its own, a copy of this one."""

        def step() -> LearningStep:
            model = self.spec.restore(moving.model, like=self._like)
            return LearningStep(len(self._steps) + 1, model, self._config)

        return [difference(self.spec, moving.model, one(step())) for one in updates]

    def _apply_once(
        self, total: ReleasedSum, plain: list[tuple[Flat, float]] | None
    ) -> TrainingStep:
        """Move the model by a released sum, once."""
        self._check(total)
        told = sha256(total.residues.tobytes()).hexdigest()
        last = self._steps[-1] if self._steps else None
        if last is not None and total.session_number <= last.session_number:
            if told != self._sum_hash:
                raise self._other_training_error("session " + str(total.session_number))
            return last
        mean, weight, is_enough = self._weighting.mean(
            np.asarray(total.values, np.float64),
            inputs=total.inputs,
            l2_clip=total.l2_clip or 0.0,
        )
        error = total.standard_error / max(weight, 1.0)
        private, beside = self._private, self._plain
        if is_enough:
            private = self._move_model(private, mean, error)
        if beside is not None and plain is not None:
            beside = self._move_model(beside, self._plain_mean(plain), 0.0)
        privacy = total.privacy
        step = TrainingStep(
            number=len(self._steps) + 1,
            session_number=total.session_number,
            inputs=total.inputs,
            weight=weight,
            is_applied=is_enough,
            update_norm=float(np.linalg.norm(mean)),
            standard_error=error,
            l2_clip=total.l2_clip or 0.0,
            fitted=total.fitted,
            shortened=total.shortened,
            replaced=total.replaced,
            epsilon=privacy.server.epsilon if privacy else 0.0,
            delta=privacy.server.delta if privacy else 0.0,
            scores=self._scores(private),
            plain_scores=None if beside is None else self._scores(beside),
        )
        steps = (*self._steps, step)
        task = total.receipt.descriptor.task_id
        if self._checkpoints is not None:
            self._checkpoints.write(
                Checkpoint(self._run_facts(task), told, steps, _arrays(private, beside))
            )
        self._private, self._plain, self._steps = private, beside, steps
        self._sum_hash, self._task = told, task
        return step

    def _check(self, total: ReleasedSum) -> None:
        """Refuse a sum of another shape or task."""
        wanted = self.spec.dim + self._weighting.extra
        if total.l2_clip is None or len(total.values) != wanted:
            kind = "without noise" if total.l2_clip is None else "of another dimension"
            raise ErrorCode.LOCAL_MISUSE.error(
                f"the sum is {kind}, and the model needs {wanted} entries with noise",
                fix="Plan the task with FederatedAveraging.plan.",
            )
        task = total.receipt.descriptor.task_id
        if self._task is not None and task != self._task:
            raise self._other_training_error(f"task {task!r}")

    def _other_training_error(self, what: str) -> LocalProtocolError:
        """Return the error of a sum of another training."""
        return ErrorCode.LOCAL_MISUSE.error(
            f"the sum of {what} is not one of this training",
            kind=LocalProtocolError,
            fix="Begin with another FederatedAveraging, with an empty "
            "checkpoint_dir; secagg.local continues one with the same ledger.",
        )

    def _move_model(self, moving: _Moving, mean: Flat, error: float) -> _Moving:
        """Return the model one step of the optimizer further."""
        return _Moving(
            *self._optimizer.step(moving.model, mean, moving.state, error=error)
        )

    def _plain_mean(self, updates: list[tuple[Flat, float]]) -> Flat:
        """Return the weighted mean of updates without noise."""
        most = self._weighting.max_weight
        weights = [min(one, most) if most else 1.0 for _, one in updates]
        total = sum(weights)
        weighted = [w * update for w, (update, _) in zip(weights, updates, strict=True)]
        return np.sum(weighted, axis=0) / total if total else np.zeros(self.spec.dim)

    def _scores(self, moving: _Moving) -> dict[str, float]:
        """Evaluate a model, and return the scores by name."""
        if self._evaluate is None:
            return {}
        given = self._evaluate(self.spec.restore(moving.model, like=self._like))
        named = given if isinstance(given, Mapping) else {SCORE: given}
        try:
            return {str(name): float(value) for name, value in named.items()}
        except (TypeError, ValueError):
            raise ErrorCode.LOCAL_MISUSE.error(
                "evaluate returned something that is not a number",
                fix="Return a float, or a dict of floats by name.",
            ) from None

    def _run_facts(self, task: str) -> dict[str, Any]:
        """Return what a checkpoint must have in common with this training."""
        return {
            "task": task,
            "schema": self.spec.digest.hex(),
            "optimizer": self._optimizer.to_dict(),
            "max_weight": self._weighting.max_weight,
            "compares": self._plain is not None,
        }

    def _resume(self, found: Checkpoint) -> None:
        """Continue from a checkpoint of the same training."""
        task = str(found.run.get("task"))
        wanted = self._run_facts(task)
        if found.run != wanted:
            differs = [key for key in wanted if found.run.get(key) != wanted[key]]
            raise ErrorCode.LOCAL_MISUSE.error(
                f"checkpoint_dir has a training with another {', '.join(differs)}",
                kind=LocalProtocolError,
                fix="Pass the arguments of that training, or an empty directory.",
            )
        self._private = _read_moving(found.arrays, _MODEL)
        if self._plain is not None:
            self._plain = _read_moving(found.arrays, _PLAIN)
        self._steps, self._sum_hash, self._task = found.steps, found.sum_hash, task


def _both_excluded() -> LocalProtocolError:
    """Return the error of two arguments that exclude each other."""
    return ErrorCode.LOCAL_MISUSE.error(
        "max_weight and clip_quantile exclude each other: the weight is measured by "
        "the clip",
        kind=LocalProtocolError,
        fix="Leave out one of the two.",
    )


def _flag_amplitude(asked: dict[str, Any]) -> float:
    """Return how strongly an update reports whether it was clipped."""
    try:
        return clip_flag_amplitude(PlanRequest(**asked))
    except (DPNoiseError, TypeError) as error:
        raise ErrorCode.INFEASIBLE.error(
            f"the clip cannot follow the sums: {error}",
            kind=LocalProtocolError,
            fix="Leave out clip_quantile, or ask for more clients.",
        ) from None


def _arrays(private: _Moving, plain: _Moving | None) -> dict[str, Flat]:
    """Return the arrays of a checkpoint: `_read_moving` reads them."""
    arrays: dict[str, Flat] = {}
    for title, moving in ((_MODEL, private), (_PLAIN, plain)):
        if moving is not None:
            arrays[title] = moving.model
            arrays |= {f"{title}/{name}": kept for name, kept in moving.state.items()}
    return arrays


def _read_moving(arrays: Mapping[str, Flat], title: str) -> _Moving:
    """Return a model and its optimizer's state, of the arrays with its title."""
    state = {
        name.removeprefix(f"{title}/"): array
        for name, array in arrays.items()
        if name.startswith(f"{title}/")
    }
    return _Moving(arrays[title], state)
