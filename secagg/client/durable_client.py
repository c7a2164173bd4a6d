"""One client's state as a process has it open: one call at a time, none after a fault.

Rule 1: a call is finished and on the disk when it returns; a caller that goes away
        meanwhile finds what it came to with the next call.
Rule 2: after a disk that has failed nothing is said: what is on it is not known, and
        only a new object reads it.
Rule 3: a fork of the process is refused: both would continue from the same state.
Rule 4: a computation of what a task costs may take many seconds, so none is made while
        a call has the state: the call ends before it has changed anything, and begins
        again with the figure.
Rule 5: one is made at a time, and once for all calls that need it: the cache on the
        disk has one writer.
"""

import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg.client.admission import Admission
from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import OwnRules
from secagg.client.open_client import Encode, OpenClient, encode_input
from secagg.client.total_ledger import TotalLedger
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.distributed_dp import NoisyTask, PrivacyReport
from secagg.distributed_dp.report_cache import privacy_report
from secagg.errors import ErrorCode, InternalError, SecAggError, ServiceError
from secagg.protocol.arguments import check_kind
from secagg.protocol.policy import (
    ClientPolicy,
    ExactSumWaiver,
    PrivacyLimits,
    TotalBudget,
)
from secagg.storage.client_store import ClientRecords, ClientStore
from secagg.storage.rows import Retention
from secagg.storage.store import run_inline

# A peer that offers more noise blocks has them computed again.
_KEPT: Final = 64


class ReportNeededError(Exception):
    """A call needs a figure that is not computed yet; it has changed nothing.

    Args:
        storage: Of the client.
        task: Whose cost is needed.
    """

    def __init__(self, storage: "ClientStorage", task: NoisyTask) -> None:
        super().__init__()
        self._storage, self._task = storage, task

    def compute(self) -> None:
        """Compute it; takes up to seconds, on any thread."""
        self._storage.compute(self._task)


@dataclass(slots=True)
class ClientStorage:
    """The storage of one client.

    Attributes:
        store: Sessions, their numbers, and what this client has given to each task.
        directory: Where it is kept; None for memory.
        defers: Raise `ReportNeededError` in place of computing a figure.
    """

    store: ClientRecords
    directory: Path | None
    defers: bool = False
    _known: dict[bytes, PrivacyReport | SecAggError] = field(
        default_factory=dict, init=False, repr=False
    )
    _computing: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False
    )

    def report_of(self, task: NoisyTask) -> PrivacyReport:
        """Return what a task costs, as this client has computed it itself.

        Raises:
            ReportNeededError: With `defers`; it is not computed yet.
            RemoteProtocolError: BAD_CONFIG; its noise has no figures.
        """
        known = self._known.get(task.parameters.noise_block)
        if known is None:
            if self.defers:
                raise ReportNeededError(self, task)
            known = self.compute(task)
        if isinstance(known, SecAggError):
            raise copy(known)  # the frames of a call hold its vector
        # The graph is not part of the noise block, and costs nothing to check again.
        return replace(known, graph_delta=task.graph_delta)

    def compute(self, task: NoisyTask) -> PrivacyReport | SecAggError:
        """Compute what a task costs, or why it has no figures; takes up to seconds."""
        place, block = self.directory, task.parameters.noise_block
        with self._computing:
            found = self._known.get(block)
            if found is not None:  # another call has needed it, too
                return found
            try:
                found = task.report() if place is None else privacy_report(task, place)
            except SecAggError as error:  # raised where the figure is asked for
                found = error.with_traceback(None)
            for oldest in tuple(self._known)[: -(_KEPT - 1)]:
                self._known.pop(oldest, None)
            self._known[block] = found
        return found


_Result = TypeVar("_Result")

# After these it is not known what is on the disk: only a new object reads it.
_UNKNOWN_DISK: Final = frozenset(
    {ErrorCode.STORAGE_FAILED, ErrorCode.STATE_DAMAGED, ErrorCode.RESTORED_STATE}
)
LOCK_SECONDS: Final = 10.0
"""How long another process may keep the directory, where its owner says nothing."""


