"""Whole sessions, played by the reference from given secrets.

Rule 1: each session loses a client before some round, and says which.
Rule 2: inputs are one-hot with distinct entries, so that a mix-up shows in the sum;
        each reference run must give the sum of the survivors before it is recorded.
"""

from dataclasses import dataclass
from typing import Any

import reference as ref
from reference_session import Client, Secrets, Server

ROUNDS = ["AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "Unmasking"]


def counting(start: int, size: int) -> bytes:
    return bytes((start + place) % 256 for place in range(size))


@dataclass(frozen=True)
class Plan:
    """A session to play."""

    name: str
    parameters: ref.Parameters
    identities: list[str]
    graph_seed: bytes
    lost_before: dict[str, str]  # identity -> round
    lying: str = ""  # the identity that reveals wrong shares


@dataclass(frozen=True)
class Run:
    """A played session."""

    plan: Plan
    offer: ref.Offer
    secrets: dict[str, Secrets]
    record: dict[str, Any]

    def client(self, identity: str) -> Client:
        return Client(self.offer, self.secrets[identity])

    def server_order(self) -> list[str]:
        """The identities in the order of the ring."""
        names = sorted(self.plan.identities, key=lambda name: name.encode())
        suite = self.offer.parameters.suite
        order = ref.ring_order(suite, self.plan.graph_seed, len(names))
        return [names[client] for client in order]

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
    return Secrets(
        plan.identities[place],
        counting(1 + 5 * place, 32),
        counting(101 + 5 * place, 32),
        counting(201 + 5 * place, 32),
        coefficients(place, 0, rules.threshold),
        coefficients(place, 1, rules.threshold),
        values,
    )


class Game:
    """The reference on both sides of one session."""

    def __init__(self, plan: Plan) -> None:
        plan.parameters.check()
        self.plan = plan
        self.offer = ref.Offer(
            "sums-1", f"vectors/{plan.name}", 1, counting(0, 32), b"", plan.parameters
        )
        self.secrets = {
            name: secrets_of(plan, place) for place, name in enumerate(plan.identities)
        }
        self.clients = {n: Client(self.offer, own) for n, own in self.secrets.items()}
        self.rows: dict[str, dict[str, bytes]] = {name: {} for name in self.secrets}
        self.server = Server(self.offer)
        self.announced: dict[str, bytes] = {}  # roster, u2, u3
        self.index: dict[str, int] = {}
        self.total: list[int] = []

    def play(self) -> None:
        """Play all rounds; `Refused` if the server has to abort."""
        server, announced = self.server, self.announced
        for name in self.present("AdvertiseKeys"):
            self.send(0, name, "advert", self.clients[name].advert())
        announced["roster"] = server.close_adverts(self.plan.graph_seed)
        self.index = {
            advert.identity: i for i, advert in enumerate(server.view.adverts)
        }
        for name in self.present("ShareKeys"):
            bundles = self.clients[name].take(1, announced["roster"])
            self.send(1, name, "bundles", bundles)
        announced["u2"] = server.close_sharing()
        for name in self.members("ShareKeys", server.view.sharers):
            delivered = self.rows[name]["delivered"] = server.delivery(self.index[name])
            upload = self.clients[name].take(2, announced["u2"], delivered)
            if name in self.present("MaskedInputCollection"):
                self.send(2, name, "upload", upload)
        announced["u3"] = server.close_uploads()
        for name in self.members("Unmasking", server.view.survivors):
            answer = self.clients[name].take(4, announced["u3"])
            answer = wrong(answer) if name == self.plan.lying else answer
            self.send(4, name, "answer", answer)
        self.total = server.sum()
        if self.total != self.sum_of_survivors():
            raise AssertionError(self.plan.name)

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
            for name in ("roster", "u2", "u3")
        }
        return {
            "name": plan.name,
            "offer": self.offer.encode().hex(),
            "cfg_hash": ref.configuration_hash(self.offer).hex(),
            "sid": view.sid.hex(),
            "contexts": [context.hex() for context in view.contexts],
            "graph_seed": plan.graph_seed.hex(),
            **announced,
            "neighbours": view.neighbours,
            "lying": self.index.get(plan.lying),
            "clients": [
                row_of(plan, self.secrets[n], self.index.get(n), self.rows[n])
                for n in self.secrets
            ],
            "sum": [str(entry) for entry in self.total],
            "packed_sum": ref.pack(self.total, bits).hex(),
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
    return b"".join(
        bytes(2) + answer[start + 2 : start + 32] + bytes(2)
        for start in range(0, len(answer), ref.SHARE_SIZE)
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
    } | {
        name: messages[name].hex() if name in messages else None
        for name in ("advert", "bundles", "delivered", "upload", "answer")
    }


def parameters(**changes: Any) -> ref.Parameters:
    base: dict[str, Any] = {
        "version": 1,
        "profile": 1,
        "suite": 1,
        "max_clients": 12,
        "degree": 0,
        "max_dropouts": 1,
        "colluders": 1,
        "noise_block": b"",
        "deadlines": (60, 60, 60, 60),
    }
    return ref.Parameters(**(base | changes))


def complete() -> Plan:
    """One client is lost before each round; U1 to U5 have 7, 6, 5 and 4 members."""
    rules = parameters(
        modulus=2**20,
        dim=40,
        min_clients=6,
        max_clients=7,
        threshold=4,
        min_survivors=4,
    )
    names = ["zoe", "Adam", "bob", "carl", "b.b", "dora", "eve", "Zoe"]
    lost = dict(zip(["carl", "zoe", "b.b", "Adam"], ROUNDS, strict=True))
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
    lost = dict(zip([names[i] for i in (2, 7, 4, 9)], ROUNDS, strict=True))
    return Plan("ring", rules, names, counting(0xF0, 32), lost)


def scattered() -> Plan:
    """A ring without colluders that keeps one path of masks, and just so."""
    rules = parameters(
        modulus=2**33,
        dim=10,
        min_clients=6,
        threshold=2,
        degree=4,
        graph_bits=40,
        min_survivors=3,
        max_dropouts=4,
        colluders=0,
    )
    names = [f"c{place:02}" for place in range(10)]
    seed = counting(0xA0, 32)
    order = ref.ring_order(rules.suite, seed, len(names))
    # Two places in a row are lost: a gap.  A second one would cut the ring.
    lost = {names[order[place]]: "MaskedInputCollection" for place in (1, 2, 6)}
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


def sessions() -> list[Run]:
    """Play all of them."""
    return [play(make()) for make in (complete, ring, scattered, corrected)]
