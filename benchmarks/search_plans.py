"""Searches the whole range of plans at random for defects.

A defect is a plan that is slow to make, slow to verify or more expensive than its
forecast. It is also an error without a name, an epsilon above the requested one, or
noise far above the Gaussian's.

It prints one JSON line per plan on standard output, and a summary on standard error. A
plan is drawn from `SEED/NUMBER` alone, so `--seed SEED --only NUMBER` repeats a line.

    python benchmarks/search_plans.py --count 1000 --seed a > plans.jsonl

Seconds are CPU time of this process with empty caches. It is not part of the test
suite: timings on a shared machine are not reproducible.
"""

import argparse
import dataclasses
import json
import math
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import partial
from typing import Any, Final, cast

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from dpnoise import accounting
from dpnoise.accounting import accounting_cost, make_accountant
from dpnoise.errors import DPNoiseError
from dpnoise.events import Adjacency, Adversary
from dpnoise.mechanisms import make_mechanism, mechanism_names
from dpnoise.mechanisms.parameters import ROTATION_NAMES
from dpnoise.planning import Plan, PlanRequest, clip_flag_amplitude, plan
from secagg.distributed_dp import noise_block, report
from secagg.errors import SecAggError

_PROMISED_SECONDS: Final = 2.0
_LIMIT_SECONDS: Final = 12.0
_NOISY: Final = 1.06
_MORE_BITS: Final = 3  # bits are the usual reason for much noise
_MIXTURES: Final = (
    "mixture-gdp",
    "mixture-simple",
    "mixture-rdp",
    "mixture-contour",
    "mixture-pld",
)
_INTEGERS: Final = ("skellam-gdp", "lattice-pld", "skellam-rdp", "skellam-paper")
# Accountants that have a theorem; others are requested as well, but rarely.
COVERING: Final = {
    "skellam-mixture": _MIXTURES,
    "smm": (*_MIXTURES, "smm-paper"),
    "skellam": _INTEGERS,
    "skellam-counts": _INTEGERS,
    "ddgauss": ("log-concave-gdp", "ddgauss-paper"),
    "binomial": ("log-concave-gdp", "lattice-pld", "cpsgd-recalled"),
    "discrete-gaussian": ("skellam-gdp", "zcdp", "lattice-pld"),
}
_NEVER_DEFAULT: Final = frozenset({"skellam-paper", "cpsgd-recalled"})
_REPLACEABLE: Final = frozenset({"skellam", "skellam-counts", "discrete-gaussian"})


class _TooLongError(Exception):
    """A plan has exceeded the largest time that is measured."""


