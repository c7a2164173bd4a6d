"""§14, slowly: from a vector to residues, and from the residues of a sum back.

Rule 1: what must be exact is done in integers and fractions; the rest in plain floats.
Rule 2: matrices are written out entry by entry; nothing is fast.
"""

import cmath
import json
import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from reference import digest
from reference_noise import NoiseRule, demand, fraction, whole
from reference_tables import Sampler, little, sampler, stream

ONE = 2**32  # units of fixed point in a grid step
STEPS = 2**25  # most grid steps of a bound
MOST_ATTEMPTS = 64
ROTATIONS = ("hadamard", "hadamard-kronecker", "dft", "none")
ODD_PARTS: tuple[tuple[int, ...], ...] = (
    *((), (12,), (20,)),
    *((12, 12), (12, 20), (20, 20)),
)
PRIMES = {12: 11, 20: 19}
SQUARES = {q + 1: {k * k % q for k in range(1, q)} for q in PRIMES.values()}
# Law, rounding, least and largest variance of a draw, most share_bits.
MECHANISMS = {
    "skellam-mixture": ("skellam", "stochastic", Fraction(1, 2**20), 2**28, 20),
    "skellam": ("skellam", "conditional", Fraction(1, 2**20), 2**32, 20),
    "skellam-counts": ("skellam", "none", Fraction(1, 2**20), 2**28, 20),
    "smm": ("skellam", "stochastic", Fraction(1, 2**20), 2**28, 20),
    "ddgauss": ("discrete-gaussian", "conditional", Fraction(1, 64), 2**28, 20),
    "binomial": ("binomial", "conditional", Fraction(1, 2), 2**32, 1),
}


def above(number: Fraction) -> float:
    """The least double that is not below a rational."""
    nearest = float(number)
    return math.nextafter(nearest, math.inf) if nearest < number else nearest


def residue(number: int, modulus: int) -> int:
    """R14.1-1, R14.7-3."""
    return number % modulus


def centred(number: int, modulus: int) -> int:
    """R14.1-2."""
    return number if number < (modulus + 1) // 2 else number - modulus


