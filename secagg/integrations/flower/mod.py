"""The mod of a client app: nothing of a round leaves the node but what `secagg` says.

Rule 1: a message of training needs a session; without one, its reply would hold the
        model in the clear.
Rule 2: other messages are refused, but `evaluate` where the node's file allows it.
Rule 3: a refusal tells the server a code.  Its text, which may name paths, goes to the
        log of the node.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secagg.errors import ErrorCode, LocalProtocolError, SecAggError
from secagg.integrations.flower.arrays import (
    Vector,
    dimension_of,
    flatten,
    payload_hash,
)
from secagg.integrations.flower.node import (
    Announced,
    NodeReply,
    TrainingFailedError,
    answer,
)
from secagg.integrations.flower.open_clients import OPEN_CLIENTS
from secagg.integrations.flower.terms import (
    SETTING,
    NodeTerms,
    node_name,
    terms_of_node,
    terms_of_simulation,
)
from secagg.integrations.flower.wire import (
    RECORD,
    read_instruction,
    refusal_code,
    reply_record,
)
from secagg.protocol.arguments import as_path
from secagg.runtime.log_events import (
    CLIENT_LOGGER,
    INPUT_SHORTENED,
    MESSAGE_REFUSED,
    log_defect,
    log_event,
)

try:
    from flwr.app import Context, Error, Message, RecordDict
except ImportError:
    raise ErrorCode.MISSING_EXTRA.error(
        "Flower is not installed", fix="pip install 'secagg[flower]'"
    ) from None

_LOG: Final = logging.getLogger(CLIENT_LOGGER)
_SHORTENED_MUCH: Final = 2.0


def secagg_mod(*, simulation: Path | str | None = None) -> "SecAggMod":
    """Return the mod for ``ClientApp(mods=[...])``.

    Args:
        simulation: Directory of a simulation, with the terms of its nodes in
            ``terms.toml``.  Each node has a state of its own there, and its budgets are
            of the simulation.  None for a node: its configuration names its file under
            ``secagg-terms``, and its one state.

    Raises:
        LocalProtocolError: `simulation` cannot be a path.
    """
    return SecAggMod(as_path("simulation", simulation))


@dataclass(frozen=True, slots=True)
class SecAggMod:
    """A mod of Flower; made by `secagg_mod`.

    Attributes:
        simulation: Directory of a simulation; None for a node.
    """

    simulation: Path | None

    def __call__(
        self,
        message: Message,
        context: Context,
        call_next: Callable[[Message, Context], Message],
    ) -> Message:
        """Answer one message of the server.

        Args:
            message: As it arrived.
            context: Of the node.
            call_next: The app, or the next mod.

        Returns:
            Messages of the protocol, or an error with a code and no text of the node.
        """
        try:
            terms = self._terms_of(context)
            kind = message.metadata.message_type.partition(".")[0]
            if kind == "evaluate" and terms.evaluate:
                return call_next(message, context)
            _check_kind(kind)
            reply = self._answer_instruction(message, context, call_next, terms)
        except SecAggError as error:
            log_event(
                _LOG,
                logging.WARNING,
                MESSAGE_REFUSED,
                code=error.code.name,
                reason=str(error),
            )
            return _refusal_message(message, error)
        except Exception:  # noqa: BLE001 - its text would be sent to the server
            log_defect(_LOG, MESSAGE_REFUSED, code=ErrorCode.INTERNAL.name)
            return _refusal_message(
                message, ErrorCode.INTERNAL.error("a message has failed")
            )
        return Message(RecordDict({RECORD: reply_record(reply)}), reply_to=message)

    def _terms_of(self, context: Context) -> NodeTerms:
        """Return the terms of the node, or those of a simulation."""
        if self.simulation is None:
            return terms_of_node(context.node_config)
        if SETTING in context.node_config:
            raise ErrorCode.POLICY_VIOLATION.error(
                "the app is one of a simulation, and this node has terms of its own",
                fix="Deploy the app with secagg_mod().",
            )
        return terms_of_simulation(self.simulation, node_name(context.node_id))

    def _answer_instruction(
        self,
        message: Message,
        context: Context,
        call_next: Callable[[Message, Context], Message],
        terms: NodeTerms,
    ) -> NodeReply:
        """Answer one instruction of the server's part."""
        instruction = read_instruction(message.content)
        records = {k: v for k, v in message.content.items() if k != RECORD}
        announced = None
        if records:
            before, dimension = _find_model(records)
            announced = Announced(
                dimension,
                payload_hash(message.metadata.message_type, records),
                lambda: _difference(message, context, call_next, records, before),
            )
        # In a simulation the next message of a node may reach another process, so that
        # this one closes its client, and with it the lock of its state, after each.
        is_kept = self.simulation is None
        opened = OPEN_CLIENTS.client if is_kept else NodeTerms.client
        with opened(terms, node_name(context.node_id)) as client:
            reply = answer(client, instruction.offer, instruction.update, announced)
        _warn_owner(reply)
        return reply


