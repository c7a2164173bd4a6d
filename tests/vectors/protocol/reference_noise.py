"""§3.5, in fractions: how much noise one client adds, and which layers go again.

How a sampler draws from the key of a layer (§6.7) is checked by the vectors under
`tests/vectors/samplers`, which another reference makes.
"""

import json
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reference import (
    BAD_CONFIG,
    POLICY_VIOLATION,
    TOO_MANY_DROPOUTS,
    Offer,
    Refused,
    blob,
    digest,
    tag,
    u32,
)
from reference_keys import expand

BLOCK_VERSION = 2
MOST_PARTS = 10**6  # r of a selection rate p/r
FRACTION = r"[0-9]{1,28}/[1-9][0-9]{0,27}"


@dataclass(frozen=True)
class NoiseRule:
    """The entry `noise` of a noise block."""

    counted_variance: Fraction
    min_survivors: int
    loss_fraction: Fraction
    colluders: int
    colluder_fraction: Fraction
    share_bits: int
    ladder: int

    def as_json(self) -> dict[str, object]:
        return {
            name: rational(value) if isinstance(value, Fraction) else value
            for name, value in vars(self).items()
        }

    @staticmethod
    def of_block(block: bytes) -> "NoiseRule":
        """The rule of a block that was checked."""
        numbers = json.loads(block)["noise"]
        return NoiseRule(
            **{
                name: Fraction(value) if isinstance(value, str) else value
                for name, value in numbers.items()
            }
        )

    def losses(self, count: int) -> int:
        """D."""
        lost = math.floor(self.loss_fraction * count)
        return min(count - self.min_survivors, lost)

    def colluding(self, count: int) -> int:
        """c'."""
        return max(self.colluders, math.ceil(self.colluder_fraction * count))

    def above(self, variance: Fraction) -> Fraction:
        scaled = math.ceil(variance * 2**self.share_bits)
        return Fraction(scaled, 2**self.share_bits)

    def parts(self, count: int) -> tuple[Fraction, list[Fraction]]:
        """Base and layers."""
        others = count - self.colluding(count) - 1
        if others - self.losses(count) < 1:
            raise Refused(BAD_CONFIG)
        share = self.above(self.counted_variance / (others - self.losses(count)))
        if self.ladder == 0:
            return share, []
        base = self.above(self.counted_variance / others)
        unit = self.above((share - base) / 2**self.ladder)
        if unit == 0:
            return share, []
        return base, [unit] + [unit * 2**rung for rung in range(self.ladder)]

    def taken_back(self, count: int, lost: int) -> list[int]:
        """I(d)."""
        if lost > self.losses(count):
            raise Refused(TOO_MANY_DROPOUTS)
        base, layers = self.parts(count)
        if not layers:
            return []
        needed = self.counted_variance / (count - lost - self.colluding(count) - 1)
        units = math.floor((base + sum(layers) - needed) / layers[0])
        units = min(2**self.ladder, units)
        if units == 0:
            return []
        chosen = [i + 1 for i in range(self.ladder) if (units - 1) >> i & 1]
        return [0, *chosen]


def certificate(
    rule: NoiseRule,
    count: int,
    survivors: int,
    *,
    unseen: int = 0,
    given: list[int] | None = None,
) -> bytes:
    """What a sum holds."""
    base, layers = rule.parts(count)
    colluding, lost = rule.colluding(count), count - survivors
    removed = rule.taken_back(count, lost + unseen)
    kept = base + sum(layers[i] for i in range(len(layers)) if i not in removed)
    whole = survivors * (base + sum(layers))
    total = None
    if given is not None:
        taken = zip(given, removed, strict=True)
        total = rational(whole - sum(times * layers[i] for times, i in taken))
    return canonical(
        {
            "share_holders": count,
            "survivors": survivors,
            "losses": lost,
            "unseen": unseen,
            "colluders": colluding,
            "noise_required": rational(rule.counted_variance),
            "noise_present": rational((survivors - unseen - colluding - 1) * kept),
            "noise_total": total,
            "base": rational(base),
            "layers": [rational(layer) for layer in layers],
            "removed": removed,
            "given": given,
        }
    )


KEYS = {
    *("accountant", "delta", "epsilon", "mechanism", "noise", "noise_sampler"),
    *("participations", "selection_rate", "spare", "version"),
}
MECHANISM_KEYS = {
    *("clip_flag_amplitude", "dim", "l2_clip", "linf_bound", "max_nonzero"),
    *("mechanism", "modulus", "num_clients", "rotation", "rounding_bias"),
    *("scale_factor", "signed"),
}
NOISE_KEYS = {
    *("colluder_fraction", "colluders", "counted_variance", "ladder"),
    *("loss_fraction", "min_survivors", "share_bits"),
}
OPTIONAL = {"randomiser", "unit"}
UNIT_KEYS = {"start", "lowest", "highest", "quantile"}


