"""Searches for noise blocks that take a client long to verify.

A server may write anything of the right form into a noise block. Blocks are drawn from
the whole range of every field, without a planner that would avoid expensive ones. They
are verified in a client's order: form, cost, epsilon for both adversaries, sampler.

    python benchmarks/search_blocks.py --count 1000 --seed a > blocks.jsonl

It prints one JSON line per block on standard output, and a summary on standard error.
Seconds are CPU time with empty caches.
"""

import argparse
import json
import math
import random
import sys
from collections import Counter
from fractions import Fraction
from typing import Any, Final

from search_plans import COVERING, check, forget, log_uniform, timed

from dpnoise.errors import DPNoiseError
from dpnoise.mechanisms import make_mechanism, mechanism_names
from dpnoise.mechanisms.noise_share import NoiseRule
from dpnoise.mechanisms.parameters import ROTATION_NAMES, MechanismParameters
from secagg.distributed_dp import noise_block

_PROMISED_SECONDS: Final = 2.0
_CENTRAL: Final = frozenset({"gaussian", "discrete-gaussian"})


def drawn_block(draw: random.Random) -> bytes:
    """Draw a noise block of the right form, whether or not it protects.

    Raises:
        DPNoiseError: The mechanism has no such parameters, so the draw is discarded.
    """
    chosen = [name for name in mechanism_names() if name not in _CENTRAL]
    name = draw.choice(["skellam-mixture"] * 3 + chosen)
    clients = round(log_uniform(draw, 3, 1 << 24))
    dim = round(log_uniform(draw, 1, 1 << 28))
    steps_of_clip = log_uniform(draw, 2.0**-12, 2.0**20)
    counts = name == "skellam-counts"
    linf = Fraction(max(1, round(log_uniform(draw, 1, 1 << 30))), 4096)
    if counts or name == "smm":
        linf = Fraction(math.ceil(linf))
    nonzero = round(log_uniform(draw, 1, dim)) if counts else None
    mechanism = make_mechanism(
        MechanismParameters(
            mechanism=name,
            dim=dim,
            l2_clip=float(linf) * math.sqrt(nonzero or 1) if counts else steps_of_clip,
            scale_factor=1.0,
            modulus=1 << draw.choice([16, 32, 62]),
            noise_rule=NoiseRule(
                counted_variance=Fraction(
                    round(log_uniform(draw, 1, 2.0**60)), 1 << 20
                ),
                min_survivors=max(2, round(clients * draw.uniform(0.3, 1.0))),
                loss_fraction=Fraction(draw.randint(0, 60), 100),
                colluders=0,
                colluder_fraction=Fraction(0),
                share_bits=1 if name == "binomial" else 20,
                ladder=0 if name in {"ddgauss", "binomial"} else draw.choice([0, 4]),
            ),
            num_clients=clients,
            rotation="none" if counts else draw.choice(ROTATION_NAMES),
            linf_bound=linf if counts or draw.random() < 0.5 else None,
            max_nonzero=nonzero,
        )
    )
    rate = Fraction(1)
    if draw.random() < 0.4:
        rate = Fraction(1, round(log_uniform(draw, 2, 100_000)))
    return noise_block.NoiseBlock(
        mechanism=mechanism,
        budget=noise_block.NoiseBudget(
            epsilon=log_uniform(draw, 1e-3, 100.0),
            delta=log_uniform(draw, 1e-15, 0.5),
            participations=round(log_uniform(draw, 1, noise_block.MAX_STEPS)),
            spare=0,
            accountant=draw.choice(COVERING.get(name, ("mixture-pld",))),
        ),
        selection_rate=rate,
        sampler=mechanism.sampler_digest.hex(),
    ).encode()


def search(seed: str, number: int) -> dict[str, Any] | None:
    """Verify one block; return None if the draw was discarded.

    Args:
        seed: Of all blocks.
        number: Of this one.
    """
    draw = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret is drawn
    try:
        block = drawn_block(draw)
    except DPNoiseError:
        return None
    forget()
    check_seconds, checked = timed(lambda: check(block))
    forget()
    sampler_seconds, _ = timed(lambda: noise_block.check_sampler(block))
    return {
        "number": number,
        "block": block.decode(),
        "check_seconds": check_seconds,
        "sampler_seconds": sampler_seconds,
        "checked": checked if isinstance(checked, float) else None,
        "refused": None if isinstance(checked, float) else type(checked).__name__,
        "says": str(checked)[:200],
    }


def main() -> int:
    """Search, and exit with 1 if a block takes longer than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default="blocks")
    parser.add_argument("--only", type=int, help="one number alone")
    options = parser.parse_args()
    lines = []
    for number in range(options.count) if options.only is None else [options.only]:
        line = search(options.seed, number)
        if line is not None:
            lines.append(line)
            print(json.dumps(line), flush=True)
    print(len(lines), Counter(line["refused"] for line in lines), file=sys.stderr)
    for name in ("check_seconds", "sampler_seconds"):
        seconds = sorted(line[name] for line in lines)
        largest = ", ".join(f"{each:.2f}" for each in seconds[-5:])
        print(f"{name}: largest {largest}", file=sys.stderr)
    return int(any(line["check_seconds"] > _PROMISED_SECONDS for line in lines))


if __name__ == "__main__":
    sys.exit(main())
