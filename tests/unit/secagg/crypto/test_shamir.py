import itertools

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import (
    BadShareError,
    UncorrectableError,
    decode_shares,
    decode_with_errors,
    encode_shares,
    reconstruct,
    reconstruct_sparse,
    share_secrets,
)


class ScriptedWords:
    """Gives out the words it was told."""

    def __init__(self, words):
        self._bytes = b"".join(word.to_bytes(4, "little") for word in words)
        self.calls = []

    def token(self, size, /):
        taken, self._bytes = self._bytes[:size], self._bytes[size:]
        assert len(taken) == size
        self.calls.append(size)
        return taken


def entropy(label=b"shamir"):
    return SeededEntropy(SecretBytes(bytes(32)), label)


def make_secrets(count):
    stream = entropy(b"secrets")
    return [SecretBytes(stream.token(32)) for _ in range(count)]


def by_holder(shares, chosen):
    return shares[:, chosen].transpose(1, 0, 2)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 12), st.data())
def test_any_threshold_many_shares_reconstruct(n, data):
    threshold = data.draw(st.integers(2, n))
    points = data.draw(
        st.lists(st.integers(1, 65536), min_size=n, max_size=n, unique=True)
    )
    contents = data.draw(st.lists(st.binary(min_size=32, max_size=32), max_size=3))
    secrets = [SecretBytes(content) for content in contents]
    shares = share_secrets(secrets, threshold, points, entropy())
    assert shares.shape == (len(secrets), n, 34)
    size = data.draw(st.integers(threshold, n))
    chosen = data.draw(st.permutations(range(n)))[:size]
    found = reconstruct([points[i] for i in chosen], by_holder(shares, chosen))
    assert found == secrets


def test_fewer_shares_than_the_threshold_reveal_nothing():
    # For every guess of one limb there is a polynomial through t - 1 shares: with
    # t = 2 the second share determines the secret, whatever the first one is.
    secrets = make_secrets(1)
    shares = share_secrets(secrets, 2, [5, 9], entropy())
    values = decode_shares(shares[0])
    for guess in (0, 1, 65535):
        slope = (values[0] - guess) * pow(5, -1, 65537) % 65537
        other = (guess + 9 * slope) % 65537
        forged = np.stack([shares[0, 0], encode_shares(other)])[:, None]
        (found,) = reconstruct([5, 9], forged)
        assert found is not None
        assert found.reveal() == guess.to_bytes(2, "big") * 16


