"""A client's identity on its own host: key, request and credential.

``identity.seed`` never leaves the host; ``request.bin`` is sent to the issuer, whose
answer is stored beside it as ``credential.bin``.
"""

from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Entropy
from secagg.crypto.signature import IdentityKey
from secagg.errors import ErrorCode, RemoteProtocolError, SecAggError
from secagg.pki.key_files import read_key, write_key
from secagg.protocol.enrolment import (
    ClientIdentity,
    CredentialRequest,
    EnrolmentRules,
    IssuedCredential,
    check_credential,
    is_name,
    not_a_name,
)
from secagg.runtime.files import disk, read_small, replace_file

IDENTITY_SEED: Final = "identity.seed"
REQUEST: Final = "request.bin"
CREDENTIAL: Final = "credential.bin"

# Version, two names of 255 bytes and fixed fields: far less than this.
_MAX_BYTES: Final = 4096


def new_identity(
    directory: Path, *, trust_domain: str, name: str, now: int, entropy: Entropy
) -> CredentialRequest:
    """Make a client's key and the request for its credential.

    Args:
        directory: Made, with access for its owner only, when it does not exist.
        trust_domain: Of the deployment.
        name: The client's, the same as in its certificate.
        now: Unix seconds.
        entropy: Source of the key.

    Raises:
        ServiceError: BAD_CREDENTIAL for a bad name; STORAGE_FAILED, also when there is
            an identity already.
    """
    for text in (trust_domain, name):
        if not is_name(text):
            raise _credential_error(not_a_name(text), "Choose another name.")
    key = IdentityKey.generate(entropy)
    with disk(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_key(directory / IDENTITY_SEED, key)
    return _write_request(directory, key, trust_domain, name, now)


def renew_request(directory: Path, *, now: int) -> CredentialRequest:
    """Request the same name and key again, for example before a credential expires.

    Raises:
        SecAggError: BAD_CREDENTIAL when there is no identity, or a request of another;
            BAD_ENCODING or BAD_SIGNATURE for a damaged request; STORAGE_FAILED.
    """
    key = read_key(directory / IDENTITY_SEED)
    old = read_request(directory / REQUEST)
    old.check()
    if old.identity_key != key.public_bytes:
        raise _credential_error(
            f"{directory / REQUEST} belongs to another key than {IDENTITY_SEED}",
            "Make a new identity in a directory of its own.",
        )
    return _write_request(directory, key, old.trust_domain, old.name, now)


def _write_request(
    directory: Path, key: IdentityKey, trust_domain: str, name: str, now: int
) -> CredentialRequest:
    """Sign a request for a credential, and write it."""
    request = CredentialRequest.make(
        key, trust_domain=trust_domain, name=name, made_at=now
    )
    with disk(directory / REQUEST):
        replace_file(directory / REQUEST, request.encode())
    return request


def read_request(path: Path) -> CredentialRequest:
    """Read a request; `CredentialRequest.check` verifies its signature.

    Raises:
        SecAggError: BAD_CREDENTIAL when the file cannot be read, BAD_ENCODING.
    """
    return CredentialRequest.decode(_read_credential_file(path))


def write_credential(path: Path, issued: IssuedCredential) -> None:
    """Write a credential and replace an older one.

    Raises:
        ServiceError: STORAGE_FAILED.
    """
    with disk(path):
        replace_file(path, issued.encode())


def _read_credential_file(path: Path) -> bytes:
    """Read a small file of a credential."""
    return read_small(
        path,
        most=_MAX_BYTES,
        code=ErrorCode.BAD_CREDENTIAL,
        if_large="Name the file that `secagg pki` made.",
    )


def load_client_identity(  # noqa: PLR0913 - two files and what they are held to
    *,
    seed: Path,
    credential: Path,
    enrolment_key: bytes,
    trust_domain: str | None,
    name: str,
    now: int,
) -> ClientIdentity:
    """Read an identity and check that all parties will accept it now (R10.2-1).

    Args:
        seed: File of the private key.
        credential: File of the credential.
        enrolment_key: The pinned key, 32 bytes.
        trust_domain: In the client's certificate; None for the one in the credential.
        name: In the client's certificate.
        now: Unix seconds.

    Raises:
        SecAggError: BAD_CREDENTIAL, naming the file and the next step; BAD_ENCODING.
    """
    key = read_key(seed)
    issued = IssuedCredential.decode(_read_credential_file(credential))
    if trust_domain is not None and issued.trust_domain != trust_domain:
        raise _credential_error(
            f"{credential} is for the trust domain {issued.trust_domain!r}, the "
            f"certificate names {trust_domain!r}",
            "Name the credential of this deployment.",
        )
    if issued.credential.identity_key != key.public_bytes:
        raise _credential_error(
            f"{credential} was issued for another key than {seed}",
            f"Replace it by the issuer's answer to this key's {REQUEST}.",
        )
    rules = EnrolmentRules(
        trust_domain=issued.trust_domain,
        enrolment_key=enrolment_key,
        session_end=now,
    )
    try:
        check_credential(issued.credential, rules, identity=name)
    except RemoteProtocolError as error:
        raise _credential_error(f"{credential}: {error}", error.next_step) from None
    return ClientIdentity(key, issued, enrolment_key)


def _credential_error(complaint: str, next_step: str) -> SecAggError:
    """Return the error of a credential that cannot be used."""
    return ErrorCode.BAD_CREDENTIAL.error(complaint, fix=next_step)
