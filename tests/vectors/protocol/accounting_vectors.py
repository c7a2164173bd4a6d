"""What the rule for small clients states: `accounting.json`.

Rule 1: nothing is known about a row without an epsilon; a client refuses it.
"""

import json
import math
from fractions import Fraction
from typing import Any

from mpmath import mp
from reference_rule import DIGITS, quotient, statement_a, statement_b

# counted variance, squared norm, largest coordinate, coordinates, releases, delta
CASES: dict[str, tuple[str, str, str, int, int, str]] = {
    "one step per unit": ("369/25", "1/1", "1/32", 65536, 1, "1/100000"),
    "two steps": ("57/1", "4/1", "1/16", 65536, 1, "1/100000"),
    "four steps": ("225/1", "16/1", "1/8", 65536, 1, "1/100000"),
    "four steps, ten releases": ("225/1", "16/1", "1/8", 65536, 10, "1/100000"),
    "a fraction of a step": ("233/1", "1024/625", "165/4096", 65536, 10, "1/100000"),
    "sixteen steps": ("3600/1", "256/1", "1/2", 65536, 1, "1/100000"),
    "coordinates above one step": ("57600/1", "4096/1", "2/1", 65536, 1, "1/100000"),
    "a fine grid": ("921600/1", "65536/1", "8/1", 65536, 1, "1/100000"),
    "many coordinates, small delta": (
        *("1099511627776/1", "67108864/1", "256/1"),
        *(1 << 28, 10000, "1/1000000000000"),
    ),
    "a bound on coordinates that would make the tail vanish": (
        *("100/1", "1/100", "1000000/1", 1, 1, "1/10000000"),
    ),
    "less noise than the rule covers": ("399/100", "1/1", "1/2", 16, 1, "1/100000"),
    "vectors longer than the noise": ("100/1", "1000000/1", "1000/1", 4, 1, "1/1000"),
}
QUOTIENTS = [("225/1", "1/4096", 2), ("225/1", "1/4096", 12), ("57/1", "1/16", 32)]


# As the server made it of a plan of 12 sums, two of them of one client.
PLANNED = (
    '{"accountant":"mixture-simple","delta":1e-06,"epsilon":4.0,"mechanism":{'
    '"clip_flag_amplitude":0.0,"dim":24,"l2_clip":1.0,"linf_bound":"81/1",'
    '"max_nonzero":null,"mechanism":"skellam-mixture","modulus":2048,'
    '"num_clients":8,"rotation":"hadamard","rounding_bias":0.6065306597126334,'
    '"scale_factor":80.40625,"signed":false},"noise":{"colluder_fraction":"0/1",'
    '"colluders":0,"counted_variance":"29654163/1024","ladder":4,'
    '"loss_fraction":"1/4","min_survivors":6,"share_bits":20},"noise_sampler":'
    '"0e025c02530a8c384db208395902ac7af810d20e63a6b62e5f26c953ee9e9100",'
    '"participations":2,"selection_rate":"1/1","spare":1,"version":2}'
)


def inputs_of(block: str) -> tuple[str, str, str, int, int, str]:
    """The inputs of the rule, from a block whose vectors are padded by Hadamard's."""
    entries = json.loads(block)
    mechanism = entries["mechanism"]
    scale, clip, flag = (
        Fraction(mechanism[name])
        for name in ("scale_factor", "l2_clip", "clip_flag_amplitude")
    )
    exact = scale**2 * (clip**2 + flag**2)
    norm = float(exact)
    if Fraction(norm) < exact:
        norm = math.nextafter(norm, math.inf)
    written = Fraction(norm)
    delta = Fraction(entries["delta"])
    return (
        entries["noise"]["counted_variance"],
        f"{written.numerator}/{written.denominator}",
        mechanism["linf_bound"],
        1 << (mechanism["dim"] - 1).bit_length(),
        entries["participations"] + entries["spare"],
        f"{delta.numerator}/{delta.denominator}",
    )


def text(value: Any) -> str | None:
    return None if value == mp.inf else str(mp.nstr(value, 13))


def accounting() -> dict[str, Any]:
    with mp.workdps(DIGITS):
        rows = []
        cases = {name: (inputs, None) for name, inputs in CASES.items()}
        cases["a block as it was planned"] = inputs_of(PLANNED), PLANNED
        for name, (inputs, block) in cases.items():
            variance, norm, largest, dim, releases, delta = inputs
            rule = {
                "variance": Fraction(variance),
                "norm_squared": Fraction(norm),
                "largest": Fraction(largest),
                "dim": dim,
                "releases": releases,
                "delta": Fraction(delta),
            }
            shifted, summed = statement_a(rule), statement_b(rule)
            rows.append(
                {
                    "name": name,
                    "counted_variance": variance,
                    "l2_clip_squared_steps": norm,
                    "linf_bound": largest,
                    "dim": dim,
                    "releases": releases,
                    "delta": delta,
                    "a": text(shifted),
                    "b": text(summed),
                    "epsilon": text(min(shifted, summed)),
                }
                | ({} if block is None else {"noise_block": block})
            )
        moments = [
            {
                "counted_variance": variance,
                "linf_bound": largest,
                "order": order,
                "quotient": text(
                    quotient(order, Fraction(variance), Fraction(largest))
                ),
            }
            for variance, largest, order in QUOTIENTS
        ]
    return {"rules": rows, "quotients": moments}
