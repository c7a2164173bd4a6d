"""The grid of a strategy: each round of training becomes one session.

Rule 1: a strategy gets one reply, the mean of all updates with its noise, or none when
        the session has failed: then it keeps its model.
Rule 2: strategies that look at single replies are refused when the grid is made: they
        would take one mean for all nodes.
Rule 3: a node is who the SuperLink says.  A reply counts for the node that was asked.
Rule 4: an upload is added when it arrives: one vector is held, and not one per node.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from secagg.errors import ErrorCode, SecAggError, SessionAbortedError, printable
from secagg.integrations.flower.arrays import flatten, payload_hash, restored
from secagg.integrations.flower.carried_session import CarriedSession, NodeRequest
from secagg.integrations.flower.task import SecureTask
from secagg.integrations.flower.terms import AGGREGATOR, node_name
from secagg.integrations.flower.wire import (
    RECORD,
    Instruction,
    instruction_record,
    read_reply,
)
from secagg.protocol.arguments import check_kind
from secagg.runtime.log_events import (
    SERVER_LOGGER,
    SESSION_ABORTED,
    SESSION_COMPLETED,
    SESSION_OPENED,
    log_event,
)
from secagg.server.step_server import StepServer, next_session_number
from secagg.server.task.outputs import ReleasedSum

try:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import Grid
except ImportError:
    raise ErrorCode.MISSING_EXTRA.error(
        "Flower is not installed", fix="pip install 'secagg[flower]'"
    ) from None

_LOG: Final = logging.getLogger(SERVER_LOGGER)
_STRATEGIES: Final = frozenset(
    {"FedAvg", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi", "FedProx"}
)
_TRAIN: Final = "train"
# Between two looks for replies: at once in one process, a second over a network.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.02, 1.0, 1.5
_MOST_REASON_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class ReplyClock:
    """How the grid waits for replies.

    Attributes:
        now: Returns an instant in seconds, which never goes backwards.
        pause: Returns after so many seconds.
    """

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = field(
        default_factory=lambda: threading.Event().wait
    )


class SecureGrid(Grid):
    """A grid whose rounds of training are private sums.

    Messages of other kinds pass as they are; nodes refuse them, see the node's file.

    Args:
        grid: Of the server app.
        task: What is summed.
        strategy: That uses this grid.
        clock: How it waits; the machine's clock by default.

    Attributes:
        sums: What was released, in order, each with its error.
        failures: Why sessions have released nothing, in order.
        refused: Why nodes did not take part in the last session, by their names in it.

    Raises:
        LocalProtocolError: The strategy looks at single replies, or an argument is of
            another class.

    Example:
        task = SecureTask.planned("digits", arrays, clients=20, epsilon=8.0,
                                  delta=1e-5, rounds=10, l2_clip=0.5)
        strategy.start(grid=SecureGrid(grid, task, strategy), initial_arrays=arrays,
                       num_rounds=10)
    """

    def __init__(
        self,
        grid: Grid,
        task: SecureTask,
        strategy: object,
        *,
        clock: ReplyClock | None = None,
    ) -> None:
        check_kind("task", task, SecureTask, make="SecureTask.planned(...)")
        _check_strategy(strategy)
        self._grid = grid
        self._task = task
        self._weight = str(getattr(strategy, "weighted_by_key", "num-examples"))
        self._clock = clock or ReplyClock()
        self._last_number = 0
        self._noise_terms: bytes | None = None
        self.sums: list[ReleasedSum] = []
        self.failures: list[SessionAbortedError] = []
        self.refused: Mapping[str, str] = {}

    # --- as it is ---------------------------------------------------------------------

    @property
    def run(self) -> Any:  # noqa: ANN401 - Flower's
        """The run, as the inner grid says."""
        return self._grid.run

    def set_run(self, run: Any) -> None:  # noqa: ANN401 - Flower's
        """Tell the inner grid the run."""
        self._grid.set_run(run)

    def create_message(self, *args: Any, **named: Any) -> Message:  # noqa: ANN401 - Flower's
        """Make a message, as the inner grid does."""
        return self._grid.create_message(*args, **named)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected."""
        found: Iterable[int] = self._grid.get_node_ids()
        return found

    def get_nodes(self, *args: Any, **by: Any) -> Iterable[Any]:  # noqa: ANN401 - Flower's
        """Return the nodes that are connected, with what is known of them."""
        found: Iterable[Any] = self._grid.get_nodes(*args, **by)
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages that train nothing.

        Raises:
            LocalProtocolError: One of them trains: its replies would be in the clear.
        """
        messages = list(messages)
        if any(map(_trains, messages)):
            raise ErrorCode.LOCAL_MISUSE.error(
                "messages of training were pushed one by one, and their replies would "
                "be in the clear",
                fix="Call send_and_receive with all messages of the round.",
            )
        ids: Iterable[str] = self._grid.push_messages(messages)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return replies to messages that were pushed."""
        found: Iterable[Message] = self._grid.pull_messages(message_ids)
        return found

    # --- a round ----------------------------------------------------------------------

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run a round; one of training is a session, any other passes.

        Args:
            messages: Of the round.  Those of training have one and the same content.
            timeout: Longest duration of the round in seconds; None for no limit but
                those of the task.

        Returns:
            One reply with the mean, or none when the session has failed.

        Raises:
            LocalProtocolError: Nodes would be given different content, or one of them
                two messages.
        """
        messages = list(messages)
        if not any(map(_trains, messages)):
            passed: Iterable[Message] = self._grid.send_and_receive(
                messages, timeout=timeout
            )
            return passed
        first = messages[0]
        payload = _one_payload(messages)
        nodes = {node_name(m.metadata.dst_node_id): m for m in messages}
        if len(nodes) < len(messages):
            raise ErrorCode.LOCAL_MISUSE.error("a node is asked twice in one round")
        server = self._open_session(payload, nodes)
        session = CarriedSession(server, nodes)
        ends = None if timeout is None else self._clock.now() + timeout
        while not session.is_over:
            self._run_stage(server.offer, session, nodes, ends)
            session.close_stage()
        self._run_stage(server.offer, session, nodes, ends)  # tells how it has ended
        return self._reported(server, session, first)

    def _open_session(self, payload: bytes, nodes: Iterable[str]) -> StepServer:
        """Open a session for the nodes of a round."""
        self._last_number = next_session_number(self._last_number)
        log_event(
            _LOG,
            logging.INFO,
            SESSION_OPENED,
            task=self._task.name,
            number=self._last_number,
            flower=version("flwr"),
            secagg=version("secagg"),
        )
        return StepServer(
            self._task.prepared,
            aggregator=AGGREGATOR,
            task_id=self._task.name,
            session_number=self._last_number,
            payload_hash=payload,
            invited=nodes,
            noise_terms=self._noise_terms,
        )

    def _run_stage(
        self,
        offer: bytes,
        session: CarriedSession,
        nodes: Mapping[str, Message],
        ends: float | None,
    ) -> None:
        """Send what a stage begins with, and take replies while it lasts."""
        now = self._clock.now
        closes = now() + session.stage_seconds
        if ends is not None:
            closes = min(closes, ends)
        waiting = self._push_requests(offer, session.requests(), nodes, closes - now())
        if session.is_over:  # they are told, and not waited for
            waiting = {k: v for k, v in waiting.items() if v not in session.silent}
        pause = _FIRST_PAUSE
        while waiting and not session.is_stage_full:
            further = []
            replies = list(self._grid.pull_messages(list(waiting)))
            for reply in replies:
                name = waiting.pop(reply.metadata.reply_to_message_id, None)
                if name is not None and (asked := _accept_reply(session, name, reply)):
                    further.append(asked)
            if further:
                waiting |= self._push_requests(offer, further, nodes, closes - now())
            if now() >= closes:
                break
            if waiting and not replies:
                self._clock.pause(min(pause, closes - now()))
                pause = min(pause * _GROWTH, _LONGEST_PAUSE)
            else:
                pause = _FIRST_PAUSE
        session.silent.update(waiting.values())

    def _push_requests(
        self,
        offer: bytes,
        requests: Iterable[NodeRequest],
        nodes: Mapping[str, Message],
        seconds: float,
    ) -> dict[str, str]:
        """Push requests; return the nodes' names by the numbers of the messages."""
        names, pushed = [], []
        for request in requests:
            asked = nodes[request.name]
            content = dict(asked.content) if request.with_model else {}
            content[RECORD] = instruction_record(Instruction(offer, request.update))
            names.append(request.name)
            pushed.append(
                Message(
                    RecordDict(content),
                    dst_node_id=asked.metadata.dst_node_id,
                    message_type=asked.metadata.message_type,
                    group_id=asked.metadata.group_id,
                    ttl=max(1.0, seconds),
                )
            )
        if not pushed:
            return {}
        ids = list(self._grid.push_messages(pushed))
        if len(ids) != len(names):
            raise ErrorCode.UNREACHABLE.error(
                f"Flower took {len(ids)} of {len(names)} messages",
                fix="See its log: a message may be too large, or a node gone.",
            )
        return {number: name for number, name in zip(ids, names, strict=True) if number}

    def _reported(
        self, server: StepServer, session: CarriedSession, first: Message
    ) -> list[Message]:
        """Note how a session has ended; return the strategy's one reply, or none."""
        self.refused = dict(session.refused)
        self._noise_terms = server.next_noise_terms
        if server.result is None:
            failure = server.failure or ErrorCode.INTERNAL.error(
                "there is no sum", kind=SessionAbortedError
            )
            self.failures.append(failure)
            self._log_session(logging.WARNING, SESSION_ABORTED, code=failure.code.name)
            return []
        self.sums.append(server.result)
        self._log_session(logging.INFO, SESSION_COMPLETED, inputs=server.result.inputs)
        return [self._apply_mean(server.result, first)]

    def _log_session(self, level: int, event: str, **facts: object) -> None:
        """Log one event of a session, with the nodes that were refused."""
        refused = ", ".join(f"{name}: {why}" for name, why in self.refused.items())
        facts |= {"task": self._task.name, "number": self._last_number}
        log_event(_LOG, level, event, **facts, refused=refused)

    def _apply_mean(self, result: ReleasedSum, first: Message) -> Message:
        """Return the arrays of the model after a round."""
        ((key, before),) = first.content.array_records.items()
        after = restored(flatten(before) + result.mean, before)
        arrays = ArrayRecord({name: Array(each) for name, each in after.items()})
        metrics = MetricRecord({self._weight: result.inputs})
        return Message(RecordDict({key: arrays, "metrics": metrics}), reply_to=first)


