"""Establishes the caller of a request at the HTTP edge: steps R10.3-9 to R10.3-13.

Rule 1: the caller is the name in a credential that the issuer signed and whose key
        signs this request.  Nothing else in a request names a caller.
Rule 2: the only state of a caller is that its credential was verified (R2.1-8).
Rule 3: verifying an unknown credential costs the aggregator time; a budget for each
        address and for all limits it.  Callers with a known credential never use it,
        and a failed signature never counts against the name that it claims.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from secagg.crypto.signature import SignatureError, verify
from secagg.errors import ErrorCode, RemoteProtocolError, ServiceError
from secagg.protocol.enrolment import (
    EnrolmentRules,
    IssuedCredential,
    VerifiedCredentials,
    check_signing_credential,
)
from secagg.server.call_guards import Caller
from secagg.transport.address import address_group
from secagg.transport.request_proof import (
    WINDOW_SECONDS,
    ProofParameters,
    key_id,
    read_digest,
    read_held_credential,
    read_signature,
    signature_base,
)

# Verifying an unknown credential and a signature takes about 0.25 ms. The budget of all
# callers takes 5 % of a core, and that of one address less than a thousandth.
_ALL_PER_SECOND: Final = 200.0
_ADDRESS_PER_SECOND: Final = 1.0
# A household or an office whose clients come back at once after a restart.
_ADDRESS_AT_ONCE: Final = 60.0
# One record takes about 200 bytes; a deleted one has its whole budget again, and the
# budget of all callers still holds.
_MAX_ADDRESSES: Final = 65_536
# Decoded headers in the cache, at most 2 KiB each; decoding one takes 25 µs.
_MAX_CREDENTIALS: Final = 4096


@dataclass(slots=True)
class _Bucket:
    """Holds a budget that refills."""

    most: float
    per_second: float
    left: float
    refilled_at: float

    def refill(self, now: float) -> None:
        gained = (now - self.refilled_at) * self.per_second
        self.left, self.refilled_at = min(self.most, self.left + gained), now

    @property
    def missing_seconds(self) -> float:
        """Return the time until one unit is available; 0 if it is."""
        return max(0.0, (1.0 - self.left) / self.per_second)


class UnknownCredentialBudget:
    """Limits how many unknown credentials are verified.

    Args:
        now: Monotonic seconds.
        by_address: Whether each address has a budget of its own.  Behind a proxy all
            callers have one address.
    """

    def __init__(self, now: Callable[[], float], *, by_address: bool) -> None:
        self._now = now
        self._by_address = by_address
        self._all = _Bucket(_ALL_PER_SECOND, _ALL_PER_SECOND, _ALL_PER_SECOND, now())
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()

    def charge(self, address: str) -> None:
        """Charge one unit to the budgets of an address and of all.

        Raises:
            ServiceError: OVERLOADED; one of them is used up, and neither was charged.
        """
        buckets = self._buckets(address)
        missing = max(each.missing_seconds for each in buckets)
        if missing:
            raise ErrorCode.OVERLOADED.error(
                "too many unknown credentials come from here",
                fix="Wait and call again.",
                retry_after_seconds=missing,
            )
        for bucket in buckets:
            bucket.left -= 1.0

    def charge_failure(self, address: str) -> None:
        """Charge one unit for an invalid signature, if one is available.

        An address without a budget charges nothing to that of all: it would block the
        others.
        """
        buckets = self._buckets(address)
        if not any(each.missing_seconds for each in buckets):
            for bucket in buckets:
                bucket.left -= 1.0

    def _buckets(self, address: str) -> list[_Bucket]:
        """Return the budgets that a call from an address draws on."""
        now = self._now()
        buckets = [self._all]
        if self._by_address:
            group = address_group(address)
            own = self._addresses.get(group)
            if own is None:
                if len(self._addresses) >= _MAX_ADDRESSES:
                    self._addresses.popitem(last=False)
                own = _Bucket(
                    _ADDRESS_AT_ONCE, _ADDRESS_PER_SECOND, _ADDRESS_AT_ONCE, now
                )
                self._addresses[group] = own
            self._addresses.move_to_end(group)
            buckets.append(own)
        for bucket in buckets:
            bucket.refill(now)
        return buckets


class RequestProof:
    """Establishes the caller of a request from its headers.

    Args:
        authority: Authority of the edge, from the settings.
        trust_domain: The trust domain of valid names.
        enrolment_key: Public key of the issuer, 32 bytes.
        budget: Limits credentials that are not known yet.
        date: The present in Unix seconds.
        on_first: Called with each caller whose credential was not known before.

    Attributes:
        revoked: Serials of the issuer's list in force; replaced when it changes.
    """

    def __init__(  # noqa: PLR0913 - the parameters of the checks
        self,
        authority: str,
        trust_domain: str,
        enrolment_key: bytes,
        *,
        budget: UnknownCredentialBudget,
        date: Callable[[], float],
        on_first: Callable[[Caller, str], None] = lambda _, __: None,
    ) -> None:
        self._authority = authority
        self._trust_domain = trust_domain
        self._enrolment_key = enrolment_key
        self._budget = budget
        self._date = date
        self._on_first = on_first
        self._verified = VerifiedCredentials()
        self.revoked: frozenset[int] = frozenset()

    def caller(self, path: str, headers: Mapping[str, str], address: str) -> Caller:
        """Return the caller that signed a request.

        Args:
            path: Path of the request, as received.
            headers: Headers by name in lower case; the four that are signed or sign.
            address: The sender's address, for the budget.

        Raises:
            ServiceError: UNAUTHENTICATED (R10.3-9 to R10.3-13), with `server_time` for
                a proof of another time; OVERLOADED (R10.3-12).
        """
        issued = self._credential(headers["secagg-credential"])
        credential = issued.credential
        parameters, signature = self._form(headers, credential.identity_key)
        now = int(self._date())
        if abs(parameters.created - now) > WINDOW_SECONDS:
            raise _refused(
                "the proof was made at another time",
                "Correct the clock of this machine.",
                server_time=now,
            )
        rules = EnrolmentRules(
            trust_domain=self._trust_domain,
            enrolment_key=self._enrolment_key,
            session_end=now,
            revoked=self.revoked,
        )
        try:
            digest = check_signing_credential(
                credential,
                rules,
                identity=credential.name,
                verified=self._verified,
                before_signature=lambda: self._budget.charge(address),
            )
        except RemoteProtocolError as error:
            raise _refused(str(error), error.next_step) from None
        base = signature_base(
            authority=self._authority,
            path=path,
            digest=headers["content-digest"],
            credential=headers["secagg-credential"],
            parameters=parameters.text,
        )
        try:
            verify(credential.identity_key, base, signature)
        except SignatureError:
            self._budget.charge_failure(address)
            raise _refused(
                "the proof does not fit the request and the credential's key",
                "Sign each request with the enrolled key, for this authority.",
            ) from None
        who = Caller(credential.name, serial=credential.serial)
        if not self._verified.knows(digest):
            self._verified.add(digest)
            self._on_first(who, address)
        return who

    def _credential(self, text: str) -> IssuedCredential:
        issued = _read_credential(text)
        if issued is not None and issued.trust_domain == self._trust_domain:
            return issued
        raise _refused(
            "Secagg-Credential holds no credential of this trust domain", _ONE_FORM
        )

    @staticmethod
    def _form(
        headers: Mapping[str, str], identity_key: bytes
    ) -> tuple[ProofParameters, bytes]:
        """Return the parameters and the signature of a proof of the permitted form."""
        parameters = ProofParameters.read(headers["signature-input"])
        signature = read_signature(headers["signature"])
        digest = read_digest(headers["content-digest"])
        if parameters is None or signature is None or digest is None:
            raise _refused(
                "the proof has another form than the one permitted", _ONE_FORM
            )
        if parameters.key != key_id(identity_key):
            raise _refused(
                "the proof names another key than the credential's", _ONE_FORM
            )
        return parameters, signature


@lru_cache(maxsize=_MAX_CREDENTIALS)
def _read_credential(text: str) -> IssuedCredential | None:
    """Return the credential in a header; None where it holds none."""
    data = read_held_credential(text)
    if data is None:
        return None
    try:
        return IssuedCredential.decode(data)
    except RemoteProtocolError:
        return None


_ONE_FORM: Final = "Write the headers as PROTOCOL §10.3 gives them, byte for byte."


def _refused(
    complaint: str, next_step: str, *, server_time: int | None = None
) -> ServiceError:
    return ErrorCode.UNAUTHENTICATED.error(
        complaint, kind=ServiceError, fix=next_step, server_time=server_time
    )
