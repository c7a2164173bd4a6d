"""Faults to plant in the kit's driver: what a wrong implementation would do.

Each is caught by a case of its own rule, or the kit is blind there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any
from unittest.mock import patch

import numpy as np

from secagg.client import gate, session
from secagg.client.gate import GATE_CHECKS
from secagg.conformance.driver import Driver
from secagg.conformance.plays import _ROSTERS
from secagg.crypto import canonical
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import report as privacy_report
from secagg.distributed_dp.task import NoisyTask
from secagg.errors import RemoteProtocolError
from secagg.protocol import agreement, enrolment, membership, share_bundles
from secagg.protocol.client import checks, handlers, machine
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import Advert, Upload
from secagg.protocol.parameters import ProtocolParameters
from secagg.protocol.policy import ClientPolicy


@dataclass
class Fault:
    """A fault, and the rule that it breaks.

    Attributes:
        name: In words.
        rule: Of PROTOCOL.md.
        patches: What is patched while the driver acts.
        driver: Class of the driver.
        fired: How often the fault has acted.
    """

    name: str
    rule: str
    patches: list[Any] = field(default_factory=list)
    driver: type[Driver] = Driver
    fired: int = 0

    def act(self, *_: Any, **__: Any) -> None:
        self.fired += 1


FAULTS: list[Callable[[], Fault]] = []


def fault(name: str, rule: str):
    """Register a function that plants a fault."""

    def register(plant: Callable[[Fault], None]) -> Callable[[Fault], None]:
        def made() -> Fault:
            found = Fault(name, rule)
            plant(found)
            return found

        made.__name__ = name
        FAULTS.append(made)
        return plant

    return register


def without(name: str, rule: str, where: Any, attribute: str, result: Any = None):
    """Plant: a function that checks does nothing."""

    def plant(found: Fault) -> None:
        def nothing(*_: Any, **__: Any) -> Any:
            found.act()
            return result() if callable(result) else result

        found.patches.append(patch.object(where, attribute, nothing))

    fault(name, rule)(plant)


def instead(name: str, rule: str, where: Any, attribute: str):
    """Plant: a function gets the original and its arguments."""

    def register(change: Callable[..., Any]) -> Callable[..., Any]:
        def plant(found: Fault) -> None:
            original = getattr(where, attribute)

            def changed(*arguments: Any, **named: Any) -> Any:
                found.act()
                return change(original, *arguments, **named)

            found.patches.append(patch.object(where, attribute, changed))

        fault(name, rule)(plant)
        return change

    return register


def speaking(name: str, rule: str):
    """Plant: a driver whose lines are other ones."""

    def register(change: Callable[..., Any]) -> Callable[..., Any]:
        def plant(found: Fault) -> None:
            class Faulty(Driver):
                def answer(self, line: Any) -> dict[str, Any]:
                    own = super().answer
                    answer = change(own, line)
                    if answer is None:
                        return own(line)
                    found.act()
                    return answer

            found.driver = Faulty

        fault(name, rule)(plant)
        return change

    return register


# --- checks that are missing ----------------------------------------------------------

NONE: tuple[Any, ...] = ()
without("keys may be shared", "R5.2-5", checks, "check_unique_keys")
without("rosters of any size", "R5.2-2", checks, "check_size")
without("rosters of any size of a ring", "R5.2-21", checks, "check_size")
without("keys of low order", "R5.2-4", checks, "check_public_key")
without("adverts of any form", "R5.2-9", checks, "check_form")
without("adverts are not verified", "R5.2-6", checks, "check_adverts")
without("too many layers", "R5.2-1", checks, "check_layers")
without("noise may be lost", "R3.5-1", handlers, "check_noise_suffices")
without("rings may be cut", "R5.5-7", handlers, "check_ring_survivors")
without("quorums are not verified", "R5.5-4", handlers, "check_quorum")
without("quorums of any size", "R5.5-2", handlers, "check_quorum")
without("dealings are not verified", "R5.3-13", agreement, "check_bundle_signature")
without("any fate", "R5.6-2", machine, "_check_fate")
without("sets of any size", "R3.2-5", ProtocolParameters, "_cohort_rules", NONE)
without("any deadline", "R3.2-4", ProtocolParameters, "_round_rules", NONE)
without("any range", "R3.2-3", ProtocolParameters, "_ranges", NONE)
without("bits without a ring", "R3.2-6", ProtocolParameters, "_complete_rules", NONE)
without("any ring", "R3.2-7", ProtocolParameters, "_ring_rules", NONE)
without("no overlap", "R3.2-8", ProtocolParameters, "_malicious_rules", NONE)
without("any policy", "R5.0-4", ClientPolicy, "check")
without("trailing bytes", "R3.1-1", canonical.Reader, "end")


def _without_row(name: str, rule: str, row: str) -> None:
    """Plant: the client's gate has one rule less."""

    def plant(found: Fault) -> None:
        def nothing(_: Any) -> None:
            found.act()

        rows = tuple(
            replace(each, run=nothing) if each.name == row else each
            for each in GATE_CHECKS
        )
        defaults = {**gate.admit.__kwdefaults__, "checks": rows}
        found.patches.append(patch.object(gate.admit, "__kwdefaults__", defaults))

    fault(name, rule)(plant)


