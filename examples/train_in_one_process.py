"""Twelve people train a model through private sums, in 30 lines and one process."""

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import secagg

PICTURES, DIGITS = load_digits(return_X_y=True)
PICTURES = PICTURES.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16


def update(given: npt.NDArray[np.float64], mine: slice) -> npt.NDArray[np.float64]:
    """Return how one person's pictures would change the model, shape (160,)."""
    model, pictures, answers = given.copy(), PICTURES[mine], np.eye(10)[DIGITS[mine]]
    for _ in range(30):  # steps of gradient descent on the squared error
        model -= 0.4 * pictures.T @ (pictures @ model - answers) / len(pictures)
    return (model - given).ravel()


async def main() -> None:
    """Train for five sessions and print the accuracy after each."""
    budget: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-5, "steps": 5}
    noise = secagg.plan(clients=12, dimension=160, l2_clip=0.5, **budget)
    privacy_limits = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
    task, model = secagg.PreparedTask.from_plan(noise), np.zeros((16, 10))
    async with secagg.local(task, clients=12, privacy_limits=privacy_limits) as people:
        for _ in range(5):
            shares = [slice(n, 1600, 12) for n in range(12)]
            total = await people.sum([update(model, mine) for mine in shares])
            model += (total.values / total.inputs).reshape(16, 10)
            right = (PICTURES[1600:] @ model).argmax(axis=1) == DIGITS[1600:]
            print(f"session {total.session_number}: accuracy {right.mean():.2f}")


if __name__ == "__main__":
    asyncio.run(main())
