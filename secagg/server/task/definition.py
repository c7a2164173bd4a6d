"""The parameters of a task, and the sum of a session, as values."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import ServiceError, SessionAbortedError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.parameters import ProtocolParameters
from secagg.server.session.events import SessionProgress
from secagg.server.session.report import SessionReceipt
from secagg.server.task.schedule import TaskSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """Describes a series of sessions under one configuration.

    Attributes:
        task_id: Name of the task, at most 256 bytes of UTF-8.
        parameters: The configuration of every session.
        revocations: The list that the parameters name, in the issuer's bytes; b"" for
            none.
        invited: Identities that may take part; None for every authenticated client.
        sessions: Number of sums, with those of earlier processes; None until
            `NextPayload` ends the task.
        allowed: Sessions in which clients may send an input before the task ends, with
            the spare ones; None without a budget.
        participations: Most sums that hold the data of one client; a client with so
            many is offered no further session. None for no limit.
        on_attempts_exhausted: Called when the attempts at a sum have failed; the task
            then continues when its gate opens. None ends the task.
        gate: Decides when sessions open; one after the other by default.
        max_attempts: Sessions that may be aborted for one sum before the task stops
            retrying. Not counted are sessions after which a client is excluded, and
            sessions that waited for clients without success.
    """

    task_id: str
    parameters: ProtocolParameters
    revocations: bytes = field(default=b"", repr=False)
    invited: frozenset[str] | None = None
    sessions: int | None = 1
    allowed: int | None = None
    participations: int | None = None
    max_attempts: int = 3
    on_attempts_exhausted: "OnAttemptsExhausted | None" = None
    gate: TaskSchedule = field(default_factory=TaskSchedule, compare=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class SessionSum:
    """Holds the sum of one session.

    Attributes:
        descriptor: The session.
        residues: Sum of the survivors' inputs modulo m, words of the modulus, shape
            (d,), entries in [0, m).
        survivors: |U3|, the number of inputs in the sum.
        receipt: The public facts of the session.
        audit: Bytes of its audit receipt (`secagg.protocol.receipts`).
    """

    descriptor: SessionDescriptor
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    survivors: int
    receipt: SessionReceipt
    audit: bytes = field(repr=False)


class DeliveryDeferredError(ServiceError):
    """Reports that a sum or a receipt cannot be delivered here for now.

    The consumer raises it. The delivery is repeated after `retry_after_seconds`, unless
    another replica of the store has delivered meanwhile.

    Attributes:
        settle: Called when the delivery is not repeated here.
    """

    def __init__(
        self,
        cause: ServiceError,
        *,
        retry_after_seconds: float,
        settle: Callable[[], None],
    ) -> None:
        super().__init__(
            str(cause),
            code=cause.code,
            next_step=cause.next_step,
            retry_after_seconds=retry_after_seconds,
        )
        self.settle: Final = settle


# Called before each session with the number of the task's sums so far; None ends it.
NextPayload = Callable[[int], Awaitable[bytes | None]]
# Called with each sum before the session's records are erased.  After a crash it is
# called again with the same session number, so it must be safe to repeat.  It may raise
# `DeliveryDeferredError`.
OnSum = Callable[[SessionSum], Awaitable[None]]
# Called in the same way with the audit receipt of each session that released no sum.
OnAborted = Callable[[SessionDescriptor, bytes], Awaitable[None]]
# Called with the report of each session that is over, before its end is stored.
OnEnded = Callable[[SessionReceipt, SessionProgress], Awaitable[None]]
# Called when the attempts at one sum are used up, with the outcome of the last.
OnAttemptsExhausted = Callable[[SessionAbortedError], Awaitable[None]]
