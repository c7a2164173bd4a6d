"""A client's ledger of data: which tasks have a claim on them, and how large.

Rule 1: a claim is a task's whole loss.  It is written once, before the client first
        joins the task, and stays: no word of a server takes a claim back.
Rule 2: whoever adds a claim says how many of the data's it has judged; if there are
        others by then, nothing is written.
Rule 3: a claim covers the sessions that one book counts.  Another book counts anew, so
        its claim on the same task is another claim.
"""

from dataclasses import dataclass
from enum import StrEnum, unique

__all__ = ["Against", "Claim", "ClaimRow"]


@unique
class Against(StrEnum):
    """The adversary that a claim is stated against."""

    SERVER = "server"
    """An aggregator and its colluders."""
    BROKEN_MASKS = "broken-masks"
    """Somebody who sees every vector alone, and so also any weaker one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a task may cost the data that are given to it.

    Attributes:
        data: Name of the data, the client owner's.
        holder: Name of the book that counts the task's sessions.
        task: Name of the task.
        noise_digest: SHA-256 of what the figures follow from.
        against: The adversary of the figures.
        epsilon: Over all sessions that the task's budget covers.
        delta: That goes with it.
        shift: Of a Gaussian release that dominates them all; None where none is known.
        distance: Total variation distance on top of that release.
        added_delta: Part of delta that no such release covers.
    """

    data: str
    holder: bytes
    task: str
    noise_digest: bytes
    against: Against
    epsilon: float
    delta: float
    shift: float | None
    distance: float
    added_delta: float

    def is_of(self, other: "Claim") -> bool:
        """Return whether both are the one claim of a task on its data."""
        return (self.data, self.holder, self.task, self.noise_digest) == (
            other.data,
            other.holder,
            other.task,
            other.noise_digest,
        )


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim that was made.

    Attributes:
        claim: The claim.
        at: When, in Unix seconds.
    """

    claim: Claim
    at: float
