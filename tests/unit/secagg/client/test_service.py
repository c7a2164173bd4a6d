"""A client that runs for good: what it waits for, what ends it, what it says."""

import datetime as dt
import itertools
import sys
from types import SimpleNamespace

import pytest
from secagg_testing import manual_clock
from secagg_testing.scripted_service import ScriptedService

from secagg.client.calls import UNLIMITED_TELL_SECONDS, ClientCalls
from secagg.client.retry_policy import PATIENT_LONGEST_SECONDS, Backoff
from secagg.client.service import CertificateRenewal, ClientService, run_command
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import (
    ErrorCode,
    InputError,
    InternalError,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.runtime.clock import finish_before
from secagg.runtime.workers import Workers
from secagg.storage.sqlite.executor import InlineExecutor
from secagg.transport.connection import InMemoryConnection
from secagg.transport.tls import TLSFiles
from secagg.wire.calls import GetOffer

_C = ErrorCode
DAY = 24 * 3600.0


def entropy():
    return SeededEntropy(SecretBytes(bytes(32)), b"jitter")


class Scripted:
    """Stands for a client whose sessions end as they are told to."""

    def __init__(self, clock, endings):
        self.clock = clock
        self.endings = list(endings)
        self.asked = []
        self.certificate = None

    async def contribute(self, _make, *, accept):
        accept(None)
        self.asked.append(self.clock.now())
        ending = self.endings.pop(0) if len(self.endings) > 1 else self.endings[0]
        if isinstance(ending, Exception):
            raise ending
        return SimpleNamespace(sessions_left=ending)


def served(*endings, certificate=None, seconds=None):
    """Run a service through these endings; return what it asked, gave and failed."""

    async def main(clock):
        client = Scripted(clock, endings)
        client.certificate = certificate and certificate(clock)
        given, failed = [], []

        async def fail(error):
            failed.append(error)

        service = ClientService(
            client,
            lambda _: None,
            lambda _: None,
            given.append,
            fail,
            clock=clock,
            entropy=entropy(),
        )
        error = None
        try:
            if seconds is None:
                await service.run()
            else:
                await finish_before(clock, clock.now() + seconds, service.run())
        except (ServiceError, RemoteProtocolError, InternalError) as caught:
            error = caught
        except TimeoutError:
            pass
        return client.asked, len(given), failed, error

    return manual_clock.run(main)


PASSING = [
    ServiceError("no answer", code=_C.UNREACHABLE),
    ServiceError("restarting", code=_C.SHUTTING_DOWN),
    ServiceError("no such task yet", code=_C.UNKNOWN_SESSION),
    ServiceError("a defect there", code=_C.INTERNAL),
    SessionAbortedError("too few", code=_C.ROSTER_TOO_SMALL),
    SessionAbortedError("too late", code=_C.DEADLINE),
    SessionAbortedError("of its own", code=_C.BAD_CONFIG),
    RemoteProtocolError("another client", code=_C.BAD_PUBLIC_KEY),
    InputError("x-7.npy is not there yet"),
]
FINAL = [
    ServiceError("the task has ended", code=_C.TASK_OVER),
    ServiceError("revoked", code=_C.UNAUTHENTICATED),
    ServiceError("an impostor", code=_C.BAD_CERTIFICATE),
    ServiceError("own disk", code=_C.STORAGE_FAILED),
    RemoteProtocolError("below a floor", code=_C.POLICY_VIOLATION),
    RemoteProtocolError("not invited", code=_C.NOT_INVITED),
    InternalError("a defect here"),
]


def test_a_service_retries_temporary_errors_and_joins_the_next_session():
    asked, given, failed, error = served(*PASSING, 3, *PASSING, 0)
    assert error is None
    assert (len(asked), given) == (2 * len(PASSING) + 2, 2)
    assert failed == PASSING * 2  # a writer of receipts is told of each


@pytest.mark.parametrize("final", FINAL, ids=str)
def test_a_final_error_ends_the_service(final):
    _, given, _, error = served(5, PASSING[0], final)
    assert (given, error) == (1, final)


def test_a_spent_budget_ends_the_service_without_an_error():
    _, given, failed, error = served(1, 0)
    assert (given, failed, error) == (2, [], None)


def test_waits_grow_to_five_minutes_with_full_jitter_and_are_reset():
    asked, *_ = served(PASSING[0], seconds=30 * DAY)
    waits = [after - before for before, after in itertools.pairwise(asked)]
    assert all(
        0 < wait <= min(300, 2.0 ** min(number, 9)) for number, wait in enumerate(waits)
    )
    long = waits[9:]
    assert len(long) > 10_000
    # Uniform up to 300; the seed is fixed.
    assert abs(sum(long) / len(long) - 150) < 5
    asked, *_ = served(*[PASSING[0]] * 12, 9, PASSING[0], FINAL[0])
    assert asked[-1] - asked[-2] <= 1


def test_a_missing_input_is_checked_again_within_ten_seconds():
    asked, *_ = served(PASSING[-1], seconds=3600.0)
    waits = [after - before for before, after in itertools.pairwise(asked)]
    assert max(waits) <= 12.5


def test_one_line_with_the_reason_is_logged_every_ten_minutes(caplog):
    served(PASSING[0], seconds=3600.0)
    lines = [r for r in caplog.records if r.event == "service_backoff"]
    assert 5 <= len(lines) <= 7
    assert lines[0].facts["code"] == "UNREACHABLE"
    assert lines[0].levelname == "WARNING"
    caplog.clear()
    served(*[PASSING[0], PASSING[1]] * 3, FINAL[0])
    lines = [r for r in caplog.records if r.event == "service_backoff"]
    assert len(lines) == 6  # another reason is news


class Impatient(manual_clock.ManualClock):
    """A clock by which every limit has passed when it is asked for."""

    async def sleep_until(self, _):
        return


def certificate(days):
    def make(clock):
        end = dt.datetime.fromtimestamp(clock.date() + days * DAY, dt.UTC)
        files = TLSFiles(*[SimpleNamespace()] * 3)
        return SimpleNamespace(not_valid_after=end, files=files)

    return make


def test_a_service_waits_for_a_renewal_of_its_expired_certificate():
    wrong = ServiceError("it has expired", code=_C.BAD_CERTIFICATE)
    *_, error = served(wrong, wrong, 0, certificate=certificate(-1))
    assert error is None
    *_, error = served(wrong, 0, certificate=certificate(1))
    assert error is wrong


def test_renewal_starts_in_time_and_is_retried_until_it_succeeds(caplog):
    caplog.set_level("INFO")

    async def main(clock):
        present = [certificate(40)(clock)]
        ran = []

        async def run(found):
            ran.append(clock.now())
            if len(ran) == 3:
                present[0] = certificate(90)(clock)
            assert found.not_valid_after
            return 0 if len(ran) == 3 else 9

        began = clock.now()
        renewal = CertificateRenewal(dt.timedelta(days=30), run)
        with pytest.raises(TimeoutError):
            await finish_before(
                clock, began + 60 * DAY, renewal.poll(lambda: present[0], clock)
            )
        return [each - began for each in ran]

    ran = manual_clock.run(main)
    assert len(ran) == 3
    assert 10 * DAY <= ran[0] <= 10 * DAY + 3600
    assert [b - a for a, b in itertools.pairwise(ran)] == [3600, 3600]
    events = [(record.event, record.levelname) for record in caplog.records]
    assert events == [("renewal_failed", "WARNING")] * 2 + [
        ("renewal_completed", "INFO")
    ]


async def test_the_renewal_command_gets_the_paths_and_a_time_limit(tmp_path):
    script = tmp_path / "fetch.py"
    script.write_text(
        "import os, pathlib, sys\n"
        "names = ('CERTIFICATE', 'KEY', 'CA')\n"
        "found = [os.environ['SECAGG_TLS_' + name] for name in names]\n"
        "pathlib.Path(sys.argv[1]).write_text(' '.join(found))\n"
        "sys.exit(7)\n"
    )
    files = TLSFiles(tmp_path / "c.pem", tmp_path / "c.key", tmp_path / "ca.pem")
    present = SimpleNamespace(files=files)
    target = tmp_path / "a;b"
    command = [sys.executable, str(script), str(target)]
    assert await run_command(command, present) == 7
    paths = [str(files.certificate), str(files.private_key), str(files.authority)]
    assert target.read_text().split() == paths
    assert await run_command(["/nowhere/to/be/found"], present) == 127
    hanging = [sys.executable, "-c", "import signal; signal.pause()"]
    assert await run_command(hanging, present, clock=Impatient()) == 124


def test_an_unlimited_wait_for_an_offer_makes_few_calls_and_log_lines():
    """A week without an aggregator: few calls, and a line every ten minutes."""
    told, called = [], []

    async def main(clock):
        async def refuse(*_):
            called.append(clock.now())
            raise ServiceError("no way", code=_C.UNREACHABLE)

        calls = ClientCalls(
            InMemoryConnection(ScriptedService({GetOffer: refuse}), "client"),
            clock,
            entropy(),
            Workers(general=InlineExecutor()),
            watch=False,
            on_unreachable=lambda _: told.append(clock.now()),
            tell_seconds=UNLIMITED_TELL_SECONDS,
        )
        offer = calls.next_offer("t", after_session=0, deadline=float("inf"))
        with pytest.raises(TimeoutError):
            await finish_before(clock, clock.now() + 7 * DAY, offer)
        return calls

    manual_clock.run(main)
    gaps = [after - before for before, after in itertools.pairwise(told)]
    assert min(gaps) >= 600
    assert max(gaps) <= 900
    assert 7 * DAY / PATIENT_LONGEST_SECONDS <= len(called) <= 7 * DAY / 100


def test_within_a_session_waits_stay_short():
    short = Backoff(entropy())
    assert max(short.next_wait() for _ in range(50)) <= 12.5
