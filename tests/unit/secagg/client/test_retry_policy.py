import pytest

from secagg.client.backoff import Backoff
from secagg.client.retry_policy import Attempts, Next, Reach, after_error
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    ErrorCode,
    InputError,
    InternalError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
    ThresholdNotMetError,
)

_C = ErrorCode
IN_SESSION = (Reach.JOINED, Reach.INPUT_LEFT)


def aborted(code):
    return SessionAbortedError("why", code=code)


def remote(code):
    return RemoteProtocolError("why", code=code)


def service(code):
    return ServiceError("why", code=code)


@pytest.mark.parametrize("reach", IN_SESSION)
@pytest.mark.parametrize(
    "error",
    [
        *map(
            aborted,
            (
                _C.ROSTER_TOO_SMALL,
                _C.ROSTER_TOO_LARGE,
                _C.U2_TOO_SMALL,
                _C.U3_TOO_SMALL,
                _C.TOO_MANY_DROPOUTS,
                _C.NO_QUORUM,
                _C.TOO_FEW_ANSWERS,
                _C.RECONSTRUCTION_FAILED,
                _C.DISPUTED,
                _C.STORAGE_FAILED,
                _C.INTERNAL,
                _C.CANCELLED,
                _C.SHUTTING_DOWN,
                _C.SESSION_OVER,
            ),
        ),
        ThresholdNotMetError(alive=1, needed=2, code=_C.U3_TOO_SMALL),
        remote(_C.SESSION_OVER),
    ],
    ids=lambda value: getattr(getattr(value, "code", None), "name", str(value)),
)
def test_what_nobody_could_help_costs_no_attempt(error, reach):
    assert after_error(error, reach) is Next.NEXT_SESSION


@pytest.mark.parametrize(
    "error",
    [service(_C.UNKNOWN_SESSION), aborted(_C.DEADLINE)],
    ids=["forgotten", "silence"],
)
def test_an_input_whose_fate_is_not_known_makes_the_next_session_an_attempt(error):
    assert after_error(error, Reach.JOINED) is Next.NEXT_SESSION
    assert after_error(error, Reach.INPUT_LEFT) is Next.NEXT_ATTEMPT


@pytest.mark.parametrize("reach", IN_SESSION)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (remote(_C.BAD_SHARE_CIPHERTEXT), Next.NEXT_ATTEMPT),
        (remote(_C.SHARE_CONFUSION), Next.NEXT_ATTEMPT),
        (remote(_C.DUPLICATE_KEY), Next.NEXT_ATTEMPT),
        (remote(_C.BAD_PUBLIC_KEY), Next.NEXT_ATTEMPT),
        (service(_C.UPLOAD_CORRUPT), Next.NEXT_ATTEMPT),
        (remote(_C.UPLOAD_CORRUPT), Next.NEXT_ATTEMPT),
        (aborted(_C.BAD_CONFIG), Next.NEXT_ATTEMPT),
        (service(_C.INTERNAL), Next.SAME_SESSION),
        (service(_C.UNREACHABLE), Next.SAME_SESSION),
        (service(_C.OVERLOADED), Next.SAME_SESSION),
        (service(_C.SHUTTING_DOWN), Next.SAME_SESSION),
        (remote(_C.POLICY_VIOLATION), Next.FINAL),
        (remote(_C.SELF_MISSING), Next.FINAL),
        (remote(_C.U3_INVALID), Next.FINAL),
        (remote(_C.EQUIVOCATION), Next.FINAL),
        (remote(_C.PAYLOAD_MISMATCH), Next.FINAL),
        (service(_C.STORAGE_FAILED), Next.FINAL),  # this machine's own disk
        (service(_C.BAD_CERTIFICATE), Next.FINAL),
        (service(_C.TASK_OVER), Next.FINAL),
        (InputError("why"), Next.FINAL),
        (InternalError("why"), Next.FINAL),
    ],
    ids=lambda value: getattr(getattr(value, "code", None), "name", str(value)),
)
def test_every_other_fault_is_somebodys(error, expected, reach):
    assert after_error(error, reach) is expected


@pytest.mark.parametrize("make", [aborted, remote, service])
@pytest.mark.parametrize("code", list(ErrorCode), ids=lambda code: code.name)
def test_before_there_is_a_session_every_error_is_for_the_owner(make, code):
    # But for a clock, which is set by itself.
    expected = Next.NEXT_ATTEMPT if code is _C.BAD_CLOCK else Next.FINAL
    assert after_error(make(code), Reach.NO_SESSION) is expected


def attempts(left):
    return Attempts(left, Backoff(SeededEntropy(SecretBytes(bytes(32)), b"test")))


def test_free_sessions_cost_time_instead_of_attempts():
    one = attempts(1)
    pauses = [one.pause_after(aborted(_C.CANCELLED), Reach.JOINED) for _ in range(9)]
    assert None not in pauses
    assert pauses[-1] > 8 * pauses[0] > 0
    assert one.pause_after(aborted(_C.BAD_CONFIG), Reach.JOINED) is None


def test_attempts_come_to_an_end_and_final_errors_end_them_at_once():
    three = attempts(3)
    shares = remote(_C.SHARE_CONFUSION)
    pauses = [three.pause_after(shares, Reach.JOINED) for _ in range(3)]
    assert [pause is None for pause in pauses] == [False, False, True]
    assert attempts(3).pause_after(service(_C.TASK_OVER), Reach.NO_SESSION) is None
