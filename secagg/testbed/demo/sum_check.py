"""Compares the released sum with the integers that the surviving clients masked.

Rule 1: the comparison uses nothing of the protocol: integers are read from files,
        added, and reduced; removed noise is drawn a second time.
Rule 2: a sum is exact only if it also adds up as many inputs as its server claims.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from secagg.crypto.modular import add_into, reduce_in_place, zeros
from secagg.crypto.secret_bytes import SecretBytes
from secagg.distributed_dp import subtract_layers
from secagg.protocol.events import NoiseRemoval
from secagg.protocol.parameters import ProtocolParameters
from secagg.testbed.demo.layout import DemoLayout
from secagg.testbed.demo.model import Shard, SoftmaxModel
from secagg.testbed.run_folder import client_name

# A client that drops out in one of these is not in the sum.
_BEFORE_THE_SUM: Final = frozenset({"SHARE_KEYS", "MASKED_INPUT_COLLECTION"})


@dataclass(frozen=True, slots=True)
class SessionCheck:
    """What the parent process knows of one session that released a sum.

    Attributes:
        session_number: The session.
        survivors: Clients whose input is in the sum.
        dropped: All dropouts, with round and reason.
        is_exact: Whether the released integers are the sum of the survivors' ones.
        accuracy: Of the model after the step.
        l2_clip: Longest vector that was not shortened, caller's units.
        fitted: Released estimate of the part of the vectors that were not shortened;
            None where the clip stays.
        standard_error: Of one entry of the sum, by noise and rounding, caller's units.
    """

    session_number: int
    survivors: int
    dropped: tuple[Mapping[str, str], ...]
    is_exact: bool
    accuracy: float
    l2_clip: float
    fitted: float | None
    standard_error: float


def check_session(  # noqa: PLR0913 - facts from four places
    layout: DemoLayout,
    number: int,
    *,
    clients: int,
    dropped: tuple[Mapping[str, str], ...],
    claimed: Mapping[str, Any],
    parameters: ProtocolParameters,
    test: Shard,
) -> SessionCheck:
    """Check one session that released a sum.

    Args:
        layout: The files.
        number: Number of the session.
        clients: How many clients the demo has.
        dropped: All dropouts at the aggregator, with round and reason.
        claimed: The aggregator's statement on the sum: the number of inputs, the size
            of U2, the removed layers of noise, and the clip.
        parameters: Of the session.
        test: Pictures that no client trained on.
    """
    gone = {lost["name"] for lost in dropped if lost["round"] in _BEFORE_THE_SUM}
    released = np.load(layout.residues(number), allow_pickle=False)
    silent = {lost["name"] for lost in dropped if lost["round"] == "UNMASKING"}
    expected = zeros(parameters.dimension, parameters.modulus)
    survivors, given = 0, []
    for name in map(client_name, range(1, clients + 1)):
        path = layout.audit(name, number)
        if name in gone or not path.exists():
            continue
        add_into(expected, np.load(path, allow_pickle=False), parameters.modulus)
        survivors += 1
        if claimed["removed"] and name not in silent:
            seeds = np.load(layout.layers(name, number), allow_pickle=False)
            given += [
                (layer, SecretBytes(seeds[layer].tobytes()))
                for layer in claimed["removed"]
            ]
    share_holders = claimed["share_holders"]
    subtract_layers(
        expected, NoiseRemoval(parameters.noise_block, share_holders, tuple(given))
    )
    weights = np.load(layout.model(number), allow_pickle=False)
    return SessionCheck(
        session_number=number,
        survivors=survivors,
        dropped=dropped,
        is_exact=survivors == claimed["survivors"]
        and bool(
            np.array_equal(released, reduce_in_place(expected, parameters.modulus))
        ),
        accuracy=SoftmaxModel(weights).accuracy_on(test),
        l2_clip=claimed["l2_clip"],
        fitted=claimed["fitted"],
        standard_error=claimed["standard_error"],
    )
