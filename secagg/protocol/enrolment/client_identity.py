"""A client's key and its credential, in memory."""

from dataclasses import dataclass

from secagg.crypto.signature import IdentityKey
from secagg.protocol.enrolment.credential import IssuedCredential


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client's signing key and its credential.

    Attributes:
        key: Signs in sessions; its representation shows the public half only.
        issued: The credential, with its trust domain.
        enrolment_key: The pinned key that signed it, 32 bytes.
    """

    key: IdentityKey
    issued: IssuedCredential
    enrolment_key: bytes
