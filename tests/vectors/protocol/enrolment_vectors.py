"""Signatures, credentials, requests and revocation lists: `enrolment.json`.

Rule 1: a class of signatures on which libraries differ has a row of its own, made by
        an attacker who knows the private scalar: nothing but the class is wrong.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import reference as ref
from reference_enrolment import (
    BAD_CERTIFICATE,
    RESERVED,
    Credential,
    Request,
    Revocations,
    caller,
    check_credential,
    meet,
    read_files,
    read_revocations,
)
from reference_signature import (
    BASE,
    NEUTRAL,
    D,
    L,
    P,
    Point,
    add,
    challenge,
    encode_point,
    holds,
    identity_key,
    same,
    sign,
    times,
)
from session_vectors import (
    FOREIGN_ISSUER,
    ISSUER,
    REVOCATIONS,
    SESSION_END,
    TRUST,
    counting,
)

SEED = counting(0x11, 32)
MESSAGE = ref.tag("client", "consistency", 1) + ref.blob(counting(0x60, 32))


def point_of_order_eight() -> Point:
    """The first by its y."""
    for y in range(2, 1000):
        square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
        for root in (pow(square, (P + 3) // 8, P),):
            for x in (root, root * pow(2, (P - 1) // 4, P) % P):
                if (x * x - square) % P == 0:
                    torsion = times(L, (x, y, 1, x * y % P))
                    if not same(times(4, torsion), NEUTRAL):
                        return torsion
    raise AssertionError


TORSION = point_of_order_eight()


def made_with(scalar: int, key: bytes, nonce: int, nonce_point: bytes) -> bytes:
    """S of the equation, for a key and an R that are whatever they are."""
    hashed = challenge(nonce_point, key, MESSAGE)
    return nonce_point + ((nonce + hashed * scalar) % L).to_bytes(32, "little")


def not_canonical(y: int, sign_bit: int = 0) -> bytes:
    """Another encoding of a small y."""
    return (y + P | sign_bit << 255).to_bytes(32, "little")


def torsion_key() -> tuple[int, bytes]:
    """A key with a torsion part, and the scalar of its other part."""
    scalar = 123456789
    return scalar, encode_point(add(times(scalar, BASE), TORSION))


def with_torsion(*, divisible: bool) -> tuple[bytes, bytes]:
    """Key and signature: [S]B = R + [h]A holds only where 8 divides h."""
    scalar, key = torsion_key()
    for nonce in range(1, 10_000):
        nonce_point = encode_point(times(nonce, BASE))
        hashed = challenge(nonce_point, key, MESSAGE) % L
        if (hashed % 8 == 0) == divisible:
            return key, made_with(scalar, key, nonce, nonce_point)
    raise AssertionError


def signatures() -> list[dict[str, Any]]:
    key, good = identity_key(SEED), sign(SEED, MESSAGE)
    scalar = int.from_bytes(good[32:], "little")
    neutral = encode_point(NEUTRAL)
    small = encode_point(TORSION)
    half = encode_point(times(4, TORSION))
    nonce = 77
    # With A of small order, or R of it, the equation is made to hold all the same.
    key_scalar = 123456789
    plain_key = encode_point(times(key_scalar, BASE))
    rows: list[tuple[str, bool, bytes, bytes]] = [
        ("as RFC 8032 makes it", True, key, good),
        ("key with torsion, 8 divides h", True, *with_torsion(divisible=True)),
        (
            "key with torsion, 8 does not divide h",
            False,
            *with_torsion(divisible=False),
        ),
        (
            "S + L",
            False,
            key,
            good[:32] + (scalar + L).to_bytes(32, "little"),
        ),
        ("S = L", False, key, good[:32] + L.to_bytes(32, "little")),
        ("63 bytes", False, key, good[:-1]),
        ("65 bytes", False, key, good + b"\0"),
        ("no bytes", False, key, b""),
        ("one bit of S", False, key, good[:40] + bytes([good[40] ^ 1]) + good[41:]),
        ("one bit of R", False, key, bytes([good[0] ^ 1]) + good[1:]),
        ("key of another", False, identity_key(counting(0x12, 32)), good),
        (
            "R is the neutral element",
            False,
            plain_key,
            made_with(key_scalar, plain_key, 0, neutral),
        ),
        (
            "R is the neutral element, not canonical",
            False,
            plain_key,
            made_with(key_scalar, plain_key, 0, not_canonical(1)),
        ),
        (
            "R is the neutral element, sign bit set",
            False,
            plain_key,
            made_with(key_scalar, plain_key, 0, (1 | 1 << 255).to_bytes(32, "little")),
        ),
        ("R is no point", False, key, (2).to_bytes(32, "little") + good[32:]),
    ]
    for name, weak in {
        "A is the neutral element": neutral,
        "A is the neutral element, not canonical": not_canonical(1),
        "A is the neutral element, sign bit set": (1 | 1 << 255).to_bytes(32, "little"),
        "A has order 2": half,
        "A has order 8": small,
    }.items():
        rows.append((name, False, weak, weak_signature(weak, nonce)))
    rows.append(("A is no point", False, (2).to_bytes(32, "little"), good))
    result = []
    for name, success, public, signature in rows:
        if holds(public, MESSAGE, signature) != success:
            raise AssertionError(name)
        result.append(
            {
                "name": name,
                "rule": "R6.6-1",
                "success": success,
                "key": public.hex(),
                "message": MESSAGE.hex(),
                "signature": signature.hex(),
            }
        )
    return result


def weak_signature(key: bytes, start: int) -> bytes:
    """S = r, for an R with 8 dividing h: then [h]A is neutral."""
    for nonce in range(start, start + 10_000):
        nonce_point = encode_point(times(nonce, BASE))
        if challenge(nonce_point, key, MESSAGE) % L % 8 == 0:
            return nonce_point + nonce.to_bytes(32, "little")
    raise AssertionError


def requests() -> list[dict[str, Any]]:
    request = Request("example.org", "Client-1_b.c", identity_key(SEED), 1_700_000_000)
    request = replace(request, signature=sign(SEED, request.signed_bytes()))
    good = request.encode()
    if Request.decode(good) != request:
        raise AssertionError
    fields = {
        "trust_domain": request.trust_domain,
        "name": request.name,
        "made_at": request.made_at,
    }
    rows: list[dict[str, Any]] = [
        {
            "name": "as a client makes it",
            "success": True,
            "identity_seed": SEED.hex(),
            "fields": fields,
            "request": good.hex(),
        }
    ]
    for name, data in {
        "cut short": good[:-1],
        "one byte more": good + b"\0",
        "another form": b"\2" + good[1:],
        "name with a space": replace(request, name="Client 1").encode(),
        "name of no bytes": replace(request, name="").encode(),
        "trust domain beyond ASCII": replace(request, trust_domain="ä").encode(),
    }.items():
        decoding: Callable[[], object] = lambda data=data: Request.decode(data)  # noqa: E731
        rows.append(refused(name, ref.BAD_ENCODING, decoding, request=data.hex()))
    changed = replace(request, name="Client-2").encode()
    rows.append(
        {
            "name": "signature for another name",
            "rule": "R2.1-7",
            "success": False,
            "request": changed.hex(),
        }
    )
    return rows


def refused(
    name: str, code: int, act: Callable[[], object], **fields: Any
) -> dict[str, Any]:
    try:
        act()
    except ref.Refused as found:
        if found.code == code:
            return {"name": name, "success": False, "code": code} | fields
        raise AssertionError(name, found.code) from None
    raise AssertionError(name, "accepted")


def credentials() -> list[dict[str, Any]]:
    """One client's, checked by the trust of TRUST at SESSION_END."""
    me = "Client-1_b.c"
    revoked = frozenset(REVOCATIONS.serials)
    torsion = encode_point(TORSION)

    def made(name: str = me, **changes: Any) -> tuple[str, Credential]:
        return name, ISSUER.credential(name, SEED, **changes)

    good = made()[1]
    accepted = {
        "valid": made(),
        "ends with the session": made(not_after=SESSION_END),
        "begins with the session's end": made(not_before=SESSION_END),
        "name of 255 bytes": made("x" * 255),
    }
    refusals = {
        "R2.1-2 name of 256 bytes": made("x" * 256),
        "R2.1-2 name with a space": made("client 1"),
        "R2.1-2 name beyond ASCII": made("clïent"),
        "R2.1-2 name and a line's end": made("client\n"),
        "R2.1-3 ended a second before": made(not_after=SESSION_END - 1),
        "R2.1-3 begins a second after": made(not_before=SESSION_END + 1),
        "R2.1-4 revoked": made(serial=4),
        "R2.1-4 revoked, the largest serial": made(serial=2**32 - 1),
        "R2.1-5 key of small order": made(key=torsion),
        "R2.1-5 key that is not canonical": made(key=not_canonical(1)),
        "R2.1-5 key that is no point": made(key=(2).to_bytes(32, "little")),
        "R2.1-6 of another issuer": (me, FOREIGN_ISSUER.credential(me, SEED)),
        "R2.1-6 of another trust domain": (me, foreign_domain(me)),
        "R2.1-6 of another name": ("Client-2", good),
        "R2.1-6 of another key": (me, replace(good, key=identity_key(bytes(32)))),
        "R2.1-6 with a later end": (me, replace(good, not_after=SESSION_END + 1)),
        "R2.1-6 with an earlier begin": (me, replace(good, not_before=0)),
        "R2.1-6 with another serial": (me, replace(good, serial=8)),
        "R2.1-6 signature of zeros": made(signature=bytes(64)),
    }
    rows: list[dict[str, Any]] = []
    for name, (identity, credential) in accepted.items():
        check_credential(credential, identity, TRUST, SESSION_END, revoked)
        fields = {"identity": identity, "credential": credential.encode().hex()}
        rows.append({"name": name, "success": True} | fields)
    for name, (identity, credential) in refusals.items():
        rule, _, what = name.partition(" ")
        judged: Callable[[], object] = lambda who=identity, it=credential: (  # noqa: E731
            check_credential(it, who, TRUST, SESSION_END, revoked)
        )
        fields = {"identity": identity, "credential": credential.encode().hex()}
        rows.append(refused(what, ref.BAD_CREDENTIAL, judged, rule=rule, **fields))
    return rows


