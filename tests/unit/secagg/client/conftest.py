"""What several test files of this folder share."""

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from secagg_testing import manual_clock
from secagg_testing.client_state import LastingStore
from secagg_testing.cohorts import parameters_for
from secagg_testing.deployment import TASK_ID, Deployment
from secagg_testing.lying_connection import LyingConnection

from secagg.client.client import Client
from secagg.client.durable_client import DurableClient
from secagg.distributed_dp import NoisyTask, plan
from secagg.protocol.policy import PrivacyLimits
from secagg.runtime.log_events import CLIENT_LOGGER
from secagg.runtime.workers import Workers
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.wire.calls import UploadChunk

CLIENTS, DIM = 4, 6
# Which client the present task is.
SPEAKING = ContextVar("SPEAKING", default=None)


def noised(rate=None, **more):
    made = plan(
        clients=CLIENTS,
        dimension=DIM,
        epsilon=8.0,
        delta=1e-5,
        min_survivors=CLIENTS - 1,
        ladder=0,
        **{"l2_clip": 1.0, "mechanism": "skellam", "steps": 4} | more,
        selection_rate=rate,
    )
    cohort = parameters_for(
        CLIENTS,
        dimension=1,
        threshold=3,
        min_clients=CLIENTS,
        min_survivors=CLIENTS - 1,
    )
    return NoisyTask.from_plan(made, cohort)


@pytest.fixture(scope="package")
def noisy_task():
    return noised()


@pytest.fixture(scope="package")
def half():
    """A task that selects every second vector in secret."""
    return noised(Fraction(1, 2))


@dataclass
class Cohort:
    """Four clients of the product in time that moves by hand.

    Attributes:
        uploads: When each client sent the first byte of its input, after the first one
            had joined; and how many bytes.
        sent: What each client said: kind, size, time.
        logged: What each client wrote into its log: level, event, length.
        gifts: What each client got for each session, or the error.
        inputs: In how many inputs each sum adds up.
    """

    task: NoisyTask
    monkeypatch: pytest.MonkeyPatch
    answer_at: float | None = None
    make_unselected: bool = False
    sessions: int = 1
    uploads: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)
    logged: dict = field(default_factory=dict)
    gifts: dict = field(default_factory=dict)
    inputs: list = field(default_factory=list)

    def run(self, vectors, threads=None, *, alone=None):
        """Let every client give; returns the cohort itself.

        Args:
            vectors: By number of the client; a client that is left out gives ones.
            threads: Where the functions of a client run, by number; None takes the
                thread of the clock.
            alone: The only client that comes, if any; no sum is waited for then.
        """
        self.vectors, self.threads, self.alone = vectors, threads or {}, alone
        heard, logger = Heard(self.logged), logging.getLogger(CLIENT_LOGGER)
        logger.addHandler(heard)
        try:
            manual_clock.run(self._main)
        finally:
            logger.removeHandler(heard)
        return self

    @property
    def due(self):
        """How long after the beginning of its round an input is due, in seconds."""
        part = 0.7 if self.answer_at is None else self.answer_at
        return part * self.task.parameters.deadlines.masked_input

    async def _main(self, clock):
        self.clock = clock
        patch = self.monkeypatch.setattr
        patch("secagg.client.client.SystemClock", lambda: clock)
        patch(Workers, "of_process", lambda: Workers(general=InlineExecutor()))
        patch(DurableClient, "open_store", lambda _: LastingStore.make())
        patch("secagg.client.application.DaemonThreads", InlineExecutor)
        deployment = Deployment(
            clock,
            self.task.parameters,
            CLIENTS,
            payload=b"a model",
            tamper=self._watched,
            sessions=self.sessions,
            max_attempts=1,
        )
        serving = asyncio.ensure_future(deployment.serve())
        present = range(CLIENTS) if self.alone is None else (self.alone,)
        await asyncio.gather(*(self._give(deployment, n) for n in present))
        if self.alone is not None:
            serving.cancel()
        await asyncio.wait({serving})
        self.inputs = [each.survivors for each in deployment.sums]

    async def _give(self, deployment, number):
        SPEAKING.set(number)
        vector = self.vectors.get(number, np.ones(DIM))
        self.gifts[number] = []
        async with Client(
            deployment._link(number),
            task=TASK_ID,
            privacy_limits=PrivacyLimits(max_epsilon=8.0, max_delta=1e-5),
            answer_at=self.answer_at,
            make_unselected=self.make_unselected,
            threads=self.threads.get(number, InlineExecutor()),
            attempts=1,
        ) as one:
            for _ in range(self.sessions):
                try:
                    self.gifts[number].append(await one.contribute(vector))
                except Exception as error:  # noqa: BLE001 - checked by the test
                    self.gifts[number].append(error)

    def _watched(self, number, connection):
        cohort = self
        said = self.sent.setdefault(number, [])

        class Watched(LyingConnection):
            async def call(self, request):
                now = cohort.clock.now()
                said.append((type(request).__name__, _size(request), now))
                if isinstance(request, UploadChunk):
                    cohort.uploads.setdefault(number, (now, len(request.data)))
                return await super().call(request)

        return Watched(connection, {})


class Heard(logging.Handler):
    """Writes down which client logs what."""

    def __init__(self, logged):
        super().__init__(logging.DEBUG)
        self._logged = logged

    def emit(self, record):
        number = SPEAKING.get()
        if number is not None:
            line = (record.levelname, record.event, len(record.getMessage()))
            self._logged.setdefault(number, []).append(line)


def _size(request):
    """Bytes and texts in a request."""
    values = (getattr(request, each.name) for each in fields(request))
    return sum(len(each) for each in values if isinstance(each, bytes | str))


@pytest.fixture
def cohort(monkeypatch, caplog):
    """Makes cohorts."""
    caplog.set_level(logging.DEBUG, CLIENT_LOGGER)
    return partial(Cohort, monkeypatch=monkeypatch)
