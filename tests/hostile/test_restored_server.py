"""An aggregator whose store is restored, between the sum that it can know and its end.

The store is restored to before U3; the answers of two clients and the share of a
colluder, enough for the sum, stay on the old disk.  One client has not been asked yet.
"""

import shutil

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.deployment import Deployment
from secagg_testing.inline_store import inline_store
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection

from secagg.client.session_driver import SessionSettings
from secagg.errors import ErrorCode
from secagg.protocol.server import machine as server
from secagg.server.session.runner import SessionRunner
from secagg.simulation.driver import identity_of
from secagg.wire.calls import GetUpdate, RevealShares, UploadChunk

CLIENTS, UNASKED, COLLUDER = 4, 2, 3
PARAMETERS = with_noise(
    parameters_for(
        CLIENTS,
        dimension=CLIENTS + 1,
        threshold=3,
        min_clients=CLIENTS,
        min_survivors=CLIENTS,
        colluders=1,
    )
)


class Restored(Deployment):
    """A deployment whose aggregator dies in the last round and loses its memory."""

    def begin(self, directory):
        self.directory = directory
        self.server_store = self.store_in("now")
        self.uploaded, self.answered = set(), set()
        self.tamper = lambda _, link: _Watched(self, link)
        self.fault_of = self.fault

    def store_in(self, name, **options):
        path = self.directory / name / "store.db"
        path.parent.mkdir(exist_ok=True)
        return inline_store(path, mark=self.directory / f"{name}.mark", **options)

    def fault(self, number, call, _count):
        waits = number == UNASKED and call is GetUpdate
        deaf = waits and number in self.uploaded and not self.server_restarts
        return Fault.LOSE_REQUEST if deaf else Fault.NONE

    def before(self, number, request):
        if isinstance(request, UploadChunk):
            self.uploaded.add(number)
            if len(self.uploaded) == CLIENTS:
                shutil.copytree(self.directory / "now", self.directory / "earlier")

    def after(self, number, request):
        if isinstance(request, RevealShares) and not self.server_restarts:
            self.answered.add(number)
            if {0, 1} <= self.answered and not self.server_process.is_dead:
                self.server_store = self.store_in("earlier", accept_restored=True)
                self.server_process.kill()


class _Watched(LyingConnection):
    def __init__(self, deployment, inner):
        super().__init__(inner, {})
        self.deployment = deployment
        names = [identity_of(number) for number in range(CLIENTS)]
        self.number = names.index(inner.identity)

    async def call(self, request):
        self.deployment.before(self.number, request)
        answer = await super().call(request)
        self.deployment.after(self.number, request)
        return answer


def run(directory):
    async def main(clock):
        deployment = Restored(
            clock,
            PARAMETERS,
            CLIENTS,
            corrupt=frozenset({COLLUDER}),
            max_attempts=1,
            # A stream that is open already would tell the client that is not asked.
            settings=SessionSettings(offer_seconds=600.0, watch=False),
        )
        deployment.begin(directory)
        return deployment, await deployment.run()

    return manual_clock.run(main)


def test_a_client_in_a_restored_session_stays_charged(tmp_path):
    deployment, endings = run(tmp_path)
    assert deployment.server_restarts == 1
    assert endings[UNASKED].code is ErrorCode.STORAGE_FAILED
    assert {0, 1} <= deployment.answered
    assert UNASKED not in deployment.answered


def test_the_ledger_detects_a_server_that_trusts_its_restored_store(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        SessionRunner,
        "_update_for",
        lambda self, identity, _after: server.update_for(self._state, identity),
    )
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        run(tmp_path)
    (violation,) = caught.value.violations
    assert violation.claim is Claim.BUDGET
    assert violation.who == (identity_of(UNASKED),)
