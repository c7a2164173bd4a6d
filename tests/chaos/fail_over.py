"""A database that restarts, and one that fails over, under aggregators that must live.

    python tests/chaos/fail_over.py --servers 2 --away 20 --sums 6

A real PostgreSQL with a real standby (streaming, synchronous; Debian's `postgresql`),
behind one address.  First the primary is killed and started again; then it is killed
for good and the standby promoted, in its place.  Both times no call to the
address is answered for `--away` seconds.

What must hold, beside what `run.py` demands of every run: no aggregator has ended; each
has said that it is not ready while the database was away; sessions continue after the
restart, and those that were open at the fail-over ended as sessions of a state that was
restored.
"""

import argparse
import asyncio
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from run import Balancer, Chaos, free_port
from secagg_testing.world.dice import Dice

# Looks of an aggregator at its own health are five seconds apart.
READY_SECONDS = 60.0


class Database:
    """Two PostgreSQL servers, of which one serves."""

    def __init__(self, home: Path) -> None:
        tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        if not tools:
            raise SystemExit("there is no PostgreSQL: apt-get install postgresql")
        self.tools, self.home = tools[-1], home
        # It does not run as root.
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user is not None:
            account = pwd.getpwnam(self.user)
            os.chown(home, account.pw_uid, account.pw_gid)
        self.ports = {"primary": free_port(), "standby": free_port()}

    def tool(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [str(self.tools / name), *words],
            user=self.user,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} {' '.join(words)}: {done.stderr}")

    def control(self, which: str, *words: str) -> None:
        data = str(self.home / which)
        self.tool("pg_ctl", "-s", "-w", "-D", data, "-l", f"{data}.log", *words)

    def begin(self) -> None:
        primary = self.home / "primary"
        self.tool("initdb", "-D", str(primary), "-U", "secagg", "-A", "trust", "-k")
        with (primary / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(
                f"port = {self.ports['primary']}\n"
                f"unix_socket_directories = '{self.home}'\n"
                "wal_level = replica\nmax_connections = 40\n"
            )
        self.control("primary", "start")
        address = f"host=127.0.0.1 port={self.ports['primary']} user=secagg"
        self.tool(
            "psql", "-d", f"{address} dbname=postgres", "-c", "CREATE DATABASE secagg"
        )
        standby = self.home / "standby"
        self.tool(
            *("pg_basebackup", "-D", str(standby), "-R", "-X", "stream", "-c", "fast"),
            *("-d", f"{address} application_name=standby"),
        )
        with (standby / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(f"port = {self.ports['standby']}\n")
        self.control("standby", "start")
        with (primary / "postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write("synchronous_standby_names = 'standby'\n")
        self.control("primary", "reload")

    def kill(self) -> None:
        self.control("primary", "-m", "immediate", "stop")

    def start_again(self) -> None:
        self.control("primary", "start")

    def promote(self) -> None:
        self.control("standby", "promote")

    def end(self) -> None:
        for which in ("primary", "standby"):
            data = str(self.home / which)
            subprocess.run(
                [
                    str(self.tools / "pg_ctl"),
                    "-s",
                    "-D",
                    data,
                    "-m",
                    "immediate",
                    "stop",
                ],
                user=self.user,
                cwd=self.home,
                check=False,
                stderr=subprocess.DEVNULL,
            )


class FailOver(Chaos):
    """One run."""

    def __init__(
        self, asked: argparse.Namespace, directory: Path, database: Database
    ) -> None:
        super().__init__(asked, directory)
        self.database = database
        self.address = Balancer(
            Dice(asked.seed, "address"), [database.ports["primary"]]
        )
        self.probes = {name: free_port() for name in self.servers}
        # Numbers of sessions that were open when the primary was lost.
        self.lost: set[int] = set()

    async def write_files(self) -> None:
        port = await self.address.listen("database")
        self.store = f"postgresql://secagg@127.0.0.1:{port}/secagg"
        await super().write_files()
        for name, party in self.parties.items():
            if name not in self.servers:
                continue
            path = self.directory / f"{name}.toml"
            text = path.read_text(encoding="utf-8")
            if len(self.servers) == 1:  # it has the store to itself
                text = "".join(
                    line
                    for line in text.splitlines(keepends=True)
                    if not line.startswith("blobs =")
                )
            probe = f'metrics_listen = "127.0.0.1:{self.probes[name]}"\n'
            path.write_text(text.replace("[tls]", probe + "[tls]"), encoding="utf-8")
            party.words = ["server", "--config", f"{name}.toml"]

    async def store_of(self, _: str) -> str:
        return self.store

    async def storm(self) -> None:
        database, away = self.database, self.asked.away
        third = max(1, self.asked.sums // 3)
        await self.sums(third)
        await self.stop(database.kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(database.start_again)
        await self.start_again("the restart")
        await self.sums(2 * third)
        await self.until_open()
        await self.stop(database.kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(database.promote)
        # Before any other party has its address.
        query = "SELECT number FROM secagg.session WHERE ended IS NULL"
        told = await self.asked_of_book(query, database.ports["standby"])
        self.lost = set(map(int, told.split()))
        self.address.targets[:] = [database.ports["standby"]]
        await self.start_again("the fail-over")
        await self.sums(self.asked.sums)
        await self.judge_sessions()
        for name in self.servers:
            party = self.parties[name]
            if party.starts != 1 or party.ending is not None:
                self.faults.append(f"{name} has not survived: {party.starts} starts")
            party.signal(signal.SIGTERM)
            await party.process.wait()

    async def stop(self, strike) -> None:
        print(f"{self.clock():5.1f} s: the database goes away", flush=True)
        await asyncio.to_thread(strike)
        self.address.cut("database")
        await self.until_all_are("not ready", "while the database was away")

    async def start_again(self, after: str) -> None:
        print(f"{self.clock():5.1f} s: it is back after {after}", flush=True)
        await self.until_all_are("ready", f"after {after}")
        print(f"{self.clock():5.1f} s: all are ready", flush=True)

    async def until_all_are(self, wanted: str, when: str) -> None:
        for name in self.servers:
            said, give_up = "", time.monotonic() + READY_SECONDS
            while not said.startswith(wanted) and time.monotonic() < give_up:
                await asyncio.sleep(0.3)
                said = await self.readyz(name)
                if said == "not ready: no task runs\n":  # it has all its sums
                    said = "ready"
            if not said.startswith(wanted):
                self.faults.append(f"{name} was not {wanted!r} {when}: {said!r}")

    async def readyz(self, name: str) -> str:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.probes[name]
            )
        except OSError:
            return ""
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        return answer.partition("\r\n\r\n")[2]

    async def until_open(self) -> None:
        """Wait until a session is past its first round: there is something to lose."""
        query = "SELECT count(*) FROM secagg.session WHERE ended IS NULL AND round > 0"
        give_up = time.monotonic() + READY_SECONDS
        while await self.asked_of_book(query, self.address.targets[0]) == "0":
            if time.monotonic() > give_up:
                self.faults.append("no session ever passed its first round")
                return

    async def asked_of_book(self, query: str, port: int) -> str:
        process = await asyncio.create_subprocess_exec(
            *("psql", "-Atq", "-c", query),
            *("-d", f"host=127.0.0.1 port={port} user=secagg dbname=secagg"),
            stdout=asyncio.subprocess.PIPE,
        )
        return (await process.communicate())[0].decode().strip()

    async def sums(self, number: int) -> None:
        give_up = time.monotonic() + 180
        while len(self.released()) < number:
            if time.monotonic() > give_up:
                self.faults.append(f"there never were {number} sums")
                return
            await asyncio.sleep(0.2)
        print(f"{self.clock():5.1f} s: {number} sums", flush=True)

    def released(self) -> set[str]:
        """Return which sessions gave a sum: a new writer repeats some."""
        return {path.name for path in self.directory.glob("*-sums/report-*.json")}

    async def judge_sessions(self) -> None:
        reports = self.directory.glob("*-state/reports/**/*.json")
        outcomes = {}
        for path in reports:
            report = json.loads(path.read_text(encoding="utf-8"))
            outcomes[report["session_number"]] = report["outcome"]
        print(f"outcomes: {dict(sorted(outcomes.items()))}", flush=True)
        ended = {number for number, how in outcomes.items() if how != "released"}
        # One whose sum was stored already is given all the same.
        if not ended or not ended <= self.lost:
            self.faults.append(
                f"open at the fail-over: {self.lost}; ended without a sum: {ended}"
            )

    def clock(self) -> float:
        return time.monotonic() - self.began

    began = time.monotonic()


@contextmanager
def database_in(home: Path):
    """Two servers of this run's own."""
    database = Database(home)
    try:
        database.begin()
        yield database
    finally:
        database.end()
        shutil.rmtree(home)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/chaos/fail_over.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--servers", type=int, default=1, help="that share the book")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--sums", type=int, default=6, help="that are wanted")
    parser.add_argument("--away", type=float, default=20.0, help="seconds, both times")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory for all files")
    asked = parser.parse_args()
    # The process group is ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="secagg-fail-over-"))
    directory.mkdir(parents=True, exist_ok=True)
    with database_in(Path(tempfile.mkdtemp(prefix="secagg-pg-"))) as database:
        chaos = FailOver(asked, directory, database)
        asyncio.run(chaos.run())
    for fault in chaos.faults:
        print(f"FAULT: {fault}")
    print(f"files: {directory}" if chaos.faults else "all is well")
    return bool(chaos.faults)


if __name__ == "__main__":
    sys.exit(main())