def foreign_domain(name: str) -> Credential:
    credential = ISSUER.credential(name, SEED)
    signed = credential.signed_bytes("example.com", name)
    return replace(credential, signature=sign(ISSUER.seed, signed))


def lists() -> list[dict[str, Any]]:
    """Revocation lists, each with the trust that an offer names for it."""
    good = REVOCATIONS.encode()
    rows: list[dict[str, Any]] = []

    def trusting(data: bytes, **changes: Any) -> ref.Trust:
        named = replace(TRUST, revocation_hash=hashlib.sha256(data).digest())
        return replace(named, **changes)

    def row(name: str, data: bytes, trust: ref.Trust) -> dict[str, Any]:
        return {
            "name": name,
            "trust": trust.encode().hex(),
            "revocations": data.hex(),
        }

    empty = ISSUER.revocations(1, ()).encode()
    for name, data, trust in (
        ("three serials", good, TRUST),
        ("no serials", empty, trusting(empty, revocation_number=1)),
        ("no list", b"", ref.Trust("example.org", ISSUER.key)),
    ):
        serials = sorted(read_revocations(data, trust))
        rows.append(row(name, data, trust) | {"success": True, "serials": serials})
    signed_by_another = FOREIGN_ISSUER.revocations(3, REVOCATIONS.serials).encode()
    elsewhere = Revocations("example.com", 3, 5, (1,))
    elsewhere_signed = replace(
        elsewhere, signature=sign(ISSUER.seed, elsewhere.signed_bytes())
    ).encode()
    twice = ISSUER.revocations(3, (4, 4)).encode()
    falling = ISSUER.revocations(3, (4, 1)).encode()
    number_0 = ISSUER.revocations(0, ()).encode()
    claimed = good[: len(good) - 64 - 12 - 4] + ref.u32(2**32 - 1) + good[-76:]
    bad: dict[str, tuple[bytes, ref.Trust]] = {
        "another hash": (good, replace(TRUST, revocation_hash=bytes(31) + b"\1")),
        "another number": (good, trusting(good, revocation_number=4)),
        "another trust domain": (elsewhere_signed, trusting(elsewhere_signed)),
        "signed by another": (signed_by_another, trusting(signed_by_another)),
        "one serial twice": (twice, trusting(twice)),
        "serials that fall": (falling, trusting(falling)),
        "more serials than bytes": (claimed, trusting(claimed)),
        "cut short": (good[:-1], trusting(good[:-1])),
        "one byte more": (good + b"\0", trusting(good + b"\0")),
        "another form": (b"\2" + good[1:], trusting(b"\2" + good[1:])),
        "missing": (b"", TRUST),
        "a list for number 0": (
            number_0,
            ref.Trust("example.org", ISSUER.key),
        ),
    }
    for name, (data, trust) in bad.items():
        reading: Callable[[], object] = lambda d=data, t=trust: read_revocations(d, t)  # noqa: E731
        refusal = refused(name, ref.BAD_CREDENTIAL, reading, rule="R2.1-0")
        rows.append(row(name, data, trust) | refusal)
    return rows


