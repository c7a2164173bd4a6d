"""Numbers, endings and errors against the vectors of `secagg.conformance`."""

from dataclasses import replace

import pytest
from secagg_testing.cohorts import LENIENT_POLICY
from secagg_testing.inline_store import inline_store

from secagg.client.session import ClientSession
from secagg.conformance import read_vectors
from secagg.crypto.entropy import SystemEntropy
from secagg.errors import RemoteProtocolError, SecAggError
from secagg.protocol.descriptor import SessionDescriptor
from secagg.protocol.messages import KINDS, Aborted
from secagg.v1 import errors_pb2
from secagg.wire.errors import decode_error

FILE = read_vectors("restarts")
SESSIONS = read_vectors("sessions")["sessions"]


@pytest.mark.parametrize("case", FILE["numbers"], ids=str)
async def test_a_session_number_that_was_seen_is_rejected(case):
    # R5.0-2
    (session,) = [s for s in SESSIONS if s["name"] == "complete"]
    descriptor = SessionDescriptor.decode(bytes.fromhex(session["offer"]))
    store = inline_store()

    async def offer(number):
        offered = replace(descriptor, session_number=int(number))
        await ClientSession.begin(
            offered,
            "bob",
            aggregator=offered.aggregator,
            trust_domain=None,
            store=store,
            policy=LENIENT_POLICY,
            entropy=SystemEntropy(),
            now=offered.session_end - 1,
        )

    for seen in case["seen"]:
        await offer(seen)
    if case["success"]:
        await offer(case["offered"])
        return
    with pytest.raises(RemoteProtocolError) as refused:
        await offer(case["offered"])
    assert refused.value.code == case["code"]


@pytest.mark.parametrize("case", FILE["endings"], ids=str)
def test_an_ending_reads_as_recorded(case):
    kind, data = KINDS[case["kind"]], bytes.fromhex(case["message"])
    if not case.get("success", True):
        with pytest.raises(RemoteProtocolError) as refused:
            kind.decode(data)
        assert refused.value.code == case["code"]
        return
    ending = kind.decode(data)
    assert ending.fate == case["fate"]
    if isinstance(ending, Aborted):
        assert ending.code == case["code"]
    else:
        assert ending.survivors == case["survivors"]


@pytest.mark.parametrize("case", FILE["errors"], ids=str)
def test_an_error_reads_as_recorded(case):
    error = decode_error(bytes.fromhex(case["detail"]))
    if not case.get("success", True):
        assert error is None
        return
    assert isinstance(error, SecAggError)
    assert error.code == case["read_as"]
    for name, value in (
        ("sender", case.get("sender")),
        ("next_offset", case.get("next_offset")),
        ("alive", case.get("alive")),
        ("needed", case.get("needed")),
        ("retry_after_seconds", case.get("retry_after_ms", 0) / 1000 or None),
    ):
        assert getattr(error, name, None) == value
    assert error.next_step == case.get("next_step", error.next_step)
    assert case.get("message", "") in str(error)
    detail = errors_pb2.ErrorDetail.FromString(bytes.fromhex(case["detail"]))
    assert (detail.code, detail.fault) == (case["code"], case["fault"])
