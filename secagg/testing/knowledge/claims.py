"""What the adversary may know at most, checked after every run, aborted ones too.

1. One sum: a session reveals at most one combination of honest inputs.
2. Honest part: it adds up each honest client of U3 once, and nobody else.
3. Size: at least min_survivors - c honest inputs are in it.
4. Noise: beside an observed client it holds as many honest noise shares as the privacy
   report of the task counts.
5. One secret: of no honest client both the mask key and the self-mask seed are known.
6. Budget: no more sums contain a client than its own book says it was charged for.

Source:
    PROTOCOL §2 (what each profile promises), §5.5, §12.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

from secagg.testing.knowledge.closure import Closure, Kind, close, shortened
from secagg.testing.knowledge.facts import Facts, MaskView, PairMask, SelfMask
from secagg.testing.knowledge.sums import RevealedSum, revealed_sums

__all__ = ["Claim", "ForbiddenKnowledgeError", "Violation", "check", "violations"]

_SHOWN: Final = 6  # reasons of one sum: enough to see how, few enough to read


@unique
class Claim(Enum):
    """The claims, as sentences."""

    ONE_SUM = "a session reveals at most one sum"
    HONEST_PART = "a revealed sum is that of all honest clients of U3"
    SIZE = "a revealed sum holds min_survivors - colluders honest inputs"
    NOISE = "a revealed sum holds the noise shares that the report counts"
    ONE_SECRET = "of no honest client both secrets are known"  # noqa: S105 - a sentence
    BUDGET = "no client is in more sums than it was charged for"


@dataclass(frozen=True, slots=True)
class Violation:
    """A claim that does not hold.

    Attributes:
        claim: Which.
        who: The honest clients that it harms, ascending.
        lines: Where, what, and from which facts it follows.
    """

    claim: Claim
    who: tuple[str, ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join((f"not so: {self.claim.value}", *self.lines))


class ForbiddenKnowledgeError(AssertionError):
    """The adversary knows more than the protocol promises.

    Attributes:
        violations: Every claim that does not hold.
    """

    def __init__(self, found: Iterable[Violation]) -> None:
        self.violations = tuple(found)
        super().__init__("\n" + "\n".join(map(str, self.violations)))


def check(
    facts: Facts,
    *,
    charged: Mapping[str, int],
    counted_noise_shares: int | None = None,
) -> tuple[RevealedSum, ...]:
    """Check every claim over all sessions of a task.

    Args:
        facts: What the adversary saw and holds.
        charged: How many sessions each client's own book shows as spent now, what
            was given back taken off; a name that is missing was charged nothing.
        counted_noise_shares: How many noise shares beside the observed client's the
            task's privacy report counts; default min_survivors - colluders - 1 where
            the task has noise.

    Returns:
        The sums that the adversary knows, which are then allowed.

    Raises:
        ForbiddenKnowledgeError: A claim does not hold; it says how that was derived.
    """
    closure = close(facts)
    sums = revealed_sums(closure)
    found = tuple(
        violations(
            closure, sums, charged=charged, counted_noise_shares=counted_noise_shares
        )
    )
    if found:
        raise ForbiddenKnowledgeError(found)
    return sums


def violations(
    closure: Closure,
    sums: tuple[RevealedSum, ...],
    *,
    charged: Mapping[str, int],
    counted_noise_shares: int | None = None,
) -> Iterator[Violation]:
    """Yield every claim that does not hold; see `check`."""
    yield from _one_sum(closure, sums)
    for each in sums:
        yield from _honest_part(closure, each)
        yield from _size(closure, each)
        yield from _noise(closure, each, counted_noise_shares)
    yield from _one_secret(closure)
    yield from _budget(closure, sums, charged)


def _one_sum(closure: Closure, sums: tuple[RevealedSum, ...]) -> Iterator[Violation]:
    by_session: dict[bytes, list[RevealedSum]] = {}
    for each in sums:
        by_session.setdefault(each.view.roster.session.session_id, []).append(each)
    for together in by_session.values():
        if len(together) > 1:
            session = together[0].view.roster.session
            yield Violation(
                Claim.ONE_SUM,
                _names(name for each in together for name in each.members),
                (
                    f"{session}: {len(together)} sums",
                    *(line for each in together for line in _derivation(closure, each)),
                ),
            )


def _honest_part(closure: Closure, revealed: RevealedSum) -> Iterator[Violation]:
    view = revealed.view
    stated = [
        {view.roster.identity(index) for index in survivors} - set(closure.facts.seeds)
        for survivors in closure.facts.survivors.get(view.ctx2, ())
    ]
    if revealed.is_plain_sum and revealed.members in stated:
        return
    told = " or ".join(f"{{{shortened(sorted(part))}}}" for part in stated) or "none"
    yield Violation(
        Claim.HONEST_PART,
        _names(revealed.members),
        (
            f"{view.roster.session}: honest part of U3 is {told}",
            *_derivation(closure, revealed),
        ),
    )


def _size(closure: Closure, revealed: RevealedSum) -> Iterator[Violation]:
    parameters = revealed.view.roster.session.parameters
    promised = parameters.min_survivors - parameters.colluders
    if len(revealed.members) < promised:
        yield Violation(
            Claim.SIZE,
            _names(revealed.members),
            (
                (
                    f"{revealed.view.roster.session}: {len(revealed.members)} inputs, "
                    f"{promised} were promised"
                ),
                *_derivation(closure, revealed),
            ),
        )


def _noise(
    closure: Closure, revealed: RevealedSum, counted: int | None
) -> Iterator[Violation]:
    parameters = revealed.view.roster.session.parameters
    if not parameters.noise_block:
        return
    if counted is None:
        counted = parameters.min_survivors - parameters.colluders - 1
    # The observed client may know or choose its own input: its share does not count.
    present = len(revealed.members) - 1
    if present < counted:
        yield Violation(
            Claim.NOISE,
            _names(revealed.members),
            (
                (
                    f"{revealed.view.roster.session}: {present} noise shares beside "
                    f"an observed client, the report counts {counted}"
                ),
                *_derivation(closure, revealed),
            ),
        )


def _one_secret(closure: Closure) -> Iterator[Violation]:
    seen = set()
    for view in closure.facts.rosters:
        for advert in view.roster.adverts:
            key = closure.knows(Kind.MASK_KEY, advert)
            seed = closure.knows(Kind.SELF_MASK_SEED, advert)
            is_corrupt = advert.identity in closure.facts.seeds
            if key is None or seed is None or is_corrupt or advert in seen:
                continue
            seen.add(advert)
            yield Violation(
                Claim.ONE_SECRET,
                (advert.identity,),
                (
                    f"{view.session}: both secrets of {advert.identity!r}",
                    f"s^SK: {key.because}",
                    f"b: {seed.because}",
                ),
            )


def _budget(
    closure: Closure, sums: tuple[RevealedSum, ...], charged: Mapping[str, int]
) -> Iterator[Violation]:
    of_client: dict[str, list[RevealedSum]] = {}
    for each in sums:
        for name in each.members:
            of_client.setdefault(name, []).append(each)
    overdrawn = {
        name: known
        for name, known in of_client.items()
        if len(known) > charged.get(name, 0)
    }
    if not overdrawn:
        return
    worst = max(sorted(overdrawn), key=lambda name: len(overdrawn[name]))
    known = overdrawn[worst]
    yield Violation(
        Claim.BUDGET,
        _names(overdrawn),
        (
            f"{shortened(map(repr, _names(overdrawn)))}: in more sums than charged for",
            f"{worst!r}: charged {charged.get(worst, 0)}, in {len(known)} sums",
            *(line for each in known[:2] for line in _derivation(closure, each)),
        ),
    )


def _names(members: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(members)))


def _derivation(closure: Closure, revealed: RevealedSum) -> Iterator[str]:
    """Say in a few lines what a sum is and what made it computable."""
    view = revealed.view
    what = "parity of the sum" if revealed.is_parity else "sum"
    if revealed.is_plain_sum or revealed.is_parity:
        listed = shortened(sorted(revealed.members))
    else:
        listed = shortened(f"{n:+d} {v.sender}" for v, n in revealed.terms)
    yield f"{what} of {len(revealed.terms)} inputs of {view.roster.session}: {listed}"
    reasons: dict[str, None] = {}  # in order, without repetition
    for vector, _ in revealed.terms:
        for mask in vector.masks:
            known = closure.knows_mask(view, mask)
            if known is not None:
                owner = _source_of(closure, view, mask)
                reasons.setdefault(f"{owner} by {known.because}")
    for reason in list(reasons)[:_SHOWN]:
        yield f"  knows {reason}"
    if len(reasons) > _SHOWN:
        yield f"  knows {len(reasons) - _SHOWN} more secrets in the same way"
    yield "  what other masks it has cancel among its members"


def _source_of(closure: Closure, view: MaskView, mask: SelfMask | PairMask) -> str:
    """Name the secret that gives a known mask."""
    adverts = view.roster.roster.adverts
    match mask:
        case SelfMask(client):
            return f"b of {adverts[client].identity!r}"
        case PairMask(low, high):
            has_low = closure.knows(Kind.MASK_KEY, adverts[low]) is not None
            return f"s^SK of {adverts[low if has_low else high].identity!r}"
