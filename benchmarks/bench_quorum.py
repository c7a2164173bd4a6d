"""The checks among clients that do not trust the server, at n clients."""

import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256

from measurement import cpu_seconds, emit
from nacl.signing import VerifyKey

from secagg.crypto.cipher_suite import CipherSuite
from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.protocol.agreement import Signers, check_quorum, sign_bundles, sign_context
from secagg.protocol.enrolment import EnrolmentRules
from secagg.protocol.membership import (
    Member,
    check_adverts,
    enrolment_rules,
    signed_advert,
)
from secagg.protocol.messages import Advert, Quorum, RosterProof
from secagg.simulation.driver import issued_to, simulated_trust

_SUITE = CipherSuite.AES_256_CTR
_CONTEXT = bytes(32)


def main(*, tiny: bool = False) -> None:
    """Measure the roster and the quorum of one client."""
    clients = 4 if tiny else 1000
    names = [f"client-{number:05d}" for number in range(clients)]
    keys = [_key(name) for name in names]
    rules = enrolment_rules(simulated_trust(), 1_800_000_000, frozenset())
    adverts = [
        _advert(name, serial, key, rules)
        for serial, (name, key) in enumerate(zip(names, keys, strict=True), start=1)
    ]
    check = partial(
        check_adverts, adverts, rules, ctx0=_CONTEXT, suite=_SUITE, verified=None
    )
    bare = _bare_seconds(keys)
    _emit("roster: credentials and adverts", clients, 0, 0, check, 2 * bare)
    signers = Signers.of(adverts)
    for lost in sorted({0, clients // 20, clients // 2 - 1}):
        quorum = _quorum(keys, lost)
        check = partial(
            check_quorum,
            quorum,
            needed=clients // 2 + 1,
            survivors=frozenset(range(clients)),
            signers=signers,
            ctx1=_CONTEXT,
            ctx3=_CONTEXT,
            suite=_SUITE,
        )
        size = len(quorum.encode())
        _emit("check the quorum", clients, lost, size, check, bare)
        _emit("encode the quorum", clients, lost, size, quorum.encode, bare)
        decode = partial(Quorum.decode, quorum.encode())
        _emit("decode the quorum", clients, lost, size, decode, bare)


def _emit(  # noqa: PLR0913, PLR0917 - one row of the table
    name: str,
    clients: int,
    unsigned: int,
    size: int,
    work: Callable[[], object],
    baseline: float,
) -> None:
    seconds = cpu_seconds(work, repeats=3)
    emit(
        f"quorum/{name}",
        parameters={"clients": clients, "unsigned": unsigned, "bytes": size},
        value=1e3 * seconds,
        unit="ms",
        baseline="as many Ed25519 verifications of libsodium, nothing else",
        ratio=baseline / seconds,
    )


def _key(name: str) -> IdentityKey:
    seed = sha256(f"identity of {name}".encode()).digest()
    return IdentityKey.from_bytes(SecretBytes(seed))


def _advert(name: str, serial: int, key: IdentityKey, rules: EnrolmentRules) -> Advert:
    one, other, seed = (sha256(f"{name} {part}".encode()).digest() for part in "012")
    member = Member(key, issued_to(name, serial), rules)
    bare = Advert(name, one, other, seed)
    return signed_advert(bare, member, ctx0=_CONTEXT, suite=_SUITE)


def _quorum(keys: list[IdentityKey], lost: int) -> Quorum:
    """Return a quorum in which the last ones have signed their bundles only."""
    first = len(keys) - lost
    digest = sha256(b"").digest()
    return Quorum(
        tuple(
            (index, sign_context(key, _CONTEXT, _SUITE).signature)
            for index, key in enumerate(keys[:first])
        ),
        tuple(
            RosterProof(
                index,
                digest,
                sign_bundles(key, b"", ctx1=_CONTEXT, index=index, suite=_SUITE),
            )
            for index, key in enumerate(keys[first:], start=first)
        ),
    )


def _bare_seconds(keys: list[IdentityKey]) -> float:
    signed = [(key.public_bytes, key.sign(_CONTEXT)) for key in keys]

    def verify() -> None:
        for public, signature in signed:
            VerifyKey(public).verify(_CONTEXT, signature)

    return cpu_seconds(verify, repeats=3)


if __name__ == "__main__":
    main(tiny="--tiny" in sys.argv[1:])