def factors(length: int, parts: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Orders of the Kronecker factors of the least length that is enough."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for odd in parts:
        e = 0
        while math.prod(odd) * 2**e < length:
            e += 1
        orders = (*odd, *((2 ** (e % 5),) if e % 5 else ()), *(32,) * (e // 5))
        found.append((math.prod(orders), orders))
    return min(found)[1]


def entry(order: int, i: int, j: int) -> int:
    """Of one factor, not normalised."""
    if order not in PRIMES:
        return -1 if (i & j).bit_count() % 2 else 1
    prime = PRIMES[order]
    if i == j:
        return 1
    if i == 0 or j == 0:
        return 1 if i == 0 else -1
    return 1 if (i - j) % prime in SQUARES[order] else -1


@dataclass(frozen=True)
class Rotation:
    """§14.4: a name, `dim`, and the key of the signs."""

    name: str
    dim: int
    key: bytes

    def signs(self) -> list[int]:
        if self.name == "none":
            return [1] * self.dim
        octets = stream(self.key, b"rotation/signs", 0, -(-self.dim // 8))
        return [-1 if octets[j // 8] >> j % 8 & 1 else 1 for j in range(self.dim)]

    def orders(self) -> tuple[int, ...]:
        return factors(
            self.dim, ODD_PARTS[:1] if self.name == "hadamard" else ODD_PARTS
        )

    def length(self) -> int:
        return self.dim if self.name in {"dft", "none"} else math.prod(self.orders())

    def matrix(self) -> list[list[float]]:
        """Row by row, orthonormal."""
        size = self.length()
        if self.name == "none":
            return [[float(i == j) for j in range(size)] for i in range(size)]
        if self.name == "dft":
            return self._fourier()
        orders, scale = self.orders(), 1 / math.sqrt(size)
        return [
            [scale * _kronecker(orders, i, j) for j in range(size)] for i in range(size)
        ]

    def _fourier(self) -> list[list[float]]:
        size = self.dim
        half = (size - 1) // 2

        def row(frequency: int) -> list[complex]:
            turn = [-2j * math.pi * (frequency * t % size) / size for t in range(size)]
            return [cmath.exp(angle) / math.sqrt(size) for angle in turn]

        rows = [[x.real for x in row(0)]]
        for part in ("real", "imag"):
            rows += [
                [math.sqrt(2) * getattr(x, part) for x in row(f)]
                for f in range(1, half + 1)
            ]
        if size % 2 == 0:
            rows.append([x.real for x in row(size // 2)])
        return rows

    def forward(self, vector: list[float]) -> list[float]:
        signed = [x * sign for x, sign in zip(vector, self.signs(), strict=True)]
        signed += [0.0] * (self.length() - self.dim)
        return [
            math.fsum(a * x for a, x in zip(row, signed, strict=True))
            for row in self.matrix()
        ]

    def inverse(self, rotated: list[float]) -> list[float]:
        rows, signs = self.matrix(), self.signs()
        return [
            math.fsum(row[j] * x for row, x in zip(rows, rotated, strict=True))
            * signs[j]
            for j in range(self.dim)
        ]


def _kronecker(orders: tuple[int, ...], i: int, j: int) -> int:
    product = 1
    for order in reversed(orders):
        product *= entry(order, i % order, j % order)
        i, j = i // order, j // order
    return product


def natural_cap(scale: float, l2_clip: float, rotation: str, length: int) -> Fraction:
    """What a block says where no bound was chosen (§14.5)."""
    norm = scale * l2_clip
    if rotation == "none":
        cap = norm
    else:
        flatness = 2.0 if rotation == "dft" else 1.0
        cap = min(norm, (6.0 * norm) * math.sqrt(flatness / length))
    grid = 4096 if cap <= 1.0 else 1
    return Fraction(math.ceil(grid * cap), grid)


@dataclass(frozen=True)
class Encoded:
    """What is seen on the way of one vector."""

    clipped: list[float]
    scaled: list[float]
    fixed: list[int]
    attempt: int | None
    rounded: list[int]
    selected: bool
    noise: list[int]
    residues: list[int]


@dataclass(frozen=True)
class Encoder:
    """The mechanism of one block."""

    name: str
    dim: int
    l2_clip: float
    scale: float
    modulus: int
    clients: int
    rotation: str
    bias: float
    cap: Fraction
    amplitude: float
    max_nonzero: int | None
    signed: bool
    noise: NoiseRule
    rate: Fraction
    unit: Fraction | None = field(default=None)

    @staticmethod
    def of_block(block: bytes, terms: bytes = b"") -> "Encoder":
        entries = json.loads(block)
        given = entries["mechanism"]
        return Encoder(
            given["mechanism"],
            given["dim"],
            given["l2_clip"],
            given["scale_factor"],
            given["modulus"],
            given["num_clients"],
            given["rotation"],
            given["rounding_bias"],
            Fraction(given["linf_bound"]),
            given["clip_flag_amplitude"],
            given["max_nonzero"],
            given["signed"],
            NoiseRule.of_block(block),
            Fraction(entries["selection_rate"]),
            Fraction(json.loads(terms)["unit"]) if terms else None,
        )

    @property
    def law(self) -> str:
        return MECHANISMS[self.name][0]

    @property
    def rounding(self) -> str:
        return MECHANISMS[self.name][1]

    def turned(self, key: bytes = bytes(32)) -> Rotation:
        return Rotation(self.rotation, self.dim, key)

    def bound(self) -> float:
        """C."""
        square = Fraction(self.l2_clip) ** 2 + Fraction(self.amplitude) ** 2
        return above(Fraction(self.scale) ** 2 * square)

    def flags(self) -> int:
        """The number q of coordinates of the clip flag."""
        steps = Fraction(self.scale) * Fraction(self.amplitude)
        filled = 8 * self.clients * steps / self.modulus
        return math.ceil(max(steps / self.cap, filled) ** 2)

    def length(self) -> int:
        """d."""
        return self.turned().length() + self.flags()

    def squared_bound(self) -> int:
        """B of R14.6-2."""
        norm = math.nextafter(math.sqrt(self.bound()), math.inf)
        size = self.length()
        root = math.sqrt(float(size))
        always = (norm + root) * (norm + root)
        if self.bias == 0:
            edge = math.sqrt(always)
        else:
            spread = math.sqrt(-2.0 * math.log(self.bias)) * (norm + root / 2)
            edge = math.sqrt(min(always, norm * norm + size / 4 + spread))
        return math.floor(edge * edge)

    def sampler(self, variance: Fraction) -> Sampler:
        return sampler(self.law, variance)

    def tables(self, count: int) -> list[str]:
        """The hashes for a roster: base, then layers."""
        base, layers = self.noise.parts(count)
        return [self.sampler(each).hash().hex() for each in (base, *layers)]

    def noise_sampler(self) -> str:
        return self.tables(self.noise.min_survivors)[0]

    # --- R14.3-1 ---------------------------------------------------------------------

    def encode(
        self,
        vector: list[float],
        *,
        rotation_key: bytes,
        roster: int,
        key_0: bytes,
        layer_keys: list[bytes],
    ) -> Encoded:
        given = [float(x) for x in vector]
        if self.unit is not None:
            times = float(self.unit / Fraction(self.scale))
            given = [x * times for x in given]
        clipped, scaled, fixed = self.fixed_point(given, rotation_key)
        attempt, rounded = self.round(fixed, key_0)
        selected = self.is_selected(key_0)
        noise = self.noise_of(roster, key_0, layer_keys)
        kept = rounded if selected else [0] * len(rounded)
        residues = [
            residue(x + y, self.modulus) for x, y in zip(kept, noise, strict=True)
        ]
        return Encoded(
            clipped, scaled, fixed, attempt, rounded, selected, noise, residues
        )

    def fixed_point(
        self, given: list[float], key: bytes
    ) -> tuple[list[float], list[float], list[int]]:
        if self.name == "skellam-counts":
            counted = [float(x) for x in self.counts(given)]
            return counted, counted, [int(x) * ONE for x in counted]
        clipped = given if self.name == "smm" else clip(given, self.l2_clip)
        scaled = [self.scale * x for x in self.turned(key).forward(clipped)]
        if (count := self.flags()) > 0:
            each = self.scale * self.amplitude / math.sqrt(count)
            scaled += [each if clipped == given else -each] * count
        if self.name == "smm":
            return clipped, scaled, self.mixture_fixed(scaled)
        cap = float(self.cap)
        steps = [max(-cap, min(cap, x)) for x in scaled]
        most = int(Fraction(self.bound()) * ONE * ONE)
        fixed = [math.trunc(x * ONE) for x in steps]
        while (square := sum(g * g for g in fixed)) > most:
            shrink = math.sqrt(Fraction(most, square)) * (1 - 1e-9)
            steps = [x * shrink for x in steps]
            fixed = [math.trunc(x * ONE) for x in steps]
        return clipped, scaled, fixed

    def mixture_fixed(self, scaled: list[float]) -> list[int]:
        """R14.5-4."""
        most = Fraction(self.bound())
        ratio = min(1.0, float(most / sum(mixture(Fraction(x)) for x in scaled)))
        for more in (1.0, 1 - 2.0**-36, 1 - 2.0**-20):
            fixed = []
            for x in scaled:
                size = abs(x)
                if ratio * more < 1:
                    helper = float(mixture(Fraction(x))) * (ratio * more)
                    k = math.floor(math.sqrt(helper))
                    size = k + (helper - k * k) / (2 * k + 1)
                fixed.append(int(math.copysign(int(min(size, self.cap) * ONE), x)))
            if sum(mixture(Fraction(g, ONE)) for g in fixed) <= most:
                return fixed
        raise AssertionError(scaled)

    def counts(self, given: list[float]) -> list[int]:
        """R14.5-5."""
        most, left = int(self.cap), self.max_nonzero or 0
        clamped = []
        for x in given:
            near = max(-most if self.signed else 0, min(most, int(x)))
            left -= near != 0
            clamped.append(near if left >= 0 else 0)
        return clamped

    def round(self, fixed: list[int], key_0: bytes) -> tuple[int | None, list[int]]:
        """§14.6; which attempt was taken, None where there is but one."""
        if self.rounding == "none":
            return None, [g // ONE for g in fixed]
        if self.rounding == "stochastic":
            return None, stochastic(fixed, key_0, 0)
        return attempts(fixed, key_0, self.squared_bound())

    def is_selected(self, key_0: bytes) -> bool:
        """R14.7-1."""
        word = int.from_bytes(stream(key_0, b"dpnoise/v1/selection", 0, 32), "big")
        p, r = self.rate.as_integer_ratio()
        return word * r < p * 2**256

    def noise_of(self, roster: int, key_0: bytes, layers: list[bytes]) -> list[int]:
        """R14.7-2."""
        base, variances = self.noise.parts(roster)
        draws = [(base, key_0, b"dpnoise/v1/noise")]
        for variance, key in zip(variances, layers, strict=True):
            draws.append((variance, key, b"dpnoise/v1/layer"))
        return [
            sum(self.sampler(each).draw(key, label, j) for each, key, label in draws)
            for j in range(self.length())
        ]

    # --- §14.9 -----------------------------------------------------------------------

    def decode(self, residues: list[int], rotation_key: bytes) -> list[float]:
        """R14.9-1."""
        rotation = self.turned(rotation_key)
        steps = [float(centred(z, self.modulus)) for z in residues[: rotation.length()]]
        over = self.scale * float(self.rate)
        if self.unit is not None:
            over *= float(self.unit / Fraction(self.scale))
        return [x / over for x in rotation.inverse(steps)]

    def fitted(self, residues: list[int], inputs: int) -> float | None:
        """R14.9-2; None without a flag."""
        if (count := self.flags()) == 0:
            return None
        total = sum(centred(z, self.modulus) for z in residues[-count:])
        each = self.scale * 2 * self.amplitude * float(self.rate) * inputs
        return min(1.0, max(0.0, 0.5 + total / math.sqrt(count) / each))

    # --- R14.2-1, R14.2-2 ------------------------------------------------------------

    def check_noise(self) -> None:
        _, _, least, largest, bits = MECHANISMS[self.name]
        rule = self.noise
        demand(0 < rule.counted_variance <= 2**88)
        demand(max(rule.counted_variance.as_integer_ratio()) < 2**512)
        demand(rule.colluders >= 0)
        demand(rule.colluders + 2 <= rule.min_survivors <= self.clients)
        for part in (rule.loss_fraction, rule.colluder_fraction):
            demand(0 <= part < 1 and part.denominator <= 2**24)
        demand(0 <= rule.share_bits <= bits and 0 <= rule.ladder <= 8)
        for count in range(rule.min_survivors, self.clients + 1):
            base, _ = rule.parts(count)
            counted = count - rule.losses(count) - rule.colluding(count) - 1
            share = rule.above(rule.counted_variance / counted)
            demand(least <= base and share <= largest)

    def check(self) -> None:
        demand(
            2.0**-20 <= self.scale * math.hypot(self.l2_clip, self.amplitude) <= STEPS
        )
        self.check_noise()
        demand(self.flags() <= 2**21)  # R14.5-3
        counts = self.name == "skellam-counts"
        demand(counts or (self.max_nonzero is None and not self.signed))
        if self.rounding == "conditional":
            demand(self.squared_bound() >= 1)
        if self.name == "ddgauss":
            demand(self.noise.ladder == 0)
        if self.name in {"smm", "skellam-counts"}:
            demand(self.cap.denominator == 1 and self.amplitude == 0)
        if self.name == "smm":
            v, cap = self.noise.counted_variance, self.cap
            demand(cap <= 2**24 and cap < v and Fraction(309, 10) * cap**2 < 2 * v)
        if counts:
            demand(self.rotation == "none" and self.scale == 1)
            demand(self.max_nonzero is not None)
            square = int(self.cap) ** 2 * (self.max_nonzero or 0)
            root = math.sqrt(square)
            exact = Fraction(root) ** 2 >= square
            demand(self.l2_clip == (root if exact else math.nextafter(root, math.inf)))


def mixture(x: Fraction) -> Fraction:
    """The h of R14.5-4."""
    k = math.floor(abs(x))
    return k * k + (2 * k + 1) * (abs(x) - k)


def clip(vector: list[float], most: float) -> list[float]:
    """R14.3-2."""
    square = sum(Fraction(x) ** 2 for x in vector)
    if square <= Fraction(most) ** 2:
        return vector
    times = most / math.sqrt(square) * (1 - 2.0**-48)
    return [x * times for x in vector]


def stochastic(fixed: list[int], key_0: bytes, start: int) -> list[int]:
    """R14.6-1."""
    octets = stream(key_0, b"dpnoise/v1/rounding", 4 * start, 4 * len(fixed))
    words = [little(octets[4 * j : 4 * j + 4]) for j in range(len(fixed))]
    return [g // ONE + (word < g % ONE) for g, word in zip(fixed, words, strict=True)]


def attempts(fixed: list[int], key_0: bytes, most: int) -> tuple[int, list[int]]:
    """R14.6-2."""
    for attempt in range(MOST_ATTEMPTS):
        rounded = stochastic(fixed, key_0, attempt * len(fixed))
        if sum(k * k for k in rounded) <= most:
            return attempt, rounded
    return MOST_ATTEMPTS, [int(math.copysign(abs(g) // ONE, g)) for g in fixed]


def rotation_key(suite: int, sid: bytes) -> bytes:
    """R14.4-1."""
    return digest(suite, "rotation", sid)


def real(value: object) -> float:
    demand(type(value) is float and math.isfinite(value))
    return float(str(value))


def check_mechanism(block: bytes) -> None:
    """R14.2-1 to R14.2-3 and R14.5-3, for a party without local randomisers."""
    entries: dict[str, Any] = json.loads(block)
    given = entries["mechanism"]
    demand(given["mechanism"] in MECHANISMS and given["rotation"] in ROTATIONS)
    for name, most in (("dim", 2**30), ("modulus", 2**62), ("num_clients", 2**24)):
        demand((1 if name == "dim" else 2) <= whole(given[name]) <= most)
    demand(2.0**-256 <= real(given["l2_clip"]) <= 2.0**256)
    demand(real(given["scale_factor"]) > 0 and real(given["clip_flag_amplitude"]) >= 0)
    demand(0 <= real(given["rounding_bias"]) < 1)
    cap = fraction(given["linf_bound"])
    demand(0 < cap <= STEPS and (cap * 4096).denominator == 1)
    if given["max_nonzero"] is not None:
        demand(1 <= whole(given["max_nonzero"]) <= given["dim"])
    demand(type(given["signed"]) is bool)
    encoder = Encoder.of_block(block)
    encoder.check()
    demand("randomiser" not in entries)
    if "unit" in entries:  # R14.2-3
        demand(encoder.amplitude > 0)
        unit = {name: fraction(text) for name, text in entries["unit"].items()}
        demand(0 < unit["quantile"] < 1)
        scale, far = Fraction(encoder.scale), 2**64
        demand(scale / far <= unit["lowest"] and unit["highest"] <= scale * far)


def check_sampler(block: bytes) -> None:
    """R14.8-3."""
    demand(
        Encoder.of_block(block).noise_sampler() == json.loads(block)["noise_sampler"]
    )
