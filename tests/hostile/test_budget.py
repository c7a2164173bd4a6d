"""A budget is never overdrawn: each client's store against what the adversary knows.

The aggregator follows the protocol and keeps what it hears; a colluder keeps back its
part of a round, and the aggregator has it all the same.  Every task has a budget of one
session.  `Deployment.run` checks that no client is in more sums than it has paid for;
here stands what ends a session, and what that costs.
"""

import asyncio
from dataclasses import dataclass, replace

import pytest
from secagg_testing import manual_clock
from secagg_testing.cohorts import parameters_for, with_noise
from secagg_testing.crash_points import CrashSwitch
from secagg_testing.deployment import Deployment
from secagg_testing.knowledge.claims import Claim, ForbiddenKnowledgeError
from secagg_testing.knowledge.closure import close
from secagg_testing.knowledge.sums import revealed_sums
from secagg_testing.lossy_connection import Fault
from secagg_testing.lying_connection import LyingConnection

from secagg.client.runner import ClientRunner
from secagg.errors import ErrorCode, SessionAbortedError
from secagg.simulation.driver import identity_of
from secagg.storage import changes
from secagg.storage.budget_ledger import BudgetSpentError, ChargeState, Settlement
from secagg.storage.change import StoreUpdate
from secagg.storage.queries import ListCharges
from secagg.wire.calls import GetOffer, RevealShares, UploadChunk

CLIENTS = 4
COLLUDER = 3
HONEST = frozenset(range(CLIENTS)) - {COLLUDER}
PARAMETERS = with_noise(
    parameters_for(CLIENTS, dimension=CLIENTS + 1, threshold=CLIENTS, colluders=1)
)


def run(*, tamper=lambda _, link: link, **options):
    """Run a task; `tamper` puts something before the aggregator of a deployment."""

    async def main(clock):
        deployment = Deployment(
            clock,
            PARAMETERS,
            CLIENTS,
            corrupt=frozenset({COLLUDER}),
            tamper=lambda _, link: tamper(deployment, link),
            **{"max_attempts": 1} | options,
        )
        return deployment, await deployment.run()

    return manual_clock.run(main)


def silent_at(call):
    """Keep back what the colluder says in one round, in every session."""

    def fault_of(number, asked, _count):
        lost = number == COLLUDER and asked is call
        return Fault.LOSE_REQUEST if lost else Fault.NONE

    return fault_of


def known_sums(deployment):
    """Return who is in each sum that the adversary knows, and in which session."""
    return [
        (each.members, each.view.roster.session.descriptor.session_number)
        for each in revealed_sums(close(deployment.observer.facts))
    ]


def spent(deployment):
    charged = asyncio.run(deployment.charged())
    return {charged[identity_of(number)] for number in HONEST}


ALL = frozenset(map(identity_of, HONEST))


def test_a_released_sum_costs_one_session():
    deployment, _ = run()
    assert known_sums(deployment) == [(ALL, 1)]
    assert spent(deployment) == {1}


def test_a_session_that_ends_before_any_client_is_asked_costs_nothing():
    deployment, endings = run(fault_of=silent_at(UploadChunk))
    assert {endings[number].code for number in HONEST} == {ErrorCode.U3_TOO_SMALL}
    assert known_sums(deployment) == []
    assert spent(deployment) == {0}


def test_a_colluder_that_is_silent_in_the_last_round_costs_a_session():
    """Server and colluder hold t answers, and the sum, of a session without one."""
    deployment, endings = run(fault_of=silent_at(RevealShares))
    assert {endings[number].code for number in HONEST} == {ErrorCode.TOO_FEW_ANSWERS}
    assert known_sums(deployment) == [(ALL, 1)]
    assert spent(deployment) == {1}