_without_row("any enrolment key", "R5.0-3", "list number")
_without_row("any limits of privacy", "R5.0-4", "limits")
_without_row("any list", "R2.1-0", "list")


@instead("dropouts are not counted", "R5.4-4", handlers, "check_survivors")
def _many(check, parameters, **named):
    return check(replace(parameters, max_dropouts=99, max_losses=99), **named)


@instead("sums of two", "R5.4-3", handlers, "check_survivors")
def _few(check, parameters, **named):
    return check(replace(parameters, threshold=2, min_survivors=2), **named)


@instead("sets without itself", "R5.4-2", handlers, "check_survivors")
def _stranger(check, parameters, **named):
    return check(parameters, **(named | {"index": None}))


@instead("padding of sets", "R3.3-1", checks, "ClientBitmap")
def _padded(make, data, size):
    spare = 8 * len(data) - size
    last = data[-1] & (0xFF >> spare) if data else 0
    return make(data[:-1] + bytes([last]), size)


@instead("any U2", "R5.3-5", handlers, "check_delivery")
def _any_u2(check, parameters, **named):
    return check(replace(parameters, threshold=2, min_survivors=2), **named)


@instead("revoked clients", "R2.1-4", membership, "enrolment_rules")
def _unrevoked(make, *arguments):
    return replace(make(*arguments), revoked=frozenset())


@instead("expired credentials", "R2.1-3", membership, "check_signing_credential")
def _timeless(check, credential, rules, **named):
    at = min(max(rules.session_end, credential.not_before), credential.not_after)
    return check(credential, replace(rules, session_end=at), **named)


def _reduced(verify, key, message, signature, *rest):
    order = (1 << 252) + 27742317777372353535851937790883648493
    s = int.from_bytes(signature[32:], "little") % order
    verify(key, message, signature[:32] + s.to_bytes(32, "little"), *rest)


instead("S is reduced in adverts", "R6.6-1", membership, "verify")(_reduced)
instead("S is reduced in quorums", "R6.6-1", agreement, "verify")(_reduced)
instead("S is reduced in credentials", "R6.6-1", enrolment, "verify")(_reduced)


@instead("blocks that do not fit", "R3.5-6", NoisyTask, "validate")
def _unfit(_validate, task):
    return task


@instead("other samplers", "R14.8-3", privacy_report, "check_sampler")
def _any_sampler(_check, _block):
    return None


@instead("any advert under its name", "R5.2-3", Advert, "__eq__")
def _namesakes(_equal, one, other):
    return one.identity == other.identity


# --- what it says ---------------------------------------------------------------------


@speaking("says nothing when it is lied to", "R5-8")
def _silent(own, line):
    answer = own(line)
    return {"messages": []} if answer.get("left") == "EQUIVOCATION" else answer


@speaking("answers a second set like the first", "R5.4-5")
def _twice(own, line):
    driver = own.__self__
    answer = own(line)
    if answer.get("left") == "EQUIVOCATION":
        return {"messages": driver.last}
    driver.last = answer.get("messages", [])
    return answer