def check_block(offer: Offer) -> None:
    """R3.5-4, R3.2-10, R3.5-6 and R3.5-3; of a randomiser only that it is an object.

    The numbers of a mechanism are checked where other parts of the offer name them.
    """
    if not offer.parameters.noise_block:
        return
    entries = object_of(offer.parameters.noise_block)
    demand(set(entries) - OPTIONAL == KEYS and entries["version"] == BLOCK_VERSION)
    for name in ("mechanism", "noise", "randomiser", "unit"):
        demand(isinstance(entries.get(name, {}), dict))
    for name, least in (("participations", 1), ("spare", 0)):
        demand(whole(entries[name]) >= least)
    mechanism, noise, rules = entries["mechanism"], entries["noise"], offer.parameters
    demand(set(mechanism) == MECHANISM_KEYS and set(noise) == NOISE_KEYS)
    demand(fraction(mechanism["linf_bound"]) > 0)
    demand(mechanism["modulus"] == rules.modulus)
    demand(whole(mechanism["num_clients"]) >= rules.max_clients)
    demand(whole(noise["min_survivors"]) <= rules.min_survivors)
    demand(whole(noise["colluders"]) >= rules.colluders)
    rate = fraction(entries["selection_rate"])
    demand(0 < rate <= 1 and rate.denominator <= MOST_PARTS)
    for name in ("counted_variance", "loss_fraction", "colluder_fraction"):
        fraction(entries["noise"][name])
    ladder = entries["noise"]["ladder"]
    demand(offer.parameters.noise_layers == (ladder + 1 if ladder else 0))
    if "unit" not in entries:
        demand(offer.noise_terms == b"")
        return
    demand(set(entries["unit"]) == UNIT_KEYS)
    bounds = {name: fraction(entries["unit"][name]) for name in UNIT_KEYS}
    demand(bounds["lowest"] <= bounds["start"] <= bounds["highest"])
    terms = object_of(offer.noise_terms)
    demand(set(terms) == {"unit"})
    demand(bounds["lowest"] <= fraction(terms["unit"]) <= bounds["highest"])


def check_claim(block: bytes, sampler: str, epsilon: float) -> None:
    """Step "claim" of R5.8-1, for a verifier that has this sampler and this figure."""
    entries = json.loads(block)
    demand(entries["noise_sampler"] == sampler)
    if epsilon > entries["epsilon"] * (1 + 1e-6):
        raise Refused(POLICY_VIOLATION)


def demand(holds: bool) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise Refused(BAD_CONFIG)


def whole(value: object) -> int:
    demand(type(value) is int)
    return int(str(value))


def object_of(data: bytes) -> dict[str, Any]:
    """An object in the one form that it has."""
    try:
        entries = json.loads(data)
    except ValueError:
        raise Refused(BAD_CONFIG) from None
    demand(isinstance(entries, dict) and canonical(entries) == data)
    return entries


def fraction(text: object) -> Fraction:
    demand(isinstance(text, str) and re.fullmatch(FRACTION, text) is not None)
    number = Fraction(str(text))
    demand(rational(number) == text)
    return number


def rational(number: Fraction) -> str:
    return f"{number.numerator}/{number.denominator}"


def canonical(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def block_of(
    noise: dict[str, object], *, dim: int, modulus: int, num_clients: int, **more: Any
) -> bytes:
    """A block for vectors that nothing rotates; the hash of its sampler is made up."""
    flag = more.pop("clip_flag_amplitude", 0.0)
    entries = {
        "accountant": "skellam-gdp",
        "delta": 1e-05,
        "epsilon": 1000.0,
        "mechanism": {
            "clip_flag_amplitude": flag,
            "dim": dim,
            "l2_clip": 1.0,
            "linf_bound": "4/1",
            "max_nonzero": None,
            "mechanism": "skellam",
            "modulus": modulus,
            "num_clients": num_clients,
            "rotation": "none",
            "rounding_bias": 0.6065306597126334,
            "scale_factor": 4.0,
            "signed": False,
        },
        "noise": noise,
        "noise_sampler": "00" * 32,
        "participations": 1,
        "selection_rate": "1/1",
        "spare": 0,
        "version": BLOCK_VERSION,
    }
    return canonical(entries | more)


def layer_key(suite: int, seed: bytes, ctx2: bytes, layer: int) -> bytes:
    """key_(i+1) of §6.7, from g_i."""
    info = tag("client", "noise", suite) + blob(ctx2) + u32(layer + 1)
    return expand(seed, info, 32)


def noise_context(suite: int, rule: NoiseRule, count: int, tables: list[str]) -> bytes:
    base, layers = rule.parts(count)
    content = {
        "base": rational(base),
        "layers": [rational(layer) for layer in layers],
        "roster": count,
        "tables": tables,
    }
    return digest(suite, "noise-context", canonical(content))
