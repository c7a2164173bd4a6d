"""Shares of noise and the layers that are taken back: `noise.json`.

Rule 1: the invariant is checked before anything is recorded: what the counted clients
        keep sums to the counted variance, whatever was lost.
"""

from fractions import Fraction
from typing import Any

from noise_block_vectors import blocks
from reference import BAD_CONFIG
from reference_noise import NoiseRule, layer_key, noise_context, rational
from session_vectors import counting


def rule(variance: str, survivors: int, lost: str, **changes: Any) -> NoiseRule:
    fields: dict[str, Any] = {
        "colluders": 0,
        "colluder_fraction": Fraction(0),
        "share_bits": 12,
        "ladder": 4,
    }
    fields |= changes
    return NoiseRule(Fraction(variance), survivors, Fraction(lost), **fields)


CASES: dict[str, tuple[NoiseRule, list[int]]] = {
    "four rungs, no colluders": (rule("225/1", 70, "3/10"), [100, 71, 70]),
    "no ladder": (rule("225/1", 70, "3/10", ladder=0), [100, 80]),
    "no losses": (rule("15/1", 10, "0/1"), [10, 20]),
    "rounding swallows the losses": (rule("15/1", 999, "1/1000"), [1000]),
    "a tenth colludes, eight rungs": (
        rule("7/4", 20, "2/5", colluder_fraction=Fraction(1, 10), ladder=8),
        [20, 33, 60],
    ),
    "colluders by number, coarse shares": (
        rule("1000/3", 12, "1/4", colluders=3, share_bits=0, ladder=1),
        [12, 16, 17],
    ),
    "no share is left to count": (
        rule("1/1", 4, "0/1", colluder_fraction=Fraction(3, 4)),
        [4],
    ),
}


def sessions_of(the: NoiseRule, count: int) -> dict[str, Any]:
    base, layers = the.parts(count)
    tables = [counting(place, 32).hex() for place in range(1 + len(layers))]
    reveals = []
    for lost in range(the.losses(count) + 1):
        chosen = the.taken_back(count, lost)
        kept = base + sum(layers) - sum(layers[i] for i in chosen)
        honest = count - lost - the.colluding(count) - 1
        if honest * kept < the.counted_variance:
            raise AssertionError(the, count, lost)
        reveals.append(chosen)
    return {
        "share_holders": count,
        "base": rational(base),
        "layers": [rational(layer) for layer in layers],
        "taken_back": reveals,
        "tables": tables,
        "suite": 1,
        "noise_context": noise_context(1, the, count, tables).hex(),
    }


def noise() -> dict[str, Any]:
    """Return the content of the file."""
    rows = []
    for name, (the, counts) in CASES.items():
        row: dict[str, Any] = {"name": name, "noise": the.as_json()}
        if name == "no share is left to count":
            row |= {"rule": "R3.5-1", "success": False, "code": BAD_CONFIG}
            row["share_holders"] = counts[0]
        else:
            row["sessions"] = [sessions_of(the, count) for count in counts]
        rows.append(row)
    return {"rules": rows, "layer_keys": layer_keys(), "blocks": blocks()}


def layer_keys() -> list[dict[str, Any]]:
    seed, ctx2 = counting(0x11, 32), counting(0x60, 32)
    return [
        {
            "suite": suite,
            "noise_seed": seed.hex(),
            "ctx2": ctx2.hex(),
            "layer": layer,
            "key": layer_key(suite, seed, ctx2, layer).hex(),
        }
        for suite, layer in ((1, 0), (1, 16), (2, 0))
    ]