def log_uniform(draw: random.Random, low: float, high: float) -> float:
    """Draw a number whose logarithm is uniform between those of `low` and `high`."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def drawn_request(seed: str) -> dict[str, Any]:
    """Draw the request for a plan, from the whole range of every keyword."""
    draw = random.Random(seed)  # noqa: S311 - which plans are tried is no secret
    asked: dict[str, Any] = {
        "mechanism": draw.choice(["skellam-mixture"] * 4 + list(mechanism_names())),
        "clients": round(log_uniform(draw, 2, 1 << 24)),
        "dimension": round(log_uniform(draw, 1, 1 << 28)),
        "epsilon": log_uniform(draw, 0.01, 50.0),
        "delta": log_uniform(draw, 1e-12, 1e-3),
        "steps": draw.choice([1, 10_000, *[round(log_uniform(draw, 1, 10_000))] * 3]),
    }
    if draw.random() < 0.15:
        asked["epsilon"] = draw.choice([0.01, 30.0, 50.0])
    _draw_vectors(draw, asked)
    if draw.random() < 0.3:
        asked["bits"] = draw.randint(2, 40)
    _draw_rates(draw, asked)
    _draw_cohort(draw, asked)
    if draw.random() < 0.3:
        covering = COVERING.get(asked["mechanism"], ("zcdp", "gaussian-pld"))
        anything = draw.random() < 0.1
        names = sorted(accounting.accountant_names()) if anything else covering
        asked["accountant"] = draw.choice(names)
    if draw.random() < (0.3 if asked["mechanism"] in _REPLACEABLE else 0.02):
        asked["adjacency"] = Adjacency.REPLACE_ONE
    if draw.random() < 0.15:
        asked["sum_l2_norm"] = log_uniform(draw, 1e-3, asked["clients"])
    if draw.random() < 0.3:
        asked["max_wrap_probability"] = draw.choice([1e-9, 1e-4, 1.0])
    if draw.random() < 0.1 and "l2_clip" in asked:
        _draw_flag(draw, asked)
    return asked


def _draw_vectors(draw: random.Random, asked: dict[str, Any]) -> None:
    if asked["mechanism"] == "skellam-counts":
        asked["max_nonzero"] = draw.choice(
            [1, asked["dimension"], round(log_uniform(draw, 1, asked["dimension"]))]
        )
        asked["signed"] = draw.random() < 0.3
        if draw.random() < 0.3:
            asked["linf_bound"] = Fraction(draw.randint(1, 40))
        return
    asked["l2_clip"] = draw.choice([1.0, 1.0, log_uniform(draw, 1e-3, 1e3)])
    if draw.random() < 0.35:  # up to 4096 grid steps for the clip
        asked["scale_factor"] = log_uniform(draw, 0.05, 4096.0) / asked["l2_clip"]
    if draw.random() < 0.1:
        asked["linf_bound"] = Fraction(
            max(1, round(log_uniform(draw, 1, 1 << 24))), 4096
        )
    asked["rotation"] = draw.choice(["hadamard"] * 4 + list(ROTATION_NAMES))


def _draw_rates(draw: random.Random, asked: dict[str, Any]) -> None:
    chosen = draw.random()
    rate = Fraction(1, round(log_uniform(draw, 2, 1000)))
    if asked["mechanism"] in {"discrete-gaussian", "gaussian"}:
        if chosen < 0.5:
            asked["sampling_rate"] = float(rate)
    elif chosen < 0.35:
        asked["selection_rate"] = rate


def _draw_cohort(draw: random.Random, asked: dict[str, Any]) -> None:
    clients = asked["clients"]
    if draw.random() < 0.4:
        most = clients if draw.random() < 0.3 else 0.1 * clients
        asked["colluders"] = min(
            clients - 2, round(log_uniform(draw, 1, max(1, most))) - 1
        )
    if draw.random() < 0.5:
        least = asked.get("colluders", 0) + 2
        if draw.random() < 0.7:
            least = max(least, round(draw.uniform(0.5, 1.0) * clients))
        asked["min_survivors"] = round(log_uniform(draw, least, max(least, clients)))
        if draw.random() < 0.5:
            asked["loss_fraction"] = draw.uniform(0.0, 0.6)
    if draw.random() < 0.2:
        asked["colluder_fraction"] = draw.uniform(0.0, 0.5)
    if draw.random() < 0.2:
        asked["ladder"] = draw.randint(0, 8)


def _draw_flag(draw: random.Random, asked: dict[str, Any]) -> None:
    """Draw a moving clip: with the planner's flag, or with any flag."""
    asked["clip_flag_amplitude"] = asked["l2_clip"] * log_uniform(draw, 1e-3, 1.0)
    if draw.random() < 0.5:
        try:
            request = PlanRequest(**asked | {"clip_flag_amplitude": 0.0})
            asked["clip_flag_amplitude"] = clip_flag_amplitude(request)
        except DPNoiseError:
            pass  # the planner will give the reason, or the flag drawn above serves


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Abort after so many seconds of CPU time."""

    def stop(*_: object) -> None:
        raise _TooLongError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """Return the CPU seconds of a call, and its result or error."""
    begin = time.process_time()
    try:
        with _at_most(_LIMIT_SECONDS):
            done: object = work()
    except (DPNoiseError, SecAggError, _TooLongError) as error:
        done = error
    except Exception as error:  # noqa: BLE001 - untyped errors are what is searched
        done = error
    return time.process_time() - begin, done


def forget() -> None:
    """Empty every cache of the packages: a client starts with none."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("dpnoise", "secagg")):
            for each in list(vars(module).values()):
                clear = getattr(each, "cache_clear", None)
                if callable(clear):
                    clear()


def _block(made: Plan) -> bytes:
    """Return the noise block that a client would receive."""
    mechanism = make_mechanism(made.parameters)
    return noise_block.NoiseBlock(
        mechanism=mechanism,
        budget=noise_block.NoiseBudget(
            epsilon=float(made.request.epsilon),
            delta=float(made.request.delta),
            participations=made.request.sums_of_one_client,
            spare=made.request.spare,
            accountant=made.accountant,
        ),
        selection_rate=made.request.selection,
        sampler=mechanism.sampler_digest.hex(),
    ).encode()


def check(block: bytes) -> float:
    """Verify a block in a client's order: form, cost, then epsilon.

    Args:
        block: A noise block, as in an offer.
    """
    read = noise_block.decode_block(block)
    noise_block.check_cost(read.mechanism, read.budget, read.selection_rate)
    report.statement(block, Adversary.MODEL_READER)
    return report.statement(block, Adversary.SERVER).epsilon


def _check_replacing(made: Plan) -> float:
    """Return epsilon under replace-one adjacency, which blocks do not state."""
    request = made.request
    account = make_accountant(
        made.accountant, adversary=request.calibrated_for, adjacency=request.adjacency
    )
    release = make_mechanism(made.parameters).event()
    return account.compose(request.releases(release)).epsilon(request.delta)


