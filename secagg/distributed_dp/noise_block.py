"""The noise block: the noise in a task's parameters, and its claimed cost.

Each description of noise has one encoding, whose bytes enter the configuration hash and
identify the budget. Reading a block draws no noise and computes no epsilon. Checks that
take seconds are separate; only a client that intends to take part runs them.
"""

import json
import math
import re
import sys
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dpnoise.accounting import check_accounting_cost, privacy_unit
from dpnoise.errors import DPNoiseError
from dpnoise.events import PrivacyEvent, SecretlySelected
from dpnoise.floats import rational_text
from dpnoise.local import LocalParameters
from dpnoise.mechanisms import (
    Mechanism,
    MechanismParameters,
    check_selection_rate,
    make_mechanism,
)
from secagg.distributed_dp.units import UnitBounds
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.parameters import MAX_NOISE_BLOCK_BYTES

_BLOCK_VERSION: Final = 2
_LEAST_UNIT: Final = Fraction(1, 1 << 64)  # products stay floats
# As many digits as a rate has, whose denominator is at most a million.
_RATE: Final = re.compile(r"[1-9][0-9]{0,6}/[1-9][0-9]{0,6}")
MAX_STEPS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBudget:
    """The privacy that a task claims to spend on each of its users.

    Attributes:
        epsilon: Loss of one client over all its charges, against the server.
        delta: Failure probability, over the same charges.
        participations: Largest number n of sums that hold one client's data.
        spare: Further sessions of one client, for those that end without a sum after
            they may have revealed something.
        accountant: Name of the accountant that computes epsilon.
        randomiser: Makes every vector private before it is encoded, even against a
            server that breaks the masks; None without one.
    """

    epsilon: float
    delta: float
    participations: int
    spare: int
    accountant: str
    randomiser: LocalParameters | None = None

    @property
    def charges(self) -> int:
        """Sessions that one client may be charged for, n + spare; all are counted."""
        return self.participations + self.spare

    def max_sessions(self, steps: int) -> int:
        """Return how many sessions a task may have, over all its clients.

        With fewer participations than sums, there is more than one cohort of clients,
        and each cohort has its own spare sessions. This number ends a task. Only
        `charges` limits what one client is charged for.

        Args:
            steps: Sums of the task, at least `participations`.
        """
        return steps + self.spare * steps // self.participations

    @property
    def privacy_unit(self) -> str:
        """The data that epsilon and delta protect, and in how many sessions."""
        return privacy_unit(self.charges)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseBlock:
    """The contents of a noise block.

    Attributes:
        mechanism: The mechanism with its noise.
        budget: The task's claim.
        selection_rate: Part of the vectors that count, by secret selection; 1 for all.
        sampler: Digest of the sampler that draws the noise, in hexadecimal.
        units: Bounds of a clip that moves from session to session; None for a fixed
            clip.
    """

    mechanism: Mechanism
    budget: NoiseBudget
    selection_rate: Fraction
    sampler: str
    units: UnitBounds | None = None

    @property
    def release(self) -> PrivacyEvent:
        """The release of one session, as input of an accountant."""
        event = self.mechanism.event()
        if self.selection_rate == 1:
            return event
        return SecretlySelected(event, self.selection_rate)

    def encode(self) -> bytes:
        """Return the canonical bytes of the block (PROTOCOL §3.5).

        JSON with sorted keys, no white space, floats in their shortest form, rationals
        as "p/q" in lowest terms. The bound on coordinates is always written, even if
        the mechanism derived it, so that no reader derives it again.
        """
        encoder = self.mechanism.parameters.to_dict()
        encoder["linf_bound"] = rational_text(self.mechanism.coordinate_cap)
        entries: dict[str, object] = {
            "version": _BLOCK_VERSION,
            "noise": encoder.pop("noise_rule"),
            "mechanism": encoder,
            "noise_sampler": self.sampler,
            "selection_rate": rational_text(self.selection_rate),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "participations": self.budget.participations,
            "spare": self.budget.spare,
            "accountant": self.budget.accountant,
        }
        if self.budget.randomiser is not None:
            entries["randomiser"] = self.budget.randomiser.to_dict()
        if self.units is not None:
            entries["unit"] = self.units.to_dict()
        return canonical_json(entries)