def test_a_session_cancelled_after_all_answers_costs_one_session():
    """The operator stops it, with every answer but the colluder's on the disk."""
    answered = set()

    class Last(LyingConnection):
        async def call(self, request):
            answer = await super().call(request)
            if isinstance(request, RevealShares):
                answered.add(self.identity)
                if answered == ALL:
                    await self.deployment.aggregator.abort(request.session_id, "enough")
            return answer

    def tamper(deployment, link):
        last = Last(link, {})
        last.deployment = deployment
        return last

    deployment, _ = run(fault_of=silent_at(RevealShares), tamper=tamper)
    assert deployment.server_error.code is ErrorCode.CANCELLED
    assert known_sums(deployment) == [(ALL, 1)]
    assert spent(deployment) == {1}


def test_after_one_cancelled_session_further_sessions_are_rejected():
    """Each would show the sum to a server whose colluder is silent; one was paid for.

    The answers were given, so that no charge comes back; and what the server would do
    49 times more ends at the clients.
    """
    answered = {}

    class Cancelling(LyingConnection):
        async def call(self, request):
            answer = await super().call(request)
            if isinstance(request, RevealShares):
                named = answered.setdefault(request.session_id, set())
                named.add(self.identity)
                if named == ALL:
                    await self.deployment.aggregator.abort(request.session_id, "enough")
            return answer

    def tamper(deployment, link):
        cancelling = Cancelling(link, {})
        cancelling.deployment = deployment
        return cancelling

    deployment, endings = run(
        fault_of=silent_at(RevealShares), tamper=tamper, max_attempts=50
    )
    refused = [endings[number] for number in HONEST]
    assert {type(each) for each in refused} == {BudgetSpentError}
    assert len(answered) == 1
    assert known_sums(deployment) == [(ALL, 1)]
    assert spent(deployment) == {1}


def test_a_task_changed_during_the_sum_still_costs_a_session():
    """The operator edits the settings and starts again, without bad intent."""
    points = run()[0].server_crash.points
    changed = replace(PARAMETERS, deadlines=replace(PARAMETERS.deadlines, unmasking=99))
    deployments = []

    def edit():
        deployments[0].parameters = changed

    def tamper(deployment, link):
        deployments[:] = [deployment]
        return link

    while_summing = CrashSwitch(points.index("before put sum"))
    while_summing.on_death(edit)
    deployment, _ = run(server_crash=while_summing, tamper=tamper)
    assert deployment.server_restarts == 1
    assert not deployment.sums
    assert known_sums(deployment) == [(ALL, 1)]
    assert spent(deployment) == {1}


class Forger(LyingConnection):
    """Answers the first question after a session with an error, not with an offer."""

    questions = 0

    async def call(self, request):
        if isinstance(request, GetOffer):
            Forger.questions += 1
            if Forger.questions == CLIENTS + 1:
                raise SessionAbortedError("not today", code=ErrorCode.CANCELLED)
        return await super().call(request)


@pytest.fixture(name="forged")
def _forged(monkeypatch):
    monkeypatch.setattr(Forger, "questions", 0)
    return lambda: run(tamper=lambda _, link: Forger(link, {}))


def test_an_error_answer_to_the_next_question_refunds_nothing(forged):
    deployment, _ = forged()
    assert Forger.questions > CLIENTS
    assert spent(deployment) == {1}


@dataclass(frozen=True)
class Credit(StoreUpdate[None]):
    """Settle the charge of a session that is over, which no client of ours does."""

    settlement: Settlement

    async def run(self, connection):
        await changes._settle(connection, self.settlement, await connection.now())


def test_the_ledger_detects_a_client_that_refunds_after_an_error(forged, monkeypatch):
    """Its store has to help it: there, what is kept is final."""
    run_session = ClientRunner.run_session

    async def credit(runner, task):
        try:
            return await run_session(runner, task)
        except SessionAbortedError:
            store = runner._parts.state.store
            for row in await store.read(ListCharges(task)):
                last = Settlement(
                    task=task, session_id=row.session_id, state=ChargeState.VOID
                )
                await store.commit(Credit(last))
            raise

    monkeypatch.setattr(ClientRunner, "run_session", credit)
    forged()
    monkeypatch.setattr(changes, "settled", lambda _, wanted: wanted)
    Forger.questions = 0
    with pytest.raises(ForbiddenKnowledgeError) as caught:
        forged()
    assert {found.claim for found in caught.value.violations} == {Claim.BUDGET}
