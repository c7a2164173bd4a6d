"""Breaches: sound cases of the client's gate, each broken in one rule only.

To add one: write a function that returns a `Breach`, named as its cell in
`tests/architecture/rules.toml`, and decorate it with `breach`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from secagg_testing.cohorts import offer_of, parameters_for, report_of
from secagg_testing.two_aggregators import TASK, noise_for

from secagg.client.budget import OwnTotal, budget_key_of
from secagg.client.gate import (
    GateRequest,
    GateStage,
    KnownFacts,
    OwnEnrolment,
    OwnRules,
)
from secagg.distributed_dp import TaskLoss
from secagg.errors import ErrorCode
from secagg.pki.client_identity import load_client_identity
from secagg.pki.key_files import parse_key
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.enrolment import ClientIdentity
from secagg.protocol.policy import ClientPolicy, PrivacyLimits, TotalBudget
from secagg.protocol.profiles import Trust
from secagg.storage.budget_ledger import ChargeRow, ChargeState, ClaimAdversary
from secagg.two_aggregators.gate import PairRequest, PairRules
from tests.rules import drivers

OFFER, RESUME = GateStage.OFFER, GateStage.RESUME


@dataclass(frozen=True)
class Breach:
    """A request that breaks one rule.

    Attributes:
        request: What is checked.
        check: Name of the row that refuses it.
        code: The code that it is refused with.
    """

    request: GateRequest | PairRequest
    check: str
    code: ErrorCode = ErrorCode.POLICY_VIOLATION


BREACHES: Final[dict[str, Callable[[], Breach]]] = {}


def breach(make: Callable[[], Breach]) -> Callable[[], Breach]:
    """Put a breach into the list of all."""
    BREACHES[make.__name__] = make
    return make


def at_both(name: str) -> Callable[[Callable[[GateStage], Breach]], None]:
    """Make two breaches, ``offer_NAME`` and ``record_NAME``, of one function."""

    def decorate(make: Callable[[GateStage], Breach]) -> None:
        BREACHES[f"offer_{name}"] = lambda: make(OFFER)
        BREACHES[f"record_{name}"] = lambda: make(RESUME)

    return decorate


# --- sound cases ----


def sound(
    stage: GateStage = OFFER, *, offer: SessionDescriptor | None = None, **own: Any
) -> GateRequest:
    """Return a request about a noisy task that the gate admits."""
    rules = {
        "limits": PrivacyLimits(**drivers.LAX),
        "cohort": drivers.LAX_COHORT,
        "report_of": report_of,
    }
    offer, now = offer or drivers.offered(), int(time.time())
    return GateRequest(
        offer=offer,
        stage=stage,
        aggregator=offer.aggregator,
        trust_domain=None,
        now=now,
        own=OwnRules(**(rules | own)),
        known=KnownFacts(),
        joined_at=now if stage is RESUME else None,
    )


def identity() -> ClientIdentity:
    files = drivers.enrolled().files
    return load_client_identity(
        seed=files.seed,
        credential=files.credential,
        enrolment_key=parse_key(files.enrolment_key),
        trust_domain=None,
        name=drivers.NAME,
        now=int(time.time()),
    )


def sound_enrolled(
    stage: GateStage = OFFER, *, number: int = 2, trust: Trust | None = None, **own: Any
) -> GateRequest:
    """Return a request of an enrolled client that the gate admits."""
    lists = drivers.enrolled().lists
    changes = {} if trust is None else {"trust": trust}
    enrolment = OwnEnrolment(**({"identity": identity()} | own))
    request = sound(
        stage,
        offer=drivers.enrolled().offer(number, **changes),
        limits=drivers.WAIVED.limits,
        enrolment=enrolment,
    )
    if stage is RESUME:
        made_at = request.now - 10 * drivers.DAY
        return replace(request, known=KnownFacts(list_made_at=made_at))
    return replace(request, revocations=lists[number - 1])


def sound_pair(**changes: Any) -> PairRequest:
    """Return a request about a session between two that the gate admits."""
    parameters, now = noise_for().parameters, int(time.time())
    helper = offer_of(
        parameters, aggregator="helper", task_id=TASK, session_end=now + 300
    )
    leader = replace(helper, aggregator="leader", server_nonce=helper.session_id)
    own = {
        "task": TASK,
        "names": ("leader", "helper"),
        "limits": PrivacyLimits(**drivers.LAX),
        "cohort": ClientPolicy(),
    }
    own |= {name: changes.pop(name) for name in tuple(own) if name in changes}
    total = changes.pop("total", None)
    fields = {
        "leader": leader,
        "helper": helper,
        "aggregators": ("leader", "helper"),
        "trust_domain": None,
        "now": now,
        "own": PairRules(**own, total=total),
        "known": KnownFacts(),
    }
    return PairRequest(**(fields | changes))


def exhausted(offer: SessionDescriptor, sessions: int) -> KnownFacts:
    """Return what a store knows whose budget for an offer's task is spent."""
    row = ChargeRow(
        budget=budget_key_of(offer, trust_domain=None),
        session_id=bytes(32),
        noise_digest=sha256(offer.parameters.noise_block).digest(),
        state=ChargeState.KEPT,
        allowed=sessions,
        refunds=0,
        at=0.0,
    )
    ids = [bytes([number]) * 32 for number in range(1, sessions + 1)]
    return KnownFacts(charges=[replace(row, session_id=each) for each in ids])


SMALL_TOTAL: Final = OwnTotal(
    budget=TotalBudget(data="data", epsilon=0.1, delta=1e-9),
    against=ClaimAdversary.SERVER,
    loss_of=lambda _: TaskLoss(epsilon=1.0, delta=1e-6),
)


