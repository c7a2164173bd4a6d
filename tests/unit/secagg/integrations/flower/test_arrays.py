"""Models as vectors, and the hash of what an app is given."""

import io
from dataclasses import dataclass, replace

import numpy as np
import pytest

from secagg.errors import LocalProtocolError
from secagg.integrations.flower.arrays import (
    dimension_of,
    flatten,
    payload_hash,
    restored,
)


@dataclass(frozen=True)
class Sent:
    """An array with the attributes of Flower's."""

    dtype: str
    shape: tuple
    stype: str
    data: bytes

    def numpy(self):
        return np.load(io.BytesIO(self.data))


def sent(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return Sent(str(array.dtype), array.shape, "numpy.ndarray", stream.getvalue())


MODEL = {
    "layer.weight": sent(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "é": sent(np.array([0.5], np.float64)),
    "bias": sent(np.array(7.0, np.float16)),
}


def test_a_model_is_flattened_in_the_order_of_its_names_and_restored():
    vector = flatten(MODEL)
    assert vector.dtype == np.float64
    assert dimension_of(MODEL) == len(vector) == 8
    np.testing.assert_array_equal(vector, [7, 0, 1, 2, 3, 4, 5, 0.5])
    reordered = dict(reversed(MODEL.items()))
    np.testing.assert_array_equal(flatten(reordered), vector)
    back = restored(vector, MODEL)
    assert list(back) == list(MODEL)
    for name, array in back.items():
        np.testing.assert_array_equal(array, MODEL[name].numpy())
        assert str(array.dtype) == MODEL[name].dtype
        assert array.shape == MODEL[name].shape


@pytest.mark.parametrize(
    "array",
    [sent(np.arange(3)), sent(np.ones(2, bool)), replace(MODEL["é"], stype="pickle")],
    ids=["counter", "bool", "not numpy's"],
)
def test_only_numpy_floats_can_be_summed(array):
    with pytest.raises(LocalProtocolError, match="'steps'") as caught:
        dimension_of({**MODEL, "steps": array})
    assert "counters" in caught.value.next_step


@pytest.mark.parametrize(
    "lie", [{"shape": (2, 4)}, {"dtype": "float64", "shape": (6,)}], ids=str
)
def test_an_array_must_match_its_header(lie):
    with pytest.raises(LocalProtocolError, match="header"):
        flatten({"weight": replace(MODEL["layer.weight"], **lie)})


def test_a_value_too_large_for_its_type_is_rejected():
    vector = flatten(MODEL)
    vector[0] = 70_000.0
    with pytest.raises(LocalProtocolError, match="'bias' of type float16"):
        restored(vector, MODEL)


RECORDS = {
    "arrays": MODEL,
    "config": {
        "round": 1,
        "rate": 0.1,
        "name": "a",
        "raw": b"a",
        "flag": True,
        "several": [1, 2],
    },
}


def changed(record, key, value):
    return {**RECORDS, record: {**RECORDS[record], key: value}}


OTHERS = {
    "message type": ("train.other", RECORDS),
    "record's name": ("train", {"model": MODEL, "config": RECORDS["config"]}),
    "array's name": ("train", changed("arrays", "new", MODEL["é"])),
    "array's bytes": (
        "train",
        changed("arrays", "é", replace(MODEL["é"], data=MODEL["é"].data[:-1] + b"!")),
    ),
    "array's shape": (
        "train",
        changed("arrays", "é", replace(MODEL["é"], shape=(1, 1))),
    ),
    "array's type": (
        "train",
        changed("arrays", "é", replace(MODEL["é"], dtype="float32")),
    ),
    "int": ("train", changed("config", "round", 2)),
    "int as float": ("train", changed("config", "round", 1.0)),
    "int as bool": ("train", changed("config", "round", value=True)),
    "float": ("train", changed("config", "rate", np.nextafter(0.1, 1).item())),
    "text": ("train", changed("config", "name", "b")),
    "bytes as text": ("train", changed("config", "raw", "a")),
    "list": ("train", changed("config", "several", [12])),
    "order": ("train", {**RECORDS, "arrays": dict(reversed(MODEL.items()))}),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_hash_covers_everything_the_app_receives(other):
    assert payload_hash(*other) != payload_hash("train", RECORDS)


@pytest.mark.parametrize("value", [None, 1 + 2j, (1, 2)])
def test_invalid_record_entries_are_rejected(value):
    with pytest.raises(LocalProtocolError, match="a record has a value of type"):
        payload_hash("train", changed("config", "round", value))
    with pytest.raises(LocalProtocolError, match="no entries"):
        payload_hash("train", {"config": value})
