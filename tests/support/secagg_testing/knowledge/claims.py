"""What the adversary may know at most, checked after every run, aborted ones too.

1. One sum: under one roster a session reveals at most one combination of honest inputs.
   A malicious server may send several rosters (PROTOCOL §13); each is checked alone.
2. Honest part: it adds up each honest client of U3 once, and no other; in profile
   malicious-server-sparse all but so few as the parameters concede.
3. Size: at least min_survivors - c honest inputs are in it.
4. Noise: beside an observed client it holds as many honest noise shares as the privacy
   report of the task counts.
5. One secret: of no honest client both the mask key and the self-mask seed are known.
6. Budget: no more sums contain a client than its own store says it was charged for.

Where the server is not trusted, four more, from which the others follow:

7. Authentic: an honest client deals only to adverts that their clients have sent.
8. One signature: an honest client signs one set U3.  Whose identity key is stolen is no
   honest client in this and in the others of the four.
9. Agreed: honest clients of one roster answer for one set U3, which as many of them
   have signed as a quorum has beside the colluders.
10. One roster: each honest member of a U3 that an honest client answers for has dealt
   under the roster of that client (R5.3-13).

Where several aggregators share a trust domain, two more:

11. Own: a client names a session to the aggregator of its offer alone (R5.0-6).
12. Apart: of the sessions of an honest aggregator the adversary knows no sum.

Source:
    PROTOCOL §2 (what each profile promises), §5.0, §5.5, §12.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

from secagg_testing.knowledge.closure import Closure, Kind, close, shortened
from secagg_testing.knowledge.facts import Facts, SelfMask, Session
from secagg_testing.knowledge.noise import noise_shortfall
from secagg_testing.knowledge.sums import RevealedSum, revealed_sums

# ctx2 and U3.
_SetName = tuple[bytes, frozenset[int]]
# A session and ctx1.
_RosterName = tuple[Session, bytes]
_SHOWN: Final = 2  # secrets of a kind: enough to see how, few enough to read


@unique
class Claim(Enum):
    """The claims, as sentences."""

    ONE_SUM = "a roster reveals at most one sum"
    HONEST_PART = "a revealed sum is that of all honest clients of U3"
    SIZE = "a revealed sum holds min_survivors - colluders honest inputs"
    NOISE = "a revealed sum holds the noise shares that the report counts"
    ONE_SECRET = "of no honest client both secrets are known"
    BUDGET = "no client is in more sums than it was charged for"
    AUTHENTIC = "honest clients deal to none but the keys of their peers"
    ONE_SIGNATURE = "an honest client signs one set"
    AGREED = "honest clients of a roster answer for one set, which a quorum has signed"
    ONE_ROSTER = "who is answered for has dealt under the same roster"
    OWN = "a session is named to the aggregator of its offer alone"
    APART = "of the sessions of an honest aggregator no sum is known"


@dataclass(frozen=True, slots=True)
class Violation:
    """A claim that does not hold.

    Attributes:
        claim: Which.
        who: The honest clients that it harms, ascending.
        lines: Where, and by how much.
        sums: The sums that break it.
    """

    claim: Claim
    who: tuple[str, ...]
    lines: tuple[str, ...]
    sums: tuple[RevealedSum, ...] = ()


class ForbiddenKnowledgeError(AssertionError):
    """The adversary knows more than the protocol promises.

    Its text lists the claims that do not hold, and then how each sum in question
    became computable.

    Attributes:
        violations: Every claim that does not hold.
    """

    def __init__(self, found: Iterable[Violation], closure: Closure) -> None:
        self.violations = tuple(found)
        sums = {each: None for violation in self.violations for each in violation.sums}
        number_of = {each: number for number, each in enumerate(sums, 1)}
        lines = [""]
        for violation in self.violations:
            lines.append(f"not so: {violation.claim.value}")
            lines += [f"  {line}" for line in violation.lines]
            if violation.sums:
                numbers = [str(number_of[each]) for each in violation.sums]
                lines.append(f"  see below: sum {shortened(numbers)}")
        for each, number in number_of.items():
            lines.append(f"sum {number}: {_description(each)}")
            lines += [f"  {line}" for line in _derivation(closure, each)]
        super().__init__("\n".join(lines))


def check(
    facts: Facts,
    *,
    charged: Mapping[str, int],
    counted_noise_shares: int | None = None,
) -> tuple[RevealedSum, ...]:
    """Check every claim over all sessions of a task.

    Args:
        facts: What the adversary saw and holds.
        charged: How many sessions each client's own store shows as spent now, less
            refunds; a name that is missing was charged nothing.
        counted_noise_shares: How many noise shares beside the observed client's the
            task's privacy report counts; default: as much variance as the noise block
            of the task states.

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
        raise ForbiddenKnowledgeError(found, closure)
    return sums