# --- one aggregator ----


@at_both("that_cannot_be")
def _form(stage: GateStage) -> Breach:
    odd = parameters_for(4, dimension=4, threshold=1, min_survivors=3, min_clients=3)
    request = sound(
        stage, offer=drivers.offered(parameters=odd), limits=drivers.WAIVED.limits
    )
    return Breach(request, "form", ErrorCode.BAD_CONFIG)


@at_both("of_another")
def _another(stage: GateStage) -> Breach:
    request = replace(sound(stage), aggregator="another")
    return Breach(request, "aggregator", ErrorCode.UNAUTHENTICATED)


@at_both("of_another_domain")
def _domain(stage: GateStage) -> Breach:
    own = identity()
    foreign = replace(own, issued=replace(own.issued, trust_domain="other.example"))
    request = sound_enrolled(stage, identity=foreign)
    return Breach(request, "trust domain", ErrorCode.UNAUTHENTICATED)


@at_both("proven_of_another_domain")
def _proven_domain(stage: GateStage) -> Breach:
    request = replace(sound_enrolled(stage), trust_domain="other.example")
    return Breach(request, "trust domain", ErrorCode.UNAUTHENTICATED)


@breach
def offer_of_an_old_number() -> Breach:
    request = replace(sound(), known=KnownFacts(highest_number=1))
    return Breach(request, "number", ErrorCode.REPLAYED_SESSION)


@breach
def offer_that_is_over() -> Breach:
    request = sound()
    request = replace(request, now=request.offer.session_end)
    return Breach(request, "clock", ErrorCode.BAD_CLOCK)


@breach
def record_that_is_over() -> Breach:
    request = sound(RESUME)
    request = replace(request, now=request.offer.session_end)
    return Breach(request, "end", ErrorCode.DEADLINE)


@at_both("by_another_key")
def _key(stage: GateStage) -> Breach:
    foreign = replace(identity(), enrolment_key=bytes([23]) * 32)
    return Breach(sound_enrolled(stage, identity=foreign), "enrolment key")


@at_both("by_an_older_list")
def _older(stage: GateStage) -> Breach:
    request = sound_enrolled(stage, number=1)
    newest = drivers.enrolled().trust(2)
    known = replace(request.known, newest_list=newest)
    return Breach(replace(request, known=known), "list number")


@at_both("with_a_small_cohort")
def _cohort(stage: GateStage) -> Breach:
    cohort = replace(drivers.LAX_COHORT, min_survivors=60_000)
    return Breach(sound(stage, cohort=cohort), "cohort")


@at_both("with_little_noise")
def _noise(stage: GateStage) -> Breach:
    limits = PrivacyLimits(**(drivers.LAX | {"max_epsilon": 0.5}))
    return Breach(sound(stage, limits=limits), "limits")


@at_both("beyond_the_budget")
def _budget(stage: GateStage) -> Breach:
    request = sound(stage)
    return Breach(replace(request, known=exhausted(request.offer, 1)), "budget")


@at_both("beyond_the_total")
def _total(stage: GateStage) -> Breach:
    return Breach(sound(stage, total=SMALL_TOTAL), "total")


@breach
def offer_with_a_forged_list() -> Breach:
    known = drivers.enrolled()
    forged = known.lists[1][:-1] + bytes([known.lists[1][-1] ^ 1])
    trust = Trust(known.domain, known.key, 2, sha256(forged).digest())
    request = replace(sound_enrolled(trust=trust), revocations=forged)
    return Breach(request, "list", ErrorCode.BAD_CREDENTIAL)


@at_both("by_an_aged_list")
def _aged(stage: GateStage) -> Breach:
    return Breach(
        sound_enrolled(stage, max_revocation_seconds=float(drivers.DAY)), "list age"
    )


# --- two aggregators ----


@breach
def pair_that_does_not_belong_together() -> Breach:
    pair = sound_pair()
    odd = replace(pair.leader, payload_hash=bytes(32))
    return Breach(sound_pair(leader=odd), "pair", ErrorCode.BAD_CONFIG)


@breach
def pair_of_another() -> Breach:
    request = sound_pair(aggregators=("third", "helper"))
    return Breach(request, "names", ErrorCode.UNAUTHENTICATED)


@breach
def pair_that_is_not_expected() -> Breach:
    return Breach(sound_pair(names=("leader", "third")), "names")


@breach
def pair_of_another_task() -> Breach:
    return Breach(sound_pair(task="other"), "task")


@breach
def pair_of_an_old_number() -> Breach:
    request = sound_pair(known=KnownFacts(highest_number=1))
    return Breach(request, "number", ErrorCode.REPLAYED_SESSION)


@breach
def pair_that_is_over() -> Breach:
    request = sound_pair()
    request = replace(request, now=request.leader.session_end)
    return Breach(request, "clocks", ErrorCode.BAD_CLOCK)


@breach
def pair_with_a_small_cohort() -> Breach:
    return Breach(sound_pair(cohort=ClientPolicy(min_survivors=60_000)), "cohort")


@breach
def pair_with_little_noise() -> Breach:
    limits = PrivacyLimits(**(drivers.LAX | {"max_epsilon": 0.5}))
    return Breach(sound_pair(limits=limits), "limits")


@breach
def pair_beyond_the_budget() -> Breach:
    request = sound_pair()
    return Breach(replace(request, known=exhausted(request.leader, 2)), "budget")


@breach
def pair_beyond_the_total() -> Breach:
    return Breach(sound_pair(total=SMALL_TOTAL), "total")
