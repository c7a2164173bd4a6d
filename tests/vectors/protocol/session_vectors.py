"""Whole sessions, played by the reference from given secrets.

Rule 1: each session loses a client before some round, and says which.
Rule 2: inputs are one-hot with distinct entries, so that a mix-up shows in the sum;
        each reference run must give the sum of the survivors before it is recorded.
"""

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import reference as ref
from reference_enrolment import Credential, Revocations
from reference_noise import NoiseRule, block_of
from reference_roster import Roster, decode_roster
from reference_session import (
    ADVERTISE,
    CHOOSE,
    CONSISTENCY,
    MASK,
    SHARE,
    UNMASK,
    Client,
    Known,
    Noise,
    Secrets,
    Server,
)
from reference_signature import identity_key, sign
from reference_tables import sampler

ROUNDS = [
    "AdvertiseKeys",
    "ChooseEdges",
    "ShareKeys",
    "MaskedInputCollection",
    "ConsistencyCheck",
    "Unmasking",
]
SIGNED_ROUNDS = [name for name in ROUNDS if name != "ChooseEdges"]
CURIOUS_ROUNDS = [name for name in SIGNED_ROUNDS if name != "ConsistencyCheck"]
MESSAGES = (
    *("advert", "edges", "published", "bundles"),
    *("delivery", "upload", "signature", "answer"),
)
SESSION_END = 1_800_000_000


def counting(start: int, size: int) -> bytes:
    return bytes((start + place) % 256 for place in range(size))


def real_tables(rule: NoiseRule, count: int) -> tuple[str, ...]:
    """Hashes of the samplers of base and layers, for Skellam noise and a roster."""
    base, layers = rule.parts(count)
    return tuple(sampler("skellam", each).hash().hex() for each in (base, *layers))


class Issuer:
    """An enrolment key, and what it signs."""

    def __init__(self, trust_domain: str, seed: bytes) -> None:
        self.trust_domain = trust_domain
        self.seed = seed
        self.key = identity_key(seed)

    def credential(self, name: str, seed: bytes, **changes: Any) -> Credential:
        """Sign one; `changes` are made before, and a `signature` after that."""
        signature = changes.pop("signature", None)
        blank = Credential(identity_key(seed), SESSION_END - 100, SESSION_END, 7)
        blank = replace(blank, **changes)
        if signature is None:
            signature = sign(self.seed, blank.signed_bytes(self.trust_domain, name))
        return replace(blank, signature=signature)

    def revocations(self, number: int, serials: tuple[int, ...]) -> Revocations:
        made_at = SESSION_END - 1000
        blank = Revocations(self.trust_domain, number, made_at, serials)
        return replace(blank, signature=sign(self.seed, blank.signed_bytes()))


ISSUER = Issuer("example.org", counting(0x90, 32))
FOREIGN_ISSUER = Issuer("example.org", counting(0x91, 32))
REVOCATIONS = ISSUER.revocations(3, (1, 4, 2**32 - 1))
TRUST = ref.Trust(
    "example.org",
    ISSUER.key,
    REVOCATIONS.number,
    hashlib.sha256(REVOCATIONS.encode()).digest(),
)


@dataclass(frozen=True)
class Plan:
    """A session to play."""

    name: str
    parameters: ref.Parameters
    identities: list[str]
    graph_seed: bytes
    lost_before: dict[str, str]  # identity -> round
    lying: str = ""  # the identity that reveals wrong shares
    partial: str = ""  # the identity that reads its neighbourhood only

    noise: Noise | None = None

    @property
    def known(self) -> Known:
        listed = self.parameters.trust is not None
        revoked = frozenset(REVOCATIONS.serials) if listed else frozenset()
        return Known(revoked, self.noise)


@dataclass(frozen=True)
class Run:
    """A played session."""

    plan: Plan
    offer: ref.Offer
    secrets: dict[str, Secrets]
    record: dict[str, Any]

    def client(self, identity: str) -> Client:
        return Client(self.offer, self.secrets[identity], self.plan.known)

    def server(self) -> Server:
        return Server(self.offer, self.plan.known)

    def roster(self) -> Roster:
        return decode_roster(self.announced("roster"), self.offer.parameters)

    def announced(self, name: str) -> bytes:
        return bytes.fromhex(self.record[name])

    def server_order(self) -> list[str]:
        """The identities in the order of the ring."""
        return ref.roster_order(self.plan.identities, self.plan.graph_seed)

    def row(self, identity: str) -> dict[str, Any]:
        return next(r for r in self.record["clients"] if r["identity"] == identity)

    def bytes_of(self, identity: str, name: str) -> bytes:
        return bytes.fromhex(self.row(identity)[name])


