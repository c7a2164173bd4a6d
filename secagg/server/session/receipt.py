"""What is left of a session when it has ended: enough to audit, nothing to attack.

Rule 1: a receipt holds public facts only: contexts, set sizes, names, hashes, times.
Rule 2: its bytes are JSON with sorted keys, for people and for other programs.

Source:
    PROTOCOL §12: the tombstone of a session.
"""

import json
from dataclasses import dataclass
from typing import Final, Self

from secagg.errors import ErrorCode, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.graphs.ring_safety import RingRisk
from secagg.protocol.messages import Aborted, Fate, Released
from secagg.protocol.noise_certificate import NoiseCertificate

_FORMAT: Final = 1
_UNREADABLE: Final = (
    ArithmeticError,  # of a rational that is none
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RemoteProtocolError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReceipt:
    """The tombstone of one session on the server.

    Attributes:
        descriptor: The session as it was offered.
        outcome: How it ended.
        members: U1, in order of index; empty when AdvertiseKeys never closed.
        advertised: |U1|.
        shared: |U2|.
        uploaded: |U3|.
        signed: How many have signed roster, U2 and U3; 0 in the profile that believes
            the server.
        revealed: |U5|.
        survivors: U3 by name, from the moment it was fixed.
        was_unmasked: Without a sum only: its secrets had been rebuilt all the same.
        was_restored: Without a sum only: the state was put back while it ran, so that
            nobody knows whose inputs were summed.
        disputes: Accuser, accused and code of each complaint about a share bundle, and
            dealer, holder and RECONSTRUCTION_FAILED for each share that did not belong
            to its dealer's secret, by name; either of the two lies.
        failed_dealer: Whose secret could not be rebuilt, by name; else empty.
        is_failure_proven: It has dealt badly; else its holders may have framed it.
        ring: How safe it was to unmask U3 on the ring; None on the complete graph and
            before U3 was fixed.
        sessions_left: Sessions that the budget of the task covers after this one, spare
            ones included; None without a budget.
        noise: What noise the sum holds; None for a task without noise, and where
            nothing was unmasked.
        unconfirmed: Who of U3 has sent a signature over the sets that does not hold
            (R5.4-7), and no other, by name.  In a task with noise the sum may then be
            wrong.
        lost: Who was lost: name, title of the round, and why in words.
        finishers: Who took part in the last round that anybody took part in.
        contexts: ctx0 to ctx3 as far as the session came.
        seconds: Duration of each round by its name, in this process.
    """

    descriptor: SessionDescriptor
    outcome: Released | Aborted
    members: tuple[str, ...] = ()
    advertised: int = 0
    shared: int = 0
    uploaded: int = 0
    signed: int = 0
    revealed: int = 0
    survivors: tuple[str, ...] = ()
    was_unmasked: bool = False
    was_restored: bool = False
    disputes: tuple[tuple[str, str, int], ...] = ()
    failed_dealer: str = ""
    is_failure_proven: bool = False
    ring: RingRisk | None = None
    sessions_left: int | None = None
    noise: NoiseCertificate | None = None
    unconfirmed: tuple[str, ...] = ()
    lost: tuple[tuple[str, str, str], ...] = ()
    finishers: tuple[str, ...] = ()
    contexts: tuple[bytes, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()

    @property
    def outcome_name(self) -> str:
        """`released`, or the name of the code of an abort."""
        if isinstance(self.outcome, Released):
            return "released"
        return self.outcome.code.name

    @property
    def warning(self) -> str:
        """Why the released sum may be wrong, or ""."""
        has_noise = bool(self.descriptor.parameters.noise_block)
        is_released = isinstance(self.outcome, Released)
        if not (self.unconfirmed and has_noise and is_released):
            return ""
        return (
            "The sum may be wrong: a client in it has sent a signature over the sets "
            "of clients that does not hold, so its masks and noise may be of other "
            "sets."
        )

    def to_dict(self) -> dict[str, object]:
        """Return the receipt in values that JSON can hold."""
        descriptor, outcome = self.descriptor, self.outcome
        ended: dict[str, object]
        if isinstance(outcome, Released):
            ended = {
                "sum_sha256": outcome.sum_hash.hex(),
                "sum_bytes": outcome.size,
                "survivors": outcome.survivors,
                "kept_until": outcome.kept_until,
            }
        else:
            ended = {
                "abort_code": int(outcome.code),
                "abort_reason": outcome.reason,
                "was_unmasked": self.was_unmasked,
                "was_restored": self.was_restored,
            }
        return {
            "format": _FORMAT,
            "task_id": descriptor.task_id,
            "session_number": descriptor.session_number,
            "session_id": descriptor.session_id.hex(),
            "descriptor": descriptor.encode().hex(),
            "outcome": ended,
            "members": list(self.members),
            "sets": {
                "U1": self.advertised,
                "U2": self.shared,
                "U3": self.uploaded,
                "signed": self.signed,
                "U5": self.revealed,
            },
            "survivors": list(self.survivors),
            "disputes": [list(dispute) for dispute in self.disputes],
            "failed_dealer": self.failed_dealer,
            "ring": None if self.ring is None else self.ring.to_dict(),
            "is_failure_proven": self.is_failure_proven,
            "sessions_left": self.sessions_left,
            "noise": None if self.noise is None else self.noise.to_dict(),
            "unconfirmed": list(self.unconfirmed),
            "warning": self.warning,
            "lost": [list(each) for each in self.lost],
            "finishers": list(self.finishers),
            "contexts": [context.hex() for context in self.contexts],
            "seconds": dict(self.seconds),
        }

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return json.dumps(self.to_dict(), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote.

        Raises:
            ServiceError: STORAGE_FAILED; it is damaged or of another release.
        """
        try:
            fields = json.loads(data)
            ended = fields["outcome"]
            survivors = tuple(fields["survivors"])
            outcome: Released | Aborted
            if "sum_sha256" in ended:
                outcome = Released(
                    Fate.INCLUDED,
                    bytes.fromhex(ended["sum_sha256"]),
                    ended["sum_bytes"],
                    ended["survivors"],
                    ended["kept_until"],
                )
            else:
                outcome = Aborted(
                    Fate.NOT_INCLUDED if survivors else Fate.NEVER_FIXED,
                    ErrorCode(ended["abort_code"]),
                    ended["abort_reason"],
                )
            return cls(
                descriptor=SessionDescriptor.decode(
                    bytes.fromhex(fields["descriptor"])
                ),
                outcome=outcome,
                members=tuple(fields["members"]),
                advertised=fields["sets"]["U1"],
                shared=fields["sets"]["U2"],
                uploaded=fields["sets"]["U3"],
                signed=fields["sets"]["signed"],
                revealed=fields["sets"]["U5"],
                survivors=survivors,
                was_unmasked=ended.get("was_unmasked", False),
                was_restored=ended.get("was_restored", False),
                disputes=tuple(
                    (str(accuser), str(accused), int(code))
                    for accuser, accused, code in fields["disputes"]
                ),
                failed_dealer=str(fields["failed_dealer"]),
                ring=None
                if fields["ring"] is None
                else RingRisk.from_dict(fields["ring"]),
                is_failure_proven=bool(fields["is_failure_proven"]),
                sessions_left=None
                if fields["sessions_left"] is None
                else int(fields["sessions_left"]),
                noise=None
                if fields["noise"] is None
                else NoiseCertificate.from_dict(fields["noise"]),
                unconfirmed=tuple(map(str, fields["unconfirmed"])),
                lost=tuple(
                    (str(name), str(title), str(reason))
                    for name, title, reason in fields["lost"]
                ),
                finishers=tuple(fields["finishers"]),
                contexts=tuple(bytes.fromhex(text) for text in fields["contexts"]),
                seconds=tuple(sorted(fields["seconds"].items())),
            )
        except _UNREADABLE as error:
            raise ErrorCode.STORAGE_FAILED.error(
                f"a stored receipt cannot be read: {error}",
                fix="Use the release that wrote it.",
            ) from None