def canonical_json(entries: object) -> bytes:
    """Return JSON with sorted keys, no white space, floats in shortest form."""
    return json.dumps(
        entries, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


_BLOCK_KEYS: Final = frozenset(
    {
        "version",
        "mechanism",
        "noise",
        "noise_sampler",
        "selection_rate",
        "epsilon",
        "delta",
        "participations",
        "spare",
        "accountant",
    }
)
_OPTIONAL_KEYS: Final = frozenset({"randomiser", "unit"})


@lru_cache(maxsize=64)
def decode_block(block: bytes) -> NoiseBlock:
    """Read a block (R3.5-4), cheapest checks first; draw no noise yet.

    Raises:
        RemoteProtocolError: BAD_CONFIG; it is missing, malformed or not canonical, or
            describes a mechanism outside its ranges, its theorem or its clip flag
            (R14.2-1, R14.2-2, R14.2-3, R14.5-3).
    """
    if not 0 < len(block) <= MAX_NOISE_BLOCK_BYTES:
        raise bad_block("it is missing" if not block else "it is too long")
    try:
        entries = json.loads(block)
        is_canonical = canonical_json(entries) == block
    except (ValueError, RecursionError):
        raise bad_block("it is not JSON") from None
    if not is_canonical:
        raise bad_block("it is not in canonical form")
    if not isinstance(entries, dict) or set(entries) - _OPTIONAL_KEYS != _BLOCK_KEYS:
        raise bad_block(
            f"it must have exactly the keys {', '.join(sorted(_BLOCK_KEYS))}, and "
            f"{' and '.join(sorted(_OPTIONAL_KEYS))} where there are such"
        )
    if entries["version"] != _BLOCK_VERSION:
        raise bad_block(f"its version is not {_BLOCK_VERSION}")
    budget = NoiseBudget(
        epsilon=_positive(entries["epsilon"], "epsilon", math.inf),
        delta=_positive(entries["delta"], "delta", 1.0),
        participations=_read_integer(
            entries["participations"], "participations", lowest=1
        ),
        spare=_read_integer(entries["spare"], "spare", lowest=0),
        accountant=str(entries["accountant"]),
        randomiser=_randomiser(entries.get("randomiser")),
    )
    encoder, noise = entries["mechanism"], entries["noise"]
    if not isinstance(encoder, dict) or "noise_rule" in encoder:
        raise bad_block("its mechanism is not an object, or holds the noise")
    if encoder.get("linf_bound", "") is None:
        raise bad_block("its mechanism states no linf_bound")
    try:
        mechanism = make_mechanism(
            MechanismParameters.from_dict(encoder | {"noise_rule": noise})
        )
    except DPNoiseError as error:
        raise bad_block(str(error)) from None
    read = NoiseBlock(
        mechanism=mechanism,
        budget=budget,
        selection_rate=_read_rate(entries["selection_rate"]),
        sampler=str(entries["noise_sampler"]),
        units=_read_units(entries.get("unit"), mechanism, budget),
    )
    # One description, one block: what is charged is charged to its bytes.
    if read.encode() != block:
        raise bad_block("its numbers are not in canonical form")
    return read


def check_cost(mechanism: Mechanism, budget: NoiseBudget, rate: Fraction) -> None:
    """Refuse a block that takes clients too long to check.

    Args:
        mechanism: Mechanism of the block.
        budget: Budget of the block, with the accountant to use.
        rate: Selection rate of the block.

    Raises:
        RemoteProtocolError: BAD_CONFIG.
    """
    try:
        release = mechanism.event()
        check_accounting_cost(
            release,
            budget.accountant,
            times=budget.charges,
            delta=budget.delta,
            rate=float(rate),
        )
    except DPNoiseError as error:
        raise bad_block(str(error)) from None


@lru_cache(maxsize=64)
def check_sampler(block: bytes) -> None:
    """Refuse noise that this release does not draw (R14.8-3); takes up to seconds."""
    read = decode_block(block)
    try:
        digest = read.mechanism.sampler_digest
    except DPNoiseError as error:
        raise bad_block(str(error)) from None
    # A sampler with other tables would not draw the noise that the block states.
    if read.sampler != digest.hex():
        raise bad_block("its noise sampler is not the one that this release builds")


def _randomiser(entries: object) -> LocalParameters | None:
    """Read the randomiser of vectors; None without one."""
    if entries is None:
        return None
    if not isinstance(entries, dict):
        raise bad_block("its randomiser is not an object")
    try:
        return LocalParameters.from_dict(entries)
    except DPNoiseError as error:
        raise bad_block(str(error)) from None


def _read_units(
    entries: object, mechanism: Mechanism, budget: NoiseBudget
) -> UnitBounds | None:
    """Read the bounds of a moving clip; None for a fixed one."""
    if entries is None:
        return None
    if not mechanism.has_clip_flag:
        raise bad_block("its clip moves, but no flag tells which vectors fit")
    if budget.randomiser is not None:
        raise bad_block("a local randomiser has one clip, which cannot move")
    try:
        units = UnitBounds.from_dict(entries)
    except ValueError as error:
        raise bad_block(str(error)) from None
    planned = Fraction(mechanism.parameters.scale_factor)
    if (
        not _LEAST_UNIT * planned
        <= units.lowest
        <= units.highest
        <= planned / (_LEAST_UNIT)
    ):
        raise bad_block("its clip may move by more than a factor of 2^64")
    return units


def _positive(value: object, name: str, below: float) -> float:
    """Return a number of a block within (0, below)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_block(f"{name} is not a number")
    # Compared before it is converted: a server's integer may exceed all floats.
    if not 0 < value < min(below, sys.float_info.max):
        raise bad_block(f"{name} must lie between 0 and {below}")
    return float(value)


def _read_rate(value: object) -> Fraction:
    """Return the selection rate of a block."""
    if not isinstance(value, str) or _RATE.fullmatch(value) is None:
        raise bad_block("its selection_rate is not a rate")
    try:
        return check_selection_rate(Fraction(value))
    except DPNoiseError as error:
        raise bad_block(str(error)) from None


def _read_integer(value: object, name: str, *, lowest: int) -> int:
    """Return an integer of a block, within its limits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_block(f"{name} must be an integer")
    if not lowest <= value <= MAX_STEPS:
        raise bad_block(f"{name} must lie between {lowest} and {MAX_STEPS}")
    return value


def bad_block(complaint: str) -> SecAggError:
    """Return the error for an invalid noise block."""
    return ErrorCode.BAD_CONFIG.error(
        f"invalid noise block: {complaint}",
        fix="Plan the task again with `secagg plan`.",
    )
