"""Twelve clients train one model over mutual TLS; the server sees noisy sums alone.

Everything that is needed stands in `secagg.__all__`; certificates would come from
``secagg pki``.  In real life the server and each client are programs of their own.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import secagg

CLIENTS: Final = 12
SESSIONS: Final = 5
FLOORS: Final = secagg.PrivacyFloors(max_epsilon=8.0, max_delta=1e-5)
Floats = npt.NDArray[np.float64]


def pictures_and_labels() -> tuple[Floats, npt.NDArray[Any]]:
    """Return small pictures of digits, shape (n, 16), entries in [0, 1]."""
    pictures, labels = load_digits(return_X_y=True)
    small = pictures.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)
    return small / 16, labels


def gradient(weights: Floats, pictures: Floats, labels: npt.NDArray[Any]) -> Floats:
    """Return the mean gradient of a softmax model, shape (160,)."""
    scores = pictures @ weights.reshape(16, 10)
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    mean: Floats = pictures.T @ (chances - np.eye(10)[labels]) / len(labels)
    return mean.ravel()


def issue(directory: Path) -> None:
    """Write certificates of a server and its clients."""
    authority = secagg.Authority.create()
    authority.issued().write(directory, "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(directory, "server")
    for number in range(CLIENTS):
        authority.issue_client(f"client-{number}").write(directory, f"client-{number}")


def identity(directory: Path, name: str, role: secagg.Role) -> secagg.TLSIdentity:
    """Load a certificate."""
    return secagg.TLSIdentity.load(
        certificate=directory / f"{name}.pem",
        private_key=directory / f"{name}.key",
        authority=directory / "ca.pem",
        role=role,
    )


async def client(number: int, address: str, directory: Path) -> None:
    """Give every session the update that this client's pictures make."""
    pictures, labels = pictures_and_labels()
    mine = slice(number, 1600, CLIENTS)

    def step(session: secagg.SessionInfo) -> Floats:
        given = np.frombuffer(session.payload)
        weights = given.copy()
        for _ in range(30):
            weights -= gradient(weights, pictures[mine], labels[mine])
        return weights - given

    async with secagg.Client(
        address,
        task="digits",
        floors=FLOORS,
        identity=identity(directory, f"client-{number}", secagg.Role.CLIENT),
        state_dir=directory / f"state-{number}",
        fetch_sum=False,
    ) as one:
        for _ in range(SESSIONS):
            await one.contribute(step)


async def main(directory: Path) -> None:
    """Train for five sessions and print the accuracy after each."""
    issue(directory)
    pictures, labels = pictures_and_labels()
    weights = np.zeros(160)
    noise = await asyncio.to_thread(
        secagg.plan,
        clients=CLIENTS,
        dimension=weights.size,
        l2_clip=3.0,
        epsilon=8.0,
        delta=1e-5,
        steps=SESSIONS,
        mechanism="skellam",
    )
    cohort = secagg.Cohort(
        min_clients=CLIENTS, max_clients=CLIENTS, min_survivors=CLIENTS
    )
    async with secagg.Server(
        "127.0.0.1:0",
        identity=identity(directory, "server", secagg.Role.SERVER),
        state_dir=directory / "server-state",
    ) as server:
        task = await server.add_task(
            "digits",
            secagg.PreparedTask.from_plan(noise, cohort),
            payload=lambda _: weights.tobytes(),
        )
        clients = [
            asyncio.create_task(client(number, str(server.address), directory))
            for number in range(CLIENTS)
        ]
        async for total in task.sums():
            weights += total.values / total.inputs
            guesses = (pictures[1600:] @ weights.reshape(16, 10)).argmax(axis=1)
            accuracy = (guesses == labels[1600:]).mean()
            print(f"session {total.session_number}: accuracy {accuracy:.2f}")
        await asyncio.gather(*clients)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made)))
