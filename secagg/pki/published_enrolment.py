"""The part of enrolment that an aggregator publishes: trust domain, key, revocations.

It is public: the enrolment key here is the public one, and the list is signed by it.
An aggregator can neither add nor revoke a client.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from secagg.errors import ErrorCode
from secagg.protocol.enrolment.revocation_list import (
    MAX_REVOCATION_BYTES,
    RevocationList,
)
from secagg.protocol.profiles import Trust
from secagg.runtime.files import read_small


@dataclass(frozen=True, slots=True)
class PublishedEnrolment:
    """What the offers of a task state about enrolment.

    Attributes:
        trust_domain: The domain of the names.
        enrolment_key: Signs credentials and lists, 32 bytes.
        revocations: The newest list, as clients read it; b"" without revocations.
    """

    trust_domain: str
    enrolment_key: bytes
    revocations: bytes = field(default=b"", repr=False)

    @property
    def trust(self) -> Trust:
        """The same as stated in the parameters of a session."""
        if not self.revocations:
            return Trust(self.trust_domain, self.enrolment_key)
        found = RevocationList.decode(self.revocations)
        return Trust(self.trust_domain, self.enrolment_key, found.number, found.digest)

    @classmethod
    def load(
        cls, *, trust_domain: str, enrolment_key: bytes, revocations: Path | None
    ) -> Self:
        """Read the issuer's newest list and check that it is this issuer's.

        Args:
            trust_domain: Of the deployment.
            enrolment_key: 32 bytes.
            revocations: File of the list; None without revocations.

        Raises:
            SecAggError: BAD_CREDENTIAL or BAD_ENCODING, naming the fault.
        """
        if revocations is None:
            return cls(trust_domain, enrolment_key)
        data = read_small(
            revocations,
            most=MAX_REVOCATION_BYTES,
            code=ErrorCode.BAD_CREDENTIAL,
            what="the revocation list",
            if_unreadable="Check enrolment.revocations and the file's permissions.",
            if_large="Begin a new issuer: clients would refuse a list of this length.",
        )
        found = RevocationList.decode(data)
        found.check(trust_domain=trust_domain, enrolment_key=enrolment_key)
        return cls(trust_domain, enrolment_key, data)
