"""A development authority for the certificates of one deployment; requests for them.

Rule 1: keys are ECDSA P-256.  gRPC's TLS library does not offer Ed25519.
Rule 2: a leaf states one identity (`secagg.transport.peer_identity`) and one purpose. A
        client's certificate cannot be used to pose as a server, nor the reverse.
Rule 3: private key files are created with mode 0600 and never overwritten.
Rule 4: nothing outlives its authority, and leaves are short-lived.

`secagg.pki.issuance_ledger` records what was issued; this module does not.  An
organisation that has an authority of its own should issue from that.

Requests are made where the key stays, and checked where it is signed.

Rule 5: the private key is made on the host that uses it and never leaves it; the
        request (PKCS #10) carries the public half, signed by the private one.
Rule 6: only the key counts.  Names, hosts and extensions in a request are the
        requester's wishes; the signer decides whose certificate it becomes.
Rule 7: the owner confirms the key's fingerprint over another channel than the
        request's.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, SecAggError
from secagg.protocol.descriptor import CLOCK_TOLERANCE_SECONDS
from secagg.runtime.files import create_file, disk, read_small, replace_file
from secagg.transport.peer_identity import (
    DEFAULT_TRUST_DOMAIN,
    RESERVED_SUFFIX,
    PeerIdentity,
    Role,
)
from secagg.transport.tls import read_certificates, read_private_key

# The signature algorithm that gRPC's TLS supports.
PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_SLASHES_OF_A_DOMAIN: Final = 2  # secagg://domain, with no role behind it
_AUTHORITY_DAYS: Final = 730
LEAF_DAYS: Final = 90
# The limit of public authorities; a longer validity indicates a forgotten key.
_MAX_LEAF_DAYS: Final = 398
_MAX_AUTHORITY_DAYS: Final = 3650
_MAX_HOSTS: Final = 100
# 16 random bytes; RFC 5280 requires a positive number.
_SERIAL_BYTES: Final = 16

_P256_ORDER: Final = int(
    "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16
)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    private_key: bytes = field(repr=False)

    def write(self, directory: Path, stem: str) -> tuple[Path, Path]:
        """Write ``<stem>.pem`` and ``<stem>.key`` and return both paths.

        Raises:
            ServiceError: STORAGE_FAILED when the key exists already or the directory
                cannot be written.
        """
        certificate, key = directory / f"{stem}.pem", directory / f"{stem}.key"
        away = "Choose another directory or name, or move the old key."
        with disk(key, if_exists=away):
            directory.mkdir(parents=True, exist_ok=True)
            create_file(key, self.private_key, mode=0o600)
            replace_file(certificate, self.certificate)
        return certificate, key


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """An authority that can issue: its certificate and its private key.

    Attributes:
        certificate: The self-signed certificate; distribute it to all parties.
        private_key: Keep it away from every running process.
        trust_domain: The domain of the names that it issues.
    """

    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey = field(repr=False)
    trust_domain: str

    @classmethod
    def create(
        cls,
        trust_domain: str = DEFAULT_TRUST_DOMAIN,
        *,
        days: int = _AUTHORITY_DAYS,
        now: datetime | None = None,
        entropy: Entropy | None = None,
    ) -> Self:
        """Make a new authority.

        Args:
            trust_domain: The domain of the names that it will issue; enters every
                identity.
            days: How long it is valid, at most 3650.
            now: Beginning of its validity; the present by default.
            entropy: Source of its key; the operating system by default.

        Raises:
            ServiceError: BAD_CERTIFICATE for a bad trust domain or duration.
        """
        # Any name serves to check the trust domain.
        PeerIdentity(trust_domain, Role.SERVER, "authority")
        entropy = entropy or SystemEntropy()
        key = new_key(entropy)
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain[:64]),
                # Two authorities of one trust domain must have different names.
                x509.NameAttribute(
                    NameOID.COMMON_NAME, f"secagg authority {entropy.token(4).hex()}"
                ),
            ]
        )
        start = now or datetime.now(UTC)
        public = key.public_key()
        certificate = _unsigned_certificate(
            name,
            name,
            public,
            entropy,
            (start, start + _duration(days, _MAX_AUTHORITY_DAYS)),
            # `load` reads the trust domain here.
            [x509.UniformResourceIdentifier(f"secagg://{trust_domain}")],
            is_authority=True,
        ).sign(key, hashes.SHA256())
        return cls(certificate, key, trust_domain)

    @classmethod
    def load(cls, certificate: Path, private_key: Path) -> Self:
        """Read an authority that `write` wrote.

        Raises:
            ServiceError: BAD_CERTIFICATE; states which file is wrong and why.
        """
        found = read_certificates(certificate)[0]
        key = read_private_key(private_key)
        domains = [
            uri.removeprefix("secagg://")
            for uri in _uris(found)
            if uri.startswith("secagg://") and uri.count("/") == _SLASHES_OF_A_DOMAIN
        ]
        if (
            len(domains) != 1
            or not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != found.public_key()
        ):
            raise ErrorCode.BAD_CERTIFICATE.error(
                f"not an authority of `secagg pki`: {certificate} and {private_key}",
                fix="Name the two files that `secagg pki` made for it.",
            )
        return cls(found, key, domains[0])

    def issued(self) -> IssuedCertificate:
        """Return the authority's own files, to be written."""
        return IssuedCertificate(_pem(self.certificate), key_pem(self.private_key))

    def certificate_pem(self) -> bytes:
        """Return the certificate that all other parties need."""
        return _pem(self.certificate)

    def issue_all(
        self,
        directory: Path,
        *,
        hosts: Sequence[str],
        clients: int,
        days: int = LEAF_DAYS,
    ) -> tuple[Path, ...]:
        """Write certificates and keys of all parties, for development and trials.

        Args:
            directory: Receives ``ca``, ``server`` and ``client-1`` to ``client-N``,
                each as ``.pem`` and ``.key``; made when it does not exist.
            hosts: DNS names and addresses under which clients reach the server.
            clients: How many clients there are.
            days: How long the certificates are valid.

        Returns:
            All files.

        Raises:
            ServiceError: BAD_CERTIFICATE or STORAGE_FAILED.
        """
        written = list(self.issued().write(directory, "ca"))
        server = self.issue_server("aggregator", hosts, days=days)
        written += server.write(directory, "server")
        for number in range(1, clients + 1):
            name = f"client-{number}"
            written += self.issue_client(name, days=days).write(directory, name)
        return tuple(written)

    def issue_client(
        self,
        name: str,
        *,
        days: int = LEAF_DAYS,
        now: datetime | None = None,
        entropy: Entropy | None = None,
    ) -> IssuedCertificate:
        """Issue a client's certificate.

        Args:
            name: The client's identity in every session.
            days: How long it is valid, at most 398 and at most as the authority.
            now: Beginning of its validity; the present by default.
            entropy: Source of its key; the operating system by default.

        Raises:
            ServiceError: BAD_CERTIFICATE for a bad name or duration.
        """
        return self._issue_certificate(
            PeerIdentity(self.trust_domain, Role.CLIENT, name), [], days, now, entropy
        )

    def issue_server(
        self,
        name: str,
        hosts: Sequence[str],
        *,
        days: int = LEAF_DAYS,
        now: datetime | None = None,
        entropy: Entropy | None = None,
    ) -> IssuedCertificate:
        """Issue an aggregator's certificate.

        Args:
            name: The aggregator's name, one DNS label.  The certificate also gets the
                DNS name by which clients recognise it.
            hosts: DNS names and addresses under which clients reach it; 1 to 100.
            days: How long it is valid, at most 398 and at most as the authority.
            now: Beginning of its validity; the present by default.
            entropy: Source of its key; the operating system by default.

        Raises:
            ServiceError: BAD_CERTIFICATE for a bad name, host or duration.
        """
        identity = PeerIdentity(self.trust_domain, Role.SERVER, name)
        return self._issue_certificate(identity, hosts, days, now, entropy)

    def certify(  # noqa: PLR0913 - who, with what, for how long
        self,
        identity: PeerIdentity,
        public: PublicKey,
        *,
        hosts: Sequence[str] = (),
        days: int = LEAF_DAYS,
        now: datetime | None = None,
        entropy: Entropy | None = None,
    ) -> bytes:
        """Issue a certificate for a key that another party holds.

        Args:
            identity: The name and role in the certificate.
            public: The key.
            hosts: As in `issue_server`; none for a client.
            days: How long it is valid, at most 398 and at most as the authority.
            now: Beginning of its validity; the present by default.
            entropy: Source of its number; the operating system by default.

        Returns:
            The certificate in PEM.

        Raises:
            ServiceError: BAD_CERTIFICATE for another trust domain, a bad host or
                duration.
        """
        if identity.trust_domain != self.trust_domain:
            raise _argument_error(f"this authority issues names of {self.trust_domain}")
        names: list[x509.GeneralName] = []
        if identity.role is Role.SERVER:
            if not 1 <= len(hosts) <= _MAX_HOSTS:
                raise _argument_error(
                    f"a server certificate needs 1 to {_MAX_HOSTS} hosts, not "
                    f"{len(hosts)}"
                )
            names = [x509.DNSName(identity.dns_name), *(_host(host) for host in hosts)]
        elif hosts:
            raise _argument_error("a client's certificate must have no hosts")
        entropy = entropy or SystemEntropy()
        start = now or datetime.now(UTC)
        end = self._end_after(start, days)
        purpose = (
            ExtendedKeyUsageOID.CLIENT_AUTH
            if identity.role is Role.CLIENT
            else ExtendedKeyUsageOID.SERVER_AUTH
        )
        certificate = (
            _unsigned_certificate(
                _common_name(identity.name),
                self.certificate.subject,
                public,
                entropy,
                (start, end),
                [x509.UniformResourceIdentifier(identity.uri), *names],
                is_authority=False,
            )
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(self._key_identifier, critical=False)
            .sign(self.private_key, hashes.SHA256())
        )
        return _pem(certificate)

    def sign_revocations(
        self,
        revoked: Mapping[int, tuple[int, x509.ReasonFlags]],
        *,
        number: int,
        now: int,
        days: int,
    ) -> bytes:
        """Return a revocation list (CRL, RFC 5280) in PEM.

        Args:
            revoked: By serial number, when and why a certificate was revoked.
            number: Of the list; higher than that of every earlier list.
            now: Its thisUpdate, in Unix seconds.
            days: After how many days the next list is due, at most 398 and at most as
                the authority is valid.

        Raises:
            ServiceError: BAD_CERTIFICATE for a bad duration.
        """
        start = datetime.fromtimestamp(now, UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(start)
            .next_update(self._end_after(start, days))
            .add_extension(x509.CRLNumber(number), critical=False)
            .add_extension(self._key_identifier, critical=False)
        )
        for serial, (at, reason) in revoked.items():
            entry = (
                x509.RevokedCertificateBuilder()
                .serial_number(serial)
                .revocation_date(datetime.fromtimestamp(at, UTC))
            )
            if reason is not x509.ReasonFlags.unspecified:  # RFC 5280, 5.3.1
                entry = entry.add_extension(x509.CRLReason(reason), critical=False)
            builder = builder.add_revoked_certificate(entry.build())
        crl = builder.sign(self.private_key, hashes.SHA256())
        return crl.public_bytes(serialization.Encoding.PEM)

    def _end_after(self, start: datetime, days: int) -> datetime:
        """Return when something that begins then ends: with the authority at last."""
        last = self.certificate.not_valid_after_utc
        end = min(start + _duration(days, _MAX_LEAF_DAYS), last)
        if end <= start:
            raise ErrorCode.BAD_CERTIFICATE.error(
                "the authority has expired",
                fix="Begin another one with `secagg pki ca` in a new directory.",
            )
        return end

    @property
    def _key_identifier(self) -> x509.AuthorityKeyIdentifier:
        public = self.private_key.public_key()
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(public)

    def _issue_certificate(
        self,
        identity: PeerIdentity,
        hosts: Sequence[str],
        days: int,
        now: datetime | None,
        entropy: Entropy | None,
    ) -> IssuedCertificate:
        """Make a key and issue its certificate."""
        entropy = entropy or SystemEntropy()
        key = new_key(entropy)
        certificate = self.certify(
            identity, key.public_key(), hosts=hosts, days=days, now=now, entropy=entropy
        )
        return IssuedCertificate(certificate, key_pem(key))


