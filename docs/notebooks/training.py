# %% [markdown]
# # Training a model together
#
# Twelve people have pictures of digits. They train one model, and the server sees
# nothing of a person but its part in a noisy sum.

# %%
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from secagg import blocking
from secagg.learning import FederatedAveraging, LearningStep

pixels, digits = load_digits(return_X_y=True)
pixels = pixels.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16
parts = [slice(person, 1600, 12) for person in range(12)]


# %% [markdown]
# A person starts from the common model and trains on its own pictures. What it sends is
# how the model changed. The clip bounds the length of that vector, so a person shortens
# a longer one.


# %%
def my_model(step: LearningStep, mine: slice) -> NDArray[np.float64]:
    """Return the model after training on one person's pictures, shape (16, 10)."""
    weights, answers = step.model.copy(), np.eye(10)[digits[mine]]
    for _ in range(30):  # steps of gradient descent on the squared error
        errors = pixels[mine] @ weights - answers
        weights -= 0.4 * pixels[mine].T @ errors / len(errors)
    change = weights - step.model
    return np.asarray(step.model + change * min(1.0, 0.499 / np.linalg.norm(change)))


def accuracy(model: NDArray[np.float64]) -> float:
    """Return the part of the other pictures that a model reads right."""
    right = (pixels[1600:] @ model).argmax(axis=1) == digits[1600:]
    return float(right.mean())


# %% [markdown]
# ε covers all five sums: each of the twelve takes part in all of them. The second line
# of the picture is without noise, for comparison. It is not private.

# %%
averaging = FederatedAveraging(
    np.zeros((16, 10)), evaluate=accuracy, compare_without_noise=True
)
task = averaging.plan(clients=12, l2_clip=0.5, epsilon=8.0, delta=1e-5, steps=5)
with blocking.local(task, progress=True) as people:
    curve = averaging.train(people, [partial(my_model, mine=mine) for mine in parts])

# %%
curve.plot()

# %%
print(curve)
assert curve.plain_scores()[-1] > 0.6
assert len(curve.scores()) == 5