def violations(
    closure: Closure,
    sums: tuple[RevealedSum, ...],
    *,
    charged: Mapping[str, int],
    counted_noise_shares: int | None = None,
) -> Iterator[Violation]:
    """Yield every claim that does not hold; see `check`."""
    yield from _one_sum(sums)
    for each in sums:
        yield from _honest_part(closure, each)
        yield from _size(each)
        yield from _noise(closure.facts, each, counted_noise_shares)
        yield from _apart(closure.facts, each)
    yield from _one_secret(closure)
    yield from _budget(sums, charged)
    for rule in (_authentic, _one_signature, _agreed, _one_roster, _own):
        yield from rule(closure.facts)


def _one_sum(sums: tuple[RevealedSum, ...]) -> Iterator[Violation]:
    by_roster: dict[_RosterName, list[RevealedSum]] = {}
    for each in sums:
        roster = each.view.roster
        by_roster.setdefault((roster.session, roster.ctx1), []).append(each)
    for (session, _), together in by_roster.items():
        if len(together) > 1:
            yield Violation(
                Claim.ONE_SUM,
                _names(name for each in together for name in each.members),
                (f"{session}: {len(together)} sums under one roster",),
                tuple(together),
            )


def _honest_part(closure: Closure, revealed: RevealedSum) -> Iterator[Violation]:
    view = revealed.view
    stated = [
        {view.roster.identity(index) for index in survivors} - set(closure.facts.seeds)
        for survivors in closure.facts.survivors.get(view.ctx2, ())
    ]
    # PROTOCOL §11.4: where clients draw their neighbours, a few may stay out.
    apart = view.roster.session.parameters.max_omitted(view.roster.size)
    if revealed.is_plain_sum and any(
        revealed.members <= part and len(part - revealed.members) <= apart
        for part in stated
    ):
        return
    told = (
        " or ".join(f"{{{shortened(sorted(part))}}}" for part in stated) or "no client"
    )
    yield Violation(
        Claim.HONEST_PART,
        _names(revealed.members),
        (f"{view.roster.session}: the honest part of U3 is {told}",),
        (revealed,),
    )


def _size(revealed: RevealedSum) -> Iterator[Violation]:
    session = revealed.view.roster.session
    promised = session.parameters.min_survivors - session.parameters.colluders
    present = len(revealed.members)
    if present < promised:
        yield Violation(
            Claim.SIZE,
            _names(revealed.members),
            (f"{session}: {present} inputs, promised were {promised}",),
            (revealed,),
        )


def _noise(
    facts: Facts, revealed: RevealedSum, counted: int | None
) -> Iterator[Violation]:
    session = revealed.view.roster.session
    if not session.parameters.noise_block:
        return
    if counted is None:
        shortfall = noise_shortfall(facts, revealed)
    else:
        # The observed client may know or choose its own input: its share does not
        # count.
        present = len(revealed.members) - 1
        shortfall = (
            None
            if present >= counted
            else f"{present} noise shares beside an observed client, the report counts "
            f"{counted}"
        )
    if shortfall is not None:
        yield Violation(
            Claim.NOISE,
            _names(revealed.members),
            (f"{session}: {shortfall}",),
            (revealed,),
        )


def _one_secret(closure: Closure) -> Iterator[Violation]:
    seen = set()
    for view in closure.facts.rosters:
        for advert in view.adverts.values():
            key = closure.has_secret(Kind.MASK_KEY, advert)
            seed = closure.has_secret(Kind.SELF_MASK_SEED, advert)
            is_corrupt = advert.identity in closure.facts.seeds
            if key is None or seed is None or is_corrupt or advert in seen:
                continue
            seen.add(advert)
            yield Violation(
                Claim.ONE_SECRET,
                (advert.identity,),
                (
                    f"{view.session}: both secrets of {advert.identity}",
                    f"s^SK: {key.because}",
                    f"b: {seed.because}",
                ),
            )