def _common_name(name: str) -> x509.Name:
    """Return a subject of one name; X.509 allows it 64 characters."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _unsigned_certificate(  # noqa: PLR0913, PLR0917 - what every certificate states
    subject: x509.Name,
    issuer: x509.Name,
    public: PublicKey,
    entropy: Entropy,
    valid: tuple[datetime, datetime],
    names: Iterable[x509.GeneralName],
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    """Return a certificate without its signature."""
    constraints = x509.BasicConstraints(is_authority, 0 if is_authority else None)
    usage = _key_usage(signs_certificates=is_authority)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(_new_serial(entropy))
        .not_valid_before(valid[0] - timedelta(seconds=CLOCK_TOLERANCE_SECONDS))
        .not_valid_after(valid[1])
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(public), critical=False
        )
    )


def _argument_error(complaint: str) -> SecAggError:
    """Return the error of an argument that no certificate can have."""
    return ErrorCode.BAD_CERTIFICATE.error(
        complaint, fix="Correct the arguments of `secagg pki`."
    )


def _duration(days: int, most: int) -> timedelta:
    """Return a validity of some days, within its limits."""
    if not 1 <= days <= most:
        raise _argument_error(
            f"a certificate is valid for 1 to {most} days, not {days}"
        )
    return timedelta(days=days)


def _host(host: str) -> x509.GeneralName:
    """Return a host name or an IP address for a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    is_name = len(host) <= 253 and all(  # noqa: PLR2004 - RFC 1035
        0 < len(label) < 64  # noqa: PLR2004 - RFC 1035
        and label.replace("-", "").isalnum()
        and label.isascii()
        and not label.startswith("-")
        for label in labels
    )
    if not is_name:
        raise _argument_error(f"{host[:60]!r} is neither a DNS name nor an IP address")
    if host.lower().endswith(RESERVED_SUFFIX):
        raise _argument_error(f"hosts that end in {RESERVED_SUFFIX} are reserved")
    return x509.DNSName(host)


