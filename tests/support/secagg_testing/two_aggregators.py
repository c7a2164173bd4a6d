"""Two aggregators and their clients in one process, without threads."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from typing import Any, TypeVar, cast
from unittest import mock

import numpy as np
import numpy.typing as npt

from secagg.crypto.modular import UnsignedArray
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.distributed_dp import AggregatorNoise, fixed_point_parameters
from secagg.protocol.policy import ClientPolicy, PrivacyLimits
from secagg.runtime.metrics import Meter
from secagg.runtime.workers import Workers
from secagg.server.storage import ServerStorage
from secagg.storage.blobs import MemoryBlobs
from secagg.storage.spool import UploadSpool
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.store import Store
from secagg.transport.connection import AggregatorConnection, InMemoryConnection
from secagg.two_aggregators import (
    Helper,
    Leader,
    SharedContribution,
    TwoAggregatorClient,
    TwoAggregatorSum,
    cohort_parameters,
)
from secagg.two_aggregators.messages import NoisyShare
from secagg.two_aggregators.receipt import NameList, PartStatement
from secagg.wire.calls import Request
from secagg_testing.client_state import LastingStore
from secagg_testing.inline_store import inline_store
from secagg_testing.manual_clock import ManualClock

_Answer = TypeVar("_Answer")

TASK = "between-two"
_LEADER, _HELPER = "leader", "helper"

# Of tests alone: no aggregator has a key that is published.
LEADER_KEY, HELPER_KEY = (
    IdentityKey.from_bytes(SecretBytes(bytes([place]) * 32)) for place in (1, 2)
)


class Between:
    """A connection with an attacker in between; subclasses define the attack.

    Args:
        inner: The way.
    """

    def __init__(self, inner: AggregatorConnection) -> None:
        self._inner = inner
        self.identity, self.aggregator = inner.identity, inner.aggregator
        self.trust_domain, self.is_direct = inner.trust_domain, inner.is_direct

    async def probe(self) -> str:
        """See `AggregatorConnection.probe`."""
        return await self._inner.probe()

    async def call(self, request: Request[_Answer]) -> _Answer:
        """Forward a request."""
        return await self._inner.call(request)


def noise_for(  # noqa: PLR0913 - a task in one line
    *,
    dim: int = 5,
    min_survivors: int = 3,
    max_clients: int = 4,
    participations: int = 2,
    spare: int = 0,
    rho: Fraction | float = Fraction(1, 2),
    epsilon: float = 8.0,
    bits: int = 8,
    accountant: str | None = None,
) -> AggregatorNoise:
    """Return a small task between two aggregators."""
    chosen = fixed_point_parameters(
        dim=dim,
        fixed_point_bits=bits,
        rho=rho,
        clients=max_clients,
        min_survivors=min_survivors,
        aggregators=2,
    )
    cohort = cohort_parameters(min_survivors=min_survivors, max_clients=max_clients)
    return AggregatorNoise.joined(
        chosen,
        cohort,
        epsilon=epsilon,
        delta=1e-5,
        participations=participations,
        spare=spare,
        accountant=accountant,
    )


@contextmanager
def watched_noise() -> Iterator[list[npt.NDArray[np.int64]]]:
    """Collect each noise vector that an aggregator draws, in a list that grows."""
    kept: list[npt.NDArray[np.int64]] = []
    add_noise = AggregatorNoise.add_noise

    def watched(
        self: AggregatorNoise, residues: UnsignedArray, *, seed: SecretBytes
    ) -> UnsignedArray:
        noisy = add_noise(self, residues, seed=seed)
        kept.append((noisy.astype(np.int64) - residues) % self.parameters.modulus)
        return noisy

    with mock.patch.object(AggregatorNoise, "add_noise", watched):
        yield kept


class TwoAggregators:
    """A leader, a helper, and as many clients as are asked for.

    Args:
        clock: The time of all parties.
        noise: The task.
        helper_way: Wraps the connection of leader and helper; by default nothing.
        storages: Of leader and helper; in memory by default.
        meters: Receive their measurements; default: none.
        steps: Sums of the task; by default the participations of one client.
        task: Its name; `TASK` by default.
    """

    def __init__(  # noqa: PLR0913 - what a test decides
        self,
        clock: ManualClock,
        noise: AggregatorNoise,
        *,
        helper_way: Callable[[AggregatorConnection], AggregatorConnection] = (
            lambda way: way
        ),
        storages: tuple[ServerStorage, ServerStorage] | None = None,
        meters: tuple[Meter | None, Meter | None] = (None, None),
        steps: int | None = None,
        task: str | None = None,
    ) -> None:
        self.clock = clock
        self.workers = Workers(general=InlineExecutor())
        self.storages = storages or (self._storage(), self._storage())
        shared: dict[str, Any] = {"clock": clock, "workers": self.workers}
        shared["steps"] = steps
        self.helper = Helper(
            task or TASK,
            noise,
            name=_HELPER,
            leader=_LEADER,
            storage=self.storages[1],
            receipt_key=HELPER_KEY,
            meter=meters[1],
            **shared,
        )
        way = InMemoryConnection(self.helper, _LEADER, aggregator=_HELPER)
        self.leader = Leader(
            task or TASK,
            noise,
            name=_LEADER,
            helper=helper_way(way),
            storage=self.storages[0],
            receipt_key=LEADER_KEY,
            helper_key=HELPER_KEY.public_bytes,
            meter=meters[0],
            **shared,
        )

    def _storage(self) -> ServerStorage:
        return ServerStorage(self._store(), UploadSpool(MemoryBlobs()))

    def _store(self) -> Store:
        return inline_store(now=self.clock.date)

    def way_to(self, name: str, client: str) -> InMemoryConnection:
        """Return the connection of a client to one of the two."""
        service = self.leader if name == _LEADER else self.helper
        return InMemoryConnection(service, client, aggregator=name)

    def client(self, name: str, **changes: Any) -> TwoAggregatorClient:
        """Return a client, open; `changes` replace the usual arguments.

        A `store` among them holds its state.
        """
        store = changes.pop("store", None) or LastingStore.make(now=self.clock.date)
        given: dict[str, Any] = {
            "task": self.leader.task,
            "leader_name": _LEADER,
            "helper_name": _HELPER,
            "leader_key": LEADER_KEY.public_bytes,
            "helper_key": HELPER_KEY.public_bytes,
            "privacy_limits": PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
            "cohort": ClientPolicy(),
            "clock": self.clock,
            "workers": self.workers,
        }
        leader = changes.pop("leader", self.way_to(_LEADER, name))
        helper = changes.pop("helper", self.way_to(_HELPER, name))
        made = TwoAggregatorClient(leader, helper, **(given | changes))
        vars(made._state)["open_store"] = lambda: store
        made._state.open(aggregator=_LEADER, trust_domain=leader.trust_domain)
        return made

    async def give(
        self, vectors: Sequence[npt.ArrayLike]
    ) -> tuple[TwoAggregatorSum, tuple[SharedContribution, ...]]:
        """Run a session in which client-0, client-1, ... contribute one vector each.

        Returns:
            The sum of the leader, and the contribution of each client.
        """
        released, *given = await asyncio.gather(
            self.leader.next_sum(),
            *(
                self.client(f"client-{place}").contribute(vector)
                for place, vector in enumerate(vectors)
            ),
        )
        return cast("TwoAggregatorSum", released), tuple(
            cast("list[SharedContribution]", given)
        )

    def signed(self, part: NoisyShare) -> NoisyShare:
        """Return the answer of a malicious helper, with its signature."""
        live = self.leader._live
        assert live is not None
        suite = live.offer.parameters.suite
        roster, survivors = (
            NameList(names, live.offer.session_id, suite).commitment
            for names in (live.named or (), part.names)
        )
        statement = PartStatement(
            live.offer.encode(),
            live.helper.encode(),
            roster,
            survivors,
            sha256(part.packed).digest(),
        )
        return replace(part, signature=HELPER_KEY.sign(statement.to_sign(suite)))

    def restarted(self, noise: AggregatorNoise) -> "TwoAggregators":
        """Return both aggregators restarted on the stores of the old ones."""
        return TwoAggregators(self.clock, noise, storages=self.storages)