def _budget(
    sums: tuple[RevealedSum, ...], charged: Mapping[str, int]
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
    if overdrawn:
        lines = [
            f"{name}: charged {charged.get(name, 0)}, in {len(known)} sums"
            for name, known in sorted(overdrawn.items())
        ]
        yield Violation(
            Claim.BUDGET,
            _names(overdrawn),
            (shortened(lines),),
            tuple({each: None for known in overdrawn.values() for each in known}),
        )


def _authentic(facts: Facts) -> Iterator[Violation]:
    for bundles in facts.bundles:
        view = bundles.view
        dealer = view.identity(bundles.dealer)
        if dealer in facts.seeds or not _is_signed(view.session):
            continue
        strange = {
            advert.identity
            for advert in view.adverts.values()
            if not facts.can_sign_as(advert.identity)
            and advert
            not in facts.adverts.get((view.session.session_id, advert.identity), ())
        }
        if strange:
            yield Violation(
                Claim.AUTHENTIC,
                (dealer,),
                (f"{view.session}: not of {shortened(sorted(strange))}",),
            )


def _one_signature(facts: Facts) -> Iterator[Violation]:
    sets: dict[tuple[Session, str], set[_SetName]] = {}
    for signed in facts.signed:
        roster = signed.view.roster
        key = (roster.session, roster.identity(signed.signer))
        sets.setdefault(key, set()).add((signed.view.ctx2, signed.survivors))
    for (session, name), several in sets.items():
        if len(several) > 1 and not facts.can_sign_as(name):
            yield Violation(
                Claim.ONE_SIGNATURE,
                (name,),
                (f"{session}: {name} has signed {len(several)} sets",),
            )


def _agreed(facts: Facts) -> Iterator[Violation]:
    holders: dict[_RosterName, dict[_SetName, set[str]]] = {}
    for answer in facts.answers:
        roster = answer.view.roster
        name = roster.identity(answer.holder)
        if name not in facts.seeds and _is_signed(roster.session):
            of_roster = holders.setdefault((roster.session, roster.ctx1), {})
            of_roster.setdefault((answer.view.ctx2, answer.survivors), set()).add(name)
    for (session, _), sets in holders.items():
        parameters = session.parameters
        lines = [f"{session}: answers for {len(sets)} sets"] if len(sets) > 1 else []
        for ctx2, survivors in sets:
            signers = {
                name
                for each in facts.signed
                if (each.view.ctx2, each.survivors) == (ctx2, survivors)
                for name in [each.view.roster.identity(each.signer)]
                if not facts.can_sign_as(name)
            }
            if len(signers) + parameters.colluders < parameters.quorum:
                lines.append(
                    f"{session}: signed by {len(signers)} honest clients, a quorum of "
                    f"{parameters.quorum} has {parameters.colluders} colluders at most"
                )
        if lines:
            yield Violation(
                Claim.AGREED,
                _names(name for names in sets.values() for name in names),
                tuple(lines),
            )


def _one_roster(facts: Facts) -> Iterator[Violation]:
    dealt = {
        (bundles.view.ctx1, bundles.view.identity(bundles.dealer))
        for bundles in facts.bundles
    }
    missing: dict[_RosterName, set[str]] = {}
    for answer in facts.answers:
        roster = answer.view.roster
        if roster.identity(answer.holder) in facts.seeds or not _is_signed(
            roster.session
        ):
            continue
        missing.setdefault((roster.session, roster.ctx1), set()).update(
            name
            for name in map(roster.identity, answer.survivors)
            if not facts.can_sign_as(name) and (roster.ctx1, name) not in dealt
        )
    for (session, _), names in missing.items():
        if names:
            yield Violation(
                Claim.ONE_ROSTER,
                _names(names),
                (f"{session}: did not deal: {shortened(sorted(names))}",),
            )


def _own(facts: Facts) -> Iterator[Violation]:
    heard: dict[tuple[Session, str], set[str]] = {}
    for stray in facts.strays:
        if stray.client not in facts.seeds:
            heard.setdefault((stray.session, stray.aggregator), set()).add(stray.client)
    for (session, aggregator), clients in heard.items():
        line = f"{session} is named to {aggregator!r}"
        yield Violation(Claim.OWN, _names(clients), (line,))


def _apart(facts: Facts, revealed: RevealedSum) -> Iterator[Violation]:
    session = revealed.view.roster.session
    if session.descriptor.aggregator in facts.honest:
        line = f"{session} is one of an honest aggregator"
        yield Violation(Claim.APART, _names(revealed.members), (line,), (revealed,))


def _is_signed(session: Session) -> bool:
    """Return whether the profile of the session assumes a malicious server."""
    return session.parameters.profile.has_identities


def _names(members: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(members)))


def _description(revealed: RevealedSum) -> str:
    """Describe the terms of the sum."""
    inputs = [
        vector.sender if factor == 1 else f"{factor:+d} times {vector.sender}"
        for vector, factor in revealed.terms
    ]
    parity = "parity of " if revealed.is_parity else ""
    session = revealed.view.roster.session
    return f"{parity}{len(inputs)} inputs of {session}: {shortened(inputs)}"


def _derivation(closure: Closure, revealed: RevealedSum) -> Iterator[str]:
    """Describe in a few lines how a sum became computable."""
    adverts = revealed.view.roster.adverts
    known: dict[Kind, dict[str, str]] = {Kind.SELF_MASK_SEED: {}, Kind.MASK_KEY: {}}
    for vector, _ in revealed.terms:
        for mask in vector.masks:
            kind = Kind.SELF_MASK_SEED if isinstance(mask, SelfMask) else Kind.MASK_KEY
            for client in mask:
                secret = closure.has_secret(kind, adverts[client])
                if secret is not None:
                    known[kind][adverts[client].identity] = secret.because
    for kind, reasons in known.items():
        for name in sorted(reasons)[:_SHOWN]:
            yield f"{kind.value} of {name}: {reasons[name]}"
        if len(reasons) > _SHOWN:
            yield f"{kind.value} of {len(reasons) - _SHOWN} more in the same way"
    yield "what other masks there are cancel"
