"""What an operator hands an aggregator: a task, and what comes back: its sums."""

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
    """A series of sessions under one configuration.

    Attributes:
        task_id: Name of the task, at most 256 bytes of UTF-8.
        parameters: The configuration of every session.
        revocations: The list that the parameters name, as the issuer made it; b"" for
            none.
        invited: Identities that may take part; None for every authenticated client.
        sessions: How many sums are wanted, those of earlier processes included; None
            until `NextPayload` ends the task.
        allowed: Sessions in which clients may give an input before the task ends, spare
            ones included; None without a budget.
        participations: Most sums that hold the data of one client; a client that is in
            so many is offered no further session. None for no limit.
        on_attempts_exhausted: Told that so many have failed; the task then goes on as
            soon as its gate opens. None ends the task.
        gate: When sessions open; one after the other by default.
        max_attempts: How many sessions may be aborted for one sum, the first included,
            before the task gives up; those do not count after which a client is left
            out, nor those that waited for clients in vain.
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
    """The sum of one session.

    Attributes:
        descriptor: The session.
        residues: Sum of the survivors' inputs modulo m, words of the modulus, shape
            (d,), entries in [0, m).
        survivors: |U3|, how many inputs the sum adds up.
        receipt: The public facts of the session.
        audit: Bytes of its audit receipt (`secagg.protocol.receipts`).
    """

    descriptor: SessionDescriptor
    residues: npt.NDArray[np.unsignedinteger[Any]] = field(repr=False)
    survivors: int
    receipt: SessionReceipt
    audit: bytes = field(repr=False)


class DeliveryDeferredError(ServiceError):
    """A sum, or a receipt, cannot be put to use here for now.

    Whoever is given it says so by this, and is given it again after
    `retry_after_seconds`, unless another aggregator that shares the book has taken it
    meanwhile.

    Attributes:
        settle: Called when it is not given here again.
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
# Called with each sum before the session's records are scrubbed.  A crash in between
# calls it again with the same session number: make it safe to repeat.  It may raise
# `DeliveryDeferredError`.
OnSum = Callable[[SessionSum], Awaitable[None]]
# Called likewise with the audit receipt of each session that released no sum.
OnAborted = Callable[[SessionDescriptor, bytes], Awaitable[None]]
# Called with what is known of each session that is over, before the book says so.
OnEnded = Callable[[SessionReceipt, SessionProgress], Awaitable[None]]
# Called when the attempts at one sum are used up, with what became of the last.
OnAttemptsExhausted = Callable[[SessionAbortedError], Awaitable[None]]
