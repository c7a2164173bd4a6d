"""Damaged requests at the HTTP edge: a refusal with a code, never a defect.

`make fuzz` asks for ten million inputs, and for a million requests here.
"""

import asyncio
import gc
import random  # noqa: TID251 - of a test, from its seed
import tracemalloc

import pytest
from secagg_testing.edge_requests import EdgeIssuer, EdgeRequest, call_app
from secagg_testing.scripted_service import ScriptedService

from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.http_edge.app import EdgeApplication
from secagg.server.http_edge.proof import RequestProof, UnknownCredentialBudget
from secagg.wire.calls import (
    AdvertiseKeys,
    GetUpdate,
    GetUploadStatus,
    UploadStatus,
    Wait,
)

AUTHORITY = "edge.example"
ISSUER = EdgeIssuer()
REFUSED = {400, 401, 403, 404, 411, 413, 415, 429}
SPECIAL = '"();=:/+-_ \\?#%\t,.\x7fÄé\xff0Aa'
FEW, PER_INPUTS = 3000, 10  # in the default suite; of the option beyond it
PARTS = 20  # so that each ends in time


def application(instant):
    service = ScriptedService({GetUploadStatus: UploadStatus(3), GetUpdate: Wait(1.0)})
    proof = RequestProof(
        AUTHORITY,
        "ours.example",
        ISSUER.key.public_bytes,
        budget=UnknownCredentialBudget(lambda: instant[0], by_address=True),
        date=lambda: ISSUER.now,
    )
    return service, EdgeApplication(
        service,
        proof,
        CallGuards(CallLimits(), lambda: instant[0]),
        origins=("https://app.example",),
        address_of=lambda host: host,
        on_known=lambda _, __: None,
    )


def mutated_text(text, dice):
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(text) + 1)
        match dice.randrange(5):
            case 0:
                text = text[:at] + dice.choice(SPECIAL) + text[at:]
            case 1:
                text = text[:at] + text[at + dice.randint(1, 8) :]
            case 2:
                text = text[:at] + text[at + 1 :] + text[at : at + 1]
            case 3:
                text = text[:at] + chr(dice.randrange(1, 256)) + text[at + 1 :]
            case _:
                text = text * 2 if len(text) < 4000 else ""
    return text


def mutate(request, dice):
    """Change one to three things of a request."""
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(list(request.headers) or ["signature"])
        match dice.randrange(9):
            case 0 | 1 | 2:
                value = request.headers.get(name, "")
                request.headers[name] = mutated_text(value, dice)
            case 3:
                request.headers.pop(name, None)
            case 4:
                request.more.append((name, request.headers.get(name, "x")))
            case 5:
                request.path = mutated_text(request.path, dice)
            case 6:
                request.method = dice.choice(["GET", "OPTIONS", "PUT", "post", "HEAD"])
            case 7:
                body = bytearray(request.body or b"x")
                body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
                request.body = bytes(body)[: dice.randrange(len(body) + 1)]
            case _:
                extra = dice.choice(["origin", "content-encoding", "host", "cookie"])
                request.more.append((extra, mutated_text("https://app.example", dice)))
    return request


@pytest.fixture
def count(request):
    inputs = request.config.getoption("--fuzz-inputs")
    return (FEW if inputs <= FEW * 40 else inputs // PER_INPUTS) // PARTS


@pytest.mark.parametrize("part", range(PARTS))
async def test_mutated_requests_are_answered_and_only_authenticated_ones_are_served(
    request, count, part
):
    dice = random.Random(request.config.getoption("--fuzz-seed") * PARTS + part)
    instant = [0.0]
    service, app = application(instant)
    identities = [ISSUER.identity(f"client-{n}", serial=n) for n in range(1, 5)]
    asked = [
        GetUploadStatus(bytes(32)),
        GetUpdate(bytes(32), None),
        AdvertiseKeys(bytes(32), b"advert"),
    ]
    honest = [
        EdgeRequest.signed(who, call, authority=AUTHORITY, created=ISSUER.now)
        for who in identities
        for call in asked
    ]
    names = {who.issued.credential.name for who in identities}
    held, after_warm_up = 0, 0
    tracemalloc.start()
    try:
        for number in range(count):
            instant[0] += 0.02  # so that budgets do not hide what comes behind them
            plain = dice.choice(honest)
            sent = EdgeRequest(
                plain.path, dict(plain.headers), plain.body, plain.method
            )
            mutate(sent, dice)
            before = len(service.calls)
            async with asyncio.timeout(60):
                answer = await call_app(app, sent)
            if len(service.calls) > before:
                # What was signed is untouched: only what no signature covers differs.
                assert answer.status == 200
                assert sent.body == plain.body
                assert sent.path == plain.path
                for name in ("secagg-credential", "signature-input", "content-digest"):
                    value = dict(sent.raw_headers())[name.encode()]
                    assert value == plain.headers[name].encode()
                assert service.calls.pop()[0] in names
            else:
                assert answer.status in REFUSED | {204}, (sent, answer)
                assert answer.status == 204 or answer.error is not None
            if number == count // 2:
                gc.collect()
                after_warm_up = tracemalloc.get_traced_memory()[0]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - after_warm_up
    finally:
        tracemalloc.stop()
    service.refusals.clear()
    assert held < 200 * count  # codes of refusals that the test's service keeps
    assert (await call_app(app, honest[0])).status == 200
