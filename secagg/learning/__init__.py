"""Federated learning over private sums, by numpy alone.

A server hands out a model, clients train it on data of their own, and the noisy sum of
their updates moves it.  Models are trees of arrays: of numpy, PyTorch, JAX, or what
scikit-learn has fitted.  docs/learning.md shows it.
"""

from secagg.learning.averaging import FederatedAveraging
from secagg.learning.curve import LearningCurve, TrainingStep
from secagg.learning.learner import Learner, LearningStep, Update
from secagg.learning.optimizers import ServerOptimizer
from secagg.learning.vectors import VectorEntry, VectorSpec

__all__ = [
    "FederatedAveraging",
    "Learner",
    "LearningCurve",
    "LearningStep",
    "ServerOptimizer",
    "TrainingStep",
    "Update",
    "VectorEntry",
    "VectorSpec",
]
