"""Our encoder against the vectors of `secagg.conformance`.

The vectors come from a reference that was written from the specification alone. What
follows from a fixed-point vector, a key or a law is equal to the last integer; what
comes before agrees to one part in 10^9.
"""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from secagg_testing.cohorts import parameters_for

from dpnoise.encoding.rotation import make_rotation
from dpnoise.encoding.scaling import (
    FixedPointVector,
    natural_coordinate_cap,
    round_conditional,
    round_stochastic,
)
from dpnoise.encoding.wrapping import residue_dtype
from dpnoise.mechanisms import is_selected
from dpnoise.mechanisms.base import LAYER_LABEL, NOISE_LABEL, ROUNDING_LABEL
from dpnoise.samplers import BitSource, binomial_table, skellam_table
from dpnoise.samplers.discrete_gaussian import discrete_gaussian_table
from secagg.conformance import read_vectors
from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import NoisyTask
from secagg.distributed_dp.noise_block import check_sampler
from secagg.distributed_dp.task import _rotation_seed
from secagg.distributed_dp.units import decode_integers, encode_integers
from secagg.errors import ErrorCode, InputError, RemoteProtocolError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.noise_terms import NoiseSecrets

VECTORS = read_vectors("encoding")
BLOCKS = {row["name"]: row for row in VECTORS["blocks"]}
TABLES = {
    "skellam": skellam_table,
    "discrete-gaussian": discrete_gaussian_table,
    "binomial": lambda variance: binomial_table(int(4 * variance)),
}
CLOSE = {"rtol": 0.0, "atol": 1e-9}  # times the largest entry


def named(rows, *keys):
    return [
        pytest.param(row, id=f"{place} {' '.join(str(row[key]) for key in keys)}")
        for place, row in enumerate(rows)
    ]


def task_of(name):
    offer = SessionDescriptor.decode(bytes.fromhex(BLOCKS[name]["offer"]))
    return NoisyTask.of_session(offer)


def assert_close(found, expected):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(np.asarray(found) / scale, expected / scale, **CLOSE)


@pytest.mark.parametrize("row", named(VECTORS["exact"], "modulus"))
def test_integers_are_encoded_as_residues_and_sums_decoded_as_signed(row):
    # R14.1-1, R14.1-2
    modulus, values = int(row["modulus"]), [int(x) for x in row["values"]]
    vector = np.array(values, np.int64)
    parameters = parameters_for(3, dimension=len(values), threshold=2, modulus=modulus)
    if not row["success"]:
        with pytest.raises(InputError):
            encode_integers(vector, parameters)
        return
    residues = encode_integers(vector, parameters).residues
    assert [str(z) for z in residues.tolist()] == row["residues"]
    assert decode_integers(residues, modulus).tolist() == values


@pytest.mark.parametrize("row", named(VECTORS["blocks"], "name"))
def test_a_mechanism_is_accepted_or_rejected(row):
    # R14.2-1, R14.2-2, R14.2-3, R14.5-3, R14.8-3
    offer = SessionDescriptor.decode(bytes.fromhex(row["offer"]))
    block = row["noise_block"].encode()
    assert offer.parameters.noise_block == block
    if not row["success"]:
        taken = row["rule"] == "R14.8-3" and NoisyTask.of_session(offer)
        with pytest.raises(RemoteProtocolError) as refused:
            check_sampler(block) if taken else NoisyTask.of_session(offer)
        assert refused.value.code is ErrorCode.BAD_CONFIG
        return
    task = NoisyTask.of_session(offer)
    mechanism = task.mechanism
    check_sampler(block)
    assert mechanism.l2_clip_squared_steps == row["C"]
    assert mechanism.rotated_dim == row["rotated"]
    assert mechanism.clip_flag_coordinates == row["flag_coordinates"]
    assert getattr(mechanism, "max_squared_norm", None) == row["B"]
    for each in row["tables"]:
        found = [digest.hex() for digest in task.table_hashes(each["clients"])]
        assert found == each["hashes"]


SESSIONS = [row for row in read_vectors("sessions")["sessions"] if row["noise"]]


@pytest.mark.parametrize("row", named(SESSIONS, "name"))
def test_sessions_with_noise_have_the_table_hashes_of_their_samplers(row):
    # R14.8-2, R14.8-3
    offer = SessionDescriptor.decode(bytes.fromhex(row["offer"]))
    check_sampler(offer.parameters.noise_block)
    task = NoisyTask.of_session(offer)
    u2 = int.from_bytes(bytes.fromhex(row["u2"]), "little").bit_count()
    found = [digest.hex() for digest in task.table_hashes(u2)]
    assert found == row["noise"]["tables"]


@pytest.mark.parametrize("row", named(VECTORS["caps"], "rotation", "dim"))
def test_the_default_bound_is_the_natural_coordinate_cap(row):
    rotation = make_rotation(row["rotation"], row["dim"], bytes(32))
    cap = natural_coordinate_cap(
        row["scale_factor"] * row["l2_clip"],
        dim=rotation.encoded_dim,
        flatness=None if row["rotation"] == "none" else rotation.flatness,
    )
    assert cap == Fraction(row["linf_bound"])


@pytest.mark.parametrize("row", named(VECTORS["tables"], "law", "variance"))
def test_a_table_is_computed_from_its_law(row):
    # R14.8-1, R14.8-2
    table = TABLES[row["law"]](Fraction(row["variance"]))
    thresholds = [table.threshold(i) for i in range(table.num_thresholds)]
    assert (table.first, len(thresholds)) == (row["first"], row["count"])
    assert f"{thresholds[0]:064x}" == row["threshold_0"]
    packed = b"".join(each.to_bytes(32, "big") for each in thresholds)
    assert hashlib.sha256(packed).hexdigest() == row["sha256_of_thresholds"]
    assert table.digest.hex() == row["hash"]


