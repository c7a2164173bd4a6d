"""A backend and its phones, all on this machine: two sums over devices that sleep.

    python examples/mobile_backend/mobile_sum.py [--day SECONDS] [--phones N]

A day is compressed to some seconds. The first sum has rounds of two days, for phones
that look once a day, and earlier when a push says that something is new. The second
one has noise and short rounds, for phones whose app is open.
"""

import argparse
import asyncio
import json
import shutil
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvicorn

import secagg
from secagg import advanced

sys.path.insert(0, str(Path(__file__).parent))
from backend import (
    TRUST_DOMAIN,
    Application,
    Push,
    cohort_of,
    exact_task,
    noised_task,
    run,
)
from phone import Ending, NodePhone, Phone, PythonPhone, Task

CLIENT = Path(__file__).parents[2] / "clients" / "typescript" / "dist" / "node.js"
DIMENSION = 64
SHORT_ROUND_SECONDS = 60.0
FAULTS = {
    "ada": {},
    "bob": {"ShareKeys": "killed", "RevealShares": "killed"},
    "cyd": {"UploadChunk": "network", "SignConsistency": "network"},
    "dan": {"AdvertiseKeys": "killed", "UploadChunk": "killed"},
    "eve": {"GetUpdate": "network", "RevealShares": "killed"},
    "fay": {"GetUploadStatus": "stolen"},
}
IN_TYPESCRIPT = "cyd", "dan", "eve"
STOLEN, SLOW, CAREFUL = "fay", "eve", "gus"
Value = TypeVar("Value")


@dataclass(frozen=True)
class Deployment:
    """The parts that do not sleep.

    Attributes:
        home: Directory of all that is stored.
        command: The program `secagg`.
        key: Public key of the issuer, 32 bytes.
        port: Of the HTTP edge.
        push: Wakes phones.
        day: Seconds of a day.
    """

    home: Path
    command: Path
    key: bytes
    port: int
    push: Push
    day: float

    @classmethod
    async def make(cls, home: Path, day: float) -> "Deployment":
        """Make certificates and an issuer."""
        found = shutil.which("secagg", path=str(Path(sys.executable).parent))
        command = Path(found or "secagg")
        await run(command, "pki", "init", home / "pki", "--clients", "1")
        listed = await run(command, "pki", "enrol", "list", home / "pki" / "issuer")
        key = bytes.fromhex(listed.split("ed25519:")[-1][:64])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return cls(home, command, key, port, Push(), day)

    @property
    def issuer(self) -> Path:
        """The issuer's directory, which the aggregator has no need to read."""
        return self.home / "pki" / "issuer"

    def edge(self, revocations: Path | None) -> advanced.EdgeOptions:
        """Return the door that phones use."""
        # A deployment has a certificate of a public authority here, for its host name.
        return advanced.EdgeOptions(
            listen=f"127.0.0.1:{self.port}",
            authority=f"localhost:{self.port}",
            certificate=self.home / "pki" / "server.pem",
            private_key=self.home / "pki" / "server.key",
            trust_domain=TRUST_DOMAIN,
            enrolment_key=self.key,
            revocations=revocations,
        )

    def aggregator(self, revocations: Path | None = None) -> secagg.Server:
        """Return the aggregator, as one process would start it."""
        pki = self.home / "pki"
        return secagg.Server(
            "127.0.0.1:0",
            identity=secagg.TLSIdentity.load(
                certificate=pki / "server.pem",
                private_key=pki / "server.key",
                authority=pki / "ca.pem",
                role=advanced.Role.SERVER,
            ),
            state_dir=self.home / "server",
            rollback_mark=self.home / "server.mark",
            keep_seconds=self.day,
            edge=self.edge(revocations),
            on_progress=self.push.note,
        )

    async def revoke(self, name: str) -> Path:
        """Have the issuer revoke a user's key; return the list that it publishes."""
        listed = await run(self.command, "pki", "enrol", "list", self.issuer, "--json")
        serial = next(
            row["serial"]
            for row in json.loads(listed.splitlines()[-1])["credentials"]
            if row["name"] == name
        )
        await run(self.command, "pki", "enrol", "revoke", self.issuer, str(serial))
        return self.issuer / "revocations.bin"

    def phone(self, name: str, node: Path | None) -> Phone:
        """Return a device of a user."""
        kind: Callable[..., Phone] = PythonPhone
        more: dict[str, Any] = {}
        if node is not None and name in IN_TYPESCRIPT:
            kind, more = NodePhone, {"node": node}
            if name == SLOW:
                more["slow_seconds"] = 300.0
        if name == CAREFUL:
            more["max_epsilon"] = 1.0
        return kind(
            name=name,
            directory=self.home / name,
            enrolment_key=f"ed25519:{self.key.hex()}",
            authority=f"localhost:{self.port}",
            authorities=self.home / "pki" / "ca.pem",
            woken=self.push.device(name),
            day=self.day,
            faults=dict(FAULTS.get(name, {})),
            **more,
        )

    @asynccontextmanager
    async def application(self, names: Iterable[str]) -> AsyncIterator[str]:
        """Serve the app's own web server; give its address."""
        logins = {f"token of {name}": name for name in names}
        app = Application(self.issuer, self.command, logins)
        web = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        serving = asyncio.create_task(web.serve())
        while not web.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        port = web.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
        web.should_exit = True
        await serving

    async def enrol(self, phone: Phone, application: str) -> None:
        """Make a key on a phone, and have the app's server get its credential."""
        token = f"token of {phone.name}"
        if isinstance(phone, NodePhone):
            await phone.enrol(application, token)
            return
        await run(
            *(self.command, "pki", "identity", "new", phone.directory),
            *("--name", phone.name, "--trust-domain", TRUST_DOMAIN),
        )
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{application}/enrol",
            data=(phone.directory / "request.bin").read_bytes(),
            headers={"login-token": token},
        )

        def ask() -> bytes:
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                return bytes(answer.read())

        credential = await asyncio.to_thread(ask)
        (phone.directory / "credential.bin").write_bytes(credential)


