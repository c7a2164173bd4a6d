"""Certificates of one deployment: the right ones, and those that must not get in.

Test support.  Everything is made at run time; nothing here belongs to a real party.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from secagg.pki.certificate_authority import CertificateAuthority, IssuedCertificate
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSFiles, TLSIdentity, number_in_pem

_LONGER_DAYS = 200


def crl_of(
    authority: CertificateAuthority,
    *certificates: bytes,
    number: int = 1,
    now: float,
    days: int = 90,
) -> bytes:
    """Return a revocation list in PEM.

    Args:
        authority: Whose it is.
        certificates: What it revokes, in PEM.
        number: Of the list.
        now: Its thisUpdate, in Unix seconds.
        days: How long it is valid.
    """
    reason = (int(now), x509.ReasonFlags.key_compromise)
    revoked = {number_in_pem(each).serial: reason for each in certificates}
    return authority.sign_revocations(revoked, number=number, now=int(now), days=days)


class TLSDeployment:
    """An authority, a second one with the same trust domain, and leaves of both.

    Args:
        directory: Where certificates and keys are written.
        trust_domain: Of both.
    """

    def __init__(self, directory: Path, trust_domain: str = "ours.example") -> None:
        self.directory = directory
        self.ours = CertificateAuthority.create(trust_domain)
        self.theirs = CertificateAuthority.create(trust_domain)
        self.ours.issued().write(directory, "ours")
        self.theirs.issued().write(directory, "theirs")
        self._count = itertools.count()

    def server(self, *hosts: str, name: str = "agg") -> TLSIdentity:
        """Return an aggregator of ours, by default one for 127.0.0.1."""
        return self.load(
            self.ours.issue_server(name, hosts or ["127.0.0.1"]), Role.SERVER
        )

    def client(self, name: str = "client-7") -> TLSIdentity:
        """Return a client of ours."""
        return self.load(self.ours.issue_client(name), Role.CLIENT)

    def longer_client(self, name: str) -> TLSIdentity:
        """Return a client of ours whose certificate outlives those of the others."""
        return self.load(self.ours.issue_client(name, days=_LONGER_DAYS), Role.CLIENT)

    def load(
        self,
        issued: IssuedCertificate,
        role: Role,
        authority: str = "ours",
        now: datetime | None = None,
    ) -> TLSIdentity:
        """Load a certificate as a process would."""
        files = self._write(issued, authority)
        return TLSIdentity.load(
            certificate=files.certificate,
            private_key=files.private_key,
            authority=files.authority,
            role=role,
            now=now,
        )

    def revoke(
        self, path: Path, *certificates: bytes, number: int = 1, now: float
    ) -> None:
        """Write a revocation list of ours.

        Args:
            path: Where to.
            certificates: What it revokes, in PEM.
            number: Of the list.
            now: Its thisUpdate, in Unix seconds.
        """
        path.write_bytes(crl_of(self.ours, *certificates, number=number, now=now))

    def forge(
        self,
        names: Sequence[x509.GeneralName],
        *,
        purpose: x509.ObjectIdentifier | None = None,
        common_name: str = "leaf",
        days: float = 30,
    ) -> TLSIdentity:
        """Return a certificate of our authority that `secagg pki` would not issue.

        The result has passed no check of this package; a party that holds it cheats.

        Args:
            names: Subject alternative names.
            purpose: Extended key usage, if any.
            common_name: Common name.
            days: How long it is valid from now on; negative for an expired one.
        """
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
            )
            .issuer_name(self.ours.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(names), critical=False
            )
        if purpose is not None:
            builder = builder.add_extension(
                x509.ExtendedKeyUsage([purpose]), critical=False
            )
        leaf = builder.sign(self.ours.private_key, hashes.SHA256())
        return self.cheat(
            IssuedCertificate(
                leaf.public_bytes(serialization.Encoding.PEM),
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.NoEncryption(),
                ),
            )
        )

    def cheat(self, issued: IssuedCertificate) -> TLSIdentity:
        """Return `client-7` of ours as it believes to be, with another certificate."""
        return dataclasses.replace(
            self.client(),
            certificate_chain=issued.certificate,
            private_key=issued.private_key,
            files=self._write(issued, "ours"),
        )

    def _write(self, issued: IssuedCertificate, authority: str) -> TLSFiles:
        certificate, key = issued.write(self.directory, f"leaf-{next(self._count)}")
        return TLSFiles(certificate, key, self.directory / f"{authority}.pem")
