"""Pictures of digits, divided among clients, and the model that they learn together.

1797 pictures of 8 by 8 pixels that come with scikit-learn: what needs no download. The
publications take MNIST and CNNs, so their accuracies are not to be compared with these;
what mechanisms and accountants do to a task can be.

The model is a softmax over pixels and a constant, 650 numbers. Nothing here is private:
seeds are fixed, and noise comes from numpy, as in any simulation.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CLASSES: Final = 10
INPUTS: Final = 65
MODEL_SIZE: Final = CLASSES * INPUTS
LONGEST_EXAMPLE: Final = math.sqrt(2.0 * INPUTS)
"""No gradient of the log loss of one picture is longer: pixels lie in [0, 1]."""
_TESTED: Final = 397


@dataclass(frozen=True, slots=True)
class Digits:
    """A training and a test set.

    Attributes:
        inputs: Shape (examples, 65), the last column one.
        labels: Shape (examples,).
        test_inputs: As `inputs`.
        test_labels: As `labels`.
    """

    inputs: NDArray[np.float64]
    labels: NDArray[np.int64]
    test_inputs: NDArray[np.float64]
    test_labels: NDArray[np.int64]

    def accuracy(self, model: NDArray[np.float64]) -> float:
        """Return the share of test pictures that a model, shape (650,), reads right."""
        scores = self.test_inputs @ model.reshape(CLASSES, INPUTS).T
        return float(np.mean(scores.argmax(axis=1) == self.test_labels))


def make_digits(generator: np.random.Generator) -> Digits:
    """Load the pictures and divide them into training and test."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra

    pixels, labels = load_digits(return_X_y=True)
    order = generator.permutation(labels.size)
    inputs = np.hstack([pixels / 16.0, np.ones((labels.size, 1))])[order]
    labels = labels[order].astype(np.int64)
    return Digits(
        inputs[_TESTED:], labels[_TESTED:], inputs[:_TESTED], labels[:_TESTED]
    )


def spread(
    digits: Digits,
    clients: int,
    each: int,
    generator: np.random.Generator,
    *,
    iid: bool,
) -> NDArray[np.int64]:
    """Divide the training set among clients, with repetition where it is too small.

    Args:
        digits: The data.
        clients: How many.
        each: Examples of one client, an even number.
        generator: For the division.
        iid: Whether clients draw from all pictures; otherwise two shards of one digit
            each, as the publications divide MNIST.

    Returns:
        Indices into the training set, shape (clients, each).
    """
    if iid:
        return generator.integers(0, digits.labels.size, (clients, each))
    members = [np.flatnonzero(digits.labels == digit) for digit in range(CLASSES)]
    shards = [
        generator.choice(members[digit], each // 2)
        for digit in generator.permuted(np.arange(2 * clients) % CLASSES)
    ]
    return np.array(shards).reshape(clients, each)


def gradient(
    model: NDArray[np.float64], inputs: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the gradients of the log loss of many batches.

    Args:
        model: Shape (650,), or (batches, 650) for a model of each batch.
        inputs: Shape (batches, examples, 65).
        labels: Shape (batches, examples).

    Returns:
        Shape (batches, 650), averages over the examples of each.
    """
    weights = model.reshape(-1, CLASSES, INPUTS)
    scores = inputs @ np.swapaxes(weights, 1, 2)
    scores -= scores.max(axis=2, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=2, keepdims=True)
    shares -= np.eye(CLASSES)[labels]
    grad = np.swapaxes(shares, 1, 2) @ inputs / inputs.shape[1]
    return np.asarray(grad.reshape(grad.shape[0], MODEL_SIZE))


def clipped(
    updates: NDArray[np.float64], clip: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shorten rows to a norm, and return them with the norms that they have then.

    Args:
        updates: Shape (clients, 650).
        clip: The largest norm.
    """
    norms = np.linalg.norm(updates, axis=1)
    factors = np.minimum(1.0, clip / np.maximum(norms, 1e-300))
    return updates * factors[:, None], np.minimum(norms, clip)


def example_norms(
    model: NDArray[np.float64], inputs: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the norms of the gradients of single examples.

    Args:
        model: Shape (650,).
        inputs: Shape (clients, examples, 65).
        labels: Shape (clients, examples).

    Returns:
        Shape (clients, examples): a gradient is the errors of the scores times inputs.
    """
    scores = inputs @ model.reshape(CLASSES, INPUTS).T
    scores -= scores.max(axis=2, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=2, keepdims=True)
    shares -= np.eye(CLASSES)[labels]
    return np.asarray(np.linalg.norm(shares, axis=2) * np.linalg.norm(inputs, axis=2))
