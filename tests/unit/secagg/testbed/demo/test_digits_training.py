import numpy as np
import pytest

from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.testbed.demo.model import (
    DIMENSION,
    MIN_PICTURES,
    SoftmaxModel,
    load_shard,
    reference_accuracies,
    save_shard,
    split,
)


@pytest.fixture(scope="module")
def dealt():
    return split(40)


def entropy():
    return SeededEntropy(SecretBytes(bytes(32)), b"test")


def test_shards_are_unequal_and_no_picture_is_assigned_twice(dealt):
    shards, test = dealt
    sizes = [len(shard) for shard in shards]
    assert min(sizes) >= MIN_PICTURES
    assert max(sizes) > 2 * min(sizes)
    pictures = np.concatenate([shard.features for shard in [*shards, test]])
    assert len(pictures) <= 1797
    # The data set itself holds a few identical pictures.
    assert len(np.unique(pictures, axis=0)) > 0.99 * len(pictures)
    assert set(test.labels) == set(range(10))


def test_a_shard_survives_its_file(dealt, tmp_path):
    shard = dealt[0][3]
    save_shard(shard, tmp_path / "shard.npz")
    again = load_shard(tmp_path / "shard.npz")
    np.testing.assert_array_equal(again.features, shard.features)
    np.testing.assert_array_equal(again.labels, shard.labels)


def test_a_model_survives_the_payload():
    weights = np.arange(DIMENSION, dtype=float).reshape(-1, 10)
    again = SoftmaxModel.from_bytes(SoftmaxModel(weights).to_bytes())
    np.testing.assert_array_equal(again.weights, weights)


def test_updates_point_downhill_and_are_of_the_size_of_the_clip(dealt):
    shards, test = dealt
    updates = [SoftmaxModel.initial().update_on(shard) for shard in shards]
    norms = [float(np.linalg.norm(update)) for update in updates]
    assert 0.5 < min(norms) < max(norms) < 10
    model = SoftmaxModel.initial().after_step(np.sum(updates, axis=0), len(updates))
    assert model.accuracy_on(test) > 0.7 > SoftmaxModel.initial().accuracy_on(test)


def test_more_noise_means_less_accuracy(dealt):
    shards, test = dealt
    (exact, little), (again, much) = (
        reference_accuracies(
            shards, test, steps=3, noise_stddev=stddev, entropy=entropy()
        )
        for stddev in (0.5, 50.0)
    )
    assert exact == again
    assert exact[-1] > little[-1] > much[-1] + 0.2
    assert exact[-1] > 0.85