def test_single_shares_are_uniform():
    # Chi-square over 64 classes of share values of one constant secret; false alarm
    # 1e-6.
    secrets = [SecretBytes(bytes(32))] * 2000
    shares = share_secrets(secrets, 2, [1, 2], entropy(b"uniform"))
    values = decode_shares(shares[:, 0]).reshape(-1)
    found = np.bincount(values * 64 // 65537, minlength=64)
    edges = -(-np.arange(65) * 65537 // 64)
    expected = values.size * np.diff(edges) / 65537
    assert ((found - expected) ** 2 / expected).sum() < scipy.stats.chi2.isf(1e-6, 63)


def test_every_limb_of_every_secret_has_its_own_polynomial():
    secrets = [SecretBytes(bytes(32))] * 3
    values = decode_shares(share_secrets(secrets, 2, [1, 2], entropy())[:, 0])
    assert np.unique(values).size > 40


def test_the_biased_word_is_rejected_and_redrawn():
    # R7.1-1
    redrawn = 2**32 - 1
    words = [redrawn, redrawn, *range(14), 70000, 2**32 - 2]
    source = ScriptedWords(words)
    shares = share_secrets([SecretBytes(bytes(32))], 2, [1, 2], source)
    assert source.calls == [64, 8]
    values = decode_shares(shares[0, 0]).tolist()
    assert values == [*range(14), 70000 - 65537, 65536]


def test_wide_limbs_survive_reconstruction():
    # Coefficient 65536 = -1 and secret limb 0 give the share value 65536 at x = 1.
    source = ScriptedWords([65536] * 16)
    shares = share_secrets([SecretBytes(bytes(32))], 2, [1, 65536], source)
    assert shares[0, 0].tolist() == [0] * 32 + [255, 255]
    assert reconstruct([1, 65536], by_holder(shares, [0, 1])) == [
        SecretBytes(bytes(32))
    ]
    found = reconstruct_sparse(np.array([[1, 65536]]), shares)
    assert found == [SecretBytes(bytes(32))]


def test_a_reconstructed_limb_of_17_bits_is_rejected():
    good = share_secrets(make_secrets(2), 2, [1, 2], entropy())
    constant = np.zeros(16, np.int64)
    constant[4] = 65536
    bad = encode_shares(np.stack([constant, constant]))
    shares = np.stack([good[0], bad, good[1]])
    first, second = make_secrets(2)
    assert reconstruct([1, 2], by_holder(shares, [0, 1])) == [first, None, second]
    points = np.array([[1, 2]] * 3)
    assert reconstruct_sparse(points, shares) == [first, None, second]
    with pytest.raises(UncorrectableError, match="no secret"):
        decode_with_errors([1, 2], bad, 2)


def test_many_secrets_of_many_holders_agree_with_sparse_reconstruction():
    secrets = make_secrets(70)
    points = list(range(1, 41))
    shares = share_secrets(secrets, 30, points, entropy())
    chosen = list(range(5, 35))
    assert (
        reconstruct([points[i] for i in chosen], by_holder(shares, chosen)) == secrets
    )
    sets = np.array([[points[(i + k) % 40] for i in range(30)] for k in range(70)])
    sparse = np.stack([shares[k][[(i + k) % 40 for i in range(30)]] for k in range(70)])
    assert reconstruct_sparse(sets, sparse) == secrets


def test_an_empty_list_of_secrets_is_valid():
    shares = share_secrets([], 2, [1, 2, 3], entropy())
    assert shares.shape == (0, 3, 34)
    assert reconstruct([1, 2], by_holder(shares, [0, 1])) == []
    assert (
        reconstruct_sparse(np.empty((0, 2), int), np.empty((0, 2, 34), np.uint8)) == []
    )


@pytest.mark.parametrize("wrong", range(4))
def test_up_to_half_of_the_surplus_may_be_wrong_and_is_named(wrong):
    (secret,) = make_secrets(1)
    points = list(range(10, 20))
    shares = share_secrets([secret], 4, points, entropy())[0]
    for liars in itertools.islice(itertools.combinations(range(10), wrong), 40):
        received = shares.copy()
        for place in liars:
            received[place, 2 * (place % 16) + 1] ^= 0x55
        found, faulty = decode_with_errors(points, received, 4)
        assert found == secret
        assert faulty == tuple(points[place] for place in liars)


def test_wrong_shares_in_different_limbs_are_all_found():
    (secret,) = make_secrets(1)
    points = list(range(1, 26))
    shares = share_secrets([secret], 5, points, entropy())[0]
    for place in range(10):  # ten liars, (25 - 5)/2, limb by limb and together
        shares[place, 3 * place] ^= 1
        shares[place, 1] ^= place & 1
    found, faulty = decode_with_errors(points, shares, 5)
    assert found == secret
    assert faulty == tuple(range(1, 11))


def test_one_wrong_share_too_many_is_rejected():
    (secret,) = make_secrets(1)
    points = list(range(1, 42))
    shares = share_secrets([secret], 20, points, entropy())[0]
    shares[:11, 9] ^= np.arange(1, 12, dtype=np.uint8)
    with pytest.raises(UncorrectableError):
        decode_with_errors(points, shares, 20)


def test_a_dealer_with_two_polynomials_is_caught():
    first, second = make_secrets(2)
    shares = share_secrets([first, second], 5, list(range(1, 13)), entropy())
    mixed = np.concatenate([shares[0, :6], shares[1, 6:]])
    with pytest.raises(UncorrectableError):
        decode_with_errors(list(range(1, 13)), mixed, 5)


def test_without_surplus_shares_no_error_is_corrected():
    (secret,) = make_secrets(1)
    shares = share_secrets([secret], 3, [1, 2, 3], entropy())[0]
    assert decode_with_errors([1, 2, 3], shares, 3) == (secret, ())


def test_a_share_that_is_not_canonical_is_refused():
    shares = share_secrets(make_secrets(1), 2, [1, 2], entropy())
    shares[0, 1, 0] = 1
    shares[0, 1, 33] = 1
    with pytest.raises(BadShareError):
        reconstruct([1, 2], by_holder(shares, [0, 1]))
    with pytest.raises(BadShareError):
        reconstruct_sparse(np.array([[1, 2]]), shares)
    with pytest.raises(BadShareError):
        decode_with_errors([1, 2], shares[0], 2)


@pytest.mark.parametrize("threshold", [-1, 0, 1, 4])
def test_a_threshold_below_two_or_above_the_holders_is_refused(threshold):
    with pytest.raises(ValueError, match=r"threshold in \[2, 3\]"):
        share_secrets(make_secrets(1), threshold, [1, 2, 3], entropy())
    with pytest.raises(ValueError, match=r"threshold in \[2, 3\]"):
        decode_with_errors([1, 2, 3], np.zeros((3, 34), np.uint8), threshold)


def test_secrets_of_another_length_are_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        share_secrets([SecretBytes(bytes(31))], 2, [1, 2], entropy())


@pytest.mark.parametrize("points", [[0, 1], [1, 1], [1, 65537]])
def test_unusable_points_are_refused_everywhere(points):
    shares = np.zeros((1, 2, 34), np.uint8)
    with pytest.raises(ValueError, match="absciss"):
        share_secrets(make_secrets(1), 2, points, entropy())
    with pytest.raises(ValueError, match="absciss"):
        reconstruct(points, shares.transpose(1, 0, 2))
    with pytest.raises(ValueError, match="absciss"):
        reconstruct_sparse(np.array([points]), shares)
    with pytest.raises(ValueError, match="absciss"):
        decode_with_errors(points, shares[0], 2)


def test_arrays_of_wrong_shape_are_rejected():
    with pytest.raises(ValueError, match="shape"):
        reconstruct([1, 2], np.zeros((3, 1, 34), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        reconstruct([1, 2], np.zeros((2, 34, 33), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        reconstruct([1, 2], np.zeros((2, 1, 34, 1), np.uint8))
    with pytest.raises(ValueError, match="shares as bytes"):
        reconstruct([1, 2], np.zeros((2, 1, 34), np.int64))
    for points in (np.array([[1, 2]]), np.array([[[1, 2, 3]]]), np.array([1, 2, 3])):
        with pytest.raises(ValueError, match=r"expected points"):
            reconstruct_sparse(points, np.zeros((*points.shape[:-1], 3, 34), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        decode_with_errors([1, 2], np.zeros((3, 34), np.uint8), 2)