def certificates() -> list[dict[str, Any]]:
    """What a client of example.org makes of a server's, and a server of a client's."""
    uri, dns = "secagg://example.org/server/sums-1", "sums-1.example.org.server"
    dns += RESERVED
    client = "secagg://example.org/client/Client-1_b.c"
    rows: list[dict[str, Any]] = []

    def shown(name: str, uris: list[str], names: list[str], **more: Any) -> None:
        rule = more.pop("rule", None)
        row = {"name": name, "uris": uris, "dns": names, "told": None} | more
        row["success"] = rule is None
        by_server = more.get("to") == "server"
        act = (
            (lambda: caller(uris, names, "example.org"))
            if by_server
            else (lambda: meet(uris, names, "example.org", row["told"]))
        )
        if rule is None:
            row["who"] = act()
        else:
            code = ref.UNAUTHENTICATED if by_server else BAD_CERTIFICATE
            row |= refused(name, code, act, rule=rule)
            if not by_server:
                del row["code"]  # of no message
        rows.append({"to": "client"} | row)

    shown("an aggregator", [uri], [dns])
    shown("and its host", [uri], ["sums.example.org", dns])
    shown("by its other scheme", [uri.replace("secagg:", "spiffe:", 1)], [dns])
    shown("in capitals", [uri], [dns.upper()])
    shown("the one that was told", [uri], [dns], told="sums-1")
    shown("another than was told", [uri], [dns], told="sums-2", rule="R10.1-3")
    shown("a client's", [client], [], rule="R10.1-3")
    other = "secagg://example.com/server/sums-1"
    shown("another domain's", [other], [dns.replace("org", "com")], rule="R10.1-3")
    for name, uris, names in (
        ("no URI", [], [dns]),
        ("two URIs", [uri, client], [dns]),
        ("another URI", ["https://example.org/server/sums-1"], [dns]),
        ("a URI with more behind it", [uri + "/x"], [dns]),
        ("a role in capitals", [uri.replace("server", "Server")], [dns]),
        ("a name in capitals", [uri.replace("sums", "Sums")], [dns]),
        ("a name with a dot", [uri + ".b"], ["sums-1.b.example.org.server" + RESERVED]),
        ("without its DNS name", [uri], ["sums.example.org"]),
        ("with that of another", [uri], [dns, "sums-2.example.org.server" + RESERVED]),
        ("with one that holds it", [uri], [dns, dns + ".example.org"]),
        ("a client with one", [client], [dns]),
    ):
        shown(name, uris, names, rule="R10.1-2")
    shown("a caller", [client], [], to="server")
    shown("a caller by its other scheme", ["spiffe" + client[6:]], [], to="server")
    for name, uris, names in (
        ("a server that calls", [uri], [dns]),
        ("another domain's client", [client.replace("org", "com")], []),
        ("a caller with two URIs", [client, client], []),
        ("a caller called ..", ["secagg://example.org/client/.."], []),
        ("a caller of a reserved name", [client + RESERVED], []),
    ):
        shown(name, uris, names, to="server", rule="R10.1-4")
    return rows


