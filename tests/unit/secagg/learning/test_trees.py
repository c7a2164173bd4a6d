"""Trees of arrays, their vectors, and the files they travel in."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from secagg.errors import InputError, LocalProtocolError
from secagg.learning import VectorSpec
from secagg.learning.array_files import read_array, read_arrays, read_file, write_arrays
from secagg.learning.payload import StepPayload, encode_config
from secagg.learning.weights import Weighting

FLOATS = st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
    lambda kind: hnp.arrays(
        kind,
        hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
        elements={"allow_nan": False, "allow_infinity": False},
    )
)
TREES = st.recursive(
    FLOATS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("ab/~é", max_size=3), inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)
Layer = namedtuple("Layer", "w b")  # noqa: PYI024 - what frameworks use


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in leaves(each)]
    return [tree]


@given(TREES)
def test_a_tree_is_restored_unchanged(tree):
    spec = VectorSpec.of(tree)
    flat = spec.flatten(tree)
    assert flat.shape == (spec.dim,)
    back = spec.restore(flat, like=tree)
    for one, other in zip(leaves(tree), leaves(back), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    again = spec.flatten(spec.unflatten(flat))
    assert again.tobytes() == flat.tobytes()


def test_containers_and_types_are_restored():
    tree = OrderedDict(
        layer=Layer(np.ones((2, 3), np.float32), [np.zeros(3), 0.5]), scale=2.0
    )
    spec = VectorSpec.of(tree)
    names = [entry.name for entry in spec.entries]
    assert names == ["layer/0", "layer/1/0", "layer/1/1", "scale"]
    back = spec.restore(spec.flatten(tree) + 1, like=tree)
    assert isinstance(back["layer"], Layer)
    assert back["layer"].w.dtype == np.float32
    assert back["layer"].b[1] == 1.5
    assert back["scale"] == 3.0


def test_the_schema_does_not_depend_on_the_order_of_a_framework():
    one, other = {"b": np.ones(2), "a": 1.0}, {"a": 2.0, "b": np.zeros(2)}
    assert VectorSpec.of(one).digest == VectorSpec.of(other).digest
    np.testing.assert_array_equal(VectorSpec.of(one).flatten(one), [1, 1, 1])
    for changed in ({"a": 1.0, "c": np.ones(2)}, {"a": 1.0, "b": np.ones((2, 1))}):
        assert VectorSpec.of(changed).digest != VectorSpec.of(one).digest


def test_the_digest_follows_the_documented_encoding():
    spec = VectorSpec.of({"w": np.zeros((2, 3), np.float32)})
    by_hand = b"secagg/vector-spec/v1\x00" + struct.pack(
        ">II1sB3sBQQ", 1, 1, b"w", 3, b"<f4", 2, 2, 3
    )
    import hashlib  # noqa: PLC0415

    assert spec.digest == hashlib.sha256(by_hand).digest()


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"count": np.int64(3)}, "'count' of the model holds int64"),
        ({"w": [None]}, "'w/0' of the model holds NoneType"),
        ({"w": True}, "holds bool"),
        ({"w": "text"}, "holds str"),
        ({3: np.ones(2)}, "a key of the model is of the type int"),
        ({}, "no numbers"),
        ({"w": np.ones(0)}, "no numbers"),
        ({"w": np.array([object()])}, "holds object"),
    ],
)
def test_an_invalid_model_is_rejected_by_name(tree, text):
    with pytest.raises(InputError, match=text):
        VectorSpec.of(tree)


def test_a_counter_can_be_excluded_from_the_vector():
    tree = {"w": np.ones(2), "seen": 7}
    spec = VectorSpec.of(tree, select=lambda name: name != "seen")
    assert spec.restore([2.0, 3.0], like=tree)["seen"] == 7
    np.testing.assert_array_equal(spec.flatten(tree), [1, 1])


def test_a_model_that_differs_from_the_schema_is_rejected():
    spec = VectorSpec.of({"w": np.zeros(2), "half": np.zeros(1, np.float16)})
    for tree, text in [
        ({"w": np.ones(2)}, "no array 'half'"),
        ({"w": np.ones(3), "half": np.ones(1)}, r"'w' has shape \(3,\)"),
        ({"w": [np.nan, 0.0], "half": np.ones(1)}, "'w' of the model holds list"),
        ({"w": np.array([np.nan, 0]), "half": np.ones(1)}, "'w' has NaN"),
    ]:
        with pytest.raises(InputError, match=text):
            spec.flatten(tree)
    with pytest.raises(InputError, match="'half' is too large for its type"):
        spec.unflatten([1e6, 0.0, 0.0])
    with pytest.raises(InputError, match="needs"):
        spec.unflatten([0.0])


class Tensor:
    """What is used of a tensor of PyTorch, on a device that numpy cannot read."""

    def __init__(self, array, dtype=np.float32, device="gpu"):
        self.array, self.dtype, self.device = array, dtype, device

    def detach(self):
        return self

    def cpu(self):
        return Tensor(self.array, self.dtype, "cpu")

    def float(self):
        return Tensor(self.array, np.float32, self.device)

    def numpy(self):
        assert self.device == "cpu"
        assert self.dtype != "torch.bfloat16"
        return np.asarray(self.array, self.dtype)

    def new_tensor(self, array):
        return Tensor(array, array.dtype, self.device)

    def to(self, dtype):
        return Tensor(self.array, dtype, self.device)


def test_tensors_are_restored_on_their_device():
    model = {"w": Tensor(np.ones(2)), "half": Tensor([3.0], "torch.bfloat16")}
    spec = VectorSpec.of(model)
    assert [entry.dtype for entry in spec.entries] == ["<f4", "<f4"]
    back = spec.restore(spec.flatten(model) + 1, like=model)
    assert (back["w"].device, back["half"].dtype) == ("gpu", "torch.bfloat16")
    np.testing.assert_array_equal(spec.flatten(back), [4, 2, 2])


def test_files_are_reproducible_and_readable_by_numpy():
    arrays = {"b/w": np.arange(6.0).reshape(2, 3), "a": np.float32(1.5)}
    data = write_arrays(arrays)
    assert data == write_arrays(dict(reversed(arrays.items())))
    loaded = np.load(io.BytesIO(data))
    np.testing.assert_array_equal(loaded["b/w"], arrays["b/w"])
    back = read_arrays(data, max_bytes=1000, what="it")
    assert {name: array.dtype for name, array in back.items()} == {
        "a": np.float32,
        "b/w": np.float64,
    }
    fortran = io.BytesIO()
    np.savez_compressed(fortran, w=np.asfortranarray(arrays["b/w"]))
    read = read_arrays(fortran.getvalue(), max_bytes=1000, what="it")
    np.testing.assert_array_equal(read["w"], arrays["b/w"])


def npz(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def npy(array, **changes):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **changes)
    return buffer.getvalue()


def test_files_with_false_sizes_or_names_are_rejected():
    bomb = npz(w=npy(np.zeros(1 << 20)))
    assert len(bomb) < 10_000
    with pytest.raises(InputError, match="unpacks to 8388736 bytes"):
        read_arrays(bomb, max_bytes=len(bomb), what="it")
    claims = npy(np.zeros(4)).replace(b"(4,)", b"(9,)")
    objects = npy(np.array([1, "a"], object), allow_pickle=True)
    for data in (
        npz(w=claims),
        npz(w=objects),
        npz(w=pickle.dumps(1)),
        npz(w=b""),
        npz(w=npy(np.zeros(4)))[:-30],
        b"text",
        b"",
    ):
        with pytest.raises(InputError, match=r"is not an \.npz file"):
            read_arrays(data, max_bytes=1000, what="it")
    for data in (claims, objects, b"", b"\x93NUMPY"):
        with pytest.raises(InputError, match=r"is not a plain \.npy file"):
            read_array(data, what="it")
    twice = npz(v=npy(np.zeros(1)), w=npy(np.ones(1))).replace(b"v.npy", b"w.npy")
    with pytest.raises(InputError, match="two of one name"):
        read_arrays(twice, max_bytes=1000, what="it")


@pytest.mark.parametrize(
    "head",
    [
        "{1: 2, 'a': 3}",
        "{[]: 1}",
        "(" * 12,
        "-" * 3900 + "1",
        "{'descr': 'f4,(', 'fortran_order': False, 'shape': (0,)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {10**30})}}",
    ],
)
def test_a_malformed_numpy_header_is_rejected(head):
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()
    with pytest.raises(InputError, match=r"is not a plain \.npy file"):
        read_array(data, what="it")
    with pytest.raises(InputError, match=r"is not an \.npz file"):
        read_arrays(npz(w=data), max_bytes=10_000, what="it")


def test_only_a_regular_file_of_limited_size_is_read(tmp_path):
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    real.write_bytes(b"12345")
    link.symlink_to(real)
    import os  # noqa: PLC0415

    os.mkfifo(pipe)
    assert read_file(real, max_bytes=5, what="it") == b"12345"
    for path, text in [
        (link, "not a regular file"),
        (pipe, "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "none", "was not written"),
    ]:
        with pytest.raises(InputError, match=text):
            read_file(path, max_bytes=5, what="it")
    with pytest.raises(InputError, match="more than 4 bytes"):
        read_file(real, max_bytes=4, what="it")


def payload():
    weighting = Weighting.of(20.0, 6)
    return StepPayload(3, weighting, {"rate": 0.1}, {"w": np.arange(6.0)})


def test_a_payload_restores_everything_it_was_made_of():
    data = payload().encode()
    assert data == payload().encode()
    back = StepPayload.decode(data)
    assert (back.step, back.config) == (3, {"rate": 0.1})
    assert back.weighting == Weighting.of(20.0, 6)
    np.testing.assert_array_equal(back.arrays["w"], np.arange(6.0))


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_damaged_payload_decodes_or_raises_input_error(place, change):
    data = bytearray(payload().encode())
    data[place % len(data)] ^= change
    try:
        StepPayload.decode(bytes(data))
    except InputError as error:
        assert error.next_step  # noqa: PT017 - or it was harmless
    for short in (b"", data[:place]):
        try:
            StepPayload.decode(bytes(short))
        except InputError as error:
            assert error.next_step  # noqa: PT017 - as above


def test_a_config_must_be_json():
    for config in ({"f": len}, {"x": float("nan")}, {"x": "y" * 70_000}):
        with pytest.raises(LocalProtocolError, match="config"):
            encode_config(config)
