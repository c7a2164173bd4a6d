"""Twelve clients train one model over mutual TLS; the server sees only noisy sums.

All names that it needs are in `secagg.__all__`.  In a deployment the server and each
client are programs of their own, and the certificates come from ``secagg pki``.
"""

import asyncio
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import secagg
from secagg import advanced

CLIENTS = 12
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
PICTURES, DIGITS = load_digits(return_X_y=True)
PICTURES = PICTURES.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16) / 16


def update(session: secagg.SessionInfo, mine: slice) -> np.ndarray:
    """Return how a client would change the session's model, shape (160,)."""
    given = np.frombuffer(session.payload).reshape(16, 10)
    model, pictures, answers = given.copy(), PICTURES[mine], np.eye(10)[DIGITS[mine]]
    for _ in range(30):  # steps of gradient descent on the squared error
        model -= 0.4 * pictures.T @ (pictures @ model - answers) / len(pictures)
    return (model - given).ravel()


async def client(name: str, address: str, directory: Path, mine: slice) -> None:
    """Contribute to every session the update that this client's pictures give."""
    async with secagg.Client(
        address,
        task="digits",
        privacy_limits=LIMITS,
        identity=secagg.TLSIdentity.in_directory(
            directory, name, role=advanced.Role.CLIENT
        ),
        state_dir=directory / f"state-{name}",
        rollback_mark=directory / f"state-{name}.mark",
    ) as one:
        async for given in one.contributions(lambda session: update(session, mine)):
            print(f"{name}: in session {given.session_number}")


async def main(directory: Path) -> None:
    """Train for five sessions and print the accuracy after each."""
    advanced.CertificateAuthority.create().issue_all(
        directory, hosts=["127.0.0.1"], clients=CLIENTS
    )
    noise = secagg.plan(
        clients=CLIENTS,
        dimension=160,
        l2_clip=0.5,
        epsilon=8.0,
        delta=1e-5,
        steps=5,
        mechanism="skellam",
    )
    model = np.zeros(160)
    async with secagg.Server(
        "127.0.0.1:0",
        identity=secagg.TLSIdentity.in_directory(
            directory, "server", role=advanced.Role.SERVER
        ),
        state_dir=directory / "server-state",
        rollback_mark=directory / "server-state.mark",
    ) as server:
        task = await server.add_task(
            "digits",
            secagg.PreparedTask.from_plan(noise),
            payload=lambda _: model.tobytes(),
        )
        address = str(server.address)
        clients = [
            client(f"client-{n + 1}", address, directory, slice(n, 1600, CLIENTS))
            for n in range(CLIENTS)
        ]
        giving = asyncio.gather(*clients)
        async for total in task.sums():
            model += total.values / total.inputs
            guesses = (PICTURES[1600:] @ model.reshape(16, 10)).argmax(axis=1)
            accuracy = (guesses == DIGITS[1600:]).mean()
            print(f"session {total.session_number}: accuracy {accuracy:.2f}")
        await giving


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made)))
