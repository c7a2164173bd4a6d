import pytest

from secagg.client.retry_policy import (
    AttemptCounter,
    Backoff,
    ErrorStage,
    NextAction,
    after_error,
)
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
from tests.cases import each_of

_C = ErrorCode
IN_SESSION = (ErrorStage.JOINED, ErrorStage.INPUT_LEFT)


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
def test_faults_of_the_server_or_other_clients_cost_no_attempt(error, reach):
    assert after_error(error, reach) is NextAction.NEXT_SESSION


@pytest.mark.parametrize(
    "error",
    [service(_C.UNKNOWN_SESSION), aborted(_C.DEADLINE)],
    ids=["forgotten", "silence"],
)
def test_an_input_with_an_unknown_fate_costs_an_attempt(error):
    assert after_error(error, ErrorStage.JOINED) is NextAction.NEXT_SESSION
    assert after_error(error, ErrorStage.INPUT_LEFT) is NextAction.NEXT_ATTEMPT


@pytest.mark.parametrize("reach", IN_SESSION)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (remote(_C.BAD_SHARE_CIPHERTEXT), NextAction.NEXT_ATTEMPT),
        (remote(_C.SHARE_CONFUSION), NextAction.NEXT_ATTEMPT),
        (remote(_C.DUPLICATE_KEY), NextAction.NEXT_ATTEMPT),
        (remote(_C.BAD_PUBLIC_KEY), NextAction.NEXT_ATTEMPT),
        (service(_C.UPLOAD_CORRUPT), NextAction.NEXT_ATTEMPT),
        (remote(_C.UPLOAD_CORRUPT), NextAction.NEXT_ATTEMPT),
        (aborted(_C.BAD_CONFIG), NextAction.NEXT_ATTEMPT),
        (service(_C.INTERNAL), NextAction.SAME_SESSION),
        (service(_C.UNREACHABLE), NextAction.SAME_SESSION),
        (service(_C.OVERLOADED), NextAction.SAME_SESSION),
        (service(_C.SHUTTING_DOWN), NextAction.SAME_SESSION),
        (remote(_C.POLICY_VIOLATION), NextAction.FINAL),
        (remote(_C.SELF_MISSING), NextAction.FINAL),
        (remote(_C.U3_INVALID), NextAction.FINAL),
        (remote(_C.EQUIVOCATION), NextAction.FINAL),
        (remote(_C.PAYLOAD_MISMATCH), NextAction.FINAL),
        (service(_C.STORAGE_FAILED), NextAction.FINAL),  # this machine's own disk
        (service(_C.BAD_CERTIFICATE), NextAction.FINAL),
        (service(_C.TASK_OVER), NextAction.FINAL),
        (InputError("why"), NextAction.FINAL),
        (InternalError("why"), NextAction.FINAL),
    ],
    ids=lambda value: getattr(getattr(value, "code", None), "name", str(value)),
)
def test_each_other_error_leads_to_its_next_action(error, expected, reach):
    assert after_error(error, reach) is expected


@each_of([aborted, remote, service], ErrorCode)
def test_before_a_session_every_error_is_final_for_the_owner(make, code):
    # But for a clock, which is set by itself.
    expected = NextAction.NEXT_ATTEMPT if code is _C.BAD_CLOCK else NextAction.FINAL
    assert after_error(make(code), ErrorStage.NO_SESSION) is expected


def attempts(left):
    return AttemptCounter(left, Backoff(SeededEntropy(SecretBytes(bytes(32)), b"test")))


def test_aborted_sessions_without_an_attempt_cause_growing_pauses():
    one = attempts(1)
    pauses = [
        one.pause_after(aborted(_C.CANCELLED), ErrorStage.JOINED) for _ in range(9)
    ]
    assert None not in pauses
    assert pauses[-1] > 8 * pauses[0] > 0
    assert one.pause_after(aborted(_C.BAD_CONFIG), ErrorStage.JOINED) is None


def test_attempts_are_limited_and_final_errors_end_them_at_once():
    three = attempts(3)
    shares = remote(_C.SHARE_CONFUSION)
    pauses = [three.pause_after(shares, ErrorStage.JOINED) for _ in range(3)]
    assert [pause is None for pause in pauses] == [False, False, True]
    assert attempts(3).pause_after(service(_C.TASK_OVER), ErrorStage.NO_SESSION) is None
