"""A client that runs for months: session after session, through everything that passes.

Rule 1: it ends when a person has to act, when the task is over, or when its budget
        covers no further session; never because no aggregator is reachable, a session
        gave no sum, or an input is not there yet.
Rule 2: whatever it waits for is said at once and then every ten minutes, with the
        reason and the next step.
Rule 3: waits grow from a second to five minutes, with full jitter.  Where its owner
        makes inputs as sessions come, it looks again within ten seconds: a session
        waits no longer.
Rule 4: nothing here gives back a session of the privacy budget, and no vector is made
        that was not asked for.

Source:
    docs/errors.md says the same to people: what is final there ends a service.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from secagg.client.client import Client, VectorMaker
from secagg.client.contribution import Contribution
from secagg.client.gate import SessionInfo
from secagg.client.retry_policy import Backoff, ErrorStage, NextAction, after_error
from secagg.crypto.entropy import Entropy, SystemEntropy
from secagg.errors import ErrorCode, InputError, SecAggError
from secagg.runtime import log_events as telemetry
from secagg.runtime.clock import Clock, SystemClock, finish_before
from secagg.transport.tls import TLSIdentity

_LOG: Final = logging.getLogger(telemetry.CLIENT_LOGGER)

SAY_EVERY_SECONDS: Final = 600.0
_RENEW_EVERY_SECONDS: Final = 3600.0
# A command that fetches a certificate and hangs must not be the last one.
_COMMAND_SECONDS: Final = 600.0


@dataclass(slots=True)
class CertificateRenewal:
    """Has a new certificate fetched before the present one ends.

    Attributes:
        before: How long before its end.
        run: Fetches it; returns an exit code.  The files are noticed by themselves.
    """

    before: timedelta
    run: Callable[[TLSIdentity], Awaitable[int]]

    async def poll(
        self, certificate: Callable[[], TLSIdentity | None], clock: Clock
    ) -> None:
        """Look once an hour, for ever.

        Args:
            certificate: Returns what is presented now.
            clock: Time.
        """
        while True:
            present = certificate()
            now = datetime.fromtimestamp(clock.date(), UTC)
            if present is not None and present.not_valid_after - now < self.before:
                code = await self.run(present)
                telemetry.log_event(
                    _LOG,
                    logging.WARNING if code else logging.INFO,
                    telemetry.RENEWAL_FAILED if code else telemetry.RENEWAL_COMPLETED,
                    exit_code=code,
                    not_valid_after=present.not_valid_after.isoformat(),
                )
            await clock.sleep_until(clock.now() + _RENEW_EVERY_SECONDS)


async def run_command(
    command: Sequence[str], present: TLSIdentity, *, clock: Clock | None = None
) -> int:
    """Run a command that puts renewed files in the place of the present ones.

    It finds the paths in its environment, as
    ``SECAGG_TLS_CERTIFICATE``, ``SECAGG_TLS_KEY`` and ``SECAGG_TLS_CA``.

    Args:
        command: Program and arguments.
        present: What is to be renewed.
        clock: Limits its time.

    Returns:
        Its exit code; 127 when it cannot be started, 124 when it took too long.
    """
    clock, files = clock or SystemClock(), present.files
    environment: Mapping[str, str] = {
        **os.environ,
        "SECAGG_TLS_CERTIFICATE": str(files.certificate),
        "SECAGG_TLS_KEY": str(files.private_key),
        "SECAGG_TLS_CA": str(files.authority),
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,  # ours is for results
            env=environment,
        )
    except OSError:
        return 127
    try:
        limit = clock.now() + _COMMAND_SECONDS
        return await finish_before(clock, limit, process.wait())
    except TimeoutError:
        return 124
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(slots=True)
class ClientService:
    """Gives a vector to every session of a task.

    Attributes:
        client: Open, and without a limit of its waits.
        make: Makes the vector of a session.
        accept: Refuses a session that there is no vector for.
        on_done: Told of every sum; must not block for long.
        on_failed: Told of every attempt that gave none, with its reason.
        clock: Time.
        entropy: Source of jitter.
    """

    client: Client
    make: VectorMaker
    accept: Callable[[SessionInfo], None]
    on_done: Callable[[Contribution], None]
    on_failed: Callable[[SecAggError], Awaitable[None]]
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    _last_logged: tuple[str, float] = field(default=("", float("-inf")), init=False)

    async def run(self) -> None:
        """Contribute until the task is over, or its budget covers nothing more.

        Raises:
            SecAggError: A person has to act.
        """
        long_waits = self._backoff(is_patient=True)
        short_waits = self._backoff(is_patient=False)
        while True:
            try:
                given = await self.client.contribute(self.make, accept=self.accept)
            except SecAggError as error:
                await self.on_failed(error)
                if not self._passes(error):
                    raise
                self._log_wait(error)
                waits = short_waits if isinstance(error, InputError) else long_waits
                seconds = waits.next_wait()
                await self.clock.sleep_until(self.clock.now() + seconds)
            else:
                long_waits, short_waits = (
                    self._backoff(is_patient=True),
                    self._backoff(is_patient=False),
                )
                self.on_done(given)
                if given.sessions_left == 0:
                    return

    def _backoff(self, *, is_patient: bool) -> Backoff:
        return Backoff(self.entropy, is_patient=is_patient)

    def _passes(self, error: SecAggError) -> bool:
        """Return whether time alone may help."""
        if isinstance(error, InputError):
            return True
        if error.code is ErrorCode.BAD_CERTIFICATE:
            # An own one that has ended: its owner is about to put a new one there.
            own, today = self.client.certificate, self.clock.date()
            return own is not None and own.not_valid_after.timestamp() <= today
        # Attempts are used up; another session, or the same one, is another chance.  A
        # task that is not known here may be added.
        return after_error(error, ErrorStage.JOINED) is not NextAction.FINAL

    def _log_wait(self, error: SecAggError) -> None:
        """Log why the service waits, once for each reason in a while."""
        reason, now = str(error), self.clock.now()
        before, when = self._last_logged
        if reason == before and now < when + SAY_EVERY_SECONDS:
            return
        self._last_logged = (reason, now)
        telemetry.log_event(
            _LOG,
            logging.WARNING,
            telemetry.SERVICE_BACKOFF,
            code=error.code.name,
            reason=reason,
            next_step=error.at_command or error.next_step,
        )
