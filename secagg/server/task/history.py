"""The history of a task: its sums, the clients in them, and its disputes.

Rule 1: the history changes in the commit that ends a session: no restart counts a sum
        twice or forgets an exclusion.
Rule 2: the history outlives receipts, so deleting receipts costs a task nothing.

Source:
    PROTOCOL §5.7.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.protocol.descriptor import MAX_NOISE_TERMS_BYTES
from secagg.protocol.membership import excluded
from secagg.protocol.messages import MAX_IDENTITY_BYTES, Released
from secagg.server.session.report import SessionReceipt
from secagg.storage.change import Side
from secagg.storage.queries import ReadTally
from secagg.storage.store import StoreReader

_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """Holds the facts that one task learned from its sessions.

    Attributes:
        sums: Number of sessions that released a sum.
        told: Number of the latest session whose clients all know its end.
        disputes: Accuser and accused, by name.  A pair of excluded clients is dropped,
            since it proves nothing more. So at most c pairs remain for each other
            client.
        excluded: Clients that are excluded from the rest of the task.
        suspended: Clients that are excluded from the next attempt.
        noise_terms: What the next offer states of its session's noise, as it follows
            from the last sum; b"" before the first, and where nothing follows.
        given: Number of sums that hold each client's data, by name. Counted for tasks
            with noise.
    """

    sums: int = 0
    told: int = 0
    disputes: frozenset[tuple[str, str]] = frozenset()
    excluded: frozenset[str] = frozenset()
    suspended: frozenset[str] = frozenset()
    noise_terms: bytes = b""
    given: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after_session(self, receipt: SessionReceipt) -> Self:
        """Return the history after a session has ended.

        Args:
            receipt: The session's receipt.
        """
        pairs = self.disputes | {(a, b) for a, b, _ in receipt.disputes}
        failed = frozenset({receipt.failed_dealer} - {""})
        proven = failed if receipt.is_failure_proven else frozenset[str]()
        out = excluded(
            pairs,
            colluders=receipt.descriptor.parameters.colluders,
            already=self.excluded | proven,
        )
        known = self
        if isinstance(receipt.outcome, Released):
            has_noise = bool(receipt.descriptor.parameters.noise_block)
            known = self.with_sum(receipt.survivors if has_noise else ())
        # A session without a roster is not an attempt.
        suspended = failed if receipt.members else self.suspended
        return replace(
            self,
            sums=known.sums,
            disputes=frozenset(pair for pair in pairs if not out.issuperset(pair)),
            excluded=out,
            suspended=suspended - out,
            given=known.given,
        )

    def with_sum(self, names: Iterable[str]) -> Self:
        """Return the history after another sum was released.

        Args:
            names: Clients whose vectors it holds, as far as they are counted.
        """
        given = MappingProxyType(Counter(self.given) + Counter(names))
        return replace(self, sums=self.sums + 1, given=given)

    def finished(self, participations: int | None) -> frozenset[str]:
        """Return the clients that have used all their participations.

        Args:
            participations: Most sums that hold the data of one client; None for no
                limit.
        """
        if participations is None:
            return frozenset()
        return frozenset(
            name for name, count in self.given.items() if count >= participations
        )

    def absent_from_next(
        self, invited: frozenset[str] | None, *, min_clients: int
    ) -> frozenset[str]:
        """Return the clients that are excluded from the next session.

        No client is suspended where too few would remain: an unproven accusation must
        not end a task.

        Args:
            invited: Clients that may take part in the task; None for all.
            min_clients: Smallest roster.

        Raises:
            SessionAbortedError: DISPUTED; too few remain without the excluded clients,
                which the message names.
        """
        if invited is None:
            return self.excluded | self.suspended
        out = self.excluded & invited
        if out and len(invited - out) < min_clients:
            names = ", ".join(sorted(out))
            raise ErrorCode.DISPUTED.error(
                f"{len(invited - out)} of the invited clients remain, {min_clients} "
                "are needed; these accuse each other, or their secrets could not be "
                f"rebuilt: {names}",
                fix="Find out who is at fault, then run a new task without them.",
            )
        both = self.excluded | self.suspended
        return both if len(invited - both) >= min_clients else self.excluded

    def encode(self) -> bytes:
        """Return the bytes to store."""
        writer = Writer().u16(_VERSION).u64(self.sums).u64(self.told)
        _write_names(writer, (name for pair in sorted(self.disputes) for name in pair))
        _write_names(writer, sorted(self.excluded))
        _write_names(writer, sorted(self.suspended))
        writer.blob(self.noise_terms)
        _write_names(writer, sorted(self.given))
        for _, count in sorted(self.given.items()):
            writer.u32(count)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode what `encode` wrote; empty bytes are an empty history.

        Raises:
            ServiceError: STORAGE_FAILED; the bytes are damaged or of another release.
        """
        if not data:
            return cls()
        reader = Reader(data, "facts of a task")
        try:
            version, sums, told = reader.u16(), reader.u64(), reader.u64()
            if version != _VERSION:
                raise _unreadable_error(f"version {version} is unknown")
            names = _read_names(reader)
            disputes = frozenset(zip(names[::2], names[1::2], strict=True))
            out, suspended = _read_names(reader), _read_names(reader)
            noise_terms = reader.blob(max_bytes=MAX_NOISE_TERMS_BYTES)
            given = dict.fromkeys(_read_names(reader), 0)
            for name in given:
                given[name] = reader.u32()
            reader.end()
        except (ValueError, RemoteProtocolError) as error:
            raise _unreadable_error(str(error)) from None
        return cls(
            sums,
            told,
            disputes,
            frozenset(out),
            frozenset(suspended),
            noise_terms,
            MappingProxyType(given),
        )


def _write_names(writer: Writer, names: Iterable[str]) -> None:
    """Write names, and their number before them."""
    listed = tuple(names)
    writer.u32(len(listed))
    for name in listed:
        writer.text(name)


def _read_names(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.text(max_bytes=MAX_IDENTITY_BYTES) for _ in range(reader.u32()))


def _unreadable_error(complaint: str) -> SecAggError:
    """Return the error of a history that cannot be read."""
    return ErrorCode.STORAGE_FAILED.error(
        f"the history of the task cannot be read: {complaint}",
        fix="Use the release that wrote it.",
    )


async def sums_released(store: StoreReader, task_id: str) -> int:
    """Return how many sums of a task its store has, those of earlier processes too.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    tally = await store.read(ReadTally(Side.SERVER, task_id))
    return TaskHistory.decode(tally.facts).sums