@speaking("leaves with another code", "R5.3-4")
def _other_code(own, line):
    answer = own(line)
    return answer | {"left": "INTERNAL"} if "left" in answer else None


@speaking("continues after it has left", "R5.5-1")
def _continues(own, line):
    driver = own.__self__
    answer = own(line)
    has_left = getattr(driver, "has_left", False)
    driver.has_left = "left" in answer
    return {"messages": ["0400"]} if has_left and line["do"] == "update" else answer


@speaking("uploads without its view", "R5.3-14")
def _unasked(own, line):
    answer = own(line)
    return own({"do": "bind"}) if "view" in answer else answer


@speaking("binds after its view was refused", "R5.3-14")
def _refused(own, line):
    return own({"do": "bind"}) if line["do"] == "refused" else None


@speaking("never complains", "R5.3-11")
def _content(own, line):
    answer = own(line)
    said = answer.get("messages", [])
    return answer | {"messages": [each for each in said if each[:2] != "0a"]}


@speaking("leaves in place of a complaint", "R5.3-7")
def _leaves(own, line):
    answer = own(line)
    if any(each[:2] == "0a" for each in answer.get("messages", [])):
        return {"left": "BAD_SHARE_CIPHERTEXT"}
    return answer


@speaking("cuts its bundles", "R5.5-9")
def _cut(own, line):
    answer = own(line)
    said = [
        each[:-2] if each[:2] == "04" else each for each in answer.get("messages", ())
    ]
    return answer | {"messages": said} if "messages" in answer else answer


@speaking("sets unused bits", "R8-1")
def _bits(own, line):
    answer = own(line)
    said = []
    for each in answer.get("messages", []):
        data = bytes.fromhex(each)
        if data[0] == Upload.KIND:
            packed = data[73:-1] + bytes([data[-1] | 0xF0])
            head = data[1:9] + sha256(packed).digest() + data[41:73]
            data = data[:1] + head + packed
        said.append(data.hex())
    return answer | {"messages": said} if said else answer


@speaking("reads sums as unsigned", "R14.1-2")
def _unsigned(own, line):
    answer = own(line)
    if "sum" not in answer:
        return None
    modulus = SessionDescriptor.decode(own.__self__.offer).parameters.modulus
    return {"sum": [str(int(each) % modulus) for each in answer["sum"]]}


@speaking("takes any vector before it advertises", "R14.1-1")
def _any_vector(own, line):
    if line["do"] == "begin":
        line = line | {"vector": ["0"] * len(line["vector"])}
        return own(line)
    return None


@speaking("leaves when its vector cannot be used", "R3.5-5")
def _no_zeros(own, line):
    if line["do"] == "bind" and "NaN" in own.__self__._told["vector"]:
        return {"left": "BAD_VECTOR"}
    return None


@speaking("has a clock that stands still", "R5-7")
def _still(own, line):
    return own({key: value for key, value in line.items() if key != "now"})


@speaking("believes the name in the offer", "R5.0-1")
def _any_name(own, line):
    if line["do"] == "begin":
        try:
            name = SessionDescriptor.decode(bytes.fromhex(line["offer"])).aggregator
        except RemoteProtocolError:
            return None
        return own(line | {"aggregator": name})
    return None


@speaking("takes up its session with any aggregator", "R5.0-6")
def _any_peer(own, line):
    return own(line | {"aggregator": "kit"}) if line["do"] == "restart" else None


@speaking("forgets its sessions", "R5.0-2")
def _forgets(own, line):
    return own(line | {"forget": True}) if line["do"] == "begin" else None


@speaking("forgets what it has spent", "R5.6-3")
def _free(own, line):
    return own(line | {"forget": True}) if line["do"] == "begin" else None


@speaking("begins again after a restart", "R6.1-1")
def _anew(own, line):
    return (
        own(line | {"do": "begin", "forget": True}) if line["do"] == "restart" else None
    )


@speaking("masks another vector after a restart", "R5.3-2")
def _second_input(own, line):
    answer = own(line)
    if line["do"] != "restart":
        return answer
    said = [bytes.fromhex(each) for each in answer.get("messages", [])]
    changed = [
        each[:-1] + bytes([each[-1] ^ 1]) if each[0] == Upload.KIND else each
        for each in said
    ]
    return answer | {"messages": [each.hex() for each in changed]}