def coefficients(place: int, kind: int, threshold: int) -> list[list[int]]:
    return [
        [
            (65536 - 7919 * place - 4099 * kind - 257 * limb - 31 * power) % ref.FIELD
            for limb in range(16)
        ]
        for power in range(1, threshold)
    ]


def secrets_of(plan: Plan, place: int) -> Secrets:
    rules = plan.parameters
    values = [0] * rules.dim
    values[place % rules.dim] = (place + 1) % rules.modulus
    values[-1] = rules.modulus - 1
    mine = Secrets(
        plan.identities[place],
        counting(1 + 5 * place, 32),
        counting(101 + 5 * place, 32),
        counting(201 + 5 * place, 32),
        coefficients(place, 0, rules.threshold),
        coefficients(place, 1, rules.threshold),
        values,
        noise_seeds=tuple(
            counting(11 + 5 * place + 40 * layer, 32)
            for layer in range(rules.noise_layers)
        ),
    )
    if rules.profile == ref.SPARSE:
        # Every client draws in its own way; all that counts is that they differ.
        steps = sorted(range(1, rules.max_clients), key=lambda s: s * (place + 2) % 17)
        mine = replace(mine, steps=tuple(steps[: rules.degree]))
    if rules.trust is None:
        return mine
    seed = counting(51 + 5 * place, 32)
    credential = ISSUER.credential(mine.identity, seed, serial=100 + place)
    return replace(mine, identity_seed=seed, credential=credential)


