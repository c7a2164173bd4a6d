"""Requests at the HTTP edge, those that pass and those that do not: `edge.json`.

Rule 1: a row has one fault, or says in its name which two it has; of two the earlier
        rule decides.
"""

import base64
from dataclasses import replace
from typing import Any

from reference_edge import (
    SERVICE,
    Edge,
    EdgeRefused,
    HTTPRequest,
    Signer,
    check,
    identity_key,
    signature_base,
)
from session_vectors import (
    FOREIGN_ISSUER,
    ISSUER,
    REVOCATIONS,
    SESSION_END,
    TRUST,
    counting,
)

NOW = SESSION_END - 50
AUTHORITY = "edge.example.org"
ORIGIN = "https://app.example.org"
SEED, OTHER_SEED = counting(0x11, 32), counting(0x31, 32)
EDGE = Edge(AUTHORITY, TRUST, frozenset(REVOCATIONS.serials), (ORIGIN,))
NAME = "phone-0007"
CALL = "GetUploadStatus"
BODY = b"\x0a\x20" + counting(0x40, 32) + b"\x12\x20" + counting(0x60, 32)


def signer(name: str = NAME, **changes: Any) -> Signer:
    times = {"not_before": NOW - 1000, "not_after": NOW + 1000}
    return Signer(name, SEED, ISSUER.credential(name, SEED, **(times | changes)))


def made(who: Signer | None = None, **changes: Any) -> HTTPRequest:
    given = {"call": CALL, "body": BODY, "created": NOW, "authority": AUTHORITY}
    return (who or signer()).request(**(given | changes))


def good() -> dict[str, tuple[HTTPRequest, int]]:
    return {
        "a call": (made(), NOW),
        "without a body": (made(call="GetUpdate", body=b""), NOW),
        "from a listed origin": (made().set("Origin", ORIGIN), NOW),
        "signed 60 s ago": (made(), NOW + 60),
        "signed in 60 s": (made(), NOW - 60),
        "by a holder with a long name": (made(signer("x" * 255)), NOW),
        "with a header of Connect": (made().set("Connect-Protocol-Version", "1"), NOW),
        "of another host in Host": (made().set("Host", "other.example.org"), NOW),
    }


