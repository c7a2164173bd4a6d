"""One aggregator at work for twenty minutes: what grows, although nothing should.

    python tests/chaos/soak.py --minutes 20 --every 5

`secagg server` behind its relay, two tasks that open a session every few seconds, one
of them with noise, and three `secagg client --service` for each, over TLS, with their
files; a scrape of the metrics and a connection of an unknown peer, once a second.

What must hold, from minute five to the end (of a run of less than 25 minutes: when a
fifth of it is over, but not within the first minute, in which everything happens for
the first time): the aggregator's resident memory grows by less than 5 MiB, its state by
less than 8 KiB for each sum, which is a receipt and a report, kept by their number and
forgotten once an hour; open files, threads, uploads and series of the scrape stay as
many, within 20; nine of ten slots of each task have their sum.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from run import ENVIRONMENT, free_port
from secagg_testing.programs import Programs

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT

SETTLED_SECONDS = 300.0
# A series is there from the first time that something happens under its name.
WARM_UP_SECONDS = 60.0
LEAST_MINUTES = 2.0
MOST_RSS_GROWTH = 5 << 20
MOST_STATE_PER_SUM = 8 << 10
# Of files, threads and series: a session that is open just then has some of its own,
# and a name may be said for the first time late.
MOST_MORE = 20
CLIENTS = 3

SERVER = """\
[server]
listen = "127.0.0.1:{port}"
state_dir = "state"
rollback_mark = "marks/server"
output_dir = "sums"
metrics_listen = "127.0.0.1:{metrics}"
keep_seconds = 10
[admission]
relay = "on"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
"""

TASK = """
[task]
id = "{task}"
steps = {sessions}
schedule = "every {every}s"
[vector]
dimension = 1000
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
{noise}
"""

NOISES = {
    "exact": f'none = "{NO_NOISE_ACKNOWLEDGEMENT}"',
    "noisy": "epsilon = 50.0\ndelta = 1e-6\nl2_clip = 1.0",
}

CLIENT = """\
[client]
server = "127.0.0.1:{port}"
task = "{task}"
state_dir = "{name}-state"
rollback_mark = "marks/{name}"
sessions = {sessions}
[tls]
ca = "pki/ca.pem"
certificate = "pki/{name}.pem"
key = "pki/{name}.key"
[policy]
require_noise = false
max_epsilon = 50.0
max_delta = 1e-6
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the aggregator had at one moment; `sums` are those released so far."""

    seconds: float
    rss_bytes: int
    files: int
    threads: int
    state_bytes: int
    spooled: int
    series: int
    sums: int
    cpu_seconds: float


class Soak:
    """One run."""

    def __init__(self, asked: argparse.Namespace, directory: Path) -> None:
        self.asked, self.directory = asked, directory
        self.port, self.metrics = free_port(), free_port()
        self.programs = Programs(directory, ENVIRONMENT)
        self.processes: dict[str, subprocess.Popen] = {}
        self.looks: list[Observation] = []
        self.pause = threading.Event()
        self.faults: list[str] = []

    def run(self) -> None:
        self.write_files()
        try:
            self.start("server", "server", "--config", "server.toml")
            began = self.until_ready()
            for name, task in self.clients():
                self.start(
                    name,
                    *("client", "--config", f"{name}.toml", "--service"),
                    *("--input", f"{task}.npy", "--same-input-again"),
                )
            seconds = 0.0
            while seconds < 60 * self.asked.minutes:
                self.pause.wait(1.0)
                self.knock()
                seconds = time.monotonic() - began
                self.looks.append(self.sample(seconds))
                self.faults += [
                    f"{name} has ended with {process.returncode}"
                    for name, process in self.processes.items()
                    if process.poll() is not None
                ]
                if self.faults:
                    break
        finally:
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            for process in self.processes.values():
                process.wait()
        self.judge()

    def clients(self) -> list[tuple[str, str]]:
        return [(f"{task}-{n}", task) for task in NOISES for n in range(CLIENTS)]

    def write_files(self) -> None:
        authority = CertificateAuthority.create()
        pki = self.directory / "pki"
        authority.issued().write(pki, "ca")
        authority.issue_server("aggregator", ["127.0.0.1"]).write(pki, "server")
        self.write("server.toml", SERVER.format(port=self.port, metrics=self.metrics))
        # More than there will be: none ends, and the noise is planned for all.
        sessions = 100 + int(2 * 60 * self.asked.minutes / self.asked.every)
        first, *others = [
            TASK.format(task=task, sessions=sessions, every=self.asked.every, noise=it)
            for task, it in NOISES.items()
        ]
        path = self.directory / "server.toml"
        folder = 'tasks_dir = "tasks.d"\n[admission]'
        text = path.read_text(encoding="utf-8").replace("[admission]", folder)
        path.write_text(text + first, encoding="utf-8")
        (self.directory / "tasks.d").mkdir()
        for number, other in enumerate(others):
            self.write(f"tasks.d/{number}.toml", other)
        np.save(self.directory / "exact.npy", np.arange(1000))
        np.save(self.directory / "noisy.npy", np.full(1000, 0.01))
        for name, task in self.clients():
            authority.issue_client(name).write(pki, name)
            self.write(
                f"{name}.toml",
                CLIENT.format(port=self.port, task=task, name=name, sessions=sessions),
            )

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def start(self, name: str, *words: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = self.programs.start(*words, stdout=log, stderr=log)

    def until_ready(self) -> float:
        while self.processes["server"].poll() is None:
            with contextlib.suppress(OSError):
                self.scrape()
                return time.monotonic()
            self.pause.wait(0.2)
        raise SystemExit(f"no server: see {self.directory}/server.log")

    def scrape(self) -> str:
        place = f"http://127.0.0.1:{self.metrics}/metrics"
        with urllib.request.urlopen(place, timeout=30) as answer:
            return answer.read().decode()

    def knock(self) -> None:
        with contextlib.suppress(OSError), socket.socket() as stranger:
            stranger.connect(("127.0.0.1", self.port))
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")

    def sample(self, seconds: float) -> Observation:
        process = Path(f"/proc/{self.processes['server'].pid}")
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        state = self.directory / "state"
        lines = [
            line for line in self.scrape().splitlines() if not line.startswith("#")
        ]
        return Observation(
            seconds=seconds,
            rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
            files=len(list((process / "fd").iterdir())),
            threads=int(fields[17]),
            state_bytes=sum(sizes_below(state)),
            spooled=len(sizes_below(state / "spool")),
            series=len(lines),
            sums=int(
                sum(
                    float(line.rpartition(" ")[2])
                    for line in lines
                    if re.match(r'secagg_sessions_total\{outcome="released"', line)
                )
            ),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        )

    def judge(self) -> None:
        if self.faults:
            return  # it has ended before there was enough to check
        end = self.looks[-1].seconds
        settled = min(SETTLED_SECONDS, max(WARM_UP_SECONDS, end / 5))
        width = min(60.0, (end - settled) / 4)
        first = [x for x in self.looks if settled <= x.seconds < settled + width]
        last = [x for x in self.looks if x.seconds >= end - width]
        report = {
            "minutes": end / 60,
            "judged_from_minute": settled / 60,
            "load": os.getloadavg(),
            "last": asdict(last[-1]),
        }

        def middles(what: str) -> list[float]:
            return [
                statistics.median(getattr(each, what) for each in looks)
                for looks in (first, last)
            ]

        before, after = middles("sums")
        for what, most in (
            ("rss_bytes", MOST_RSS_GROWTH),
            ("state_bytes", (after - before) * MOST_STATE_PER_SUM),
            ("files", MOST_MORE),
            ("threads", MOST_MORE),
            ("series", MOST_MORE),
            ("spooled", MOST_MORE),
        ):
            report[what] = before, after = middles(what)
            if after - before >= most:
                self.faults.append(f"{what} has grown from {before} to {after}")
        slots = len(NOISES) * int(end / self.asked.every - 2)
        if self.looks[-1].sums < 0.9 * slots:
            self.faults.append(f"{self.looks[-1].sums} sums in {slots} slots")
        spent = last[-1].cpu_seconds - first[0].cpu_seconds
        report["cpu_of_one_core"] = spent / (last[-1].seconds - first[0].seconds)
        print(json.dumps(report))


def sizes_below(directory: Path) -> list[int]:
    """Return the sizes of all files, of which some may go meanwhile."""
    sizes = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                sizes.append((Path(folder) / name).stat().st_size)
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/chaos/soak.py", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=int, default=5, help="seconds of a slot")
    parser.add_argument("--keep", type=Path, help="directory for all files")
    asked = parser.parse_args()
    if asked.minutes < LEAST_MINUTES:
        parser.error(
            f"--minutes is at least {LEAST_MINUTES:g}: the first one only warms up"
        )
    # The process group is ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    directory = asked.keep or Path(tempfile.mkdtemp(prefix="secagg-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    soak = Soak(asked, directory)
    soak.run()
    (directory / "looks.jsonl").write_text(
        "".join(json.dumps(asdict(look)) + "\n" for look in soak.looks)
    )
    for fault in soak.faults:
        print(f"FAULT: {fault}")
    print(f"files: {directory}" if soak.faults else "all is well")
    return bool(soak.faults)


if __name__ == "__main__":
    sys.exit(main())