# --- what it computes -----------------------------------------------------------------


@instead("gives the other share", "R5.5-9", share_bundles.HeldShares, "answer")
def _both(answer, held, survivors):
    return answer(held, set(held.dealers) - set(survivors))


@instead("deals other secrets", "R7.3-1", share_bundles, "share_secrets")
def _other_secrets(share, secrets, *rest):
    return share(tuple(SecretBytes(bytes(range(32))) for _ in secrets), *rest)


@instead("gives other seeds than its layers", "R6.7-1", NoisyTask, "encode")
def _other_layers(encode, task, vector, *, session_id, secrets):
    other = tuple(SecretBytes(bytes([i] * 32)) for i, _ in enumerate(secrets.layers))
    return encode(
        task, vector, session_id=session_id, secrets=replace(secrets, layers=other)
    )


def _with_share(change):
    """Encode with another share of the noise."""

    def encode(original, task, vector, *, session_id, secrets):
        found = NoisyTask.session_noise

        def other(self, share_holders):
            noise = found(self, share_holders)
            return replace(noise, base=change(noise.base))

        with patch.object(NoisyTask, "session_noise", other):
            return original(task, vector, session_id=session_id, secrets=secrets)

    return encode


instead("adds half of the noise", "R5.3-1", NoisyTask, "encode")(
    _with_share(lambda base: base / 2)
)
instead("adds five sixths of the noise", "R5.3-1", NoisyTask, "encode")(
    _with_share(lambda base: base * 5 / 6)  # missed once in 10^18 runs
)
instead("adds twice the noise", "R14.7-2", NoisyTask, "encode")(
    _with_share(lambda base: base * 2)
)
instead("adds no noise", "R5.3-1", NoisyTask, "encode")(
    _with_share(lambda base: base / 2**9)
)


def _noise_of(change):
    """Encode a vector with noise that `change` makes of the right one."""

    def encode(original, task, vector, *, session_id, secrets):
        found = original(task, vector, session_id=session_id, secrets=secrets)
        m = task.mechanism.parameters.modulus
        right = found.vector.residues
        drawn = right.astype(np.int64)
        drawn = np.where(drawn >= (m + 1) // 2, drawn - m, drawn)
        residues = (change(drawn, secrets) % m).astype(right.dtype)
        return replace(found, vector=replace(found.vector, residues=residues))

    return encode


def _uniform(drawn, _secrets):
    most = round(float(np.sqrt(3 * np.mean(drawn * drawn))))
    ranks = np.argsort(np.argsort(drawn, kind="stable"), kind="stable")
    return (ranks * (2 * most + 1)) // drawn.size - most


def _pairs(drawn, _secrets):
    return np.repeat(drawn[::2], 2)[: drawn.size]


instead("draws uniform noise", "R14.7-2", NoisyTask, "encode")(_noise_of(_uniform))
instead("draws noise in pairs", "R14.7-2", NoisyTask, "encode")(_noise_of(_pairs))


@instead("draws the same noise again", "R5.3-1", NoisyTask, "encode")
def _same_noise(encode, task, vector, *, session_id, secrets):
    fixed = replace(secrets, seed=SecretBytes(bytes(32)))
    return encode(task, vector, session_id=session_id, secrets=fixed)


@instead("rotates by other signs", "R14.4-1", NoisyTask, "encode")
def _other_signs(encode, task, vector, **named):
    return encode(task, vector, **(named | {"session_id": bytes(32)}))


@instead("clips to a tenth of the length", "R14.3-2", NoisyTask, "encode")
def _tenth(encode, task, vector, *, session_id, secrets):
    length = max(1.0, 10.0 * float(np.linalg.norm(vector)))
    return encode(task, vector / length, session_id=session_id, secrets=secrets)


@instead("accepts any roster of a ring", "R11.3-1", session, "max_rosters_of")
def _uncounted(most, descriptor):
    found = most(descriptor)
    return None if found is None else found + 10 * _ROSTERS
