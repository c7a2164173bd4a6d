"""The state of a client over a store that outlives it, and the client over that state.

Everything runs in the thread of the caller: for programs whose time is a `ManualClock`.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from secagg.client.durable_client import ClientStorage, DurableClient
from secagg.client.enrolment import EnrolledClient
from secagg.client.gate import OwnRules
from secagg.client.open_client import Encode, EncodedInput, GivenVector, encode_input
from secagg.client.runner import ClientRunner
from secagg.client.session import ClientSession
from secagg.client.session_driver import Preparation
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.protocol.events import NoisyVector, PlainVector
from secagg.protocol.policy import (
    NO_NOISE_ACKNOWLEDGEMENT,
    ClientPolicy,
    ExactSumWaiver,
    TotalBudget,
)
from secagg.runtime.clock import Clock, SystemClock
from secagg.runtime.workers import Workers
from secagg.storage.client_store import ClientStore
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.storage.sqlite.file import SQLiteFile
from secagg.transport.connection import AggregatorConnection
from secagg_testing.cohorts import LENIENT_POLICY, lenient_rules
from secagg_testing.inline_store import inline_file

# (descriptor, payload, what to draw noise from) -> input of the session
MakeInput = Callable[..., PlainVector | NoisyVector]
_WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)


class LastingStore(ClientStore):
    """A store that stands for a disk: closing leaves it as it is."""

    @classmethod
    def make(
        cls,
        path: Path | None = None,
        *,
        mark: Path | None = None,
        accept_restored: bool = False,
        now: Callable[[], float] = lambda: 1_000_000.0,
    ) -> Self:
        """Open the store of a client at once.

        Args:
            path: Its file; None for memory.
            mark: Its rollback mark; None for none.
            accept_restored: Whether it may have been restored.
            now: Its clock, in Unix seconds; stands still by default.
        """
        file = inline_file(path, mark=mark, accept_restored=accept_restored)
        return cls(file, None, now, ExitStack())

    @property
    def file(self) -> SQLiteFile:
        """Its file."""
        return self._transactions.file

    async def close(self) -> None:
        """Keep it."""

    def end(self) -> None:
        """Release its file, as the end of its process does."""
        self._transactions.file.close()


@dataclass(kw_only=True, eq=False)
class ClientOnStore(DurableClient):
    """A client over a given store, under given rules.

    Attributes:
        store: The store.
        rules: The owner's client rules.
    """

    store: ClientStore
    rules: OwnRules
    limits: Any = _WAIVER
    state_dir: Path | None = None
    keep_upload: bool = False

    def open_store(self) -> ClientStore:
        """Return the store."""
        return self.store

    def rules_over(self, _: ClientStorage) -> OwnRules:
        """Return the rules."""
        return self.rules


def _encoder(make_input: MakeInput) -> Encode:
    """Return a function that makes an input from a payload: the vector itself."""

    def encode(
        session: ClientSession, given: GivenVector, _bound: bytes
    ) -> EncodedInput:
        assert isinstance(given.vector, bytes)
        made = make_input(session.descriptor, given.vector, session.noise_secrets)
        return EncodedInput(made)

    return encode


async def _payload_of(given: Preparation) -> bytes:
    return given.session.payload


def client_over(  # noqa: PLR0913 - every part can be exchanged
    identity: str,
    connection: AggregatorConnection,
    store: Any = None,
    *,
    policy: ClientPolicy = LENIENT_POLICY,
    make_input: MakeInput | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    total: TotalBudget | None = None,
    enrolment: EnrolledClient | None = None,
    **more: Any,
) -> ClientRunner:
    """Return a client over a store, which is in memory by default.

    Args:
        identity: Its name.
        connection: The way to the aggregator.
        store: The store, which stays the caller's.
        policy: Limits of the client on the cohort.
        make_input: Makes its inputs; None for a client that stops before.
        clock: Time; the machine's by default.
        entropy: Of seeds and jitter; the system's by default.
        total: Of its data.
        enrolment: Its enrolment.
        more: Further arguments of `ClientRunner`.
    """
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    state = ClientOnStore(
        identity=identity,
        store=store or LastingStore.make(),
        rules=lenient_rules(policy),
        cohort=policy,
        clock=clock.date,
        entropy=entropy,
        total=total,
        enrolment=enrolment,
        encode=encode_input if make_input is None else _encoder(make_input),
    )
    state.open(trust_domain=connection.trust_domain)
    return ClientRunner(
        state,
        connection,
        prepare=_payload_of,
        workers=Workers(general=InlineExecutor()),
        clock=clock,
        entropy=entropy,
        **more,
    )
