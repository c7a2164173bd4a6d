"""The HTTP edge's application: admission of callers, their order, and answers."""

import asyncio
import base64
import json

import pytest
from secagg_testing.edge_requests import EdgeIssuer, EdgeRequest, call_app, key_of
from secagg_testing.scripted_service import ScriptedService

from secagg.conformance import read_vectors
from secagg.crypto.canonical import Reader
from secagg.errors import ErrorCode, ServiceError, SessionAbortedError
from secagg.protocol.enrolment import RevocationList
from secagg.protocol.profiles import Trust
from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.http_edge.app import EdgeApplication
from secagg.server.http_edge.proof import RequestProof, UnknownCredentialBudget
from secagg.wire.calls import (
    CALLS,
    GetOffer,
    GetUpdate,
    GetUploadStatus,
    UploadChunk,
    UploadStatus,
    Wait,
)

VECTORS = read_vectors("edge")
AUTHORITY = "edge.example:7443"
ORIGIN = "https://app.example"
SESSION = bytes(32)
STATUS = GetUploadStatus(SESSION)
ISSUER = EdgeIssuer()


class Edge:
    """An application in front of a service that answers from a script."""

    def __init__(self, *, limits=None, by_address=True, origins=(ORIGIN,), **parts):
        self.now, self.instant = float(ISSUER.now), 0.0
        self.service = ScriptedService({GetUploadStatus: UploadStatus(3)})
        self.known, self.first = [], []
        self.guards = CallGuards(limits or CallLimits(), lambda: self.instant)
        self.proof = RequestProof(
            parts.get("authority", AUTHORITY),
            parts.get("trust_domain", "ours.example"),
            parts.get("enrolment_key", ISSUER.key.public_bytes),
            budget=UnknownCredentialBudget(lambda: self.instant, by_address=by_address),
            date=lambda: self.now,
            on_first=lambda who, address: self.first.append((who.name, address)),
        )
        self.app = EdgeApplication(
            self.service,
            self.proof,
            self.guards,
            origins=origins,
            address_of=lambda host: host,
            on_known=lambda peer, who: self.known.append((peer, who.name)),
        )

    def signed(self, request=STATUS, identity=None, **changes):
        given = {"authority": AUTHORITY, "created": int(self.now)} | changes
        return EdgeRequest.signed(identity or ISSUER.identity("ada"), request, **given)

    async def ask(self, request=None, **how):
        return await call_app(self.app, request or self.signed(), **how)


# --- the vectors ----------------------------------------------------------------------


@pytest.mark.parametrize("row", VECTORS["requests"], ids=lambda row: row["name"])
async def test_requests_of_the_vectors_are_answered_as_recorded(row):
    trust = Trust.decode_from(Reader(bytes.fromhex(VECTORS["trust"]), "trust"))
    edge = Edge(
        authority=VECTORS["authority"],
        trust_domain=trust.trust_domain,
        enrolment_key=trust.enrolment_key,
        origins=VECTORS["origins"],
    )
    listed = RevocationList.decode(bytes.fromhex(VECTORS["revocations"]))
    edge.proof.revoked = frozenset(listed.serials)
    edge.now = row["now"]
    request = EdgeRequest(row["path"], {}, bytes.fromhex(row["body"]), row["method"])
    request.more = [tuple(each) for each in row["headers"]]
    answer = await edge.ask(request)
    if not row["success"]:
        assert (answer.status, answer.code) == (row["status"], row["code"])
        assert not edge.service.calls
    elif "without a body" in row["name"]:  # signed well; no such message
        assert (answer.status, answer.code) == (400, ErrorCode.BAD_ENCODING)
        assert edge.known == [("192.0.2.7:4321", row["caller"])]
    else:
        assert answer.status == 200
        assert [who for who, _ in edge.service.calls] == [row["caller"]]


# --- the order of checks --------------------------------------------------------------


def without(name):
    return lambda _, r: r.headers.pop(name)


def with_header(name, value):
    return lambda _, r: r.headers.update({name: value})


