"""Compares what was released with what the surviving clients say they masked.

Rule 1: nothing of the protocol is used for the comparison: integers are read from
        files, added, and reduced.
Rule 2: a sum is exact only if it also adds up as many inputs as its server claims.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.demo.digits import Shard
from secagg.demo.layout import DemoLayout, client_name
from secagg.demo.softmax_model import SoftmaxModel

__all__ = ["SessionCheck", "check_session"]

# Whoever is lost in one of these is not in the sum.
_BEFORE_THE_SUM: Final = frozenset({"SHARE_KEYS", "MASKED_INPUT_COLLECTION"})


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """What the parent process knows of one session that released a sum.

    Attributes:
        session_number: Which one.
        survivors: Clients whose input is in the sum.
        dropped: Everybody lost, with round and reason.
        is_exact: Whether the released integers are the sum of the survivors' ones.
        accuracy: Of the model after the step.
    """

    session_number: int
    survivors: int
    dropped: tuple[Mapping[str, str], ...]
    is_exact: bool
    accuracy: float


def check_session(  # noqa: PLR0913 - facts from four places
    layout: DemoLayout,
    number: int,
    *,
    clients: int,
    dropped: tuple[Mapping[str, str], ...],
    inputs: int,
    taken_back: Sequence[int] = (),
    modulus: int,
    test: Shard,
) -> SessionCheck:
    """Check one session that released a sum.

    Args:
        layout: Where the files are.
        number: Number of the session.
        clients: How many clients the demo has.
        dropped: Everybody that the aggregator lost, with round and reason.
        inputs: How many inputs the aggregator says the sum adds up.
        taken_back: Layers of noise that it says survivors have given away.
        modulus: The m of the session.
        test: Pictures that nobody trained on.
    """
    gone = {lost["name"] for lost in dropped if lost["round"] in _BEFORE_THE_SUM}
    silent = {lost["name"] for lost in dropped}
    released = np.load(layout.residues(number), allow_pickle=False)
    expected = np.zeros(released.shape, np.uint64)
    survivors = 0
    for client in range(1, clients + 1):
        path = layout.audit(client_name(client), number)
        if client_name(client) not in gone and path.exists():
            masked, *layers = np.load(path, allow_pickle=False)
            expected += masked
            survivors += 1
            if client_name(client) not in silent:
                for layer in taken_back:  # modulo 2^64, which m divides
                    expected -= layers[layer]
    weights = np.load(layout.model(number), allow_pickle=False)
    return SessionCheck(
        session_number=number,
        survivors=survivors,
        dropped=dropped,
        is_exact=survivors == inputs
        and bool(np.array_equal(released, expected % np.uint64(modulus))),
        accuracy=SoftmaxModel(weights).accuracy_on(test),
    )