class Game:
    """The reference on both sides of one session."""

    def __init__(self, plan: Plan) -> None:
        plan.parameters.check()
        self.plan = plan
        self.offer = ref.Offer(
            "sums-1",
            f"vectors/{plan.name}",
            1,
            counting(0, 32),
            SESSION_END,
            b"",
            plan.parameters,
        )
        self.secrets = {
            name: secrets_of(plan, place) for place, name in enumerate(plan.identities)
        }
        self.clients = {
            name: Client(self.offer, own, plan.known)
            for name, own in self.secrets.items()
        }
        self.rows: dict[str, dict[str, bytes]] = {name: {} for name in self.secrets}
        self.server = Server(self.offer, plan.known)
        self.announced: dict[str, bytes] = {}  # roster, u2, u3, quorum
        self.index: dict[str, int] = {}
        self.total: list[int] = []

    def play(self) -> None:
        """Play all rounds; `Refused` if the server has to abort."""
        server, announced = self.server, self.announced
        for name in self.present("AdvertiseKeys"):
            self.send(ADVERTISE, name, "advert", self.clients[name].advert())
        announced["roster"] = server.close_adverts(self.plan.graph_seed)
        self.index = {advert.identity: i for i, advert in server.view.adverts.items()}
        self.show_neighbourhoods()
        self.draw()
        for name in self.present("ShareKeys"):
            self.send(SHARE, name, "bundles", self.share(name))
        announced["u2"] = server.close_sharing()
        for name in self.members("ShareKeys", server.view.share_holders):
            delivery = self.rows[name]["delivery"] = server.delivery(self.index[name])
            upload = self.clients[name].take(MASK, delivery)
            if name in self.present("MaskedInputCollection"):
                self.send(MASK, name, "upload", upload)
        opening = announced["u3"] = server.close_uploads()
        if server.view.is_signed:
            for name in self.members("ConsistencyCheck", server.view.survivors):
                signature = self.clients[name].take(CONSISTENCY, opening)
                self.send(CONSISTENCY, name, "signature", signature)
            opening = announced["quorum"] = server.close_signing()
        for name in self.members("Unmasking", server.view.survivors):
            answer = self.clients[name].take(UNMASK, opening)
            answer = wrong(answer) if name == self.plan.lying else answer
            self.send(UNMASK, name, "answer", answer)
        self.total = server.sum()
        if self.total != self.sum_of_survivors():
            raise AssertionError(self.plan.name)

    def draw(self) -> None:
        """Let clients draw, and show each what touches it, where they do."""
        if not self.server.view.is_sparse:
            return
        for name in self.present("ChooseEdges"):
            edges = self.clients[name].take(CHOOSE, self.announced["roster"])
            self.send(CHOOSE, name, "edges", edges)
        self.announced["edge_root"] = self.server.close_edges()
        for name in self.present("ChooseEdges"):
            shown = self.server.published(self.index[name])
            self.rows[name]["published"] = shown

    def show_neighbourhoods(self) -> None:
        if self.plan.parameters.degree > 0 and not self.server.view.is_sparse:
            for name, index in self.index.items():
                self.rows[name]["neighbourhood"] = self.server.neighbourhood(index)

    def share(self, name: str) -> bytes:
        """Return the bundles of a client, which read all of the roster or its part."""
        roster = self.announced["roster"]
        if name == self.plan.partial:
            roster = self.rows[name]["neighbourhood"]
        if self.server.view.is_sparse:
            roster = self.rows[name]["published"]
        return self.clients[name].take(SHARE, roster)

    def send(self, round_number: int, name: str, field: str, message: bytes) -> None:
        self.rows[name][field] = message
        self.server.receive(round_number, name, message)

    def present(self, round_name: str) -> list[str]:
        """Return the clients that still send in a round."""
        gone = ROUNDS[: ROUNDS.index(round_name) + 1]
        return [n for n in self.secrets if self.plan.lost_before.get(n) not in gone]

    def members(self, round_name: str, members: set[int]) -> list[str]:
        return [n for n in self.present(round_name) if self.index[n] in members]

    def sum_of_survivors(self) -> list[int]:
        survivors = [
            n for n, i in self.index.items() if i in self.server.view.survivors
        ]
        inputs = [self.secrets[name].values for name in survivors]
        modulus = self.plan.parameters.modulus
        return [sum(column) % modulus for column in zip(*inputs, strict=True)]

    def record(self) -> dict[str, Any]:
        """Return what goes into the file; after an abort, some of it is missing."""
        plan, view = self.plan, self.server.view
        bits = ref.residue_bits(plan.parameters.modulus)
        announced = {
            name: self.announced[name].hex() if name in self.announced else None
            for name in ("roster", "edge_root", "u2", "u3", "quorum")
        }
        return {
            "name": plan.name,
            "offer": self.offer.encode().hex(),
            "cfg_hash": ref.configuration_hash(self.offer).hex(),
            "sid": view.sid.hex(),
            "contexts": [context.hex() for context in view.contexts],
            "view": view.shown.hex() if "u2" in self.announced else None,
            "graph_seed": plan.graph_seed.hex(),
            "revocations": (
                REVOCATIONS.encode().hex() if plan.parameters.trust else None
            ),
            **announced,
            "noise": noise_of(plan, len(view.share_holders)),
            "unseen": view.unseen,
            "neighbours": view.neighbours,
            "lying": self.index.get(plan.lying),
            "clients": [
                row_of(plan, self.secrets[n], self.index.get(n), self.rows[n])
                for n in self.secrets
            ],
            "sum": [str(entry) for entry in self.total],
            "packed_sum": ref.pack(self.total, bits).hex(),
        }


def noise_of(plan: Plan, share_holders: int) -> dict[str, Any] | None:
    """What U2 settles about the noise; nothing without noise, or without U2."""
    if plan.noise is None or not share_holders:
        return None
    rule, suite = plan.noise.rule, plan.parameters.suite
    return {
        "tables": list(plan.noise.tables),
        "noise_context": plan.noise.context(suite, share_holders).hex(),
        "taken_back": [
            rule.taken_back(share_holders, lost)
            for lost in range(rule.losses(share_holders) + 1)
        ],
    }


def play(plan: Plan) -> Run:
    """Play a session that succeeds."""
    game = Game(plan)
    game.play()
    return Run(plan, game.offer, game.secrets, game.record())


def play_to_the_end(plan: Plan) -> tuple[dict[str, Any], int]:
    """Play any session; return its record, and the code of its abort or 0."""
    game = Game(plan)
    try:
        game.play()
    except ref.Refused as refused:
        return game.record(), refused.code
    return game.record(), 0


