"""One message of a session at a node: what it says, and when its app is called.

Rule 1: the app is called only with what the session has announced, and not again once
        a vector is bound.  A question without a model is answered with the view: the
        aggregator compares it before it sends the model (R5.3-14).
Rule 2: from then on nothing but the masked input depends on the data (R3.5-5): in a
        task with noise a training that fails, or takes too long, gives zeros.
Rule 3: nothing else of an app's reply leaves the node, its metrics least of all.

Flower's own classes are not imported.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy.typing as npt

from secagg.client.gate import Need
from secagg.client.open_client import ClientStep
from secagg.client.step_client import StepClient
from secagg.errors import ErrorCode
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.rounds import DUE_PART
from secagg.runtime.log_events import CLIENT_LOGGER, TRAINING_FAILED, log_event

_LOG = logging.getLogger(CLIENT_LOGGER)

Begin = Callable[[Callable[[], npt.ArrayLike]], "Future[npt.ArrayLike]"]


class TrainingFailedError(Exception):
    """The app has given no vector; its text is for the node's operator alone."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The model of an instruction, as it arrived.

    Attributes:
        dimension: How many numbers it has.
        payload_hash: Of all that the app would be given, computed from that.
        train: Calls the app; returns new model less old one, shape (dimension,).
    """

    dimension: int
    payload_hash: bytes
    train: Callable[[], npt.ArrayLike] = field(repr=False)


@dataclass(frozen=True, slots=True)
class NodeReply:
    """What a node says to one message.

    Attributes:
        messages: For the aggregator, in this order.
        view: 32 bytes to compare before the model is sent; b"" for none.
        step: What the call has come to; for the node's operator alone.
    """

    messages: tuple[bytes, ...] = field(repr=False)
    view: bytes = field(repr=False)
    step: ClientStep = field(repr=False)


def answer(
    client: StepClient,
    offer: bytes,
    update: bytes,
    announced: Announced | None,
    *,
    begin: Begin | None = None,
) -> NodeReply:
    """Take part in a session, by one message.

    Args:
        client: The node's, open.
        offer: The encoded descriptor, the same in all messages of a session.
        update: What the aggregator has for this node; b"" for nothing.
        announced: The model, once the aggregator has seen the view.
        begin: Begins to train it in a task with noise; on a daemon thread by default.

    Raises:
        RemoteProtocolError: BAD_CONFIG for a model that is not the task's,
            PAYLOAD_MISMATCH for one that the session has not announced: the session is
            over for this node, and its app was not called.
        SecAggError: As `StepClient.step`.
    """
    done = client.step(offer, update)
    if Need.VECTOR not in done.needs or announced is None:
        return NodeReply(done.messages, done.view, done)
    offered = _check_announced_model(client, offer, done, announced)
    try:
        vector = _trained(announced, offered, begin or _start_training)
    except TrainingFailedError as error:
        log_event(_LOG, logging.WARNING, TRAINING_FAILED, reason=str(error))
        done = client.step(offer, unusable=str(error))
    else:
        done = client.step(offer, vector=vector, payload_hash=announced.payload_hash)
    return NodeReply(done.messages, b"", done)


def _start_training(train: Callable[[], npt.ArrayLike]) -> "Future[npt.ArrayLike]":
    """Train on a thread that keeps no process alive."""
    found: Future[npt.ArrayLike] = Future()

    def run() -> None:
        try:
            found.set_result(train())
        except BaseException as error:  # noqa: BLE001 - belongs to the caller
            found.set_exception(error)

    threading.Thread(target=run, name="secagg-training", daemon=True).start()
    return found


def _trained(
    announced: Announced, offered: SessionDescriptor, begin: Begin
) -> npt.ArrayLike:
    """Train until the vector is due; a later one would show how long it took.

    Raises:
        TrainingFailedError: It has failed, is not ready then, or has no thread.
    """
    if not offered.parameters.noise_block:
        return announced.train()
    seconds = DUE_PART * offered.parameters.deadlines.masked_input
    try:
        training = begin(announced.train)
    except RuntimeError:  # from now on nothing else may depend on this machine
        raise TrainingFailedError("there is no thread for the training") from None
    try:
        error = training.exception(seconds)  # of any class: none keeps a node away
    except TimeoutError:
        raise TrainingFailedError(
            "the training was not ready when its vector was due"
        ) from None
    if error is None:
        return training.result()
    if isinstance(error, TrainingFailedError):
        raise error
    raise TrainingFailedError(f"the training has raised {type(error).__name__}")


def _check_announced_model(
    client: StepClient, offer: bytes, done: ClientStep, announced: Announced
) -> SessionDescriptor:
    """Refuse a model of another size or content than the session announced."""
    if done.session is None:  # a client that needs a vector has admitted the session
        raise ErrorCode.LOCAL_MISUSE.error(
            "a vector is needed in a session without a name"
        )
    dimension = done.session.dimension
    if announced.dimension != dimension:
        error = ErrorCode.BAD_CONFIG.error(
            f"the model has {announced.dimension} numbers, and the task sums vectors "
            f"of {dimension}",
            fix="Plan the task for the arrays that the strategy starts with.",
        )
    elif announced.payload_hash != done.session.descriptor.payload_hash:
        error = ErrorCode.PAYLOAD_MISMATCH.error(
            "the message brings another model or configuration than the session has "
            "announced",
            fix="Give all nodes of a round the same content.",
        )
    else:
        return done.session.descriptor
    client.leave(offer, str(error))
    raise error
