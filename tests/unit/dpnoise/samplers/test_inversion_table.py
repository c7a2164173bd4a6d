"""Drawing: lazily read bits give what all 256 bits would, in any order and chunk."""

import hashlib
import json
import pickle
import runpy
import tracemalloc
from bisect import bisect_right
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpnoise.errors import ParameterError
from dpnoise.samplers import (
    BitSource,
    InversionTable,
    binomial_table,
    discrete_gaussian_table,
    inversion_table,
    skellam_table,
)
from dpnoise.samplers.inversion_table import MAX_COORDINATE
from tests.table_laws import discrete_laplace_table, poisson_table

SEED = bytes(range(32))
WHOLE = 1 << 256
VECTORS = Path(__file__).parents[3] / "vectors" / "samplers" / "tables.json"
BUILDERS = {
    "skellam": skellam_table,
    "discrete-gaussian": discrete_gaussian_table,
    "discrete-laplace": discrete_laplace_table,
    "binomial": binomial_table,
    "poisson": poisson_table,
}


def _name(case):
    return f"{case['law']}({case['parameter']})"


class CraftedBits:
    """Both streams at once, made so that coordinate i sees a chosen 256-bit number."""

    def __init__(self, uniforms, guide_bits):
        self.uniforms = uniforms
        self.guide_bits = guide_bits
        self.refined = set()

    def uint16(self, start, count):
        assert self.guide_bits == 16
        leading = [u >> 240 for u in self.uniforms[start : start + count]]
        return np.array(leading, dtype=np.uint16)

    def uint32(self, start, count):
        assert self.guide_bits == 20
        # The trailing 12 bits of a word must not matter.
        leading = [(u >> 236 << 12) | 0xABC for u in self.uniforms[start:][:count]]
        return np.array(leading, dtype=np.uint32)

    def block_words(self, blocks):
        rows = []
        for block in blocks.tolist():
            coordinate, second = divmod(block, 2)
            self.refined.add(coordinate)
            uniform = self.uniforms[coordinate]
            if second:
                low = uniform & ((1 << 128) - 1)
                rows.append((low >> 64, low & ((1 << 64) - 1)))
            else:
                width = 64 - self.guide_bits
                bits = (uniform >> 192) & ((1 << width) - 1)
                junk = (1 << self.guide_bits) - 1  # the trailing bits must not matter
                word = (bits << self.guide_bits) | junk
                rows.append((word, (uniform >> 128) & ((1 << 64) - 1)))
        return np.array(rows, dtype=np.uint64).reshape(-1, 2)


def thresholds_of(table):
    return [table.threshold(index) for index in range(table.num_thresholds)]


def draw_crafted(table, uniforms):
    guide_bits = 16 if table.num_thresholds < 12_000 else 20
    bits = CraftedBits(uniforms, guide_bits)
    samples = np.empty(len(uniforms), np.int64)
    table.fill_from(bits, bits, samples)
    return samples.tolist(), bits


def around(points):
    """Every point, its neighbours, and the ends of its 64-bit prefix."""
    low_bits = (1 << 192) - 1
    near = {
        u
        for point in points
        for u in (
            point - 1,
            point,
            point + 1,
            point & ~low_bits,
            (point & ~low_bits) - 1,
            point | low_bits,
            (point | low_bits) + 1,
        )
    }
    return sorted(u for u in near if 0 <= u < WHOLE)


@pytest.mark.parametrize(
    "table",
    [
        skellam_table(Fraction(1, 100)),
        skellam_table(10),
        skellam_table(40_000),
        poisson_table(Fraction(5, 2)),
        discrete_gaussian_table(Fraction(1, 64)),
        binomial_table(2),
        binomial_table(256),
    ],
    ids=repr,
)
def test_draws_at_every_threshold_and_its_neighbours_are_exact(table):
    thresholds = thresholds_of(table)
    uniforms = around([0, *thresholds, WHOLE - 1])
    samples, _ = draw_crafted(table, uniforms)
    assert samples == [table.first + bisect_right(thresholds, u) for u in uniforms]