def wrong(answer: bytes) -> bytes:
    """Return other shares that are as well-formed: their flags and limb 0 cleared."""
    head = len(answer) % ref.SHARE_SIZE
    return answer[:head] + b"".join(
        bytes(2) + answer[start + 2 : start + 32] + bytes(2)
        for start in range(head, len(answer), ref.SHARE_SIZE)
    )


def row_of(
    plan: Plan, mine: Secrets, index: int | None, messages: dict[str, bytes]
) -> dict[str, Any]:
    return {
        "identity": mine.identity,
        "index": index,
        "lost_before": plan.lost_before.get(mine.identity),
        "channel_private_key": mine.channel_private_key.hex(),
        "mask_private_key": mine.mask_private_key.hex(),
        "self_mask_seed": mine.self_mask_seed.hex(),
        "key_coefficients": mine.key_coefficients,
        "seed_coefficients": mine.seed_coefficients,
        "input": [str(entry) for entry in mine.values],
        "noise_seeds": [seed.hex() for seed in mine.noise_seeds],
        "identity_seed": mine.identity_seed.hex(),
        "steps": list(mine.steps),
        "credential": "" if mine.credential is None else mine.credential.encode().hex(),
    } | {
        name: messages[name].hex() if name in messages else None
        for name in (*MESSAGES, "neighbourhood")
    }


def parameters(**changes: Any) -> ref.Parameters:
    base: dict[str, Any] = {
        "version": 1,
        "profile": 1,
        "suite": 1,
        "max_clients": 12,
        "degree": 0,
        "max_dropouts": 1,
        "max_losses": 4,
        "colluders": 1,
        "noise_layers": 0,
        "noise_block": b"",
    }
    made = base | changes
    here = ref.ROUNDS[made["profile"]]
    made.setdefault("deadlines", tuple(60 * (r in here) for r in range(1, 7)))
    if made["profile"] != ref.CURIOUS:
        made.setdefault("trust", TRUST)
    return ref.Parameters(**made)


def complete() -> Plan:
    """One client is lost before each round; U1 to U5 have 7, 6, 5 and 4 members."""
    rules = parameters(
        modulus=2**20,
        dim=40,
        min_clients=6,
        max_clients=7,
        threshold=4,
        min_survivors=4,
        max_losses=3,
    )
    names = ["zoe", "Adam", "bob", "carl", "b.b", "dora", "eve", "Zoe"]
    lost = dict(zip(["carl", "zoe", "b.b", "Adam"], CURIOUS_ROUNDS, strict=True))
    return Plan("complete", rules, names, b"", lost)


def ring() -> Plan:
    """The same on the ring, with the other suite and a modulus that rejects words."""
    rules = parameters(
        suite=2,
        modulus=10**6 + 3,
        dim=21,
        min_clients=8,
        threshold=3,
        degree=6,
        graph_bits=40,
        min_survivors=4,
        max_dropouts=2,
        colluders=0,
    )
    names = [f"client-{place}" for place in range(11, 1, -1)]
    lost = dict(zip([names[i] for i in (2, 7, 4, 9)], CURIOUS_ROUNDS, strict=True))
    return Plan("ring", rules, names, counting(0xF0, 32), lost, partial="client-10")


def scattered() -> Plan:
    """A ring without colluders that keeps one path of masks, and just so."""
    rules = parameters(
        modulus=2**33,
        dim=8,
        min_clients=6,
        threshold=2,
        degree=4,
        graph_bits=40,
        min_survivors=3,
        max_dropouts=4,
        colluders=0,
    )
    names = [f"c{place:02}" for place in range(8)]
    seed = counting(0xA0, 32)
    order = ref.roster_order(names, seed)
    # Places in a row are lost: a gap.  A second one would cut the ring.
    lost = {order[place]: "MaskedInputCollection" for place in (1, 2, 3)}
    return Plan("scattered", rules, names, seed, lost)


def corrected() -> Plan:
    """One of five holders reveals wrong shares; three would do."""
    rules = parameters(
        modulus=2,
        dim=9,
        min_clients=5,
        threshold=3,
        min_survivors=3,
    )
    names = ["ann", "ben", "cai", "dov", "edi"]
    return Plan("corrected", rules, names, b"", {}, lying="cai")