def check_terms(
    limits: object, *, cohort: ClientPolicy | None, total: TotalBudget | None
) -> None:
    """Refuse a client without limits of privacy, or of arguments of another kind.

    Raises:
        LocalProtocolError: There are no limits, nor their waiver.
    """
    if not isinstance(limits, PrivacyLimits | ExactSumWaiver):
        raise ErrorCode.LOCAL_MISUSE.error(
            "a client needs limits of privacy",
            fix="Give privacy_limits=PrivacyLimits(...), or "
            "ExactSumWaiver(...) with its sentence.",
        )
    if cohort is not None:
        check_kind("cohort", cohort, ClientPolicy, make="ClientPolicy(...)")
    if total is not None:
        check_kind("total", total, TotalBudget, make="TotalBudget(...)")


@dataclass(kw_only=True, eq=False)
class DurableClient:
    """The state of one client, with what its owner has settled.

    `StepClient` describes the attributes.
    """

    identity: str
    limits: PrivacyLimits | ExactSumWaiver
    state_dir: Path | None
    tasks: frozenset[str] | None = None
    cohort: ClientPolicy = field(default_factory=ClientPolicy)
    rollback_mark: Path | None = None
    accept_restored: bool = False
    enrolment: EnrolledClient | None = None
    total: TotalBudget | None = None
    keep_upload: bool = True
    lock_seconds: float = LOCK_SECONDS
    retention: Retention = field(default_factory=Retention)
    clock: Callable[[], float] = time.time
    entropy: Entropy = field(default_factory=SystemEntropy)
    encode: Encode = encode_input

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _opened: OpenClient | None = field(default=None, init=False)
    _failed: SecAggError | None = field(default=None, init=False)
    _process: int = field(default_factory=os.getpid, init=False)
    # Not under the lock of calls: an event loop must not wait for one.
    _carried: dict[str, object] = field(default_factory=dict, init=False)

    def open(
        self, *, aggregator: str | None = None, trust_domain: str | None = None
    ) -> None:
        """Open the state, and end the sessions in it whose time is over.

        Args:
            aggregator: Whose sessions it takes part in; None where `OpenClient.bind_to`
                says so later.
            trust_domain: Of it; None where the carrier proves none.

        Raises:
            LocalProtocolError: The client is open already, or BAD_SETTINGS.
            StateDamagedError: What is stored does not fit together.
            ServiceError: STORAGE_FAILED, naming the process that keeps the directory;
                RESTORED_STATE for a state that was restored, copied or emptied.
        """
        with self._lock:
            if self._opened is not None:
                raise ErrorCode.LOCAL_MISUSE.error(
                    "the client is open already",
                    fix="Use the object that is open, or make another one.",
                )
            store = self.open_store()
            with ExitStack() as unless_opened:  # the store has a lock
                unless_opened.callback(lambda: run_inline(store.close()))
                opened = self._open_client(store)
                is_named = aggregator is not None
                opened.bind_to(aggregator or "", trust_domain, for_good=is_named)
                run_inline(opened.begin())
                unless_opened.pop_all()
            self._opened, self._failed = opened, None
            self._process = os.getpid()
            self.accept_restored = False  # what was accepted was this state

    def close(self) -> None:
        """Release the directory; harmless when repeated."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                run_inline(opened.store.close())

    def check_open(self) -> None:
        """Refuse a client that is not open.

        Raises:
            LocalProtocolError: It is not.
        """
        if self._opened is None:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client is not open", fix="Use it as a context manager."
            )

    def call(
        self, work: Callable[[OpenClient], Coroutine[Any, Any, _Result]]
    ) -> _Result:
        """Make one call at a time; after a failing disk none at all.

        Raises:
            LocalProtocolError: The client is not open, or this process is a fork.
            ServiceError: STORAGE_FAILED, also for every call after it.
        """
        while isinstance(found := self.attempt(work), ReportNeededError):
            found.compute()
        return found

    def attempt(
        self, work: Callable[[OpenClient], Coroutine[Any, Any, _Result]]
    ) -> _Result | ReportNeededError:
        """Make a call, or say what has to be computed before it is made again.

        Raises:
            SecAggError: As `call`.
        """
        # Before the lock, which may be held by a thread that no fork has.
        if self._opened is not None and os.getpid() != self._process:
            raise ErrorCode.LOCAL_MISUSE.error(
                "the client was opened by another process, and this one is a fork of "
                "it: both would continue from the same state",
                fix="Call it in the process that has opened it, or open a client "
                "of the same state_dir when that one is closed.",
            )
        with self._lock:
            self.check_open()
            if self._failed is not None:
                # The frames of earlier calls hold their vectors.
                raise self._failed.with_traceback(None)
            try:
                return run_inline(work(_require_open(self._opened)))
            except ReportNeededError as needed:
                return needed.with_traceback(None)
            except SecAggError as error:
                is_unknown = error.code in _UNKNOWN_DISK
                if (isinstance(error, ServiceError) and is_unknown) or isinstance(
                    error, InternalError
                ):
                    self._refuse_further_calls(error)
                raise
            except BaseException as error:
                self._refuse_further_calls(error)
                raise

    @contextmanager
    def carried(self, task: str) -> Iterator[None]:
        """Keep a task for one carrier while the block runs.

        Args:
            task: Name of the task.

        Raises:
            LocalProtocolError: The client is not open, or another carrier has the
                task: both would bind a vector to the same session.
        """
        self.check_open()
        mark = object()
        if self._carried.setdefault(task, mark) is not mark:  # atomic
            raise ErrorCode.LOCAL_MISUSE.error(
                f"another client contributes to task {task!r} with this state",
                fix="Use one client for each task.",
            )
        try:
            yield
        finally:
            del self._carried[task]

    def open_store(self) -> ClientStore:
        """Open the store of this client."""
        return ClientStore.open(
            self.state_dir,
            mark=self.rollback_mark,
            accept_restored=self.accept_restored,
            lock_seconds=self.lock_seconds,
            entropy=self.entropy,
            now=self.clock,
        )

    def rules_over(self, storage: ClientStorage) -> OwnRules:
        """Return what the owner has settled, but for enrolment and total."""
        return OwnRules(
            limits=self.limits, cohort=self.cohort, report_of=storage.report_of
        )

    def total_over(self, storage: ClientStorage) -> TotalLedger | None:
        """Return the total of the owner's data; None for no total."""
        if self.total is None:
            return None
        limits = self.rules_over(storage).noise_limits
        return TotalLedger.of_owner(self.total, storage, limits=limits)

    def _open_client(self, store: ClientStore) -> OpenClient:
        """Return the open client over a store."""
        storage = ClientStorage(store, store.directory, defers=True)
        return OpenClient(
            self.identity,
            tasks=self.tasks,
            store=store,
            admission=Admission(
                store=store,
                rules=self.rules_over(storage),
                enrolment=self.enrolment,
                total=self.total_over(storage),
                date=self.clock,
            ),
            entropy=self.entropy,
            encode=self.encode,
            keep_upload=self.keep_upload,
            retention=self.retention,
        )

    def _refuse_further_calls(self, why: BaseException) -> None:
        """Refuse all further calls: what is on the disk is not known."""
        reason = f": {why}" if isinstance(why, SecAggError) else ""
        self._failed = ErrorCode.STORAGE_FAILED.error(
            "an earlier call of this object has failed, and what is on the disk is not "
            f"known{reason}",
            fix="Send nothing. Close this object and make a new one over the "
            "same directory.",
        )


def _require_open(opened: OpenClient | None) -> OpenClient:
    """Return the state that is open."""
    if opened is None:
        raise ErrorCode.INTERNAL.error("a client that is open has a state")
    return opened
