"""The privacy statement: a figure together with everything it depends on.

* No epsilon leaves this package without the accountant's name, its status, the
  adversary, the adjacency and the assumptions it rests on.
* `status` says how the figure is known. It is never upgraded on the way out, and a
  combination of figures carries the weakest status among them.
* `proof` says where the proof of its theorem stands. A combination with one part that
  this project proved is a theorem of this project (`docs/own-theorems.md`).

It computes nothing.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from dpnoise.events import Adjacency, Adversary
from dpnoise.floats import text_above
from dpnoise.own_parts import is_own

MIXTURE_ASSUMPTIONS: Final = (
    "Clients enforce the bounds on the norm and on every coordinate.",
    "Every coordinate is rounded by an independent draw.",
)
"""What every theorem on the Skellam mixture assumes."""


class Status(enum.StrEnum):
    """How a privacy figure is known, from strongest to weakest."""

    PROVEN = "proven"
    """A published proof, evaluated in closed form."""

    CERTIFIED = "certified"
    """A theorem whose finite hypothesis was verified by outward-rounded arithmetic."""

    NUMERICAL = "numerical"
    """Computed in floating point without rigorous error bounds."""

    RECALLED = "recalled"
    """A published constant that was not verified; for comparisons only."""

    HYPOTHETICAL = "hypothetical"
    """Rests on an assumption that no deployment meets; for comparisons only."""


class Proof(enum.StrEnum):
    """Where the proof of a theorem stands."""

    PUBLISHED = "published"
    """In a publication that the accountant cites."""

    OWN = "own"
    """In this package; no reviewer outside of this project has read it."""


_STRENGTH = {status: rank for rank, status in enumerate(Status)}


def weakest(statuses: Iterable[Status]) -> Status:
    """Return the weakest status, or `Status.PROVEN` if the sequence is empty."""
    return max(statuses, key=_STRENGTH.__getitem__, default=Status.PROVEN)


def least_reviewed(proofs: Iterable[Proof]) -> Proof:
    """Return `Proof.OWN` if a part of a combination has it, else `Proof.PUBLISHED`."""
    return Proof.OWN if Proof.OWN in proofs else Proof.PUBLISHED


def weakened(statement: "PrivacyStatement", mechanism: str) -> "PrivacyStatement":
    """Return a statement, weakened where a program's own part decides it.

    Only the author of a registered part says that its events, or its figures, are
    right: such a figure is numerical at most, and its proof an own one.

    Args:
        statement: What an accountant has stated.
        mechanism: Name of the mechanism whose event it accounts for.
    """
    if not (is_own(mechanism) or is_own(statement.accountant)):
        return statement
    status = weakest((statement.status, Status.NUMERICAL))
    return replace(statement, status=status, proof=Proof.OWN)


def privacy_unit(charges: int) -> str:
    """Return whose data an epsilon protects, and in how many sessions.

    Args:
        charges: Most sessions that one client's data enter, at least 1.
    """
    sessions = f"{charges} sessions; which of them"
    if charges == 1:
        sessions = "1 session; which one"
    return (
        f"one client's data, in at most {sessions} does not depend on its data or its "
        "noise"
    )


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """What is claimed, against whom, between which worlds, and on what grounds.

    Args:
        epsilon: Privacy loss bound in nats, at least 0; infinite if nothing is
            guaranteed at this delta.
        delta: Failure probability, in (0, 1).
        accountant: Name of the accountant that computed the figure.
        status: How the figure is known.
        proof: Where the proofs of its theorems stand.
        adversary: Whom the claim holds against.
        adjacency: Which two worlds it makes alike.
        assumptions: Sentences that must be true outside this package.
        details: Figures that allow a reviewer to repeat the computation.
    """

    epsilon: float
    delta: float
    accountant: str
    status: Status
    proof: Proof
    adversary: Adversary
    adjacency: Adjacency
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def figures(self, *, added_delta: float = 0.0) -> str:
        """Return both figures as people read them, rounded up.

        Args:
            added_delta: What else can go wrong, at least 0.
        """
        return (
            f"epsilon {text_above(self.epsilon, 4)}, "
            f"delta {text_above(self.delta + added_delta, 3)}"
        )

    @property
    def grounds(self) -> str:
        """Return status and proof in words, such as "certified (own proof)"."""
        own = " (own proof)" if self.proof is Proof.OWN else ""
        return f"{self.status.value}{own}"

    def to_dict(self) -> dict[str, object]:
        """Return the statement as values that JSON can hold.

        An infinite epsilon becomes the string "inf", since JSON has no infinity.
        """
        finite = self.epsilon != float("inf")
        return {
            "epsilon": self.epsilon if finite else "inf",
            "delta": self.delta,
            "accountant": self.accountant,
            "status": self.status.value,
            "proof": self.proof.value,
            "adversary": self.adversary.value,
            "adjacency": self.adjacency.value,
            "assumptions": list(self.assumptions),
            "details": dict(self.details),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the statement that `to_dict` wrote.

        Raises:
            KeyError: A key is missing.
            ValueError: A value is invalid for its field.
        """
        return cls(
            epsilon=float(document["epsilon"]),
            delta=float(document["delta"]),
            accountant=str(document["accountant"]),
            status=Status(document["status"]),
            proof=Proof(document["proof"]),
            adversary=Adversary(document["adversary"]),
            adjacency=Adjacency(document["adjacency"]),
            assumptions=tuple(str(each) for each in document["assumptions"]),
            details=MappingProxyType(
                {str(key): str(value) for key, value in document["details"].items()}
            ),
        )
