"""The vectors of tests/vectors/primitives, published ones and our own."""

import hashlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from secagg.crypto import key_derivation as kdf
from secagg.crypto.cipher_suite import CipherSuite, seal
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.modular import word_dtype, zeros
from secagg.crypto.prg import Mask, add_masks, expand
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.shamir import reconstruct, share_secrets
from secagg.crypto.signature import IdentityKey, verify
from secagg.crypto.transcript import decode_set, domain_tag, encode_set, hash_parts
from secagg.protocol.packing import pack

DIRECTORY = Path(__file__).parents[3] / "vectors" / "primitives"
PUBLISHED = json.loads((DIRECTORY / "published.json").read_text())
DERIVED = json.loads((DIRECTORY / "derived.json").read_text())


def secret(text):
    return SecretBytes(bytes.fromhex(text))


class FixedEntropy:
    def __init__(self, data):
        self._data = data

    def token(self, size, /):
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def test_the_file_matches_the_output_of_the_reference():
    path = DIRECTORY / "generate.py"
    spec = importlib.util.spec_from_file_location("primitive_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DIRECTORY / "derived.json").read_text() == module.encoded()


@pytest.mark.parametrize("case", PUBLISHED["hkdf_sha256"]["cases"])
def test_rfc_5869(case):
    key = kdf.extract(bytes.fromhex(case["salt"]), secret(case["key_material"]))
    assert key == secret(case["pseudorandom_key"])
    output = bytes.fromhex(case["output"])
    info = bytes.fromhex(case["info"])
    assert kdf.expand(key, info, len(output)).reveal() == output


def test_rfc_8439(monkeypatch):
    # The published vector has a nonce; ours is always zero.
    case = PUBLISHED["chacha20_poly1305"]
    monkeypatch.setattr(
        "secagg.crypto.cipher_suite._NONCE", bytes.fromhex(case["nonce"])
    )
    sealed = seal(
        secret(case["key"]),
        bytes.fromhex(case["plaintext"]),
        bytes.fromhex(case["associated_data"]),
    )
    assert sealed.hex() == case["sealed"]


@pytest.mark.parametrize("case", PUBLISHED["ed25519"]["cases"])
def test_rfc_8032(case):
    key = IdentityKey.from_bytes(secret(case["seed"]))
    message = bytes.fromhex(case["message"])
    assert key.public_bytes.hex() == case["public"]
    assert key.sign(message).hex() == case["signature"]
    verify(key.public_bytes, message, bytes.fromhex(case["signature"]))


@pytest.mark.parametrize("case", PUBLISHED["aes_keystream"]["cases"])
def test_masks_begin_with_the_published_keystream(case):
    words = expand(secret(case["key"]), bytes.fromhex(case["iv"]), 4, 2**32)
    assert words.astype("<u4").tobytes().hex() == case["first_block"]


@pytest.mark.parametrize("case", DERIVED["contexts"], ids=lambda case: case["suite"])
def test_contexts_and_keys(case):
    suite = CipherSuite(case["suite"])
    session, context = bytes.fromhex(case["session_id"]), bytes.fromhex(case["context"])
    base = {"session_id": session, "context": context, "suite": suite}
    shared = secret(case["secret"])
    assert domain_tag("client", "share", suite).hex() == case["domain_tag_client_share"]
    assert (
        hash_parts("ctx0", session, b"", suite=suite).hex()
        == case["hash_ctx0_of_session_id_and_nothing"]
    )
    channel = kdf.share_channel_key(shared, sender=3, receiver=5, **base)
    assert channel == secret(case["share_channel_3_to_5"])
    key, iv = kdf.pair_mask_key(shared, low=3, high=5, vector_id=1, **base)
    assert (key.reveal() + iv).hex() == case["pair_mask_3_5_vector_1"]
    key, iv = kdf.self_mask_key(shared, client=3, vector_id=1, **base)
    assert (key.reveal() + iv).hex() == case["self_mask_3_vector_1"]


@pytest.mark.parametrize("case", DERIVED["masks"], ids=lambda case: case["modulus"])
def test_masks(case):
    modulus, dim = int(case["modulus"]), len(case["mask"])
    mask = Mask(secret(case["key"]), bytes.fromhex(case["iv"]), 1)
    expected = [int(value) for value in case["mask"]]
    assert expand(mask.key, mask.iv, dim, modulus).tolist() == expected
    accumulator = zeros(dim, modulus)
    add_masks(accumulator, [mask], modulus)
    assert accumulator.tolist() == expected
    seek = zeros(dim - 5, modulus)
    add_masks(seek, [mask], modulus, start=5, dim=dim)
    assert seek.tolist() == expected[5:]


@pytest.mark.parametrize(
    "case", DERIVED["long_masks"], ids=lambda case: case["modulus"]
)
def test_long_masks_reject_exactly_the_specified_words(case):
    accumulator = zeros(case["dim"], int(case["modulus"]))
    mask = Mask(secret(case["key"]), bytes.fromhex(case["iv"]), 1)
    add_masks(accumulator, [mask], int(case["modulus"]))
    words = accumulator.astype("<u2").tobytes()
    assert hashlib.sha256(words).hexdigest() == case["sha256_of_words"]


@pytest.mark.parametrize("case", DERIVED["shares"], ids=["small", "wide"])
def test_shares(case):
    shares = share_secrets(
        [secret(case["secret"])],
        case["threshold"],
        case["points"],
        FixedEntropy(bytes.fromhex(case["entropy"])),
    )
    assert [share.tobytes().hex() for share in shares[0]] == case["shares"]
    used = case["threshold"]
    found = reconstruct(case["points"][:used], shares[:, :used].transpose(1, 0, 2))
    assert found == [secret(case["secret"])]


def test_a_share_vector_contains_a_limb_of_65536():
    assert DERIVED["shares"][1]["shares"][0][64:] != "0000"


@pytest.mark.parametrize("case", DERIVED["packing"], ids=lambda case: case["bits"])
def test_packing(case):
    bits = case["bits"]
    key = SecretBytes(bytes(range(32)))
    values = expand(key, bytes(range(12)), case["dim"], 1 << bits)
    assert hashlib.sha256(pack(values, bits)).hexdigest() == case["sha256"]


def test_the_packing_example():
    case = DERIVED["packing_example"]
    values = np.array(case["values"], word_dtype(1 << case["bits"]))
    assert pack(values, case["bits"]).hex() == case["packed"]


@pytest.mark.parametrize("case", DERIVED["sets"])
def test_sets(case):
    assert encode_set(case["indices"], case["n"]).hex() == case["bitmap"]
    assert decode_set(bytes.fromhex(case["bitmap"]), case["n"]) == tuple(
        case["indices"]
    )


def test_seeded_entropy():
    case = DERIVED["entropy"]
    stream = SeededEntropy(secret(case["seed"]), case["label"].encode())
    assert stream.token(40).hex() == case["first_bytes"]
