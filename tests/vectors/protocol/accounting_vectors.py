"""What the rule for small clients states: `accounting.json`.

Rule 1: nothing is known about a row without an epsilon; a client refuses it.
"""

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


def text(value: Any) -> str | None:
    return None if value == mp.inf else str(mp.nstr(value, 13))


def accounting() -> dict[str, Any]:
    with mp.workdps(DIGITS):
        rows = []
        for name, (variance, norm, largest, dim, steps, delta) in CASES.items():
            rule = {
                "variance": Fraction(variance),
                "norm_squared": Fraction(norm),
                "largest": Fraction(largest),
                "dim": dim,
                "steps": steps,
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
                    "steps": steps,
                    "delta": delta,
                    "a": text(shifted),
                    "b": text(summed),
                    "epsilon": text(min(shifted, summed)),
                }
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