@pytest.mark.parametrize("row", named(VECTORS["draws"], "law", "variance"))
def test_a_draw_is_computed_from_key_label_and_position(row):
    # R14.7-2
    table = TABLES[row["law"]](Fraction(row["variance"]))
    label = row["label"].encode()
    assert label in {NOISE_LABEL, LAYER_LABEL}
    drawn = np.zeros(len(row["out"]), np.int64)
    table.add_to(drawn, bytes.fromhex(row["key"]), label, start=row["start"])
    assert drawn.tolist() == row["out"]


@pytest.mark.parametrize("row", named(VECTORS["rotations"], "rotation", "dim"))
def test_a_rotation_is_computed_from_the_session(row):
    # R14.4-1
    key = _rotation_seed(bytes.fromhex(row["sid"]), CipherSuite(row["suite"]))
    assert key.hex() == row["key"]
    rotation = make_rotation(row["rotation"], row["dim"], key)
    rotated = rotation.forward(np.array(row["in"]))
    assert rotated.size == row["length"]
    assert_close(rotated[row["shown"]], row["out"])
    assert_close(rotation.inverse(rotated), row["in"])


@pytest.mark.parametrize("row", named(VECTORS["rounded"], "B"))
def test_rounding_is_computed_from_the_key(row):
    # R14.6-1, R14.6-2
    fixed = FixedPointVector(np.array([int(g) for g in row["fixed"]], np.int64))
    bits = BitSource(bytes.fromhex(row["key_0"]), ROUNDING_LABEL)
    if row["B"] is None:
        found = round_stochastic(fixed, bits)
    else:
        found = round_conditional(fixed, bits, row["B"])
    assert found.tolist() == row["out"]


@pytest.mark.parametrize("row", named(VECTORS["selections"], "rate"))
def test_selection_is_computed_from_the_key(row):
    # R14.7-1
    key_0, rate = bytes.fromhex(row["key_0"]), Fraction(row["rate"])
    assert is_selected(key_0, rate) is row["selected"]


@pytest.mark.parametrize("row", named(VECTORS["encoded"], "block"))
def test_a_vector_is_encoded_as_the_recorded_residues(row):
    # R14.3-1, R14.3-2, R14.5-1, R14.5-2, R14.5-3, R14.5-4, R14.5-5, R14.7-3, R14.8-4
    task = task_of(row["block"])
    mechanism, key_0 = task.mechanism, bytes.fromhex(row["key_0"])
    sid, suite = bytes.fromhex(row["sid"]), CipherSuite(row["suite"])
    noise = mechanism.session(row["clients"])
    layers = [bytes.fromhex(key) for key in row["layer_keys"]]
    vector = np.array(row["input"])
    rotation_key = _rotation_seed(sid, suite)
    sent = mechanism.check_input(task._magnified_to_unit(vector))
    fixed = mechanism._fixed_point(sent, rotation_key)
    expected = np.array([int(g) for g in row["fixed"]], np.int64)
    assert_close(fixed.values, expected)
    # What a recorded fixed-point vector becomes is equal, whatever floats did before.
    rounded = mechanism._round(FixedPointVector(expected), key_0)
    assert rounded.tolist() == row["rounded"]
    assert is_selected(key_0, task.selection_rate) is row["selected"]
    drawn = np.zeros(mechanism.encoded_dim, np.int64)
    mechanism.sampler(noise.base).add_to(drawn, key_0, NOISE_LABEL)
    for variance, key in zip(noise.layers, layers, strict=True):
        mechanism.sampler(variance).add_to(drawn, key, LAYER_LABEL)
    assert drawn.tolist() == row["noise"]
    encoded = mechanism.encode(
        sent,
        private_seed=key_0,
        public_seed=rotation_key,
        session_noise=noise,
        layer_seeds=layers,
        selection_rate=task.selection_rate,
    )
    assert [str(z) for z in encoded.residues.tolist()] == row["residues"]


def test_a_task_encodes_like_its_mechanism():
    """The way that a client takes, with the unit and the suite of its session."""
    for row in VECTORS["encoded"]:
        task = task_of(row["block"])
        assert task.parameters.suite == row["suite"]
        secrets = NoiseSecrets(
            share_holders=row["clients"],
            context=b"",
            seed=SecretBytes(bytes.fromhex(row["key_0"])),
            layers=tuple(SecretBytes(bytes.fromhex(k)) for k in row["layer_keys"]),
        )
        encoded = task.encode(
            np.array(row["input"]),
            session_id=bytes.fromhex(row["sid"]),
            secrets=secrets,
        )
        assert [str(z) for z in encoded.vector.residues.tolist()] == row["residues"]


@pytest.mark.parametrize("row", named(VECTORS["decoded"], "block"))
def test_a_sum_is_decoded_as_the_recorded_values(row):
    # R14.9-1, R14.9-2
    task = task_of(row["block"])
    modulus = task.parameters.modulus
    residues = np.array([int(z) for z in row["residues"]], residue_dtype(modulus))
    values = task.decode(residues, session_id=bytes.fromhex(row["sid"]))
    assert_close(values, row["values"])
    fitted = task.fitted(residues, inputs=row["inputs"])
    assert fitted == pytest.approx(row["fitted"], abs=1e-9)