def _better(asked: dict[str, Any], made: Plan) -> float | None:
    """Return the least noise overhead of plans that differ in one open choice."""
    given = {
        "bits": made.parameters.bits,
        "scale_factor": made.parameters.scale_factor,
    }
    changes: list[dict[str, Any]] = []
    if asked.get("bits") is None and asked.get("scale_factor") is None:
        changes.append({"bits": made.parameters.bits + _MORE_BITS})
    if asked.get("accountant") is None:
        changes += [
            given | {"accountant": name}
            for name in COVERING.get(asked["mechanism"], ())
            if name not in _NEVER_DEFAULT and name != made.accountant
        ]
    found = []
    for change in changes:
        _, other = timed(partial(plan, **asked | change))
        if isinstance(other, Plan):
            found.append(other.noise_overhead)
    return min(found, default=None)


def _describe(error: BaseException) -> dict[str, object]:
    typed = isinstance(error, DPNoiseError | SecAggError)
    return {
        "refused": type(error).__name__ if typed else None,
        "untyped": None if typed else f"{type(error).__name__}: {error}",
        "says": str(error)[:200],
        "parameter": getattr(error, "parameter", None),
    }


def search(seed: str, number: int, *, choices: bool = False) -> dict[str, object]:
    """Make one plan, verify it, and return its figures.

    Args:
        seed: Of all plans.
        number: Of this one.
        choices: Whether noisy plans are compared with other choices: several plans
            more.
    """
    asked = drawn_request(f"{seed}/{number}")
    shown = {key: getattr(value, "value", value) for key, value in asked.items()}
    line: dict[str, object] = {"seed": seed, "number": number, "asked": shown}
    forget()
    line["plan_seconds"], made = timed(lambda: plan(**asked))
    if not isinstance(made, Plan):
        return line | _describe(cast("BaseException", made))
    release = make_mechanism(made.parameters).event()
    line |= {
        "accountant": made.accountant,
        "bits": made.parameters.bits,
        "scale_factor": made.parameters.scale_factor,
        "noise_overhead": made.noise_overhead,
        "ratio": made.forecast.expected_mse
        / (made.gaussian_mse * made.request.expected_surplus),
        "spent": max(made.epsilon_model_reader, _server(made)) / made.request.epsilon,
        "cost": accounting_cost(release, made.accountant),
    }
    zero_out = made.request.adjacency is Adjacency.ZERO_OUT
    if zero_out and not made.request.is_central:
        block = _block(made)
        forget()
        line["check_seconds"], checked = timed(lambda: check(block))
    else:
        forget()
        line["check_seconds"], checked = timed(lambda: _check_replacing(made))
    if isinstance(checked, float):
        line["checked"] = checked / made.request.epsilon
    else:
        line["check_says"] = str(checked)[:200]
        line["check_error"] = type(checked).__name__
    if choices and made.noise_overhead > _NOISY:
        line["better"] = _better(asked, made)
    return line


def _server(made: Plan) -> float:
    return 0.0 if made.statement_server is None else made.epsilon_server


def _summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    made = [line for line in lines if "accountant" in line]
    yield f"{len(lines)} plans asked for, {len(made)} made"
    yield f"refused: {dict(Counter(line.get('refused') for line in lines))}"
    for name in ("plan_seconds", "check_seconds"):
        seconds = sorted(line[name] for line in lines if name in line)
        above = sum(each > _PROMISED_SECONDS for each in seconds)
        mean = sum(seconds) / max(1, len(seconds))
        largest = ", ".join(f"{each:.2f}" for each in seconds[-5:])
        yield f"{name}: mean {mean:.3f}, above two {above}, largest {largest}"
    for title, holds in (
        ("without a name", lambda line: line.get("untyped")),
        ("above the asked epsilon", lambda line: line.get("spent", 0.0) > 1.0),
        ("verified above", lambda line: line.get("checked", 0.0) > 1.0 + 1e-6),
        ("not verified", lambda line: "check_error" in line),
        (
            "much noise, and less by a choice",
            lambda line: (
                (line.get("better") or math.inf)
                < 0.98 * line.get("noise_overhead", 0.0)
            ),
        ),
    ):
        numbers = [line["number"] for line in lines if holds(line)]
        yield f"{title}: {len(numbers)} {numbers[:20]}"


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def main() -> int:
    """Search, and exit with 1 if a defect was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="plans")
    parser.add_argument("--only", type=int, help="one number alone")
    parser.add_argument("--choices", action="store_true", help="compare noisy plans")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count)
    lines = []
    for number in numbers if options.only is None else [options.only]:
        line = search(options.seed, number, choices=options.choices)
        lines.append(line)
        print(json.dumps(line, default=_plain), flush=True)
    for text in _summary(lines):
        print(text, file=sys.stderr)
    slow = any(
        float(line.get(name, 0.0)) > _PROMISED_SECONDS
        for line in cast("list[dict[str, Any]]", lines)
        for name in ("plan_seconds", "check_seconds")
    )
    return 1 if slow or any(line.get("untyped") for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
