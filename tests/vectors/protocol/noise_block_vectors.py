"""Noise blocks and what an offer adds to them: the key `blocks` of `noise.json`.

Rule 1: the good ones are of tasks that a planner has made; their samplers are made up.
"""

from collections.abc import Iterator
from typing import Any

import reference as ref
from forged_messages import agreeing
from reference_noise import canonical, check_block
from session_vectors import counting, parameters

MECHANISM: dict[str, Any] = {
    "clip_flag_amplitude": 0.0,
    "dim": 6,
    "l2_clip": 2.0111230650641554,
    "linf_bound": "219/1",
    "max_nonzero": None,
    "mechanism": "skellam",
    "modulus": 16777216,
    "num_clients": 4,
    "rotation": "hadamard",
    "rounding_bias": 0.6065306597126334,
    "scale_factor": 108.5,
    "signed": False,
}
NOISE: dict[str, Any] = {
    "colluder_fraction": "0/1",
    "colluders": 0,
    "counted_variance": "14907829/8192",
    "ladder": 0,
    "loss_fraction": "1/4",
    "min_survivors": 3,
    "share_bits": 20,
}
PLAIN: dict[str, Any] = {
    "accountant": "skellam-gdp",
    "delta": 1e-06,
    "epsilon": 60.0,
    "mechanism": MECHANISM,
    "noise": NOISE,
    "noise_sampler": counting(0x30, 32).hex(),
    "participations": 2,
    "selection_rate": "1/1",
    "spare": 1,
    "version": 2,
}
RANDOMISER: dict[str, Any] = {
    "bound": 2.0,
    "dim": 6,
    "epsilon": 30.0,
    "magnitude_epsilon": 8.0,
    "randomiser": "separated",
}
UNIT = {"highest": "805/1", "lowest": "805/16", "quantile": "1/2", "start": "805/4"}
FLAGGED = MECHANISM | {
    "clip_flag_amplitude": 0.25,
    "dim": 7,
    "linf_bound": "405/1",
    "scale_factor": 201.25,
}
MOVING = PLAIN | {"mechanism": FLAGGED, "unit": UNIT}
RANDOMISED = PLAIN | {"randomiser": RANDOMISER}
LAYERED = PLAIN | {"noise": NOISE | {"ladder": 2}}
SELECTED = PLAIN | {"selection_rate": "1/10"}


def offer_of(block: bytes, terms: bytes, layers: int) -> ref.Offer:
    rules = parameters(
        modulus=16777216,
        dim=9 if b'"unit"' in block else 8,  # one more tells who fits the clip
        min_clients=4,
        max_clients=4,
        threshold=3,
        min_survivors=3,
        max_losses=1,
        colluders=0,
        noise_layers=layers,
        noise_block=block,
    )
    rules.check()
    return ref.Offer(
        "sums-1",
        "vectors/blocks",
        1,
        counting(0, 32),
        1_800_000_000,
        b"",
        rules,
        terms,
    )


