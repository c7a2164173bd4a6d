"""Each rule of the gate refuses its breach, and nothing else does."""

import asyncio
import json
from dataclasses import replace

import pytest

from secagg.client import admission
from secagg.client.gate import (
    GATE_CHECKS,
    AdmittedSession,
    GateRequest,
    GateStage,
    Need,
    admit,
)
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.two_aggregators import client as two_aggregators_client
from secagg.two_aggregators.gate import PAIR_CHECKS, AdmittedPair, admit_pair
from tests.rules import drivers
from tests.rules.breaches import BREACHES, sound, sound_enrolled, sound_pair


def checked(request, *, without=None):
    """Check a request by all checks, or by all but one."""
    is_pair = not isinstance(request, GateRequest)
    checks = PAIR_CHECKS if is_pair else GATE_CHECKS
    assert without is None or without in {check.name for check in checks}
    kept = tuple(check for check in checks if check.name != without)
    return (admit_pair if is_pair else admit)(request, checks=kept)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: sound(GateStage.OFFER),
        lambda: sound(GateStage.RESUME),
        lambda: sound_enrolled(GateStage.OFFER),
        lambda: sound_enrolled(GateStage.RESUME),
        sound_pair,
    ],
)
def test_a_sound_request_is_admitted(request_of):
    assert isinstance(checked(request_of()), AdmittedSession | AdmittedPair)


@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_is_rejected_with_its_code(name):
    breach = BREACHES[name]()
    with pytest.raises(SecAggError) as caught:
        checked(breach.request)
    assert caught.value.code is breach.code


@pytest.mark.parametrize("name", BREACHES)
def test_without_its_check_a_breach_is_admitted(name):
    """It breaks this rule alone, and this row is what refuses it."""
    breach = BREACHES[name]()
    admitted = checked(breach.request, without=breach.check)
    assert isinstance(admitted, AdmittedSession | AdmittedPair)


@pytest.mark.parametrize("stage", GateStage)
def test_noise_terms_without_a_unit_are_refused(stage):
    # R3.5-3; no row of the gate can be left out for it: noise is read by it alone.
    offer = replace(sound(stage).offer, noise_terms=b"x")
    with pytest.raises(RemoteProtocolError) as caught:
        checked(sound(stage, offer=offer))
    assert caught.value.code is ErrorCode.BAD_CONFIG


@pytest.mark.parametrize("stage", GateStage)
@pytest.mark.parametrize("entries", [{"num_clients": 3}, {"min_survivors": 4}], ids=str)
def test_a_block_that_does_not_fit_the_parameters_is_refused(stage, entries):
    # R3.5-6; noise is read by it alone, as above.
    offer = sound(stage).offer
    block = json.loads(offer.parameters.noise_block)
    for name, value in entries.items():
        part = "mechanism" if name in block["mechanism"] else "noise"
        block[part][name] = value
    data = json.dumps(block, sort_keys=True, separators=(",", ":")).encode()
    parameters = replace(offer.parameters, noise_block=data)
    offer = replace(offer, parameters=parameters)
    with pytest.raises(
        RemoteProtocolError, match=r"noise is (planned|calibrated) for"
    ) as caught:
        checked(sound(stage, offer=offer))
    assert caught.value.code is ErrorCode.BAD_CONFIG


def test_each_check_has_a_breach_at_each_of_its_stages():
    broken = set()
    for make in BREACHES.values():
        breach = make()
        is_pair = not isinstance(breach.request, GateRequest)
        broken.add((is_pair, breach.check, breach.request.stage))
    for is_pair, checks in ((False, GATE_CHECKS), (True, PAIR_CHECKS)):
        for check in checks:
            for stage in check.at:
                assert (is_pair, check.name, stage) in broken


def test_each_skipped_stage_has_a_reason():
    for check in (*GATE_CHECKS, *PAIR_CHECKS):
        assert set(check.exempt) == set(GateStage) - check.at
        assert all(check.exempt.values())


def test_the_checks_run_in_the_order_of_the_protocol():
    # PROTOCOL §5.0: R3.2, then R5.0-1 to R5.0-4, then R2.1-0 and what the list says.
    rules = [check.rules[0] for check in GATE_CHECKS if GateStage.OFFER in check.at]
    assert rules[:-1] == [*sorted(rules[:-2]), "R2.1-0"]
    assert rules[-1] == "R5.0-4"


def test_a_missing_revocation_list_is_requested_after_all_other_checks():
    request = sound_enrolled()
    without = type(request)(**(vars_of(request) | {"revocations": None}))
    assert admit(without) is Need.REVOCATIONS
    breach = BREACHES["offer_by_an_older_list"]().request
    with pytest.raises(RemoteProtocolError, match="has seen list"):
        admit(type(breach)(**(vars_of(breach) | {"revocations": None})))


def vars_of(request):
    return {name: getattr(request, name) for name in request.__dataclass_fields__}


class GateError(Exception):
    """The gate was asked."""


@pytest.mark.parametrize("entry", ["offer", "resume", "step", "two_aggregators"])
def test_every_entry_calls_the_gate(entry, monkeypatch):
    asked = []

    def refuse(request, **_):
        asked.append(getattr(request, "stage", None))
        raise GateError

    lax = drivers.Settings()
    if entry == "two_aggregators":
        monkeypatch.setattr(two_aggregators_client, "admit_pair", refuse)
        with pytest.raises(GateError):
            drivers.two_aggregators(lax)
        assert asked == [GateStage.OFFER]
        return
    if entry in {"offer", "step"}:
        driver = drivers.offer if entry == "offer" else drivers.step
        with monkeypatch.context() as patched:
            patched.setattr(admission, "admit", refuse)
            with pytest.raises(GateError):
                driver(lax, drivers.offered())
        assert asked == [GateStage.OFFER]
        if entry == "offer":
            return
        asked.clear()

    def refuse_stored(request):
        return refuse(request) if request.stage is GateStage.RESUME else admit(request)

    monkeypatch.setattr(admission, "admit", refuse_stored)
    again = drivers.step if entry == "step" else drivers.resume
    with pytest.raises(GateError):
        again(lax, drivers.offered(), begun_under=lax)
    assert asked == [GateStage.RESUME]


def test_a_stored_session_under_an_older_list_is_left(tmp_path):
    """Another session of the issuer shows the newer list meanwhile."""
    known, state = drivers.enrolled(), drivers.Stored(tmp_path)
    own = replace(drivers.WAIVED, enrolment=known.files)
    interrupted = known.offer(1)

    async def begin(offer):
        with pytest.raises(drivers.TookPartError):
            await state.takes_part(offer, own)

    async def main():
        await begin(interrupted)
        await begin(interrupted)  # it is resumed while no other list was read
        await begin(known.offer(2, task_id="another"))
        with pytest.raises(RemoteProtocolError, match="has seen list 2") as caught:
            await state.takes_part(interrupted, own)
        assert caught.value.code is ErrorCode.POLICY_VIOLATION

    asyncio.run(main())


def test_a_list_that_expires_during_a_session_does_not_end_it_at_a_restart():
    request = sound_enrolled(
        GateStage.RESUME, max_revocation_seconds=11.0 * drivers.DAY
    )
    later = replace(request, now=request.now + 2 * drivers.DAY)
    without_end = checked(later, without="end")
    assert isinstance(without_end, AdmittedSession)
    assert isinstance(checked(request), AdmittedSession)