def _accept_reply(
    session: CarriedSession, name: str, reply: Message
) -> NodeRequest | None:
    """Take a reply of Flower; return what its node is sent next."""
    if reply.has_error():
        reason = printable(str(reply.error.reason), max_bytes=_MOST_REASON_BYTES)
        session.record_refusal(name, reason)
        return None
    try:
        if node_name(reply.metadata.src_node_id) != name:
            raise ErrorCode.UNAUTHENTICATED.error("another node has replied")
        if not reply.has_content():
            raise ErrorCode.BAD_ENCODING.error("a reply has no content")
        said = read_reply(reply.content)
    except SecAggError as error:
        session.record_refusal(name, error.code.name)
        return None
    return session.accept(name, said.messages, said.view)


def _trains(message: Message) -> bool:
    kind: str = message.metadata.message_type
    return kind.partition(".")[0] == _TRAIN


def _one_payload(messages: list[Message]) -> bytes:
    """Return the hash of what all nodes of a round are given.

    Raises:
        LocalProtocolError: They are not given the same, or no model.
    """
    first = messages[0]
    if len(first.content.array_records) != 1 or RECORD in first.content:
        raise ErrorCode.LOCAL_MISUSE.error(
            "a round trains one model: one ArrayRecord, and no record named secagg",
            fix="Send what Flower's strategies send.",
        )
    kinds = {message.metadata.message_type for message in messages}
    contents = {id(message.content): message.content for message in messages}
    hashes = {
        payload_hash(first.metadata.message_type, content)
        for content in contents.values()
    }
    if len(hashes) != 1 or len(kinds) != 1:
        raise ErrorCode.LOCAL_MISUSE.error(
            "nodes of one round would be given different content, and a session "
            "announces one",
            fix="Give all nodes of a round the same arrays and configuration.",
        )
    return hashes.pop()


def _check_strategy(strategy: object) -> None:
    """Refuse a strategy that looks at single replies.

    Raises:
        LocalProtocolError: It may.
    """
    kinds, name = type(strategy).__mro__, type(strategy).__name__
    is_own = [not kind.__module__.startswith("flwr.") for kind in kinds]
    own = kinds[: is_own.index(False)] if False in is_own else kinds
    if own == kinds or kinds[len(own)].__name__ not in _STRATEGIES:
        raise ErrorCode.LOCAL_MISUSE.error(
            f"strategy {name} looks at single replies, and gets their mean alone",
            fix=f"Use one of {', '.join(sorted(_STRATEGIES))}.",
        )
    if any("aggregate_train" in vars(kind) for kind in own):
        raise ErrorCode.LOCAL_MISUSE.error(
            f"strategy {name} has an aggregate_train of its own, which would look at "
            "single replies, and gets their mean alone",
            fix="Leave aggregate_train to Flower's strategy.",
        )
