"""The side of a client: from the model of a session to the vector that it sends."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from secagg.client.gate import SessionInfo
from secagg.distributed_dp import NoisyTask
from secagg.errors import ErrorCode
from secagg.learning.payload import StepPayload
from secagg.learning.vectors import Flat, Tree, VectorSpec
from secagg.learning.weights import Weighting


@dataclass(frozen=True, slots=True, eq=False)
class LearningStep:
    """What a client trains on in one step.

    Attributes:
        number: Of the step, from 1.
        model: The model to start from, a tree.
        config: What the server says about training.
    """

    number: int
    model: Tree = field(repr=False)
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What training has given, where that is not just the new model.

    Attributes:
        tree: The trained model, or the difference.
        weight: Such as the number of examples, at least 0; counts in tasks with
            `max_weight` alone.
        is_difference: `tree` is trained model minus given model.
    """

    tree: Tree = field(repr=False)
    weight: float = 1.0
    is_difference: bool = False


# Trains; returns the new model, or an `Update`.
Train = Callable[[LearningStep], Tree | Update]


class Learner:
    """Makes the vector of a session by training: for `secagg.Client.contribute`.

    Once the client has joined, whatever goes wrong here becomes zeros, and
    `Contribution.replaced` says why.

    Args:
        train: Called with the step; returns the new model, or an `Update`.
        like: A model whose containers and types `train` is given; None gives it one
            dict of numpy arrays by their full names.  A session with another schema is
            not trained in.

    Raises:
        LocalProtocolError: `train` is not a function.
        InputError: `like` is no model.

    Example:
        async for given in client.contributions(Learner(train, like=model)):
            print(given.session_number)
    """

    def __init__(self, train: Train, *, like: Tree = None) -> None:
        given: object = train
        if not callable(given) or inspect.iscoroutinefunction(given):
            raise ErrorCode.LOCAL_MISUSE.error(
                "train is not a function that returns a model",
                fix="Pass a function of one argument, without async.",
            )
        self._train = train
        self._like = like
        self._spec = None if like is None else VectorSpec.of(like)

    def __call__(self, session: SessionInfo) -> Flat:
        """Return the vector of a session.

        Raises:
            InputError: The payload is no model, or another; or `train` returned one.
        """
        given = StepPayload.decode(session.payload)
        model: Tree = given.arrays
        spec = given.spec
        if self._spec is not None:
            if self._spec.digest != spec.digest:
                raise ErrorCode.BAD_INPUT.error(
                    "the session trains a model with another schema",
                    fix="Pass Learner(like=...) the model of the task.",
                )
            model = spec.restore(spec.flatten(given.arrays), like=self._like)
        check_session(session, spec, given.weighting)
        trained = self._train(LearningStep(given.step, model, given.config))
        update, weight = difference(spec, spec.flatten(given.arrays), trained)
        return given.weighting.vector(update, weight, l2_clip=clip_of(session))


def difference(spec: VectorSpec, given: Flat, trained: object) -> tuple[Flat, float]:
    """Return an update, shape (d,), and its weight.

    Args:
        spec: Schema of the model.
        given: The model that training began with, shape (d,).
        trained: The new model, or an `Update`.

    Raises:
        InputError: It has another schema, or is not finite.
    """
    update = trained if isinstance(trained, Update) else Update(trained)
    flat = spec.flatten(update.tree)
    weight: object = update.weight
    if not isinstance(weight, int | float | np.number):
        raise ErrorCode.BAD_INPUT.error(
            f"the weight of an update is {type(weight).__name__}",
            fix="Pass the number of examples.",
        )
    return flat if update.is_difference else flat - given, float(weight)


def check_session(session: SessionInfo, spec: VectorSpec, weighting: Weighting) -> None:
    """Refuse a session that does not add up updates of a model.

    Raises:
        InputError: It has no noise, or another dimension.
    """
    if not session.descriptor.parameters.noise_block:
        raise ErrorCode.BAD_INPUT.error(
            "the session adds up whole numbers, and updates are fractions",
            fix="Train in a task with noise.",
        )
    if session.dimension != spec.dim + weighting.extra:
        raise ErrorCode.BAD_INPUT.error(
            f"the session adds up vectors of {session.dimension}, its model needs "
            f"{spec.dim + weighting.extra}",
            fix="Tell the operator.",
        )


def clip_of(session: SessionInfo) -> float:
    """Return the clip of a session with noise, caller's units."""
    return NoisyTask.of_session(session.descriptor).l2_clip
