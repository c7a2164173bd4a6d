"""What a task knows from its sessions: its sums, who gave to them, its disputes.

Rule 1: facts change with the end of a session, in the same commit: no restart counts a
        sum twice or forgets who is out.
Rule 2: they outlive receipts, so that retention costs a task nothing.

Source:
    PROTOCOL §5.7.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Self

from secagg.crypto.canonical import Reader, Writer
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    SecAggError,
)
from secagg.protocol.descriptor import MAX_NOISE_TERMS_BYTES
from secagg.protocol.disputes import left_out
from secagg.protocol.messages import MAX_IDENTITY_BYTES, Released
from secagg.server.session.report import SessionReceipt

_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The facts of one task.

    Attributes:
        sums: Sessions that released one.
        told: Number of the latest session whose clients all know its end.
        disputes: Accuser and accused, by name.  Pairs of which both are left out say
            nothing more and are dropped: what stays is at most c for each client that
            is not.
        left_out: Who takes no part in the rest of the task.
        suspended: Who takes no part in the next attempt.
        noise_terms: What the next offer says of its session's noise, as it follows from
            the last sum; b"" before the first, and where nothing follows.
        given: In how many sums each client is, by name. Counted for tasks with noise.
    """

    sums: int = 0
    told: int = 0
    disputes: frozenset[tuple[str, str]] = frozenset()
    left_out: frozenset[str] = frozenset()
    suspended: frozenset[str] = frozenset()
    noise_terms: bytes = b""
    given: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def after(self, receipt: SessionReceipt) -> Self:
        """Return the facts when a session has ended.

        Args:
            receipt: Of the session.
        """
        pairs = self.disputes | {(a, b) for a, b, _ in receipt.disputes}
        failed = frozenset({receipt.failed_dealer} - {""})
        proven = failed if receipt.is_failure_proven else frozenset[str]()
        out = left_out(
            pairs,
            colluders=receipt.descriptor.parameters.colluders,
            already=self.left_out | proven,
        )
        known = self
        if isinstance(receipt.outcome, Released):
            has_noise = bool(receipt.descriptor.parameters.noise_block)
            known = self.with_sum(receipt.survivors if has_noise else ())
        # A session that never had a roster was no attempt.
        suspended = failed if receipt.members else self.suspended
        return replace(
            self,
            sums=known.sums,
            disputes=frozenset(pair for pair in pairs if not out.issuperset(pair)),
            left_out=out,
            suspended=suspended - out,
            given=known.given,
        )

    def with_sum(self, names: Iterable[str]) -> Self:
        """Return the facts when another sum was released.

        Args:
            names: Clients whose vectors it holds, as far as they are counted.
        """
        given = MappingProxyType(Counter(self.given) + Counter(names))
        return replace(self, sums=self.sums + 1, given=given)

    def finished(self, participations: int | None) -> frozenset[str]:
        """Return the clients that have given to as many sums as they may.

        Args:
            participations: Most sums that hold the data of one client; None for any.
        """
        if participations is None:
            return frozenset()
        return frozenset(
            name for name, count in self.given.items() if count >= participations
        )

    def absent_from_next(
        self, invited: frozenset[str] | None, *, min_clients: int
    ) -> frozenset[str]:
        """Return who takes no part in the next session.

        Nobody is suspended where too few would be left: what is not proven must not
        end a task.

        Args:
            invited: Who may take part in the task; None for everybody.
            min_clients: Smallest roster.

        Raises:
            SessionAbortedError: DISPUTED; too few are left without those that are out
                for good, who are named.
        """
        if invited is None:
            return self.left_out | self.suspended
        out = self.left_out & invited
        if out and len(invited - out) < min_clients:
            names = ", ".join(sorted(out))
            raise ErrorCode.DISPUTED.error(
                f"{len(invited - out)} of the invited clients are left, "
                f"{min_clients} are needed; these accuse each other, or their secrets "
                f"could not be rebuilt: {names}",
                fix="Find out who is at fault, then run a new task without them.",
            )
        both = self.left_out | self.suspended
        return both if len(invited - both) >= min_clients else self.left_out

    def encode(self) -> bytes:
        """Return the bytes to store."""
        writer = Writer().u16(_VERSION).u64(self.sums).u64(self.told)
        _put_names(writer, (name for pair in sorted(self.disputes) for name in pair))
        _put_names(writer, sorted(self.left_out))
        _put_names(writer, sorted(self.suspended))
        writer.blob(self.noise_terms)
        _put_names(writer, sorted(self.given))
        for _, count in sorted(self.given.items()):
            writer.u32(count)
        return writer.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote; no bytes are no facts yet.

        Raises:
            ServiceError: STORAGE_FAILED; they are damaged or of another release.
        """
        if not data:
            return cls()
        reader = Reader(data, "facts of a task")
        try:
            version, sums, told = reader.u16(), reader.u64(), reader.u64()
            if version != _VERSION:
                raise _unreadable(f"version {version} is unknown")
            names = _take_names(reader)
            disputes = frozenset(zip(names[::2], names[1::2], strict=True))
            out, suspended = _take_names(reader), _take_names(reader)
            noise_terms = reader.blob(max_bytes=MAX_NOISE_TERMS_BYTES)
            given = dict.fromkeys(_take_names(reader), 0)
            for name in given:
                given[name] = reader.u32()
            reader.end()
        except (ValueError, RemoteProtocolError) as error:
            raise _unreadable(str(error)) from None
        return cls(
            sums,
            told,
            disputes,
            frozenset(out),
            frozenset(suspended),
            noise_terms,
            MappingProxyType(given),
        )


def _put_names(writer: Writer, names: Iterable[str]) -> None:
    listed = tuple(names)
    writer.u32(len(listed))
    for name in listed:
        writer.text(name)


def _take_names(reader: Reader) -> tuple[str, ...]:
    return tuple(reader.text(max_bytes=MAX_IDENTITY_BYTES) for _ in range(reader.u32()))


def _unreadable(complaint: str) -> SecAggError:
    return ErrorCode.STORAGE_FAILED.error(
        f"what the task knows from its sessions cannot be read: {complaint}",
        fix="Use the release that wrote it.",
    )