def bad() -> dict[str, tuple[str, HTTPRequest, int]]:
    ok = made()
    stated = ok.all("signature-input")[0]
    signature = ok.all("signature")[0]
    held = ok.all("secagg-credential")[0]
    digest = ok.all("content-digest")[0]
    url = made(signer("phone-0002"))
    foreign = Signer(NAME, SEED, FOREIGN_ISSUER.credential(NAME, SEED))
    other_domain = replace(signer(), trust_domain="example.net")
    other_key = replace(signer(), seed=OTHER_SEED)
    rows = {
        "an origin that is not listed": ("5", ok.set("Origin", "https://e.example")),
        "two origins": ("5", ok.set("Origin", ORIGIN, ORIGIN)),
        "a preflight of an origin that is not listed": (
            "5",
            HTTPRequest("OPTIONS", SERVICE + CALL, (("Origin", "https://e.example"),)),
        ),
        "GET": ("6", replace(ok, method="GET")),
        "OPTIONS without an origin": ("6", replace(ok, method="OPTIONS")),
        "a query": ("6", replace(ok, path=SERVICE + CALL + "?a=1")),
        "the stream": ("6", replace(ok, path=SERVICE + "WatchSession")),
        "an unknown call": ("6", replace(ok, path=SERVICE + "Nothing")),
        "no Secagg-Credential": ("7", ok.set("Secagg-Credential")),
        "no Content-Digest": ("7", ok.set("Content-Digest")),
        "Signature twice": ("7", ok.set("Signature", signature, signature)),
        "another media type": ("7", ok.set("Content-Type", "text/plain")),
        "a compressed body": ("7", ok.set("Content-Encoding", "gzip")),
        "no length": ("8", ok.set("Content-Length")),
        "a length of no digits": ("8", ok.set("Content-Length", "+68")),
        "a length beyond 4 MiB": ("8", ok.set("Content-Length", "4194305")),
        "a scheme before the credential": (
            "9",
            ok.set("Secagg-Credential", "Secagg " + held),
        ),
        "a credential with padding": ("9", ok.set("Secagg-Credential", held + "=")),
        "a credential with a byte more": (
            "9",
            ok.set("Secagg-Credential", held + "AAA"),
        ),
        "a credential of another version": (
            "9",
            ok.set("Secagg-Credential", "Ag" + held[2:]),
        ),
        "a credential of more than 1024 characters": (
            "9",
            ok.set("Secagg-Credential", 1025 * "A"),
        ),
        "another trust domain": ("9", made(other_domain)),
        "another algorithm": (
            "10",
            ok.set("Signature-Input", stated.replace("ed25519", "rsa-v1_5-sha256")),
        ),
        "another tag": (
            "10",
            ok.set("Signature-Input", stated.replace("edge", "adge")),
        ),
        "a nonce": ("10", ok.set("Signature-Input", stated + ';nonce="AA"')),
        "a part less": (
            "10",
            ok.set("Signature-Input", stated.replace(' "secagg-credential"', "")),
        ),
        "a time with a zero before it": (
            "10",
            ok.set("Signature-Input", stated.replace("created=", "created=0")),
        ),
        "a key of another credential": ("10", made(other_key)),
        "a signature of 63 bytes": (
            "10",
            ok.set("Signature", f"sig=:{base64.b64encode(counting(1, 63)).decode()}:"),
        ),
        "a digest by another function": (
            "10",
            ok.set("Content-Digest", digest.replace("256", "512")),
        ),
        "a credential that has ended": ("11", made(signer(not_after=NOW - 1))),
        "a credential that is not valid yet": ("11", made(signer(not_before=NOW + 1))),
        "a revoked serial": ("11", made(signer(serial=4))),
        "another issuer": ("12", made(foreign)),
        "another name in the credential": (
            "12",
            made(replace(signer("phone-0002"), credential=signer().credential)),
        ),
        "a signature by another key": ("13", made(signed_by=OTHER_SEED)),
        "a signature for another authority": ("13", made(authority="e.example")),
        "a signature for another call": ("13", made(signed_path=SERVICE + "GetUpdate")),
        "the credential of another client": (
            "13",
            ok.set("Secagg-Credential", url.all("secagg-credential")[0]),
        ),
        "another body": ("15", replace(ok, body=BODY[:-1] + b"\0")),
        "another method and no credential": (
            "6",
            replace(ok.set("Secagg-Credential"), method="PUT"),
        ),
        "another media type and no length": (
            "7",
            ok.set("Content-Type", "text/plain").set("Content-Length"),
        ),
        "a scheme before the credential and another algorithm": (
            "9",
            ok.set("Secagg-Credential", "Bearer x").set("Signature-Input", "sig=()"),
        ),
        "a nonce and a revoked serial": (
            "10",
            made(signer(serial=4)).set("Signature-Input", stated + ';nonce="AA"'),
        ),
        "a revoked serial of another issuer": (
            "11",
            made(
                replace(
                    foreign, credential=FOREIGN_ISSUER.credential(NAME, SEED, serial=4)
                )
            ),
        ),
        "another issuer and another body": (
            "12",
            replace(made(foreign), body=b"x" * 68),
        ),
        "a signature by another key and another body": (
            "13",
            replace(made(signed_by=OTHER_SEED), body=b"x" * 68),
        ),
    }
    timed = {
        "signed 61 s ago": ("10", made(), NOW + 61),
        "signed in 61 s": ("10", made(), NOW - 61),
    }
    return {name: (f"R10.3-{n}", it, NOW) for name, (n, it) in rows.items()} | {
        name: (f"R10.3-{n}", it, now) for name, (n, it, now) in timed.items()
    }


def as_row(name: str, request: HTTPRequest, now: int) -> dict[str, Any]:
    return {
        "name": name,
        "now": now,
        "method": request.method,
        "path": request.path,
        "headers": [list(each) for each in request.headers],
        "body": request.body.hex(),
    }


def edge() -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for name, (request, now) in good().items():
        caller = check(request, EDGE, now)
        row = as_row(name, request, now)
        base = signature_base(
            AUTHORITY,
            request.path,
            request.all("content-digest")[0],
            request.all("secagg-credential")[0],
            request.all("signature-input")[0].removeprefix("sig="),
        )
        rows.append(row | {"success": True, "caller": caller, "base": base.decode()})
    for name, (rule, request, now) in bad().items():
        try:
            check(request, EDGE, now)
        except EdgeRefused as refused:
            if refused.rule != rule:
                raise AssertionError((name, rule, refused.rule)) from None
            answer = {"status": refused.status, "code": refused.code}
        else:
            raise AssertionError(name)
        row = as_row(name, request, now)
        rows.append(row | {"rule": rule, "success": False} | answer)
    return {
        "authority": AUTHORITY,
        "origins": [ORIGIN],
        "trust": TRUST.encode().hex(),
        "revocations": REVOCATIONS.encode().hex(),
        "identity_seed": SEED.hex(),
        "identity_key": identity_key(SEED).hex(),
        "credential": signer().held().hex(),
        "requests": rows,
    }