def test_draws_at_thresholds_of_the_wide_guide_are_exact():
    table = skellam_table(1_000_000)
    thresholds = thresholds_of(table)
    assert len(thresholds) > 12_000
    chosen = thresholds[:40] + thresholds[::97] + thresholds[-40:]
    uniforms = around(chosen)
    samples, _ = draw_crafted(table, uniforms)
    assert samples == [table.first + bisect_right(thresholds, u) for u in uniforms]


def test_draws_at_every_cell_boundary_of_the_guide_are_exact():
    table = skellam_table(Fraction(1, 3))
    thresholds = thresholds_of(table)
    uniforms = [
        u for cell in range(1 << 16) for u in (cell << 240, ((cell + 1) << 240) - 1)
    ]
    samples, _ = draw_crafted(table, uniforms)
    assert samples == [table.first + bisect_right(thresholds, u) for u in uniforms]


def test_only_cells_with_a_threshold_read_the_second_stream():
    table = skellam_table(10)
    holding = {threshold >> 240 for threshold in thresholds_of(table)}
    uniforms = [cell << 240 for cell in range(1 << 16)]
    _, bits = draw_crafted(table, uniforms)
    assert bits.refined == holding
    assert len(holding) < 60  # 0.05 percent of the draws take the long way


def test_a_threshold_at_the_start_of_a_cell_is_ambiguous():
    # Binomial(2) − 1 has the thresholds 1/4 and 3/4: both start a cell.
    table = binomial_table(2)
    assert thresholds_of(table) == [WHOLE // 4, 3 * WHOLE // 4]
    samples, bits = draw_crafted(table, [WHOLE // 4 - 1, WHOLE // 4, WHOLE // 2])
    assert samples == [-1, 0, 0]
    assert bits.refined == {1}


@pytest.mark.parametrize("variance", [Fraction(1, 100), 3, 5000, 10**6])
def test_samples_do_not_depend_on_chunks_offsets_or_adding(variance):
    table = skellam_table(variance)
    count = 150_000  # more than two blocks
    whole = table.draw(SEED, b"noise", count)
    pieces = [
        table.draw(SEED, b"noise", high - low, start=low)
        for low, high in ((0, 1), (1, 65_535), (65_535, 65_537), (65_537, count))
    ]
    assert np.array_equal(np.concatenate(pieces), whole)
    total = np.full(count - 11, 5, dtype=np.int64)
    table.add_to(total, SEED, b"noise", start=11)
    assert np.array_equal(total, whole[11:] + 5)


@pytest.mark.parametrize("variance", [Fraction(1, 100), 3, 300, 200_000])
def test_fixed_steps_give_the_same_samples(variance):
    table = skellam_table(variance)
    count = 9000 if variance < 1000 else 200
    fast = table.draw(SEED, b"noise", count, start=77)
    assert np.array_equal(table.draw_fixed_steps(SEED, b"noise", count, start=77), fast)
    with pytest.raises(ParameterError, match="coordinates lie in"):
        table.draw_fixed_steps(SEED, b"noise", 1, start=-1)


def test_the_constant_time_draw_compares_every_coordinate_with_every_threshold(
    monkeypatch,
):
    """A tie in the leading 64 bits is decided by the further bits here too."""
    table = skellam_table(10)
    thresholds = thresholds_of(table)
    uniforms = around(thresholds)
    crafted = CraftedBits(uniforms, 16)

    class WholeWords:
        def uint64(self, start, count):
            blocks = np.arange(start // 2, (start + count) // 2, dtype=np.uint64)
            return crafted.block_words(blocks).reshape(-1)

    monkeypatch.setattr(inversion_table, "_streams", lambda *_: (crafted, WholeWords()))
    samples = table.draw_fixed_steps(SEED, b"noise", len(uniforms))
    expected = [table.first + bisect_right(thresholds, u) for u in uniforms]
    assert samples.tolist() == expected
    assert crafted.refined == set(range(len(uniforms)))


def test_any_coordinate_can_be_drawn_alone_up_to_the_last():
    table = skellam_table(20)
    start = MAX_COORDINATE - 100
    tail = table.draw(SEED, b"noise", 100, start=start)
    alone = [table.draw(SEED, b"noise", 1, start=start + i)[0] for i in range(100)]
    assert tail.tolist() == alone
    assert table.draw(SEED, b"noise", 0).shape == (0,)


def test_seeds_and_labels_give_unrelated_noise():
    table = skellam_table(50)
    base = table.draw(SEED, b"noise", 1000)
    for seed, label in ((SEED, b"noise2"), (bytes(32), b"noise")):
        other = table.draw(seed, label, 1000)
        assert np.count_nonzero(base == other) < 150  # about 40 coincide by chance
    assert base.dtype == np.int64


@pytest.mark.parametrize(
    ("start", "count"), [(-1, 5), (0, -1), (MAX_COORDINATE, 1), (1, MAX_COORDINATE)]
)
def test_coordinates_out_of_range_are_refused(start, count):
    with pytest.raises(ParameterError, match="coordinates lie in"):
        skellam_table(1).draw(SEED, b"noise", count, start=start)


def test_thresholds_are_read_only_and_index_checked():
    table = skellam_table(1)
    for index in (-1, table.num_thresholds):
        with pytest.raises(ParameterError, match="index must lie"):
            table.threshold(index)
    for array in (table._guide, table._leading, table._below):
        assert not array.flags.writeable


def test_memory_beyond_the_result_does_not_grow_with_the_count():
    table = skellam_table(100)
    table.draw(SEED, b"warm", 10)
    excess = {}
    for count in (1 << 18, 1 << 21):
        vector = np.zeros(count, np.int64)
        tracemalloc.start()
        table.add_to(vector, SEED, b"noise")
        excess[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert excess[1 << 21] < excess[1 << 18] + 100_000
    assert excess[1 << 21] < 1 << 21  # an eighth of the vector


@pytest.mark.parametrize("case", json.loads(VECTORS.read_text())["cases"], ids=_name)
def test_known_answers_of_an_independent_generator(case):
    vectors = json.loads(VECTORS.read_text())
    parameter = Fraction(case["parameter"])
    build = BUILDERS[case["law"]]
    table = build(int(parameter) if case["law"] == "binomial" else parameter)
    assert table.first == case["first"]
    assert table.num_thresholds == case["num_thresholds"]
    packed = b"".join(t.to_bytes(32, "big") for t in thresholds_of(table))
    assert hashlib.sha256(packed).hexdigest() == case["thresholds_sha256"]
    samples = table.draw(
        bytes.fromhex(vectors["seed"]),
        case["label"].encode(),
        len(case["samples"]),
        start=case["start"],
    )
    assert samples.tolist() == case["samples"]


def test_the_generator_reproduces_the_known_answers():
    generated = runpy.run_path(str(VECTORS.with_name("generate.py")))["vectors"]()
    assert generated == json.loads(VECTORS.read_text())


def test_a_table_can_be_pickled():
    table = skellam_table(Fraction(22, 7))
    twin = pickle.loads(pickle.dumps(table))
    assert twin.digest == table.digest
    drawn = twin.draw(SEED, b"noise", 1000, start=np.int64(3))
    assert np.array_equal(drawn, table.draw(SEED, b"noise", 1000, start=3))


def test_the_representation_of_a_table_shows_only_its_law():
    table = skellam_table(Fraction(22, 7))
    assert isinstance(table, InversionTable)
    assert (
        repr(table)
        == f"InversionTable(skellam: 3.14286; [{table.first}, {table.last}])"
    )


def test_crafted_bits_have_the_layout_of_the_real_streams():
    """The crafted streams above are laid out as the real ones are."""
    table = skellam_table(10)
    cells = BitSource(SEED, b"noise/cells")
    refinement = BitSource(SEED, b"noise/refinement")
    uniforms = []
    for i in range(5000):
        raw = refinement.bytes_at(32 * i, 32)
        words = [int.from_bytes(raw[j : j + 8], "little") for j in range(0, 32, 8)]
        leading = int(cells.uint16(i, 1)[0])
        uniform = (leading << 48) | (words[0] >> 16)
        for word in words[1:]:
            uniform = (uniform << 64) | word
        uniforms.append(uniform)
    samples, _ = draw_crafted(table, uniforms)
    assert samples == table.draw(SEED, b"noise", 5000).tolist()
