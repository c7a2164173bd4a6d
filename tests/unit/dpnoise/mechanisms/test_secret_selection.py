"""The secret coin: exact, private, the same in a replay, no shorter way if lost."""

import gc
import hashlib
import sys
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpnoise.errors import InputError, ParameterError
from dpnoise.mechanisms import (
    MechanismParameters,
    NoiseRule,
    is_selected,
    make_mechanism,
)
from dpnoise.mechanisms.secret_selection import SELECTION_LABEL

DISTRIBUTED = ("skellam-mixture", "skellam", "smm", "ddgauss", "binomial")
PUBLIC = bytes(32)
NEVER, ALWAYS = Fraction(1, 1_000_000), Fraction(999_999, 1_000_000)
VECTOR = np.array([0.5, -0.25, 0.0, 0.75])


def seed(*parts):
    return hashlib.sha256(repr(parts).encode()).digest()


def mechanism(name, **changes):
    rule = NoiseRule(
        counted_variance=Fraction(27),
        min_survivors=9,
        share_bits=1 if name == "binomial" else 20,
    )
    given = {
        "mechanism": name,
        "dim": 4,
        "l2_clip": 1.0,
        "scale_factor": 16.0 if name != "smm" else 1.0,
        "modulus": 1 << 16,
        "noise_rule": rule,
        "num_clients": 10,
        "linf_bound": Fraction(1) if name == "smm" else None,
    }
    return make_mechanism(MechanismParameters(**(given | changes)))


def encoded(chosen, vector, rate, private):
    return chosen.encode(
        vector,
        private_seed=private,
        public_seed=PUBLIC,
        session_noise=chosen.session(10),
        selection_rate=rate,
    )


def word_of(private):
    """The coin's 256 bits, from the ground up."""
    label = SELECTION_LABEL
    info = b"dpnoise/v1/bit-source" + bytes([len(label)]) + label
    key = HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(private)
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return int.from_bytes(stream.update(bytes(32)), "big")


def test_a_selection_is_a_256_bit_number_compared_in_whole_numbers():
    for number in range(50):
        private = seed(number)
        share = Fraction(word_of(private), 1 << 256)
        above = Fraction(int(share * 1_000_000) + 1, 1_000_000)
        below = above - Fraction(1, 1_000_000)
        assert is_selected(private, above)
        assert not below or not is_selected(private, below)
        assert is_selected(private, Fraction(1))


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(2, 3)])
def test_selections_succeed_at_the_stated_rate(rate):
    """Five deviations of a binomial: false-alarm rate 5.7e-7; the seeds are fixed."""
    flips, won = 4000, 0
    for number in range(flips):
        won += is_selected(seed("often", number), rate)
    deviation = (flips * float(rate * (1 - rate))) ** 0.5
    assert abs(won - flips * float(rate)) < 5.0 * deviation


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_a_client_not_selected_sends_the_noise_and_nothing_of_the_vector(name):
    chosen, private = mechanism(name), seed(name)
    assert not is_selected(private, NEVER)
    assert is_selected(private, ALWAYS)
    lost = encoded(chosen, VECTOR, NEVER, private).residues
    other = encoded(chosen, -2.0 * VECTOR, NEVER, private).residues
    zeros = encoded(chosen, 0.0 * VECTOR, Fraction(1), private).residues
    assert lost.tolist() == other.tolist() == zeros.tolist()
    won = encoded(chosen, VECTOR, ALWAYS, private).residues
    assert (
        won.tolist() == encoded(chosen, VECTOR, Fraction(1), private).residues.tolist()
    )
    assert won.tolist() != lost.tolist()
    assert (won.dtype, won.shape) == (lost.dtype, lost.shape)


def test_a_client_not_selected_sends_no_clip_flag():
    """A vector of zeros fits the clip and would say so; a lost coin says nothing."""
    chosen, private = mechanism("skellam-mixture", clip_flag_amplitude=0.5), seed("f")
    lost = encoded(chosen, VECTOR, NEVER, private).residues
    bare = mechanism("skellam-mixture", clip_flag_amplitude=1e-30)
    silent = encoded(bare, 0.0 * VECTOR, NEVER, private).residues
    assert lost.tolist() == silent.tolist()
    flagged = encoded(chosen, 0.0 * VECTOR, Fraction(1), private).residues
    assert (int(flagged[-1]) - int(lost[-1])) % (1 << 16) == 8
    rate = Fraction(1, 2)
    whole = chosen.decode_clip_flag(flagged, num_contributors=10)
    half = chosen.decode_clip_flag(flagged, num_contributors=10, selection_rate=rate)
    assert half - 0.5 == pytest.approx(2.0 * (whole - 0.5))


def calls_of(action):
    """Every call of a function, in order, with the line that it begins at."""
    seen = []

    def note(frame, event, _):
        if event in {"call", "c_call"}:
            seen.append((event, frame.f_code.co_qualname, frame.f_lineno))

    gc.disable()  # its own hooks would be seen, too
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_both_outcomes_of_a_selection_execute_the_same_calls(name):
    chosen, private = mechanism(name), seed(name)
    paths = []
    for rate in (ALWAYS, NEVER):
        encoded(chosen, VECTOR, rate, private)  # what is cached is cached by now
        paths.append(calls_of(lambda q=rate: encoded(chosen, VECTOR, q, private)))
    assert len(paths[0]) > 50
    assert paths[0] == paths[1]


def test_a_replay_gives_the_same_selection():
    chosen, rate = mechanism("skellam-mixture"), Fraction(1, 2)
    first, again = (encoded(chosen, VECTOR, rate, seed(1)).residues for _ in range(2))
    assert first.tolist() == again.tolist()
    assert {is_selected(seed(number), rate) for number in range(40)} == {True, False}


@pytest.mark.parametrize(
    ("rate", "nearest"),
    [
        (Fraction(0), "any number above 0, such as 1/10"),
        (Fraction(-1, 2), "any number above 0, such as 1/10"),
        (Fraction(3, 2), "1"),
        (0.5, "Fraction(1)"),
        (Fraction(1, 1_000_001), "1/1000000"),
        (Fraction(333_334, 1_000_001), "333333/999998"),
    ],
)
def test_an_invalid_rate_is_refused(rate, nearest):
    with pytest.raises(ParameterError) as caught:
        is_selected(seed(), rate)
    assert (caught.value.parameter, caught.value.nearest) == ("selection_rate", nearest)


def test_a_bad_vector_is_refused_whatever_the_selection():
    for rate in (NEVER, ALWAYS):
        with pytest.raises(InputError):
            encoded(mechanism("skellam"), np.array([1.0, np.nan, 0, 0]), rate, seed(1))
