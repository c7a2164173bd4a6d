"""Prove R5.3-13 and R5.0-6 for any number of clients, rosters, sessions and restarts.

A model is a state of relations, of any size, and the steps that change it.  A claim is
proved by an invariant: it holds at the start, every step keeps it, and it gives the
claim.  z3 looks for a state that breaks one of these, and must find none.  Then each
rule is removed in turn, and z3 must find a run in which a claim fails.

The state is what a client has stored and what has left it.  A client stores, then
sends, so that a restart loses nothing of it: every step may be the first after one.
Signatures, shares and TLS are perfect.  Corrupt clients and aggregators do anything.
What the model leaves out: no state is restored to an older one, no key is shared by two
sessions, and a network that loses messages is one in which a step never comes.

Run by `make models`; ends with status 1 if a result is not as it must be.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import z3

State = dict[str, z3.FuncDeclRef]
LONGEST_RUN: Final = 12
"""Steps of the longest run that is looked for."""

SECONDS: Final = 300
"""Time for one formula; z3 has not settled one that takes longer."""


@dataclass(frozen=True)
class Step:
    """One action of a client or an honest aggregator.

    Attributes:
        name: What happens.
        arguments: Who acts, with whom, on what: any of their sorts.
        guard: When it may happen.
        relation: The relation that gains a tuple.
        added: That tuple, of arguments.
    """

    name: str
    arguments: tuple[z3.ExprRef, ...]
    guard: z3.BoolRef
    relation: str
    added: tuple[z3.ExprRef, ...]

    def renamed(self, number: int) -> "Step":
        """Return the step with arguments of its own."""
        own = [
            z3.Const(f"{each}_{self.name}_{number}", each.sort())
            for each in self.arguments
        ]
        pairs = list(zip(self.arguments, own, strict=True))
        guard = z3.substitute(self.guard, *pairs)
        added = tuple(z3.substitute(each, *pairs) for each in self.added)
        return Step(self.name, tuple(own), guard, self.relation, added)


@dataclass(frozen=True)
class Model:
    """One rule in its surroundings.

    Attributes:
        title: What is modelled.
        relations: The sorts of each relation of the state; empty at the start.
        axioms: What holds in every state.
        steps: The steps from a state, without the rules in the set.
        invariant: The parts of the invariant, by name.
        claims: What must hold in every state, by name.
        rules: Each rule that can be removed, and the claim that fails then.
        goals: What some run must reach with all rules, so that no model is safe
            because it does nothing.
    """

    title: str
    relations: dict[str, tuple[z3.SortRef, ...]]
    axioms: tuple[z3.BoolRef, ...]
    steps: Callable[[State, frozenset[str]], list[Step]]
    invariant: Callable[[State], dict[str, z3.BoolRef]]
    claims: Callable[[State], dict[str, z3.BoolRef]]
    rules: dict[str, str]
    goals: Callable[[State], dict[str, z3.BoolRef]]

    def state(self, number: int) -> State:
        """Return the relations of the state after so many steps."""
        return {
            name: z3.Function(f"{name}_{number}", *sorts, z3.BoolSort())
            for name, sorts in self.relations.items()
        }

    def changed(self, old: State, new: State, step: Step) -> z3.BoolRef:
        """Return that the step leads from one state to the other."""
        parts = [step.guard]
        for name, sorts in self.relations.items():
            those = [z3.Const(f"any{i}", sort) for i, sort in enumerate(sorts)]
            holds = old[name](*those)
            if name == step.relation:
                pairs = zip(those, step.added, strict=True)
                holds = z3.Or(holds, z3.And(*(one == other for one, other in pairs)))
            parts.append(z3.ForAll(those, new[name](*those) == holds))
        return z3.And(*parts)

    def empty(self, state: State) -> z3.BoolRef:
        """Return that nothing has happened yet."""
        return z3.And(
            *(
                z3.ForAll(those, z3.Not(state[name](*those)))
                for name, sorts in self.relations.items()
                for those in [[z3.Const(f"any{i}", s) for i, s in enumerate(sorts)]]
            )
        )


def _found(model: Model, *formulas: z3.BoolRef) -> z3.CheckSatResult:
    solver = z3.Solver()
    solver.set("timeout", SECONDS * 1000)
    solver.add(*model.axioms, *formulas)
    return solver.check()


def proof(model: Model) -> Iterator[tuple[str, bool]]:
    """Yield each obligation of the proof, and whether z3 has settled it."""
    old, new = model.state(0), model.state(1)
    before, after = model.invariant(old), model.invariant(new)
    known = z3.And(*before.values())
    yield "the axioms allow a state", _found(model, model.empty(old)) == z3.sat
    for name, part in before.items():
        nothing = _found(model, model.empty(old), z3.Not(part))
        yield f"at the start: {name}", nothing == z3.unsat
    for step in model.steps(old, frozenset()):
        changed = model.changed(old, new, step)
        for name, part in after.items():
            broken = _found(model, known, changed, z3.Not(part))
            yield f"{step.name} keeps: {name}", broken == z3.unsat
    for name, claim in model.claims(old).items():
        yield f"claim: {name}", _found(model, known, z3.Not(claim)) == z3.unsat


def run_to(
    model: Model,
    goal: Callable[[State], z3.BoolRef],
    without: frozenset[str] = frozenset(),
) -> int | None:
    """Return the length of a shortest run to a goal; None if z3 finds none."""
    states = [model.state(0)]
    run = [model.empty(states[0])]
    for length in range(1, LONGEST_RUN + 1):
        old, new = states[-1], model.state(length)
        steps = model.steps(old, without)
        run.append(
            z3.Or(*(model.changed(old, new, each.renamed(length)) for each in steps))
        )
        states.append(new)
        if _found(model, *run, goal(new)) == z3.sat:
            return length
    return None


def _all(*bound: z3.ExprRef, of: z3.BoolRef) -> z3.BoolRef:
    return z3.ForAll(list(bound), of)


def _some(*bound: z3.ExprRef, of: z3.BoolRef) -> z3.BoolRef:
    return z3.Exists(list(bound), of)


def rosters() -> Model:
    """R5.3-13: a session of profile 2 in which a server shows any number of rosters.

    A client that accepts a roster deals its shares and signs its bundles under it.  A
    member has one mask key in the session: shares of it that were dealt under any
    roster take off its masks in all.  A quorum stands for any t members of one roster;
    that two of them share an honest client is the first claim of `thresholds.py`.

    That a roster is stored before anything is dealt, and an answer before it leaves, is
    part of the steps `accept` and `answer`.  Only for the signature is it a rule that
    can be removed.  Sets may name any clients: no rule on their size is needed.
    """
    client, roster = z3.DeclareSort("Client"), z3.DeclareSort("Roster")
    agreed, quorum = z3.DeclareSort("Set"), z3.DeclareSort("Quorum")
    corrupt = z3.Function("corrupt", client, z3.BoolSort())
    under = z3.Function("under", agreed, roster)  # the roster of the set's ctx1
    names = z3.Function("names", agreed, client, z3.BoolSort())
    within = z3.Function("within", quorum, roster)
    has = z3.Function("has", quorum, client, z3.BoolSort())
    c, d, v = z3.Consts("c d v", client)
    r, r2 = z3.Consts("r r2", roster)
    s, u = z3.Consts("s u", agreed)
    q, p = z3.Consts("q p", quorum)

    def signed_by_quorum(now: State, s: z3.ExprRef) -> z3.BoolRef:
        """A corrupt member signs whatever is missing."""
        shown = z3.Or(corrupt(d), now["signed"](d, s))
        by_all = _all(d, of=z3.Implies(has(q, d), shown))
        return _some(q, of=z3.And(within(q) == under(s), by_all))

    def roster_accepted(now: State, s: z3.ExprRef) -> z3.BoolRef:
        shown = z3.Or(corrupt(v), now["accepted"](v, under(s)))
        return _all(v, of=z3.Implies(names(s, v), shown))

    def steps(now: State, without: frozenset[str]) -> list[Step]:
        def rule(name: str, guard: z3.BoolRef) -> z3.BoolRef:
            return z3.BoolVal(val=True) if name in without else guard

        honest = z3.Not(corrupt(c))
        takes_part = z3.And(honest, now["accepted"](c, under(s)), names(s, c))
        first_roster = z3.Not(_some(r2, of=now["accepted"](c, r2)))
        first_set = z3.Not(_some(u, of=now["stored"](c, u)))
        answers = z3.And(
            takes_part,
            now["signed"](c, s),
            rule("R5.5-4, a quorum", signed_by_quorum(now, s)),
            rule("R5.3-13, all have signed the roster", roster_accepted(now, s)),
        )
        accepts = z3.And(honest, rule("R5-8, one roster", first_roster))
        stores = z3.And(takes_part, rule("R5.4-6, one set", first_set))
        is_stored = rule("R5.4-6, stored before signed", now["stored"](c, s))
        signs = z3.And(takes_part, is_stored)
        return [
            Step("accept", (c, r), accepts, "accepted", (c, r)),
            Step("store", (c, s), stores, "stored", (c, s)),
            Step("sign", (c, s), signs, "signed", (c, s)),
            Step("answer", (c, s), answers, "answered", (c, s)),
        ]

    def invariant(now: State) -> dict[str, z3.BoolRef]:
        accepted, stored, signed, answered = now.values()
        two_rosters = z3.And(accepted(c, r), accepted(c, r2))
        two_sets = z3.And(stored(c, s), stored(c, u))
        as_signed = z3.And(signed(c, s), z3.Not(corrupt(c)))
        is_answered = _some(c, of=answered(c, s))
        return {
            "one roster": _all(c, r, r2, of=z3.Implies(two_rosters, r == r2)),
            "one set": _all(c, s, u, of=z3.Implies(two_sets, s == u)),
            "signed, so stored": _all(c, s, of=z3.Implies(signed(c, s), stored(c, s))),
            "signed, so accepted": _all(
                c, s, of=z3.Implies(signed(c, s), accepted(c, under(s)))
            ),
            "answered, so signed": _all(c, s, of=z3.Implies(answered(c, s), as_signed)),
            "answered, so a quorum": _all(
                s, of=z3.Implies(is_answered, signed_by_quorum(now, s))
            ),
            "answered, so all have accepted": _all(
                s, of=z3.Implies(is_answered, roster_accepted(now, s))
            ),
        }

    def claims(now: State) -> dict[str, z3.BoolRef]:
        answered, accepted = now["answered"], now["accepted"]
        both = z3.And(answered(c, s), answered(d, u), under(s) == under(u))
        member = z3.And(answered(c, s), names(s, v), z3.Not(corrupt(v)))
        # A holder shows its share of a mask key when it answers for a set without v.
        excludes = z3.And(answered(d, u), under(u) == r, z3.Not(names(u, v)))
        reveals = z3.Or(corrupt(d), _some(u, of=excludes))
        by_all = _all(d, of=z3.Implies(has(q, d), reveals))
        rebuilt = _some(q, r, of=z3.And(accepted(v, r), within(q) == r, by_all))
        return {
            "Lemma 1": _all(c, d, s, u, of=z3.Implies(both, s == u)),
            "Lemma 2": _all(c, s, v, of=z3.Implies(member, accepted(v, under(s)))),
            "Lemma 3": _all(c, s, v, of=z3.Implies(member, z3.Not(rebuilt))),
        }

    honest_in_both = z3.And(has(q, c), has(p, c), z3.Not(corrupt(c)))
    same_roster = within(q) == within(p)
    return Model(
        "R5.3-13, for any number of clients, rosters and sets of one session",
        {
            "accepted": (client, roster),
            "stored": (client, agreed),
            "signed": (client, agreed),
            "answered": (client, agreed),
        },
        (_all(q, p, of=z3.Implies(same_roster, _some(c, of=honest_in_both))),),
        steps,
        invariant,
        claims,
        {
            "R5-8, one roster": "Lemma 3",
            "R5.4-6, one set": "Lemma 1",
            "R5.4-6, stored before signed": "Lemma 1",
            "R5.5-4, a quorum": "Lemma 1",
            "R5.3-13, all have signed the roster": "Lemma 3",
        },
        lambda now: {
            "an answer": _some(c, s, of=now["answered"](c, s)),
            "an answer beside another roster": _some(
                c,
                d,
                s,
                r,
                of=z3.And(now["answered"](c, s), now["accepted"](d, r), r != under(s)),
            ),
        },
    )


PLACES: Final = ("upload", "answer", "refund", "sum")
"""Where a client asks who answers; each has the claim of its name."""


def connections() -> Model:
    """R5.0-6: any number of clients, sessions and aggregators, some of which lie.

    A client connects to any aggregator at any time, also after a restart, and TLS
    proves which one.  An honest aggregator speaks of its own sessions only, and says
    what it has done; a corrupt one says anything.  A session identifier fixes its
    aggregator.  All clients follow the protocol: a corrupt one can get itself named in
    a set as an honest one can.  No claim or guard depends on what else it does.

    Claims, for a session of an honest aggregator: upload, the masked vector goes to it
    alone; answer, shares leave only for the set that it has shown; refund, no charge is
    returned for a set with the client; sum, a sum is believed only if it released it.
    Three of them follow from the guard of one step.  The refund also needs that an
    honest aggregator fixes one set, and none after it has ended the session.
    """
    client, aggregator = z3.DeclareSort("Client"), z3.DeclareSort("Aggregator")
    session, agreed = z3.DeclareSort("Session"), z3.DeclareSort("Set")
    value = z3.DeclareSort("Sum")
    corrupt = z3.Function("corrupt", aggregator, z3.BoolSort())
    owner = z3.Function("owner", session, aggregator)
    names = z3.Function("names", agreed, client, z3.BoolSort())
    c = z3.Const("c", client)
    a = z3.Const("a", aggregator)
    s = z3.Const("s", session)
    u, u2 = z3.Consts("u u2", agreed)
    x = z3.Const("x", value)
    is_honest = z3.Not(corrupt(owner(s)))

    def not_included(now: State) -> z3.BoolRef:
        """Return that the session ended, or has a set, without the client."""
        excluded = _some(u2, of=z3.And(now["shown"](s, u2), z3.Not(names(u2, c))))
        return z3.Or(now["ended"](s), excluded)

    def steps(now: State, without: frozenset[str]) -> list[Step]:
        def at(place: str, says: z3.BoolRef | None = None) -> z3.BoolRef:
            """Return that the connected aggregator is asked, and says something."""
            rule = f"R5.0-6 at the {place}"
            asked = z3.BoolVal(val=True) if rule in without else a == owner(s)
            if says is None:
                return asked
            return z3.And(asked, z3.Or(corrupt(a), z3.And(a == owner(s), says)))

        is_open = z3.Not(z3.Or(now["ended"](s), _some(u2, of=now["shown"](s, u2))))
        holds_all = _all(c, of=z3.Implies(names(u, c), now["received"](c, s)))
        offered, sent = now["offered"](c, s), now["sent"](c, s, owner(s))
        answered = _some(u2, of=now["answered"](c, s, u2))
        answer = z3.And(offered, names(u, c), z3.Not(answered))
        refund = z3.And(offered, z3.Not(answered))
        has_set = _some(u2, of=now["shown"](s, u2))
        shown, released = now["shown"](s, u), now["released"](s, x)
        return [
            Step("offer", (c, s, a), a == owner(s), "offered", (c, s)),
            Step("upload", (c, s, a), z3.And(offered, at("upload")), "sent", (c, s, a)),
            Step(
                "receive", (c, s), z3.And(is_honest, is_open, sent), "received", (c, s)
            ),
            Step("end", (s,), z3.And(is_honest, is_open), "ended", (s,)),
            Step(
                "show", (s, u), z3.And(is_honest, is_open, holds_all), "shown", (s, u)
            ),
            Step("release", (s, x), z3.And(is_honest, has_set), "released", (s, x)),
            Step(
                "answer",
                (c, s, u, a),
                z3.And(answer, at("answer", shown)),
                "answered",
                (c, s, u),
            ),
            Step(
                "refund",
                (c, s, a),
                z3.And(refund, at("refund", not_included(now))),
                "refunded",
                (c, s),
            ),
            Step(
                "believe",
                (c, s, x, a),
                z3.And(offered, at("sum", released)),
                "believed",
                (c, s, x),
            ),
        ]

    def claims(now: State) -> dict[str, z3.BoolRef]:
        included = z3.And(now["shown"](s, u), names(u, c))
        answers = z3.And(is_honest, now["answered"](c, s, u))
        refunds = z3.And(is_honest, now["refunded"](c, s))
        believes = z3.And(is_honest, now["believed"](c, s, x))
        return {
            "upload": _all(c, s, a, of=z3.Implies(now["sent"](c, s, a), a == owner(s))),
            "answer": _all(c, s, u, of=z3.Implies(answers, now["shown"](s, u))),
            "refund": _all(c, s, u, of=z3.Implies(refunds, z3.Not(included))),
            "sum": _all(c, s, x, of=z3.Implies(believes, now["released"](s, x))),
        }

    def invariant(now: State) -> dict[str, z3.BoolRef]:
        shown = z3.And(now["shown"](s, u), now["shown"](s, u2))
        ended = z3.And(now["ended"](s), now["shown"](s, u))
        refunds = z3.And(is_honest, now["refunded"](c, s))
        return claims(now) | {
            "one set": _all(s, u, u2, of=z3.Implies(shown, u == u2)),
            "no set of an ended session": _all(s, u, of=z3.Not(ended)),
            "a refund is for a session without the client": _all(
                c, s, of=z3.Implies(refunds, not_included(now))
            ),
        }

    return Model(
        "R5.0-6, for any number of clients, sessions, aggregators and restarts",
        {
            "offered": (client, session),
            "sent": (client, session, aggregator),
            "received": (client, session),
            "ended": (session,),
            "shown": (session, agreed),
            "released": (session, value),
            "answered": (client, session, agreed),
            "refunded": (client, session),
            "believed": (client, session, value),
        },
        (),
        steps,
        invariant,
        claims,
        {f"R5.0-6 at the {place}": place for place in PLACES},
        lambda now: {
            "an answer": _some(c, s, u, of=z3.And(is_honest, now["answered"](c, s, u))),
            "a refund": _some(c, s, of=z3.And(is_honest, now["refunded"](c, s))),
            "a sum": _some(c, s, x, of=z3.And(is_honest, now["believed"](c, s, x))),
        },
    )


MODELS: Final = (rosters, connections)


def _report(model: Model) -> int:
    """Print what was found; return how many results are not as they must be."""
    print(model.title)
    results = list(proof(model))
    unsettled = [name for name, is_settled in results if not is_settled]
    print(f"  {len(results) - len(unsettled)} of {len(results)} obligations hold")
    for name in unsettled:
        print(f"  WRONG: {name}")
    wrong = len(unsettled)
    for name in model.claims(model.state(0)):
        print(f"  {name}: {'NOT PROVED' if unsettled else 'holds in every run'}")

    def steps_to(
        goal: Callable[[State], z3.BoolRef], without: frozenset[str] = frozenset()
    ) -> str:
        nonlocal wrong
        length = run_to(model, goal, without)
        wrong += length is None
        return "WRONG: no run found" if length is None else f"after {length} steps"

    for name in model.goals(model.state(0)):
        found = steps_to(lambda now, name=name: model.goals(now)[name])
        print(f"  {name} is reached {found}")
    for rule, claim in model.rules.items():
        found = steps_to(
            lambda now, claim=claim: z3.Not(model.claims(now)[claim]),
            frozenset({rule}),
        )
        print(f"  without {rule}: {claim} fails {found}")
    return wrong


def main() -> int:
    """Prove both models, and find what happens without each rule."""
    wrong = sum(_report(model()) for model in MODELS)
    print("all as they must be" if not wrong else f"{wrong} results are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