def identity_files() -> list[dict[str, Any]]:
    """The two files of a client, read at SESSION_END."""
    me = "Client-1_b.c"
    good = ISSUER.credential(me, SEED)

    def held(
        credential: Credential, name: str = me, domain: str = "example.org"
    ) -> bytes:
        return b"\1" + ref.text(domain) + ref.text(name) + credential.encode()

    read_files(SEED, held(good), me, TRUST, SESSION_END)
    rows = [{"name": "as they are made", "success": True}]
    rows[0] |= {"seed": SEED.hex(), "credential": held(good).hex(), "owner": me}
    late = ISSUER.credential(me, SEED, not_after=SESSION_END - 1)
    early = ISSUER.credential(me, SEED, not_before=SESSION_END + 1)
    for name, seed, data, owner in (
        ("a seed of 31 bytes", SEED[:-1], held(good), me),
        ("a seed of 33 bytes", SEED + b"\n", held(good), me),
        ("another seed", counting(0x12, 32), held(good), me),
        ("another client's", SEED, held(good), "Client-2"),
        ("another name inside", SEED, held(good, name="Client-2"), me),
        ("another trust domain", SEED, held(good, domain="example.com"), me),
        ("not valid any more", SEED, held(late), me),
        ("not valid yet", SEED, held(early), me),
        ("another issuer's", SEED, held(FOREIGN_ISSUER.credential(me, SEED)), me),
    ):
        act: Callable[[], object] = lambda s=seed, d=data, o=owner: read_files(  # noqa: E731
            s, d, o, TRUST, SESSION_END
        )
        row = refused(name, ref.BAD_CREDENTIAL, act, rule="R10.2-1")
        rows.append(
            row | {"seed": seed.hex(), "credential": data.hex(), "owner": owner}
        )
    return rows


def enrolment() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "enrolment_seed": ISSUER.seed.hex(),
        "trust": TRUST.encode().hex(),
        "session_end": SESSION_END,
        "signatures": signatures(),
        "requests": requests(),
        "credentials": credentials(),
        "revocation_lists": lists(),
        "certificates": certificates(),
        "identity_files": identity_files(),
    }