def again(name):
    return lambda _, r: r.more.append((name, r.headers[name]))


class Made:
    """A fault in how a request is made, and not in what was made of it."""

    def __init__(self, *, identity=(), **signing):
        self.identity, self.signing = dict(identity), signing


def set_body(body):
    def break_it(_, request):
        request.body = body

    return break_it


def exhaust(edge, _):
    for _ in range(60):
        edge.proof._budget.charge("192.0.2.7")


# A fault of each rule, with what is answered; the later ones as they come.
FAULTS = {
    "R10.3-5 origin": (with_header("origin", "https://evil"), 403, "NOT_INVITED"),
    "R10.3-6 method": (lambda _, r: setattr(r, "method", "PUT"), 404, "BAD_VERSION"),
    "R10.3-6 query": (
        lambda _, r: setattr(r, "path", r.path + "?a"),
        404,
        "BAD_VERSION",
    ),
    "R10.3-7 missing": (without("content-digest"), 400, "BAD_ENCODING"),
    "R10.3-7 twice": (again("signature"), 400, "BAD_ENCODING"),
    "R10.3-7 type": (with_header("content-type", "text/plain"), 415, "BAD_ENCODING"),
    "R10.3-7 encoding": (with_header("content-encoding", "br"), 415, "BAD_ENCODING"),
    "R10.3-8 none": (without("content-length"), 411, "BAD_ENCODING"),
    "R10.3-8 large": (
        with_header("content-length", str((4 << 20) + 1)),
        413,
        "BAD_ENCODING",
    ),
    "R10.3-9 credential": (
        with_header("secagg-credential", "AA"),
        401,
        "UNAUTHENTICATED",
    ),
    "R10.3-10 form": (with_header("signature", "sig=::"), 401, "UNAUTHENTICATED"),
    "R10.3-10 time": (Made(created=ISSUER.now - 61), 401, "UNAUTHENTICATED"),
    "R10.3-11 ended": (
        Made(identity={"not_after": ISSUER.now - 1}),
        401,
        "UNAUTHENTICATED",
    ),
    "R10.3-11 revoked": (Made(identity={"serial": 4}), 401, "UNAUTHENTICATED"),
    "R10.3-12 budget": (exhaust, 429, "OVERLOADED"),
    "R10.3-12 issuer": (
        Made(identity={"signed_by": key_of(5)}),
        401,
        "UNAUTHENTICATED",
    ),
    "R10.3-13 signature": (Made(authority="other.example"), 401, "UNAUTHENTICATED"),
    "R10.3-15 digest": (set_body(b"x" * 68), 400, "BAD_ENCODING"),
}
TEXT = {
    "R10.3-9": "credential",
    "R10.3-10 form": "form",
    "R10.3-10 time": "another time",
    "R10.3-11 ended": "valid until",
    "R10.3-11 revoked": "revoked",
    "R10.3-12 issuer": "match message and signer",
    "R10.3-13": "proof does not fit",
}


def check_answer(name, answer):
    _, status, code = FAULTS[name]
    assert (answer.status, answer.code) == (status, ErrorCode[code]), name
    for start, text in TEXT.items():
        if name.startswith(start):
            assert text in str(answer.error), name


def broken(edge, *names):
    edge.proof.revoked = frozenset({4})
    faults = [FAULTS[name][0] for name in names]
    identity, signing = {}, {}
    for fault in faults:
        if isinstance(fault, Made):
            identity |= fault.identity
            signing |= fault.signing
    request = edge.signed(identity=ISSUER.identity("ada", **identity), **signing)
    for fault in faults:
        if not isinstance(fault, Made):
            fault(edge, request)
    return request


@pytest.mark.parametrize("name", FAULTS)
async def test_each_failed_check_rejects_the_request_before_the_service(name):
    edge = Edge()
    answer = await edge.ask(broken(edge, name))
    check_answer(name, answer)
    assert not edge.service.calls
    assert edge.service.refusals == [ErrorCode[FAULTS[name][2]]]
    # A refusal before the body ends the connection; one behind it need not.
    closes = answer.headers.get("connection") == "close"
    assert closes == (name != "R10.3-15 digest")


