"""The server side of an app: login, a way to the issuer, push, and two tasks.

The issuer is another program with its own key file, `secagg pki enrol sign`. This one
never sees that key: it passes on requests of users who have logged in.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import secagg
from secagg import advanced

Message = MutableMapping[str, Any]

TRUST_DOMAIN = "secagg.local"
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
"""What every phone's owner accepts."""


async def run(*command: str | Path) -> str:
    """Run a program to its end; return what it printed."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complaints = await process.communicate()
    if process.returncode != 0:
        raise PermissionError(complaints.decode())
    return printed.decode()


class Push:
    """Messages without content, one for each device that has none unread.

    It stands for a push provider, which learns that something is new and not what.
    """

    def __init__(self) -> None:
        self._unread: dict[str, asyncio.Event] = {}
        self._seen: tuple[str, int, advanced.Round] | None = None

    def device(self, name: str) -> asyncio.Event:
        """Return what wakes a device."""
        return self._unread.setdefault(name, asyncio.Event())

    def note(self, progress: advanced.SessionProgress) -> None:
        """Wake all devices whenever a round has opened; it is the server's listener.

        All of them, and not the roster alone: the provider shall not learn who is in.
        """
        now = (progress.task_id, progress.session_number, progress.round)
        if now != self._seen:
            self._seen = now
            for event in self._unread.values():
                event.set()


class Application:
    """The app's own web server: a bare ASGI function.

    Args:
        issuer: Directory of the issuer.
        secagg_command: The program that has its key.
        logins: Name of each user by the token of its login.
    """

    def __init__(
        self, issuer: Path, secagg_command: Path, logins: dict[str, str]
    ) -> None:
        self._issuer = issuer
        self._command = secagg_command
        self._logins = logins
        self._one_at_a_time = asyncio.Lock()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer POST /enrol: a credential for the name that has logged in."""
        if scope["type"] != "http":
            return
        token = dict(scope["headers"]).get(b"login-token", b"").decode("latin1")
        name, body, more = self._logins.get(token), b"", True
        while more and len(body) < 4096:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        status, answer = 403, b""
        if name is not None and scope["path"] == "/enrol":
            answer = await self._issue(name, body)
            status = 200 if answer else 403
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})

    async def _issue(self, name: str, request: bytes) -> bytes:
        """Have the issuer sign a request, if it is for the name that has logged in."""
        path = self._issuer.parent / f"{name}.request.bin"
        credential = path.with_suffix(".credential")
        async with self._one_at_a_time:
            await asyncio.to_thread(path.write_bytes, request)
            try:
                await run(
                    self._command,
                    *("pki", "enrol", "sign", self._issuer, path),
                    *("--name", name, "--output", credential),
                )
            except PermissionError:
                return b""
            return await asyncio.to_thread(credential.read_bytes)


def cohort_of(
    devices: int,
    enrolment: advanced.PublishedEnrolment,
    *,
    round_seconds: float,
) -> secagg.Cohort:
    """Return a cohort whose sum holds all but one of so many devices, at least."""
    profile = secagg.Profile.MALICIOUS_SERVER
    rounds = "advertise_keys", "share_keys", "masked_input", "consistency", "unmasking"
    return secagg.Cohort(
        profile=profile,
        enrolment=enrolment,
        min_clients=devices,
        max_clients=devices,
        min_survivors=devices - 1,
        threshold=devices - 1,
        deadlines=advanced.RoundDeadlines.of(
            profile, **dict.fromkeys(rounds, max(2, round(round_seconds)))
        ),
    )


def exact_task(cohort: secagg.Cohort, dimension: int) -> secagg.PreparedTask:
    """Return a task that releases the sum itself."""
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    return secagg.PreparedTask.exact(waiver, cohort, dimension=dimension)


def noised_task(cohort: secagg.Cohort, dimension: int) -> secagg.PreparedTask:
    """Return a task with noise that every phone can check, in either language."""
    noise = secagg.plan(
        clients=cohort.max_clients,
        min_survivors=cohort.min_survivors,
        dimension=dimension,
        l2_clip=1.0,
        epsilon=LIMITS.max_epsilon,
        delta=LIMITS.max_delta,
        colluder_fraction=0.1,  # some users may help a malicious server
        accountant="mixture-simple",  # whose epsilon clients in other languages compute
    )
    return secagg.PreparedTask.from_plan(noise, cohort)
