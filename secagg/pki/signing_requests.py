"""Requests for certificates: made where the key stays, checked where it is signed.

Rule 1: the private key is made on the host that uses it and never leaves it; the
        request (PKCS #10) carries the public half, signed by the private one.
Rule 2: only the key counts.  Names, hosts and extensions in a request are the
        requester's wishes; the signer decides whose certificate it becomes.
Rule 3: the owner confirms the key's fingerprint over another channel than the
        request's.
"""

import hashlib
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from secagg.crypto.entropy import Entropy
from secagg.errors import ErrorCode, SecAggError
from secagg.pki.certificate_authority import PublicKey, key_pem, new_key
from secagg.runtime.durable_files import create_file, replace_file
from secagg.runtime.files import disk, read_small
from secagg.transport.peer_identity import DEFAULT_TRUST_DOMAIN, PeerIdentity, Role

FINGERPRINT: Final = "sha256:"

_MAX_REQUEST_BYTES: Final = 64 * 1024
_RSA_BITS: Final = range(2048, 8193)
_MAKE_AGAIN: Final = (
    "Make it again: `secagg enrol request` on the host that keeps the key, or "
    "openssl with a P-256 key."
)


def new_request(directory: Path, name: str, *, entropy: Entropy) -> tuple[Path, str]:
    """Make a private key and a request for its certificate.

    Args:
        directory: Made, with access for its owner only, when it does not exist;
            receives ``NAME.key`` (mode 0600) and ``NAME.csr``.
        name: Stem of the files, and a hint to the signer.
        entropy: Source of the key.

    Returns:
        The path of the request, and the key's fingerprint.

    Raises:
        ServiceError: BAD_CERTIFICATE for a name that no certificate can carry;
            STORAGE_FAILED, also when there is a key already.
    """
    PeerIdentity(DEFAULT_TRUST_DOMAIN, Role.CLIENT, name)
    key = new_key(entropy)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .sign(key, hashes.SHA256())
    )
    path, secret = directory / f"{name}.csr", directory / f"{name}.key"
    with disk(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with disk(secret):
        create_file(secret, key_pem(key), mode=0o600)
    with disk(path):
        replace_file(path, request.public_bytes(serialization.Encoding.PEM))
    return path, fingerprint_of(key.public_key())


def read_request(path: Path) -> PublicKey:
    """Return the key for which a request asks a certificate.

    Raises:
        ServiceError: BAD_CERTIFICATE; it cannot be read, its signature does not match
            the key in it, or TLS cannot use the key.
    """
    data = read_small(
        path,
        most=_MAX_REQUEST_BYTES,
        code=ErrorCode.BAD_CERTIFICATE,
        if_large=_MAKE_AGAIN,
    )
    try:
        request = x509.load_pem_x509_csr(data)
        public, is_proven = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise _refused(f"{path} is not a request for a certificate in PEM") from None
    if not is_proven:
        raise _refused(f"the signature of {path} does not fit the key in it")
    if isinstance(public, ec.EllipticCurvePublicKey):
        fits = isinstance(public.curve, ec.SECP256R1 | ec.SECP384R1)
    else:
        fits = isinstance(public, rsa.RSAPublicKey) and public.key_size in _RSA_BITS
    if not fits:
        raise _refused(f"TLS cannot use the kind of key in {path}")
    assert isinstance(public, PublicKey)  # noqa: S101 - as just settled
    return public


def fingerprint_of(public: PublicKey) -> str:
    """Return the fingerprint that people compare: ``sha256:`` and the hash in hex.

    The same as of ``openssl pkey -pubout -outform DER | sha256sum``.
    """
    return FINGERPRINT + hashlib.sha256(spki_of(public)).hexdigest()


def spki_of(public: PublicKey) -> bytes:
    """Return a key's SubjectPublicKeyInfo in DER."""
    return public.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _refused(complaint: str) -> SecAggError:
    return ErrorCode.BAD_CERTIFICATE.error(
        complaint,
        fix=_MAKE_AGAIN,
    )
