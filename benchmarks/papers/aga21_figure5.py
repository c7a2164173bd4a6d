"""In the style of [Aga21], Figure 5: clients with unlike data learn MNIST together.

The publication trains on EMNIST, Shakespeare and Stack Overflow, whose clients differ
by themselves. Here MNIST is divided among 2000 clients of 30 pictures each. A client's
digits follow proportions of its own, from a Dirichlet law with parameter 0.3. The model
is a softmax of 7850 weights. A client takes three steps of gradient descent on all of
its pictures; the server averages the differences with momentum.

One client is one member. Every client takes part once in each pass over all clients, 4
times in all, in an order drawn without looking at data, so that ε holds against the
server. The publication samples clients and states ε for readers of the model.

Nothing is abridged: every client encodes by the product's mechanism with a noise share
of its own, and residues add up modulo m. With two aggregators both noises are drawn.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from figure import Figure, Panel
from mnist import CLASSES, Pictures, read_mnist, read_small_digits
from numpy.typing import NDArray
from reproduction import Options, Reproduction, Usual, run
from training_sums import (
    CENTRAL,
    EXACT,
    OURS,
    SKELLAM,
    TWO,
    Noise,
    Task,
    accuracy_curves,
    findings,
    noise,
    row,
    seed,
)

from dpnoise.mechanisms.base import CentralMechanism

CLIENTS: Final = 2000
EACH: Final = 30
MEMBERS: Final = 500
PASSES: Final = 4
DIRICHLET: Final = 0.3
CLIP: Final = 0.5
LOCAL_STEPS: Final = 3
LOCAL_RATE: Final = 0.2
SERVER_RATE: Final = 1.0
MOMENTUM: Final = 0.9
DELTA: Final = 1e-5
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
SEEDS: Final = 3
METHODS: Final = (CENTRAL, SKELLAM, OURS, TWO)

SETTINGS: Final = {
    "epsilons": Usual(EPSILONS, tiny=(8.0,)),
    "seeds": Usual((SEEDS,), tiny=(1,), one=True),
    "clients": Usual((CLIENTS,), tiny=(40,), one=True),
    "pictures": Usual((EACH,), tiny=(10,), one=True),
    "members": Usual((MEMBERS,), tiny=(20,), one=True),
    "passes": Usual((PASSES,), tiny=(1,), one=True),
    "dirichlet": Usual((DIRICHLET,), one=True),
    "clip": Usual((CLIP,), one=True),
    "delta": Usual((DELTA,), one=True),
}

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Federation:
    """What all runs have in common."""

    pictures: Pictures
    divisions: Sequence[NDArray[np.int64]]
    members: int
    passes: int
    clip: float

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.divisions[0])

    @property
    def inputs(self) -> int:
        """Pixels and a constant."""
        return int(self.pictures.inputs.shape[1]) + 1

    @property
    def task(self) -> tuple[int, int]:
        """Entries of the model, and sums of one training."""
        return self.inputs * CLASSES, self.passes * (self.clients // self.members)


def reproduce(options: Options) -> Reproduction:
    """Compute the table and the picture."""
    pictures = read_small_digits() if options.tiny else read_mnist()
    each, dirichlet = options.count("pictures"), options.number("dirichlet")
    clients, seeds = options.count("clients"), range(options.count("seeds"))
    federation = Federation(
        pictures=pictures,
        divisions=[
            divide(pictures.labels, clients, each, dirichlet, run_number)
            for run_number in seeds
        ],
        members=options.count("members"),
        passes=options.count("passes"),
        clip=options.number("clip"),
    )
    dim, sums = federation.task
    task = Task(
        members=federation.members,
        dim=dim,
        clip=federation.clip,
        sums=sums,
        participations=federation.passes,
        delta=options.number("delta"),
    )
    rows = [_row(federation, EXACT, None, seeds)]
    for epsilon in options.numbers("epsilons"):
        for method in METHODS:
            planned = noise(method, task, epsilon)
            rows.append(_row(federation, method, planned, seeds, epsilon))
    return Reproduction(
        name="aga21_figure5",
        stated={
            "clients": "unlike by themselves",
            "noise": "a share of every client, counted for clients",
            "mechanism": SKELLAM,
        },
        assumed={
            "pictures": federation.pictures.name,
            "model": f"softmax, {dim} weights",
            "clients": clients,
            "pictures of a client": each,
            "split": f"Dirichlet, parameter {dirichlet:g}",
            "clients of a sum": federation.members,
            "sums": sums,
            "participations of a client": federation.passes,
            "clip": federation.clip,
            "local training": f"{LOCAL_STEPS} steps at rate {LOCAL_RATE:g}",
            "server": f"momentum {MOMENTUM:g}, rate {SERVER_RATE:g}",
            "delta": task.delta,
            "epsilon": "against the server, or against either of two aggregators",
            "bits of the modulus": "the planner's",
        },
        rows=rows,
        findings=findings(rows),
        figure=Figure(
            f"{clients} unlike clients learn "
            f"{federation.pictures.name} together\n(in the style of [Aga21] Figure 5)",
            [
                Panel(
                    f"{sums} sums of {federation.members} clients, "
                    f"Dirichlet {dirichlet:g}",
                    accuracy_curves(rows),
                    f"ε against the server, {federation.passes} participations "
                    "of a client",
                    "accuracy on test pictures",
                    log_x=True,
                    log_y=False,
                    x_ticks=options.numbers("epsilons"),
                )
            ],
            columns=1,
            zoom=1.6,
        ),
    )


def _row(
    federation: Federation,
    method: str,
    planned: Noise | None,
    seeds: Sequence[int],
    epsilon: float | None = None,
) -> dict[str, object]:
    accuracies = [train(federation, planned, each) for each in seeds]
    made = row(method, epsilon, planned, accuracies)
    if planned is not None:
        made["participations"] = federation.passes
    return made


def divide(
    labels: NDArray[np.int64],
    clients: int,
    each: int,
    dirichlet: float,
    run_number: int,
) -> NDArray[np.int64]:
    """Divide pictures among clients whose proportions of classes differ.

    Args:
        labels: Of all pictures.
        clients: How many.
        each: Pictures of one client; clients times this are at most all pictures.
        dirichlet: Parameter of the law of the proportions; small for unlike clients.
        run_number: Equal numbers give equal divisions.

    Returns:
        Indices, shape (clients, each); no picture is given twice. A class that has run
        out leaves its part to the others.
    """
    generator = np.random.default_rng((run_number, 1))
    pools = [
        list(generator.permutation(np.flatnonzero(labels == digit)))
        for digit in range(CLASSES)
    ]
    shares = np.empty((clients, each), np.int64)
    for mine in shares:
        wished = generator.dirichlet([dirichlet] * CLASSES)
        for place in range(each):
            left = np.array([len(pool) > 0 for pool in pools])
            # A little of every class that is left, lest none of the wished be.
            chances = np.where(left, wished + 1e-9, 0.0)
            digit = generator.choice(CLASSES, p=chances / chances.sum())
            mine[place] = pools[digit].pop()
    return shares


def train(federation: Federation, planned: Noise | None, run_number: int) -> float:
    """Train once, and return the share of test pictures that are read right.

    Args:
        federation: The setting.
        planned: The noise, or None for exact sums.
        run_number: Equal numbers give equal orders.
    """
    generator = np.random.default_rng(run_number)
    pictures, dim = federation.pictures, federation.task[0]
    shares = federation.divisions[run_number]
    model, speed = np.zeros(dim), np.zeros(dim)
    sums = federation.clients // federation.members
    for one_pass in range(federation.passes):
        order = generator.permutation(federation.clients)
        for index in range(sums):
            members = order[index * federation.members :][: federation.members]
            given = shares[members]
            updates = _updates(model, pictures.inputs[given], pictures.labels[given])
            label = f"aga21_figure5/{run_number}/{one_pass}/{index}"
            total = release(planned, updates, federation.clip, generator, label)
            speed = MOMENTUM * speed + total / federation.members
            model = model + SERVER_RATE * speed
    scores = _with_constant(pictures.test_inputs) @ model.reshape(-1, CLASSES)
    return float(np.mean(scores.argmax(axis=1) == pictures.test_labels))


def _updates(
    model: _Array, inputs: NDArray[np.float32], labels: NDArray[np.int64]
) -> _Array:
    """Train at every client, and return the differences, shape (members, dim)."""
    given = model.astype(np.float32).reshape(1, -1, CLASSES)
    inputs = _with_constant(inputs)
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    weights = np.repeat(given, len(inputs), axis=0)
    for _ in range(LOCAL_STEPS):
        scores = inputs @ weights
        scores -= scores.max(axis=2, keepdims=True)
        errors = np.exp(scores)
        errors /= errors.sum(axis=2, keepdims=True)
        errors -= wanted
        weights -= (LOCAL_RATE / inputs.shape[1]) * (inputs.swapaxes(1, 2) @ errors)
    return np.asarray((weights - given).reshape(len(inputs), -1), np.float64)


def _with_constant(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([inputs, np.ones_like(inputs[..., :1])], axis=-1)


def release(
    planned: Noise | None,
    updates: _Array,
    clip: float,
    generator: np.random.Generator,
    label: str,
) -> _Array:
    """Add up the clients' vectors, shortened to the clip, under one method.

    Args:
        planned: The noise, or None for the exact sum.
        updates: Shape (members, dim).
        clip: The largest norm of a vector.
        generator: For the central Gaussian.
        label: Names the sum; equal labels give equal noise.
    """
    if planned is None or planned.mechanism is None:
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        total = (updates * np.minimum(1.0, clip / np.maximum(norms, 1e-300))).sum(
            axis=0
        )
        if planned is None:
            return np.asarray(total)
        deviation = planned.variance**0.5
        return np.asarray(total + generator.normal(0.0, deviation, total.size))
    mechanism = planned.mechanism
    public_seed = seed(f"{label}/public")
    session = mechanism.session(len(updates))
    modular = np.zeros(mechanism.encoded_dim, np.uint64)
    for client, vector in enumerate(updates):
        modular += mechanism.encode(
            vector,
            private_seed=seed(f"{label}/client {client}"),
            public_seed=public_seed,
            session_noise=session,
        ).residues
    modular %= np.uint64(mechanism.modulus)
    residues = modular.astype(np.min_scalar_type(mechanism.modulus - 1))
    if isinstance(mechanism, CentralMechanism):
        for party in "ab":
            residues = mechanism.add_noise(
                residues, private_seed=seed(f"{label}/{party}")
            )
    return mechanism.decode(residues, public_seed=public_seed)


if __name__ == "__main__":
    sys.exit(run(reproduce, __doc__, SETTINGS))
