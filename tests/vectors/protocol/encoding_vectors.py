"""Vectors in, residues out, and sums back: `encoding.json`.

Rule 1: noise samplers are real here: every block has the hash that its reader computes.
Rule 2: what is rounded is far from every edge, so that a reader whose floats have other
        last bits has the same integers.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import reference as ref
from forged_messages import agreeing
from reference_encoding import (
    ONE,
    ROTATIONS,
    Encoder,
    Rotation,
    attempts,
    centred,
    check_mechanism,
    check_sampler,
    natural_cap,
    residue,
    rotation_key,
    stochastic,
)
from reference_noise import canonical, check_block, layer_key, rational
from reference_tables import sampler, stream, table
from session_vectors import SESSION_END, counting, parameters

DEFAULT_BIAS = 0.6065306597126334
SID, CTX2 = counting(0x40, 32), counting(0x60, 32)
LONG = 64  # rotated vectors up to here are shown whole
MARGIN = 2**12  # of 2^32: far more than floats of 53 bits differ by
NOISE: dict[str, Any] = {
    "colluder_fraction": "0/1",
    "colluders": 0,
    "counted_variance": "300/1",
    "ladder": 0,
    "loss_fraction": "1/4",
    "min_survivors": 3,
    "share_bits": 20,
}
MECHANISM: dict[str, Any] = {
    "clip_flag_amplitude": 0.0,
    "dim": 6,
    "l2_clip": 2.0,
    "linf_bound": None,
    "max_nonzero": None,
    "mechanism": "skellam-mixture",
    "modulus": 2**16,
    "num_clients": 5,
    "rotation": "hadamard",
    "rounding_bias": DEFAULT_BIAS,
    "scale_factor": 20.5,
    "signed": False,
}
FLAG = {"clip_flag_amplitude": 0.25}
CONDITIONAL = {"mechanism": "skellam", "scale_factor": 3.25}
COUNTS = {
    "mechanism": "skellam-counts",
    "rotation": "none",
    "scale_factor": 1.0,
    "linf_bound": "3/1",
    "max_nonzero": 2,
    "l2_clip": math.nextafter(math.sqrt(18), math.inf),
}
SMM = {"mechanism": "smm", "linf_bound": "4/1", "scale_factor": 3.0}
UNIT = {"highest": "82/1", "lowest": "41/16", "quantile": "1/2", "start": "41/2"}
RANDOMISER = {
    "bound": 2.0,
    "dim": 6,
    "epsilon": 30.0,
    "magnitude_epsilon": 8.0,
    "randomiser": "separated",
}

# Name: changes of the mechanism, of the noise, of the block; unit of the session.
Changes = tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]


def changes(
    mechanism: dict[str, Any] | None = None,
    noise: dict[str, Any] | None = None,
    session_unit: str = "",
    **block: Any,
) -> Changes:
    return mechanism or {}, noise or {}, block, session_unit


GOOD: dict[str, Changes] = {
    "hadamard": changes(),
    "hadamard-kronecker": changes({"rotation": "hadamard-kronecker", "dim": 35}),
    "dft": changes({"rotation": "dft", "dim": 7}),
    "no rotation": changes({"rotation": "none"}),
    "one entry": changes({"dim": 1}),
    "a bound that was chosen": changes({"linf_bound": "45057/4096"}),
    "a modulus that is no power of two": changes({"modulus": 10007}),
    "a clip flag in a small ring": changes(FLAG | {"modulus": 2**7}),
    "a clip flag over a small bound": changes(FLAG | {"linf_bound": "5/2"}),
    "selection": changes(
        FLAG | {"scale_factor": 2.5}, selection_rate="1/3", accountant="mixture-rdp"
    ),
    "a clip that moves": changes(FLAG, session_unit="41/3", unit=UNIT),
    "layers": changes(noise={"ladder": 2}),
    "skellam": changes(CONDITIONAL | FLAG | {"dim": 13}, accountant="skellam-gdp"),
    "skellam, squares": changes(
        {"mechanism": "skellam", "dim": 4, "scale_factor": 4.5},
        accountant="skellam-gdp",
    ),
    "skellam, every rounding": changes(
        CONDITIONAL | {"rounding_bias": 0.0}, accountant="skellam-gdp"
    ),
    "skellam, wide draws": changes(
        {"mechanism": "skellam", "scale_factor": 2.0**14, "modulus": 2**32},
        {"counted_variance": f"{2**29 + 2**20}/1", "loss_fraction": "2/5"},
        accountant="skellam-gdp",
    ),
    "skellam-counts": changes(COUNTS, accountant="skellam-gdp"),
    "skellam-counts, signed": changes(
        COUNTS | {"signed": True}, accountant="skellam-gdp"
    ),
    "smm": changes(SMM, accountant="smm-paper"),
    "ddgauss": changes(
        CONDITIONAL | {"mechanism": "ddgauss"}, accountant="log-concave-gdp"
    ),
    "binomial": changes(
        CONDITIONAL | {"mechanism": "binomial"},
        {"share_bits": 1},
        accountant="cpsgd-recalled",
    ),
}
SUITES = {name: 1 + place % 2 for place, name in enumerate(GOOD)}
BAD: dict[str, Changes] = {
    "R14.2-1 an unknown mechanism": changes({"mechanism": "laplace"}),
    "R14.2-1 a mechanism of a trusted party": changes({"mechanism": "gaussian"}),
    "R14.2-1 an unknown rotation": changes({"rotation": "haar"}),
    "R14.2-1 a clip that is an integer": changes({"l2_clip": 2}),
    "R14.2-1 a scale of 0": changes({"scale_factor": 0.0}),
    "R14.2-1 a beta of 1": changes({"rounding_bias": 1.0}),
    "R14.2-1 a bound between multiples of 1/4096": changes({"linf_bound": "1/4097"}),
    "R14.2-1 a bound above 2^25": changes({"linf_bound": "33554433/1"}),
    "R14.2-1 a flag below 0": changes({"clip_flag_amplitude": -0.25}),
    "R14.2-1 a clip above 2^25 steps": changes({"scale_factor": 2.0**25}),
    "R14.2-1 a clip below 2^-20 steps": changes({"scale_factor": 2.0**-22}),
    "R14.2-1 nine rungs": changes(noise={"ladder": 9}),
    "R14.2-1 shares of 21 bits": changes(noise={"share_bits": 21}),
    "R14.2-1 all may be lost": changes(noise={"loss_fraction": "1/1"}),
    "R14.2-1 a roster without a share": changes(noise={"colluder_fraction": "3/4"}),
    "R14.2-1 draws that are too wide": changes(
        noise={"counted_variance": f"{2**32}/1"}
    ),
    "R14.2-2 entries that may be filled": changes({"max_nonzero": 2}),
    "R14.2-2 entries with a sign": changes({"signed": True}),
    "R14.2-2 counts that are turned": changes(COUNTS | {"rotation": "hadamard"}),
    "R14.2-2 counts that are scaled": changes(COUNTS | {"scale_factor": 2.0}),
    "R14.2-2 counts of another norm": changes(COUNTS | {"l2_clip": 4.25}),
    "R14.2-2 counts of halves": changes(COUNTS | {"linf_bound": "5/2"}),
    "R14.2-2 counts of any number of entries": changes(COUNTS | {"max_nonzero": None}),
    "R14.2-2 counts with a flag": changes(COUNTS | FLAG),
    "R14.2-2 smm with a bound in fractions": changes(SMM | {"linf_bound": "9/2"}),
    "R14.2-2 smm with a flag": changes(SMM | FLAG),
    "R14.2-2 smm outside of its theorem": changes(SMM | {"linf_bound": "5/1"}),
    "R14.2-2 ddgauss with a ladder": changes({"mechanism": "ddgauss"}, {"ladder": 1}),
    "R14.2-2 binomial shares in quarters": changes(
        {"mechanism": "binomial"}, {"share_bits": 2}
    ),
    "R14.2-2 a grid on which all becomes zero": changes(
        {"mechanism": "skellam", "scale_factor": 2.0**-10, "dim": 1}
    ),
    "R14.2-3 a clip that moves without a flag": changes(session_unit="41/2", unit=UNIT),
    "R14.2-3 a clip that moves too far": changes(
        FLAG, session_unit="41/2", unit=UNIT | {"highest": f"{41 * 2**64}/1"}
    ),
    "R14.2-3 all should fit": changes(
        FLAG, session_unit="41/2", unit=UNIT | {"quantile": "1/1"}
    ),
    "R14.2-3 a randomiser beside a flag": changes(FLAG, randomiser=RANDOMISER),
    "R14.2-3 a randomiser of another dimension": changes(
        randomiser=RANDOMISER | {"dim": 5}
    ),
    "R14.2-3 a randomiser that does not exist": changes(
        randomiser=RANDOMISER | {"randomiser": "coin"}
    ),
    "R14.5-3 a flag of too many coordinates": changes(
        {"clip_flag_amplitude": 1000.0, "linf_bound": "1/1"}
    ),
    "R14.8-3 another sampler": changes(noise_sampler="11" * 32),
}


def block_of(given: Changes) -> tuple[bytes, bytes]:
    """Block and noise terms; of the sampler there is no hash yet."""
    mechanism, noise = MECHANISM | given[0], NOISE | given[1]
    if mechanism["linf_bound"] is None:
        rotation, dim = mechanism["rotation"], mechanism["dim"]
        rotation = rotation if rotation in ROTATIONS else "none"
        mechanism["linf_bound"] = rational(
            natural_cap(
                mechanism["scale_factor"] or 1.0,
                mechanism["l2_clip"],
                rotation,
                Rotation(rotation, dim, bytes(32)).length(),
            )
        )
    entries = {
        "accountant": "mixture-simple",
        "delta": 1e-05,
        "epsilon": 1000.0,
        "mechanism": mechanism,
        "noise": noise,
        "noise_sampler": "00" * 32,
        "participations": 1,
        "selection_rate": "1/1",
        "spare": 0,
        "version": 2,
    }
    terms = canonical({"unit": given[3]}) if given[3] else b""
    return canonical(entries | given[2]), terms


def offer_of(block: bytes, terms: bytes, dim: int, suite: int = 1) -> ref.Offer:
    entries = json.loads(block)
    ladder = entries["noise"]["ladder"]
    rules = parameters(
        suite=suite,
        modulus=entries["mechanism"]["modulus"],
        dim=dim,
        min_clients=4,
        max_clients=5,
        threshold=3,
        min_survivors=3,
        max_losses=1,
        colluders=0,
        noise_layers=ladder + 1 if ladder else 0,
        noise_block=block,
    )
    rules.check()
    nonce = counting(0, 32)
    return ref.Offer(
        *("sums-1", "vectors/encoding", 1, nonce, SESSION_END, b"", rules, terms)
    )


def good_blocks() -> dict[str, tuple[bytes, bytes, Encoder]]:
    made = {}
    for name, given in GOOD.items():
        block, terms = block_of(given)
        digest = Encoder.of_block(block).noise_sampler().encode()
        block = block.replace(b"00" * 32, digest)
        made[name] = block, terms, Encoder.of_block(block, terms)
    return made


def block_rows(made: dict[str, tuple[bytes, bytes, Encoder]]) -> Iterator[Any]:
    for name, (block, terms, encoder) in made.items():
        offer = offer_of(block, terms, encoder.length(), SUITES[name])
        check_block(offer)
        if "randomiser" not in json.loads(block):
            check_mechanism(block)
        yield {
            "name": name,
            "success": True,
            "noise_block": block.decode(),
            "noise_terms": terms.decode(),
            "offer": offer.encode().hex(),
            "C": encoder.bound(),
            "rotated": encoder.turned().length(),
            "flag_coordinates": encoder.flags(),
            "B": encoder.squared_bound() if encoder.rounding == "conditional" else None,
            "tables": [
                {"clients": count, "hashes": encoder.tables(count)} for count in (3, 5)
            ],
        }
    plain = made["hadamard"][2]
    for name, given in BAD.items():
        rule, _, what = name.partition(" ")
        block, terms = block_of(given)
        dim = plain.length() + bool((MECHANISM | given[0])["clip_flag_amplitude"])
        if (MECHANISM | given[0])["rotation"] == "none":
            dim = 6
        offer = offer_of(block, terms, dim)
        row = {
            "name": what,
            "success": False,
            "rule": rule,
            "code": ref.BAD_CONFIG,
            "noise_block": block.decode(),
            "noise_terms": terms.decode(),
            "offer": offer.encode().hex(),
        }
        if rule == "R14.8-3":
            check_block(offer)
            check_mechanism(block)
            agreeing(row, lambda block=block: check_sampler(block))
        else:
            agreeing(row, lambda block=block: check_mechanism(block))
        yield row


def numbers(dim: int, times: float) -> list[float]:
    return [times * ((37 * j + 14) % 23 - 11) / 8 for j in range(dim)]


def is_stable(encoder: Encoder, fixed: list[int], key_0: bytes, tries: int) -> bool:
    """Rule 2."""
    if encoder.rounding == "none":
        return True
    most = max(map(abs, fixed))
    margin = max(MARGIN, most >> 27)  # or the shrink of R14.5-1, by one part in 10^9
    for attempt in range(tries):
        start = attempt * len(fixed)
        found = {
            tuple(stochastic([g + by for g in fixed], key_0, start))
            for by in (-margin, 0, margin)
        }
        if len(found) > 1:
            return False
    return True


def encoded_rows(made: dict[str, tuple[bytes, bytes, Encoder]]) -> Iterator[Any]:
    for name, (_, _, encoder) in made.items():
        # Of each a vector that fits and one that does not.
        for times, roster, retries, lost in (
            (0.25, 5, 0, False),
            (1.5, 4, 2, True),
        ):
            suite = SUITES[name]
            vector = numbers(encoder.dim, times)
            if encoder.name == "skellam-counts":
                vector = [float(math.trunc(4 * x)) for x in vector]
            key = rotation_key(suite, SID)
            _, _, fixed = encoder.fixed_point(magnified(encoder, vector), key)
            key_0 = key_for(encoder, fixed, retries, lost=lost)
            _, layers = encoder.noise.parts(roster)
            seeds = [counting(0x80 + i, 32) for i in range(len(layers))]
            keys = [layer_key(suite, g, CTX2, i) for i, g in enumerate(seeds)]
            got = encoder.encode(
                vector, rotation_key=key, roster=roster, key_0=key_0, layer_keys=keys
            )
            yield {
                "block": name,
                "suite": suite,
                "sid": SID.hex(),
                "clients": roster,
                "key_0": key_0.hex(),
                "layer_keys": [each.hex() for each in keys],
                "input": vector,
                "clipped": got.clipped,
                "scaled": got.scaled,
                "fixed": [str(g) for g in got.fixed],
                "attempt": got.attempt,
                "rounded": got.rounded,
                "selected": got.selected,
                "noise": got.noise,
                "residues": [str(z) for z in got.residues],
            }


def magnified(encoder: Encoder, vector: list[float]) -> list[float]:
    if encoder.unit is None:
        return vector
    times = float(encoder.unit / Fraction(encoder.scale))
    return [x * times for x in vector]


def key_for(encoder: Encoder, fixed: list[int], retries: int, *, lost: bool) -> bytes:
    """A key under which the vector shows what it should, away from all edges.

    Where no vector of this kind is rounded again, it is one without.
    """
    for wanted in range(retries, -1, -1):
        for start in range(2**10):
            key_0 = hashlib.sha256(start.to_bytes(4, "big")).digest()
            if encoder.rate < 1 and encoder.is_selected(key_0) is lost:
                continue
            attempt = encoder.round(fixed, key_0)[0] or 0
            if attempt >= wanted and is_stable(encoder, fixed, key_0, 1 + attempt):
                return key_0
    raise AssertionError(encoder)


def decoded_rows(made: dict[str, tuple[bytes, bytes, Encoder]]) -> Iterator[Any]:
    for name, (_, _, encoder) in made.items():
        steps = [(97 * j) % 41 - 20 for j in range(encoder.length())]
        residues = [residue(step, encoder.modulus) for step in steps]
        yield {
            "block": name,
            "suite": SUITES[name],
            "sid": SID.hex(),
            "inputs": 4,
            "residues": [str(z) for z in residues],
            "values": encoder.decode(residues, rotation_key(SUITES[name], SID)),
            "fitted": encoder.fitted(residues, 4),
        }


def exact() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for modulus in (2, 3, 2**16, 10007, 2**62):
        low, high = -(modulus // 2), (modulus + 1) // 2 - 1
        values = sorted({low, -1 if low <= -1 else 0, 0, high})
        residues = [residue(x, modulus) for x in values]
        if [centred(z, modulus) for z in residues] != values:
            raise AssertionError(modulus)
        row = {"modulus": str(modulus), "values": [str(x) for x in values]}
        rows.append(row | {"residues": [str(z) for z in residues], "success": True})
        for beyond in (low - 1, high + 1):
            row = {"modulus": str(modulus), "values": [str(beyond)], "success": False}
            rows.append(row | {"rule": "R14.1-1"})
    return rows


def table_rows() -> list[dict[str, Any]]:
    rows = []
    for law, variances in {
        "skellam": ("1/1048576", "1/100", "5/2", "400", "200000", "1000000/3"),
        "discrete-gaussian": ("1/64", "3/2", "1000"),
        "binomial": ("1/2", "16", "1250"),
    }.items():
        for text in variances:
            made = table(law, Fraction(text))
            packed = made.packed()
            rows.append(
                {
                    "law": law,
                    "variance": rational(Fraction(text)),
                    "first": made.first,
                    "count": len(made.thresholds),
                    "threshold_0": f"{made.thresholds[0]:064x}",
                    "sha256_of_thresholds": hashlib.sha256(packed).hexdigest(),
                    "hash": made.hash().hex(),
                }
            )
    return rows


def draw_rows() -> list[dict[str, Any]]:
    rows = []
    for law, text, label, start in (
        ("skellam", "1/100", "dpnoise/v1/noise", 0),
        ("skellam", "400", "dpnoise/v1/layer", 70_000),
        ("skellam", "200000", "dpnoise/v1/noise", 5),
        ("discrete-gaussian", "3/2", "dpnoise/v1/noise", 0),
        ("binomial", "16", "dpnoise/v1/noise", 0),
    ):
        key = counting(start % 256, 32)
        made = sampler(law, Fraction(text))
        places = range(start, start + 24)
        rows.append(
            {
                "law": law,
                "variance": rational(Fraction(text)),
                "key": key.hex(),
                "label": label,
                "start": start,
                "out": [made.draw(key, label.encode(), place) for place in places],
            }
        )
    return rows


def rotation_rows() -> list[dict[str, Any]]:
    rows = []
    for name, dims in {
        "hadamard": (1, 5, 8),
        "hadamard-kronecker": (1, 9, 35, 90, 130, 230, 390),
        "dft": (1, 2, 6, 7),
        "none": (3,),
    }.items():
        for dim in dims:
            suite = 1 + dim % 2
            key = rotation_key(suite, SID)
            rotation = Rotation(name, dim, key)
            vector = numbers(dim, 1.0)
            out = rotation.forward(vector)
            row: dict[str, Any] = {
                "rotation": name,
                "dim": dim,
                "suite": suite,
                "sid": SID.hex(),
                "key": key.hex(),
                "signs": rotation.signs(),
                "in": vector,
            }
            # Long ones by some of their coordinates.
            shown = range(len(out)) if len(out) <= LONG else range(0, len(out), 17)
            rows.append(
                row
                | {
                    "length": len(out),
                    "shown": list(shown),
                    "out": [out[j] for j in shown],
                }
            )
    return rows


def cap_rows() -> list[dict[str, Any]]:
    return [
        {
            "scale_factor": scale,
            "l2_clip": l2_clip,
            "rotation": name,
            "dim": dim,
            "linf_bound": rational(
                natural_cap(
                    scale, l2_clip, name, Rotation(name, dim, bytes(32)).length()
                )
            ),
        }
        for scale, l2_clip, name, dim in (
            (20.5, 2.0, "hadamard", 6),
            (1.0, 1.0, "hadamard", 65536),
            (4.0, 1.0, "hadamard", 65536),
            (108.5, 2.0111230650641554, "hadamard-kronecker", 1000),
            (20.5, 2.0, "dft", 1000),
            (20.5, 2.0, "none", 1000),
            (0.3, 0.1, "none", 3),
        )
    ]


def rounded_rows() -> list[dict[str, Any]]:
    edges = [0, 1, -1, ONE - 1, 1 - ONE, ONE, -ONE, ONE // 2, -ONE // 2, 7 * ONE + 5]
    high = [ONE - 2**20] * 6
    rows = []
    for fixed, bound in ((edges, None), (high, 6), (high, 0), ([-g for g in high], 0)):
        key_0 = counting(len(rows), 32)
        if bound is None:
            out = stochastic(fixed, key_0, 0)
        else:
            _, out = attempts(fixed, key_0, bound)
        rows.append(
            {
                "fixed": [str(g) for g in fixed],
                "key_0": key_0.hex(),
                "B": bound,
                "out": out,
            }
        )
    return rows


def selection_rows() -> list[dict[str, Any]]:
    rows = []
    for rate in ("1/1", "1/2", "1/3", "999999/1000000"):
        p, r = Fraction(rate).as_integer_ratio()
        for start in range(3):
            key_0 = counting(16 * start, 32)
            word = int.from_bytes(stream(key_0, b"dpnoise/v1/selection", 0, 32), "big")
            counts = word * r < p * 2**256
            rows.append({"rate": rate, "key_0": key_0.hex(), "selected": counts})
    return rows


def encoding() -> dict[str, Any]:
    """Return the content of the file."""
    made = good_blocks()
    return {
        "exact": exact(),
        "blocks": list(block_rows(made)),
        "caps": cap_rows(),
        "tables": table_rows(),
        "draws": draw_rows(),
        "rotations": rotation_rows(),
        "rounded": rounded_rows(),
        "selections": selection_rows(),
        "encoded": list(encoded_rows(made)),
        "decoded": list(decoded_rows(made)),
    }