def _check_kind(kind: str) -> None:
    """Refuse what would be answered in the clear.

    Raises:
        RemoteProtocolError: POLICY_VIOLATION.
    """
    if kind == "train":
        return
    allowed = " unless node.evaluate allows it" if kind == "evaluate" else ""
    raise ErrorCode.POLICY_VIOLATION.error(
        f"a message of type {kind!r} is answered in the clear, and this node answers "
        f"none{allowed}",
        fix="Set fraction_evaluate=0.0 and evaluate at the server, or ask the "
        "operator of the node.",
    )


def _find_model(records: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the arrays of an instruction, and how many numbers they have.

    Raises:
        RemoteProtocolError: BAD_CONFIG; there is more than one record of them, or none,
            or an array cannot be summed.
    """
    found = [
        record
        for record in records.values()
        if any(hasattr(each, "stype") for each in record.values())
    ]
    if len(found) != 1:
        raise ErrorCode.BAD_CONFIG.error(
            f"an instruction has {len(found)} records of arrays, and a round trains "
            "one model",
            fix="Send one ArrayRecord.",
        )
    try:
        return found[0], dimension_of(found[0])
    except LocalProtocolError as error:  # here the arrays are the server's
        raise ErrorCode.BAD_CONFIG.error(str(error), fix=error.next_step) from None


def _difference(
    message: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    records: Mapping[str, Any],
    before: Any,  # noqa: ANN401 - an ArrayRecord
) -> Vector:
    """Call the app, and return its model less the one that it was given.

    Raises:
        TrainingFailedError: It has failed, or has returned something else.
    """
    start = flatten(before)
    # In place: a new instruction cannot be made inside a client app.
    message.content = RecordDict(dict(records))
    try:
        return flatten(_trained(call_next(message, context), before)) - start
    except TrainingFailedError:
        raise
    except LocalProtocolError as error:
        raise TrainingFailedError(str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the others wait for it
        # Its text may hold data: an app that wants it in a log writes it there itself.
        name = type(error).__name__
        raise TrainingFailedError(f"the training has raised {name}") from None


def _trained(reply: Message, before: Any) -> Any:  # noqa: ANN401 - ArrayRecords
    """Return the model that an app has replied.

    Raises:
        TrainingFailedError: It has no model, or one of other arrays.
    """
    if reply.has_error():
        raise TrainingFailedError("the app has answered with an error")
    models = list(reply.content.array_records.values())
    if len(models) != 1 or _shapes(models[0]) != _shapes(before):
        raise TrainingFailedError("the app has not returned the arrays it was sent")
    return models[0]


def _shapes(arrays: Any) -> dict[str, tuple[int, ...]]:  # noqa: ANN401 - an ArrayRecord
    return {name: tuple(each.shape) for name, each in arrays.items()}


def _warn_owner(reply: NodeReply) -> None:
    """Say at the node alone that its update was far too long."""
    by = reply.step.shortened_by
    if by is not None and by > _SHORTENED_MUCH:
        log_event(_LOG, logging.WARNING, INPUT_SHORTENED, by=f"{by:.3g}")


def _refusal_message(message: Message, error: SecAggError) -> Message:
    """Return the reply of a node that refuses."""
    return Message(
        Error(code=refusal_code(error.code), reason=error.code.name), reply_to=message
    )