async def two_day_rounds(
    deployment: Deployment, phones: dict[str, Phone]
) -> tuple[secagg.ReleasedSum, dict[str, Ending]]:
    """Release an exact sum of phones that look once a day; one of them is stolen."""
    vectors = {name: [float(i) for i in range(DIMENSION)] for name in phones}
    task = Task("steps", vectors, has_noise=False, stays_awake=False)
    cohort = cohort_of(
        len(phones),
        deployment.edge(None).published(),
        round_seconds=2 * deployment.day,
    )
    prepared = exact_task(cohort, DIMENSION)
    stolen = phones[STOLEN]
    async with deployment.aggregator() as server:
        await server.add_task(task.name, prepared)
        living = {
            name: asyncio.create_task(phone.take_part(task))
            for name, phone in phones.items()
        }
        await unless_all_end(stolen.stolen.wait(), living)
        revocations = await deployment.revoke(STOLEN)
    # A running aggregator reads the list once a minute. This one is restarted instead,
    # in the middle of the session: a minute is many compressed days.
    async with deployment.aggregator(revocations) as server:
        running = await server.add_task(task.name, prepared)
        stolen.found.set()
        total = await unless_all_end(running.next_sum(), living)
        if total is None:
            raise SystemExit("the task has ended without a sum")
        running.take()
        endings = {name: await living[name] for name in phones}
    return total, endings


