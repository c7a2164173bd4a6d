# %% [markdown]
# # Training a model together
#
# Twelve people have pictures of digits. They train one model, and the server sees
# nothing of a person but its part in a noisy sum.

# %%
import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import secagg
from secagg import blocking

pixels, digits = load_digits(return_X_y=True)
pixels = pixels.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16
parts = [slice(person, 1600, 12) for person in range(12)]


# %% [markdown]
# A person starts from the common model, trains on its own pictures, and sends how the
# model changed. The length of that vector is bounded by the clip.


# %%
def update(model: NDArray[np.float64], mine: slice) -> NDArray[np.float64]:
    """Return how one person's pictures change the model, shape (160,)."""
    weights, answers = model.copy(), np.eye(10)[digits[mine]]
    for _ in range(30):  # steps of gradient descent on the squared error
        errors = pixels[mine] @ weights - answers
        weights -= 0.4 * pixels[mine].T @ errors / len(errors)
    change = (weights - model).ravel()
    return np.asarray(change * min(1.0, 0.5 / float(np.linalg.norm(change))))


def accuracy(model: NDArray[np.float64]) -> float:
    """Return the part of the other pictures that a model reads right."""
    right = (pixels[1600:] @ model).argmax(axis=1) == digits[1600:]
    return float(right.mean())


# %% [markdown]
# ε covers all five sums: each of the twelve takes part in all of them. The second line
# is without noise, for comparison. It is not private.

# %%
plan = secagg.plan(
    clients=12, dimension=160, l2_clip=0.5, epsilon=8.0, delta=1e-5, steps=5
)
model, exact = np.zeros((16, 10)), np.zeros((16, 10))
private, open_to_all, errors, stated = [], [], [], []
with blocking.local(plan) as people:
    for _ in range(5):
        given = [update(model, mine) for mine in parts]
        total = people.sum(given)
        model += total.mean.reshape(16, 10)
        errors.append(total.values - np.sum(given, axis=0))
        stated.append(total.standard_error or 0.0)
        private.append(accuracy(model))
        changes = [update(exact, mine) for mine in parts]
        exact += np.mean(changes, axis=0).reshape(16, 10)
        open_to_all.append(accuracy(exact))

# %%
figure, axes = plt.subplots(layout="constrained")
axes.plot(range(1, 6), private, label="ε = 8")
axes.plot(range(1, 6), open_to_all, linestyle=":", label="without noise")
axes.set_xlabel("sum")
axes.set_ylabel("accuracy")
axes.legend()

# %%
print("accuracy:", [round(value, 2) for value in private])
error = float(np.sqrt(np.mean(np.square(errors))))
print(f"an entry of a sum errs by {error:.2f}, at most {stated[-1]:.2f} is expected")
assert error < 1.5 * stated[-1]
assert open_to_all[-1] > 0.6