def signed() -> Plan:
    """Profile 2: one client is lost before each round but the last."""
    rules = parameters(
        profile=ref.MALICIOUS,
        modulus=2**20,
        dim=5,
        min_clients=8,
        max_clients=8,
        threshold=5,
        min_survivors=5,
        max_losses=3,
    )
    names = ["zoe", "Adam", "bob", "carl", "b.b", "dora", "eve", "Zoe", "flo"]
    lost = dict(zip(["carl", "zoe", "b.b", "Adam"], SIGNED_ROUNDS, strict=False))
    return Plan("signed", rules, names, b"", lost)


def signed_by_all() -> Plan:
    """Profile 2, as small as it gets, and no client is lost."""
    rules = parameters(
        profile=ref.MALICIOUS,
        modulus=2**16,
        dim=3,
        min_clients=3,
        max_clients=3,
        threshold=2,
        min_survivors=2,
        max_losses=1,
        colluders=0,
    )
    return Plan("signed-by-all", rules, ["ann", "ben", "cai"], b"", {})


def noise_block(rule: NoiseRule, *, dim: int, modulus: int, clients: int) -> bytes:
    """A whole noise block of a task of two sums and a spare session."""
    return block_of(
        rule.as_json(),
        dim=dim,
        modulus=modulus,
        num_clients=clients,
        epsilon=60.0,
        delta=1e-06,
        noise_sampler=real_tables(rule, rule.min_survivors)[0],
        participations=2,
        spare=1,
    )


def layered() -> Plan:
    """Profile 2 with noise in layers: one client is lost, and some go again."""
    rule = NoiseRule(
        Fraction(15), 4, Fraction(2, 7), 0, Fraction(0), share_bits=4, ladder=2
    )
    rules = parameters(
        profile=ref.MALICIOUS,
        modulus=2**16,
        dim=3,
        min_clients=7,
        max_clients=7,
        threshold=4,
        min_survivors=4,
        max_dropouts=3,
        max_losses=3,
        colluders=0,
        noise_layers=3,
        noise_block=noise_block(rule, dim=3, modulus=2**16, clients=7),
    )
    names = ["ann", "ben", "cai", "dov", "edi", "flo", "gus"]
    tables = real_tables(rule, 7)
    lost = {"dov": "MaskedInputCollection"}
    return Plan("layered", rules, names, b"", lost, noise=Noise(rule, tables))


def sparse() -> Plan:
    """Profile 3: one client is lost before each round but the last.

    The offer holds for rosters of 8 and of 10 clients, and not for one of 9.
    """
    rules = parameters(
        profile=ref.SPARSE,
        modulus=2**20,
        dim=3,
        min_clients=8,
        max_clients=10,
        threshold=2,
        degree=4,
        graph_bits=1,
        in_cap=8,
        own_quorum=6,
        min_survivors=6,
        max_losses=3,
    )
    names = [f"{letter}-{place}" for place, letter in enumerate("kjihgfedcba")]
    lost = dict(zip(["j-1", "a-10", "e-6", "h-3", "c-8"], ROUNDS, strict=False))
    return Plan("sparse", rules, names, b"", lost)


def sparse_layered() -> Plan:
    """Profile 3 with noise in layers, of which one honest client may miss unseen."""
    rule = NoiseRule(
        Fraction(15), 5, Fraction(2, 5), 1, Fraction(0), share_bits=4, ladder=2
    )
    rules = parameters(
        profile=ref.SPARSE,
        suite=2,
        modulus=2**16,
        dim=3,
        min_clients=8,
        max_clients=8,
        threshold=2,
        degree=4,
        graph_bits=1,
        in_cap=9,
        own_quorum=7,
        min_survivors=5,
        max_dropouts=3,
        max_losses=3,
        noise_layers=3,
        noise_block=noise_block(rule, dim=3, modulus=2**16, clients=8),
    )
    names = [f"c{place}" for place in range(8)]
    tables = real_tables(rule, 8)
    lost = {"c4": "MaskedInputCollection"}
    return Plan("sparse-layered", rules, names, b"", lost, noise=Noise(rule, tables))


def sessions() -> list[Run]:
    """Play all of them."""
    plans = (
        *(complete, ring, scattered, corrected),
        *(signed, signed_by_all, layered),
        *(sparse, sparse_layered),
    )
    return [play(make()) for make in plans]