async def short_rounds(
    deployment: Deployment, phones: dict[str, Phone]
) -> tuple[secagg.ReleasedSum, dict[str, Ending], float]:
    """Release a sum with noise of phones that are awake; one of them declines it.

    Returns:
        The sum, what became of each phone, and the root mean square error.
    """
    given = {
        name: np.full(DIMENSION, (1 + number) / (8 * len(phones)))  # of norm 1 at most
        for number, name in enumerate(phones)
    }
    vectors = {name: vector.tolist() for name, vector in given.items()}
    task = Task("minutes", vectors, has_noise=True, stays_awake=True)
    careful = phones[CAREFUL]
    others = {name: phone for name, phone in phones.items() if name != CAREFUL}
    revocations = deployment.issuer / "revocations.bin"
    cohort = cohort_of(
        len(others),
        deployment.edge(revocations).published(),
        round_seconds=SHORT_ROUND_SECONDS,
    )
    async with deployment.aggregator(revocations) as server:
        running = await server.add_task(task.name, noised_task(cohort, DIMENSION))
        endings = {CAREFUL: await careful.take_part(task)}
        living = {
            name: asyncio.create_task(phone.take_part(task))
            for name, phone in others.items()
        }
        total = await unless_all_end(running.next_sum(), living)
        if total is None:
            raise SystemExit("the task has ended without a sum")
        running.take()
        endings |= {name: await living[name] for name in others}
    exact = sum(given[name] for name in others)
    return total, endings, float(np.sqrt(np.mean((total.values - exact) ** 2)))


async def unless_all_end(
    what: Coroutine[Any, Any, Value], living: dict[str, asyncio.Task[Ending]]
) -> Value:
    """Wait for something, and end the program if all phones end without a sum."""
    waiting = asyncio.create_task(what)
    ended = asyncio.create_task(asyncio.wait(living.values()))
    await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if ended.done() and not any(each.result().inputs for each in living.values()):
        waiting.cancel()
        codes = {name: each.result().refusal for name, each in living.items()}
        raise SystemExit(f"no sum: {codes}; give phones longer days (--day)")
    ended.cancel()
    return await waiting


def show(phones: dict[str, Phone], endings: dict[str, Ending]) -> None:
    """Print what became of each phone."""
    for name, ending in endings.items():
        language = "TypeScript" if isinstance(phones[name], NodePhone) else "Python"
        came = ending.refusal or f"sum of {ending.inputs}"
        print(f"  {name} ({language}): {phones[name].visits} visits, {came}")


def check(total: secagg.ReleasedSum, endings: dict[str, Ending]) -> None:
    """End the program if a phone has read another sum than was released."""
    for name, ending in endings.items():
        if ending.inputs and not np.allclose(ending.values, total.values, atol=1e-9):
            raise SystemExit(f"{name} has read another sum")


async def main(home: Path, day: float, node: Path | None, count: int) -> None:
    """Run both sums, with so many phones."""
    deployment = await Deployment.make(home, day)
    others = (f"phone-{n}" for n in range(len(FAULTS) + 2, count + 1))
    names = *FAULTS, CAREFUL, *others
    phones = {name: deployment.phone(name, node) for name in names}
    async with deployment.application(names) as address:
        for phone in phones.values():
            await deployment.enrol(phone, address)

    print("rounds of two days:")
    total, endings = await two_day_rounds(deployment, phones)
    check(total, endings)
    show(phones, endings)
    first = ", ".join(f"{value:g}" for value in total.values[:4])
    print(f"sum of {total.inputs} vectors: [{first}, ...]")

    print("short rounds, with noise:")
    del phones[STOLEN]
    for phone in phones.values():
        phone.visits = 0
    total, endings, error = await short_rounds(deployment, phones)
    check(total, endings)
    show(phones, endings)
    print(
        f"sum of {total.inputs} vectors: error of a number {error:.3f}, "
        f"announced {total.standard_error:.3f}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", type=float, default=6.0, help="seconds of a day")
    parser.add_argument(
        "--phones", type=int, default=7, help="7 or more; those beyond meet no fault"
    )
    parser.add_argument("--python-only", action="store_true", help="no TypeScript")
    chosen = parser.parse_args()
    found = None if chosen.python_only else shutil.which("node")
    if found is None or not CLIENT.exists():
        found = None
        print("all phones are Python: clients/typescript is not built, or not wanted")
    with tempfile.TemporaryDirectory() as made_here:
        asyncio.run(
            main(
                Path(made_here),
                chosen.day,
                None if found is None else Path(found),
                chosen.phones,
            )
        )