# Of two faults in the same headers one hides the other: those of the later rule that
# replace what the earlier one has broken are put in first. The digest that is missing
# is the one that would differ: these two cannot stand in one request.
ONE_HEADER = {"R10.3-7 missing", "R10.3-15 digest"}
PAIRS = [
    (one, other)
    for at, one in enumerate(FAULTS)
    for other in list(FAULTS)[at + 1 :]
    if one.split()[0] != other.split()[0] and {one, other} != ONE_HEADER
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_of_two_violations_the_earlier_rule_is_reported(one, other):
    edge = Edge()
    answer = await edge.ask(broken(edge, other, one))
    check_answer(one, answer)


async def test_the_rate_limit_applies_before_the_body_and_after_the_signature():
    # R10.3-14 between R10.3-13 and R10.3-15.
    edge = Edge(limits=CallLimits(burst=1, calls_per_second=1.0))
    assert (await edge.ask()).status == 200
    answer = await edge.ask(broken(edge, "R10.3-15 digest"))
    assert (answer.status, answer.code) == (429, ErrorCode.OVERLOADED)
    assert answer.headers["retry-after"] == "1"
    answer = await edge.ask(broken(edge, "R10.3-13 signature"))
    assert answer.code is ErrorCode.UNAUTHENTICATED
    edge.instant += 1.0
    assert (await edge.ask()).status == 200


async def test_an_undecodable_body_is_rejected_last():
    # R10.3-16.
    edge = Edge()
    for request in (
        GetUploadStatus(b"short"),
        UploadChunk(SESSION, 0, 1, SESSION, b""),
    ):
        answer = await edge.ask(edge.signed(request))
        assert (answer.status, answer.code) == (400, ErrorCode.BAD_ENCODING)
        assert "connection" not in answer.headers
    assert not edge.service.calls


# --- who pays for unknown credentials -------------------------------------------------


def unknown(number, **changes):
    return ISSUER.identity(f"client-{number}", serial=100 + number, **changes)


async def test_unknown_callers_of_an_address_do_not_use_the_budget_of_known_ones():
    # R10.3-12.
    edge = Edge()
    assert (await edge.ask()).status == 200
    forged = [edge.signed(identity=unknown(n, signed_by=key_of(5))) for n in range(70)]
    answers = [(await edge.ask(each)).status for each in forged]
    assert answers == [401] * 59 + [429] * 11
    assert (await edge.ask()).status == 200
    newcomer = edge.signed(identity=unknown(200))
    refused = await edge.ask(newcomer)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    # Another address has its own, and so has this one a second later.
    assert (await edge.ask(newcomer, peer="192.0.2.8")).status == 200
    edge.instant += 1.0
    assert (await edge.ask(edge.signed(identity=unknown(201)))).status == 200


async def test_addresses_of_one_ipv6_subnet_share_a_budget():
    edge = Edge()
    for number in range(60):
        request = edge.signed(identity=unknown(number))
        assert (await edge.ask(request, peer=f"2001:db8::{number:x}")).status == 200
    request = edge.signed(identity=unknown(60))
    assert (await edge.ask(request, peer="2001:db8::ffff")).status == 429
    assert (await edge.ask(request, peer="2001:db8:0:1::1")).status == 200


async def test_all_addresses_together_share_a_budget():
    edge = Edge()
    for number in range(200):
        edge.proof._budget.charge(f"198.51.{number // 200}.{number % 200}")
    assert (await edge.ask()).status == 429
    edge.instant += 0.005
    assert (await edge.ask()).status == 200


async def test_behind_a_proxy_only_the_common_budget_applies():
    edge = Edge(by_address=False)
    for number in range(100):
        request = edge.signed(identity=unknown(number))
        assert (await edge.ask(request)).status == 200


async def test_a_bad_signature_under_a_known_credential_is_charged_to_its_address():
    # Credentials are public: who replays one must not shut its holder out.
    edge = Edge()
    assert (await edge.ask()).status == 200
    for _ in range(80):
        answer = await edge.ask(broken(edge, "R10.3-13 signature"))
        assert answer.status == 401
    assert (await edge.ask()).status == 200
    assert (await edge.ask(edge.signed(identity=unknown(1)))).status == 429
    # An address whose budget is used up takes nothing of the budget of all.
    for _ in range(200):
        await edge.ask(broken(edge, "R10.3-13 signature"))
    newcomer = edge.signed(identity=unknown(1))
    assert (await edge.ask(newcomer, peer="198.51.100.1")).status == 200
    # Nor is it remembered as verified because a caller has shown it.
    stranger = Edge()
    copied = stranger.signed(identity=unknown(1))
    copied.headers["signature"] = stranger.signed().headers["signature"]
    assert (await stranger.ask(copied)).status == 401
    assert not stranger.first


async def test_revoked_credentials_are_rejected_although_they_were_verified():
    # R10.3-11 and R10.3-18: what is remembered is the issuer's signature alone.
    edge = Edge()
    assert (await edge.ask()).status == 200
    edge.proof.revoked = frozenset({7})
    assert (await edge.ask()).status == 401
    assert edge.first == [("ada", "192.0.2.7")]


# --- answers --------------------------------------------------------------------------


@pytest.mark.parametrize("call", [c for c in CALLS.values() if not c.is_stream])
async def test_every_unary_call_is_served(call):
    examples = {
        "GetOffer": GetOffer("t"),
        "GetUpdate": GetUpdate(SESSION, None),
        "UploadChunk": UploadChunk(SESSION, 0, 1, SESSION, b"x"),
    }
    edge = Edge()
    try:
        request = examples.get(call.name) or call.request(SESSION, b"m")
    except TypeError:
        request = call.request(SESSION, 1, 0)
    if call.name == "GetUploadStatus":
        request = STATUS
    edge.service.script = {
        GetOffer: Wait(1.0),
        GetUpdate: Wait(1.0),
        GetUploadStatus: UploadStatus(3),
        UploadChunk: UploadStatus(1),
    }
    refused = call.name == "FetchChunk"
    if refused:
        edge.service.script[call.request] = ServiceError(
            "no such object", code=ErrorCode.UNKNOWN_SESSION
        )
    answer = await edge.ask(edge.signed(request))
    assert [(who, type(asked)) for who, asked in edge.service.calls] == [
        ("ada", call.request)
    ]
    assert answer.status == (404 if refused else 200)
    if not refused:
        assert answer.headers["content-type"] == "application/proto"
        call.decode(answer.body)


@pytest.mark.parametrize(
    ("error", "status", "connect"),
    [
        (ServiceError("", code=ErrorCode.NOT_INVITED), 403, "permission_denied"),
        (ServiceError("", code=ErrorCode.UNKNOWN_SESSION), 404, "not_found"),
        (ServiceError("", code=ErrorCode.EQUIVOCATION), 409, "already_exists"),
        (SessionAbortedError("", code=ErrorCode.NO_QUORUM), 409, "aborted"),
        (ServiceError("", code=ErrorCode.CANCELLED), 499, "canceled"),
        (ServiceError("", code=ErrorCode.UPLOAD_CORRUPT), 500, "data_loss"),
        (ServiceError("", code=ErrorCode.STORAGE_FAILED), 503, "unavailable"),
        (ServiceError("", code=ErrorCode.TASK_OVER), 400, "failed_precondition"),
    ],
)
async def test_an_error_of_the_service_is_returned_with_its_detail(
    error, status, connect
):
    edge = Edge()
    edge.service.script[GetUploadStatus] = error
    answer = await edge.ask()
    assert (answer.status, answer.code) == (status, error.code)
    document = json.loads(answer.body)
    assert document["code"] == connect
    assert document["details"][0]["type"] == "secagg.v1.ErrorDetail"
    assert not document["details"][0]["value"].endswith("=")
    assert edge.service.refusals == [error.code]


async def test_a_defect_is_logged_and_reveals_nothing_to_a_peer(caplog):
    edge = Edge()
    edge.service.script[GetUploadStatus] = KeyError("the secret")
    answer = await edge.ask()
    assert (answer.status, answer.code) == (500, ErrorCode.INTERNAL)
    assert b"secret" not in answer.body
    assert "call_failed" in caplog.text


async def test_answers_have_the_required_headers():
    edge = Edge()
    for request in (edge.signed(), broken(edge, "R10.3-9 credential")):
        answer = await edge.ask(request)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["vary"] == "origin"
        assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["www-authenticate"] == "Secagg"


async def test_listed_origins_may_call_and_read_errors():
    edge = Edge()
    request = edge.signed()
    preflight = EdgeRequest(request.path, {"origin": ORIGIN}, b"", "OPTIONS")
    answer = await edge.ask(preflight)
    assert (answer.status, answer.body) == (204, b"")
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert set(request.headers) - {"content-length"} <= set(allowed)
    assert answer.headers["access-control-allow-methods"] == "POST"
    assert answer.headers["access-control-max-age"] == "7200"
    assert "access-control-allow-credentials" not in answer.headers
    for each in (request, broken(edge, "R10.3-13 signature")):
        each.headers["origin"] = ORIGIN
        answer = await edge.ask(each)
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.headers["access-control-expose-headers"] == "retry-after"
    # One that is not listed learns nothing, and gets no header to read it by.
    preflight.headers["origin"] = "https://app.example.evil"
    answer = await edge.ask(preflight)
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_a_request_is_accepted_until_a_minute_after_its_time():
    # R10.3-10, R10.3-17: of a clock that is a minute ahead for two minutes, no longer.
    edge = Edge()
    signed = edge.signed(created=int(edge.now) + 60)
    for later, status in ((0, 200), (120, 200), (121, 401)):
        edge.now += later
        assert (await edge.ask(signed)).status == status
        edge.now -= later


@pytest.mark.parametrize("seconds", [-61, 61, -7200, 10**9])
async def test_a_request_with_a_wrong_time_is_told_the_time_of_the_server(seconds):
    # R10.3-3 rests on it.
    edge = Edge()
    answer = await edge.ask(edge.signed(created=int(edge.now) + seconds))
    assert answer.status == 401
    assert answer.error.server_time == int(edge.now)
    assert (await edge.ask(broken(edge, "R10.3-10 form"))).error.server_time is None


async def test_headers_added_by_proxies_do_not_identify_a_client():
    edge = Edge()
    request = edge.signed()
    request.more = [
        ("x-forwarded-for", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("x-forwarded-client-cert", "URI=secagg://ours.example/client/bob"),
        ("secagg-test-identity", "bob"),
        ("host", "other.example"),
        ("cookie", "name=bob"),
    ]
    assert (await edge.ask(request)).status == 200
    assert edge.known == [("192.0.2.7:4321", "ada")]
    assert edge.first == [("ada", "192.0.2.7")]


async def test_a_repeated_request_gets_the_same_answer():
    # R10.3-17: here, and at a replica that shares nothing but the service.
    edge, replica = Edge(), Edge()
    request = edge.signed()
    answers = [await edge.ask(request), await edge.ask(request)]
    answers.append(await replica.ask(request))
    assert [each.status for each in answers] == [200] * 3
    assert len({each.body for each in answers}) == 1
    edge.now += 61
    assert (await edge.ask(request)).status == 401


# --- calls that are open --------------------------------------------------------------


async def waiting(edge, request=None):
    """Begin a question that is held; return its task once it is."""
    held = asyncio.Event()

    async def hold(_, __):
        held.set()
        await asyncio.Event().wait()

    edge.service.script[GetUpdate] = hold
    asked = request or edge.signed(GetUpdate(SESSION, None, 30_000))
    asking = asyncio.ensure_future(edge.ask(asked))
    await held.wait()
    return asking


async def test_stopping_ends_held_requests_and_holds_no_new_ones():
    edge = Edge()
    asking = await waiting(edge)
    edge.app.end_held()
    answer = await asking
    assert (answer.status, answer.code) == (503, ErrorCode.SHUTTING_DOWN)
    answer = await edge.ask(edge.signed(GetUpdate(SESSION, None, 30_000)))
    assert (answer.status, answer.code) == (503, ErrorCode.SHUTTING_DOWN)
    assert (await edge.ask()).status == 200  # what is not held continues


async def test_calls_of_disconnected_clients_are_ended():
    edge = Edge()
    asking = await waiting(edge)
    edge.guards.open_calls.end(lambda who: who.serial == 8)
    await asyncio.sleep(0)
    assert not asking.done()
    edge.guards.open_calls.end(lambda who: who.serial == 7)
    assert (await asking).code is ErrorCode.SHUTTING_DOWN


async def test_concurrent_calls_are_counted_over_both_entries():
    edge = Edge(limits=CallLimits(calls_at_once=1))
    async with edge.guards.admission.admitted("ada", is_stream=False):
        answer = await edge.ask()  # as if one were open over gRPC
    assert answer.code is ErrorCode.OVERLOADED
    assert (await edge.ask()).status == 200


async def test_a_client_that_disconnects_ends_its_held_request():
    edge = Edge()
    gone, ended = asyncio.Event(), asyncio.Event()

    async def hold(_, __):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    edge.service.script[GetUpdate] = hold
    request = edge.signed(GetUpdate(SESSION, None, 30_000))
    sent = []

    async def receive():
        if not sent:
            sent.append(None)
            return {"type": "http.request", "body": request.body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_):
        raise AssertionError("the client has disconnected")

    scope = {
        "method": "POST",
        "raw_path": request.path.encode(),
        "query_string": b"",
        "headers": request.raw_headers(),
        "client": ("192.0.2.7", 1),
    }
    asking = asyncio.ensure_future(edge.app(scope, receive, send))
    await asyncio.sleep(0)
    gone.set()
    await asking
    assert ended.is_set()
    async with edge.guards.open_calls.open(None):
        assert len(edge.guards.open_calls._open) == 1


@pytest.mark.parametrize("change", [-1, 1])
async def test_a_body_of_wrong_length_is_rejected(change):
    edge = Edge()
    request = edge.signed()
    request.headers["content-length"] = str(len(request.body) + change)
    answer = await edge.ask(request)
    assert (answer.status, answer.code) == (400, ErrorCode.BAD_ENCODING)
    assert answer.headers["connection"] == "close"


async def test_rejections_before_authentication_log_few_lines_without_secrets(caplog):
    caplog.set_level("INFO")
    edge = Edge()
    request = broken(edge, "R10.3-13 signature")
    for _ in range(50):
        await edge.ask(request)
    lines = [each for each in caplog.messages if "edge_request_refused" in each]
    assert len(lines) == 9
    assert "address=192.0.2.7" in lines[0]
    assert "code=UNAUTHENTICATED" in lines[0]
    for secret in ("secagg-credential", "signature", "content-digest"):
        assert request.headers[secret] not in caplog.text
    assert base64.b64encode(request.body).decode() not in caplog.text


async def test_a_preflight_with_a_body_ends_its_connection():
    edge = Edge()
    preflight = EdgeRequest(edge.signed().path, {"origin": ORIGIN}, b"", "OPTIONS")
    assert "connection" not in (await edge.ask(preflight)).headers
    for more in (("content-length", "99999999"), ("transfer-encoding", "chunked")):
        preflight.more = [more]
        assert (await edge.ask(preflight)).headers["connection"] == "close"


async def test_a_connection_without_an_address_is_ignored():
    edge = Edge()
    await edge.app({"client": None}, None, None)
    assert not edge.service.refusals