def cases() -> Iterator[tuple[str, bytes, bytes, int]]:
    """Name, block, terms and number of layers; a rule comes first where one fails."""
    at_start = canonical({"unit": "805/4"})
    for name, entries, terms, layers in (
        ("noise and nothing else", PLAIN, b"", 0),
        ("vectors are randomised", RANDOMISED, b"", 0),
        ("vectors are selected in secret", SELECTED, b"", 0),
        ("the clip moves", MOVING, at_start, 0),
        ("the clip is at its largest", MOVING, canonical({"unit": "805/16"}), 0),
        ("noise in layers", LAYERED, b"", 3),
        ("R3.2-10 layers without a ladder", PLAIN, b"", 3),
        ("R3.2-10 a ladder without layers", LAYERED, b"", 0),
        ("R3.2-10 one layer for each rung", LAYERED, b"", 2),
        (
            "R3.5-6 noise for fewer clients than the session takes",
            PLAIN | {"mechanism": MECHANISM | {"num_clients": 3}},
            b"",
            0,
        ),
        (
            "R3.5-6 noise for another modulus",
            PLAIN | {"mechanism": MECHANISM | {"modulus": 8388608}},
            b"",
            0,
        ),
        (
            "R3.5-6 noise for more survivors than the session unmasks",
            PLAIN | {"noise": NOISE | {"min_survivors": 4}},
            b"",
            0,
        ),
        ("R3.5-3 no unit where the clip moves", MOVING, b"", 0),
        ("R3.5-3 a unit where the clip stays", PLAIN, at_start, 0),
        ("R3.5-3 a unit above the highest", MOVING, canonical({"unit": "806/1"}), 0),
        ("R3.5-3 a unit below the lowest", MOVING, canonical({"unit": "50/1"}), 0),
        ("R3.5-3 a unit not in lowest terms", MOVING, b'{"unit":"1610/8"}', 0),
        ("R3.5-3 a unit of 29 digits", MOVING, b'{"unit":"1%028d/1%028d"}' % (0, 0), 0),
        ("R3.5-3 a unit and a space", MOVING, b'{"unit": "805/4"}', 0),
        ("R3.5-3 a unit and more", MOVING, b'{"more":1,"unit":"805/4"}', 0),
        ("R3.5-3 a unit that is a number", MOVING, b'{"unit":201.25}', 0),
    ):
        yield name, canonical(entries), terms, layers
    good = canonical(PLAIN)
    for name, block in {
        "is no JSON": good[:-1],
        "has a space": good.replace(b",", b", ", 1),
        "has its keys in another order": b'{"version":2,' + good[1:-13] + b"}",
        "is a list": b"[]",
        "lacks a key": canonical({k: PLAIN[k] for k in PLAIN if k != "spare"}),
        "has a key more": canonical(PLAIN | {"more": 1}),
        "has another version": canonical(PLAIN | {"version": 1}),
        "writes a float in another way": good.replace(b"108.5", b"108.50"),
        "writes an exponent in another way": good.replace(b"1e-06", b"0.000001"),
        "has a key twice": good[:-1] + b',"version":2}',
        "selects no client": canonical(PLAIN | {"selection_rate": "0/1"}),
        "selects more than all": canonical(PLAIN | {"selection_rate": "2/1"}),
        "has a rate not in lowest terms": canonical(PLAIN | {"selection_rate": "2/20"}),
        "has a rate of too many digits": canonical(
            PLAIN | {"selection_rate": "1/1000001"}
        ),
        "has a variance not in lowest terms": canonical(
            PLAIN | {"noise": NOISE | {"counted_variance": "10/4"}}
        ),
        "has a randomiser that is not an object": canonical(
            PLAIN | {"randomiser": "separated"}
        ),
        "has bounds in another order": canonical(
            MOVING | {"unit": UNIT | {"start": "806/1"}}
        ),
        "has bounds of other names": canonical(MOVING | {"unit": {"start": "805/4"}}),
        "states no bound on coordinates": canonical(
            PLAIN | {"mechanism": MECHANISM | {"linf_bound": None}}
        ),
        "states a bound that is a number": canonical(
            PLAIN | {"mechanism": MECHANISM | {"linf_bound": 219}}
        ),
        "lacks a number of its mechanism": canonical(
            PLAIN
            | {"mechanism": {k: MECHANISM[k] for k in MECHANISM if k != "num_clients"}}
        ),
        "covers no participation": canonical(PLAIN | {"participations": 0}),
        "states the sums of the task": canonical(PLAIN | {"steps": 2}),
        "spares half a session": canonical(PLAIN | {"spare": 0.5}),
    }.items():
        yield f"R3.5-4 a block that {name}", block, b"", 0


def blocks() -> list[dict[str, Any]]:
    rows = []
    for full_name, block, terms, layers in cases():
        fails = full_name.startswith("R3.")
        rule, _, name = full_name.partition(" ") if fails else ("", "", full_name)
        offer = offer_of(block, terms, layers)
        row: dict[str, Any] = {
            "name": name,
            "success": not fails,
            "noise_block": block.decode(),
            "noise_terms": terms.decode(),
            "noise_layers": layers,
            "offer": offer.encode().hex(),
        }
        if fails:
            row |= {"rule": rule, "code": ref.BAD_CONFIG}
            agreeing(row, lambda offer=offer: check_block(offer))
        else:
            check_block(offer)
        rows.append(row)
    return rows
