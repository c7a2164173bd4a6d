"""Reads who a client is among the enrolled from the files that `secagg pki` made."""

from datetime import UTC, datetime
from typing import Final

from secagg.client.enrolment import ClientEnrolment, EnrolledClient, EnrolledIdentity
from secagg.pki.client_identity import load_client_identity
from secagg.pki.expiry import Expiry, ExpiryWarnings
from secagg.pki.key_files import parse_key
from secagg.protocol.enrolment import ClientIdentity

_SECONDS_PER_DAY: Final = 86_400.0


def read_enrolled(
    files: ClientEnrolment, *, name: str, trust_domain: str | None
) -> EnrolledClient:
    """Read a client's files, and check that all others will accept them now.

    Args:
        files: What to read.
        name: In the client's certificate.
        trust_domain: In the client's certificate; None for that of the credential,
            where something else than certificates says who calls.

    Raises:
        SecAggError: BAD_SETTINGS for a key that is malformed; BAD_CREDENTIAL or
            BAD_ENCODING, naming the file and what to do.
    """
    days, warnings = files.max_revocation_days, ExpiryWarnings()

    def load() -> ClientIdentity:
        now = datetime.now(UTC)
        found = load_client_identity(
            seed=files.seed,
            credential=files.credential,
            enrolment_key=parse_key(files.enrolment_key),
            trust_domain=trust_domain,
            name=name,
            now=int(now.timestamp()),
        )
        end = datetime.fromtimestamp(found.issued.credential.not_after, UTC)
        warnings.log(Expiry("own", files.credential, end), now)
        return found

    return EnrolledClient(
        load(), None if days is None else days * _SECONDS_PER_DAY, reload=load
    )


def load_enrolled(
    files: ClientEnrolment, *, name: str, trust_domain: str | None = None
) -> EnrolledIdentity:
    """Read a client's files for `StepClient`, which reads none.

    Args:
        files: What to read.
        name: The client's.
        trust_domain: As the carrier has proven it; None for that of the credential.

    Raises:
        SecAggError: BAD_SETTINGS, BAD_CREDENTIAL or BAD_ENCODING, naming the file.
    """
    return read_enrolled(files, name=name, trust_domain=trust_domain)
