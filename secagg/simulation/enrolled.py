"""Enrolment for sessions in one process: an issuer whose key is public.

Keys derive from public labels, so that a simulated cohort is the same in every process.
Only simulations and tests trust this issuer.
"""

from functools import cache
from hashlib import sha256
from typing import Final

from secagg.crypto.secret_bytes import SecretBytes
from secagg.crypto.signature import IdentityKey
from secagg.pki.key_files import PublishedEnrolment
from secagg.protocol.enrolment.credential import (
    ClientIdentity,
    Credential,
    IssuedCredential,
)
from secagg.protocol.enrolment.revocation_list import RevocationList
from secagg.protocol.membership import Membership
from secagg.protocol.profiles import Trust

TRUST_DOMAIN: Final = "simulation"
# From 2020 to 2100: as long as no test is about time.
_NOT_BEFORE: Final = 1_577_836_800
_NOT_AFTER: Final = 4_102_444_800


def _key(label: str) -> IdentityKey:
    return IdentityKey.from_bytes(SecretBytes(sha256(label.encode()).digest()))


@cache
def _issuer() -> IdentityKey:
    return _key("the issuer of simulations")


def simulated_trust() -> Trust:
    """Return the enrolment part of a simulated session's parameters."""
    return Trust(TRUST_DOMAIN, _issuer().public_bytes)


def published_in_simulation(
    number: int = 0, *serials: int, made_at: int = _NOT_BEFORE
) -> PublishedEnrolment:
    """Return what a simulated aggregator publishes.

    Args:
        number: Of the revocation list; 0 for none.
        serials: Revoked, ascending.
        made_at: When the list was made, in Unix seconds.
    """
    data = b""
    if number:
        found = RevocationList(
            trust_domain=TRUST_DOMAIN, number=number, made_at=made_at, serials=serials
        )
        data = found.signed_by(_issuer()).encode()
    return PublishedEnrolment(TRUST_DOMAIN, _issuer().public_bytes, data)


def identity_in_simulation(name: str, serial: int) -> ClientIdentity:
    """Return a simulated client's key and credential, as from its own files."""
    return ClientIdentity(
        _key(f"identity of {name}"),
        IssuedCredential(TRUST_DOMAIN, issued_to(name, serial)),
        _issuer().public_bytes,
    )


def issued_to(
    name: str,
    serial: int,
    *,
    not_before: int = _NOT_BEFORE,
    not_after: int = _NOT_AFTER,
) -> Credential:
    """Return the credential of a simulated client."""
    credential = Credential(
        name=name,
        identity_key=_key(f"identity of {name}").public_bytes,
        not_before=not_before,
        not_after=not_after,
        serial=serial,
    )
    return credential.signed_by(_issuer(), TRUST_DOMAIN)


@cache
def membership_of(name: str, serial: int) -> Membership:
    """Return the membership of a simulated client."""
    return Membership(
        trust_domain=TRUST_DOMAIN,
        enrolment_key=_issuer().public_bytes,
        key=_key(f"identity of {name}"),
        credential=issued_to(name, serial),
    )