def new_key(entropy: Entropy) -> ec.EllipticCurvePrivateKey:
    """Return a new P-256 key."""
    # 48 bytes: reducing them modulo the order leaves a bias below 2^-127.
    number = int.from_bytes(entropy.token(48), "big") % (_P256_ORDER - 1) + 1
    return ec.derive_private_key(number, ec.SECP256R1())


def _new_serial(entropy: Entropy) -> int:
    return int.from_bytes(entropy.token(_SERIAL_BYTES), "big") | 1


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the key usage of an authority or of a leaf."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _uris(certificate: x509.Certificate) -> list[str]:
    """Return the URIs in a certificate's alternative names."""
    try:
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key in the format of its file."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


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
        .subject_name(_common_name(name))
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
        raise _refused_request(
            f"{path} is not a request for a certificate in PEM"
        ) from None
    if not is_proven:
        raise _refused_request(f"the signature of {path} does not fit the key in it")
    if isinstance(public, ec.EllipticCurvePublicKey):
        fits = isinstance(public.curve, ec.SECP256R1 | ec.SECP384R1)
    else:
        fits = isinstance(public, rsa.RSAPublicKey) and public.key_size in _RSA_BITS
    if not fits:
        raise _refused_request(f"TLS cannot use the kind of key in {path}")
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


def _refused_request(complaint: str) -> SecAggError:
    return ErrorCode.BAD_CERTIFICATE.error(complaint, fix=_MAKE_AGAIN)
