"""What unauthenticated peers can do to an aggregator: waiting times and costs.

    python tests/chaos/unauthenticated_peers.py

A real `secagg server` behind its relay, with 1024 open files as most shells give them,
real `secagg client` processes, and attackers from addresses of 127.0.0.0/8:

* 1600 connections from one address, of which 400 have begun TLS and stop;
* 3000 from 100 addresses, likewise;
* eight unauthenticated peers that dial a hundred times a second each, for ever;
* one *client*, with a certificate, that holds ten connections of 32 calls each, whose
  bodies of 4 MiB it never ends.

What must hold: while these peers are there, three honest clients are done within five
seconds, and the log has 1 to 10 lines of them for each second; by the calls that stall
the aggregator grows by at most 40 MiB; the relay takes at most 0.5 ms of processor time
for each MiB.  Times are those of the clock: on a busy machine they say little.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from run import ENVIRONMENT
from secagg_testing.programs import Programs

from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.testbed.run_folder import client_name
from secagg.transport.address import Address
from secagg.transport.channel_options import SERVICE
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.relay import Relay
from secagg.wire.calls import MAX_MESSAGE_BYTES

FILES = 1024
MOST_SECONDS = 5.0
MOST_LINES = 10
MOST_GROWTH = 40 << 20
MOST_RELAY_MS = 0.5
CALLS, CONNECTIONS = 32, 10
# Of RFC 9113 §6.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8

SERVER = """\
[server]
listen = "127.0.0.1:0"
state_dir = "state"
rollback_mark = "marks/server"
output_dir = "sums"
[admission]
relay = "on"
{more}
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "honest"
steps = 100
[vector]
dimension = 16
modulus_bits = 32
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
none = "{acknowledgement}"
"""

CLIENT = """\
[client]
server = "{address}"
task = "honest"
state_dir = "{state}"
rollback_mark = "marks/{state}"
[tls]
ca = "pki/ca.pem"
certificate = "pki/{name}.pem"
key = "pki/{name}.key"
[policy]
require_noise = false
"""


class Attacked:
    """One aggregator and its honest clients."""

    def __init__(self, directory: Path, more: str = "") -> None:
        self.directory = directory
        self.programs = Programs(directory, ENVIRONMENT)
        self.rounds = 0
        authority = CertificateAuthority.create()
        pki = directory / "pki"
        authority.issue_all(pki, hosts=["127.0.0.1"], clients=3)
        authority.issue_client("staller").write(pki, "staller")
        np.save(directory / "x.npy", np.arange(16))
        text = SERVER.format(more=more, acknowledgement=NO_NOISE_ACKNOWLEDGEMENT)
        (directory / "server.toml").write_text(text)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Run the aggregator."""
        with (self.directory / "server.log").open("ab") as log:
            self.process = self.programs.start(
                "server",
                *("--config", "server.toml"),
                stderr=log,
                preexec_fn=lambda: resource.setrlimit(
                    resource.RLIMIT_NOFILE, (FILES, FILES)
                ),
            )
        try:
            for line in self.process.stdout:
                if "listening on " in line:
                    self.address = line.split("listening on ")[1].strip()
                    self.port = int(self.address.rpartition(":")[2])
                    break
            else:
                raise SystemExit(f"no server: see {self.directory}/server.log")
            yield
        finally:
            self.process.send_signal(signal.SIGTERM)
            self.process.communicate()

    def honest(self) -> tuple[float, list[int]]:
        """Run three clients that contribute; return their seconds and exit codes."""
        self.rounds += 1
        words = []
        for name in map(client_name, range(1, 4)):
            state = f"{name}-{self.rounds}"
            path = self.directory / f"{state}.toml"
            path.write_text(CLIENT.format(address=self.address, name=name, state=state))
            words.append(["client", "--config", path.name, "--input", "x.npy"])
        began = time.monotonic()
        with (self.directory / "clients.log").open("ab") as log:
            clients = [
                self.programs.start(*each, stdout=log, stderr=log) for each in words
            ]
        codes = [client.wait() for client in clients]
        return time.monotonic() - began, codes

    @staticmethod
    def wait_for_peers() -> None:
        """Wait until unauthenticated peers have taken what they can get."""
        threading.Event().wait(2.0)

    def rss_bytes(self) -> int:
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        path = Path(f"/proc/{self.process.pid}/stat")
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def lines(self) -> list[str]:
        log = (self.directory / "server.log").read_text()
        return [line for line in log.splitlines() if "handshake" in line]


def hello() -> bytes:
    """Return what a TLS library sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@contextlib.contextmanager
def crowd(port: int, count: int, addresses: int) -> Iterator[None]:
    """Hold `count` connections open, a quarter of which have begun TLS."""
    first = hello()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            peer = stack.enter_context(socket.socket())
            peer.settimeout(10)
            with contextlib.suppress(OSError):
                place = number % addresses
                peer.bind((f"127.0.{8 + place // 250}.{place % 250 + 1}", 0))
                peer.connect(("127.0.0.1", port))
                if number % 4 == 0:
                    peer.sendall(first)
        yield


@contextlib.contextmanager
def diallers(port: int, count: int) -> Iterator[None]:
    """Have `count` peers dial repeatedly; every other connection begins TLS."""
    program = (
        "import socket, sys, time\n"
        "port, address, first = sys.argv[1:]\n"
        "held = []\n"
        "while True:\n"
        "    peer = socket.socket()\n"
        "    peer.settimeout(10)\n"
        "    try:\n"
        "        peer.bind((address, 0))\n"
        "        peer.connect(('127.0.0.1', int(port)))\n"
        "        if len(held) % 2: peer.sendall(bytes.fromhex(first))\n"
        "    except OSError: pass\n"
        "    held.append(peer)\n"
        "    if len(held) > 200: held.pop(0).close()\n"
        # A hundred calls a second each: it is the relay that is tried, not the machine.
        "    time.sleep(0.01)\n"
    )
    words = [
        ("nice", sys.executable, "-c", program, str(port), f"127.0.9.{n + 1}")
        for n in range(count)
    ]
    started = [subprocess.Popen([*each, hello().hex()]) for each in words]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


class Stall:
    """One connection of calls that never end, from the client's side of HTTP/2.

    It sends what flow control allows of each body of 4 MiB, but for the last byte.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.reader, self.writer = reader, writer
        self.waiting = [1 + 2 * n for n in range(CALLS)]
        self.left: dict[int, int] = {}
        self.windows: dict[int, int] = {}
        self.window = self.initial = 65535
        self.most_streams = 0
        self.sent = self.refused = 0

    async def live(self) -> None:
        """Open the calls, and stay until either side ends the connection."""
        self.writer.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
        )
        while True:
            self.start_calls()
            for stream in tuple(self.windows):
                self.send_of(stream)
            await self.writer.drain()
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            self.handle_frame(
                head[3], head[4], int.from_bytes(head[5:], "big"), payload
            )

    def start_calls(self) -> None:
        while self.waiting and len(self.windows) < self.most_streams:
            stream = self.waiting.pop(0)
            self.windows[stream] = self.initial
            self.writer.write(frame(HEADERS, 4, stream, headers()))
            size = MAX_MESSAGE_BYTES - 64
            self.left[stream] = size - 1
            self.window -= 5
            self.windows[stream] -= 5
            begin = b"\0" + struct.pack(">I", size)
            self.writer.write(frame(DATA, 0, stream, begin))

    def send_of(self, stream: int) -> None:
        while size := max(
            0, min(self.left[stream], self.windows[stream], self.window, 1 << 14)
        ):
            self.writer.write(frame(DATA, 0, stream, bytes(size)))
            self.sent += size
            self.left[stream] -= size
            self.windows[stream] -= size
            self.window -= size

    def handle_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            said = dict(struct.iter_unpack(">HI", payload))
            self.initial = said.get(4, self.initial)
            self.most_streams = said.get(3, CALLS)
            self.writer.write(frame(SETTINGS, 1, 0, b""))
        elif kind == PING and not flags & 1:
            self.writer.write(frame(PING, 1, 0, payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self.window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE and stream in self.windows:
            self.windows[stream] += int.from_bytes(payload, "big")
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.refused += self.windows.pop(stream, None) is not None


class Staller:
    """A client with a certificate, and connections that stall."""

    def __init__(self, attacked: Attacked) -> None:
        pki = attacked.directory / "pki"
        self.context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        self.context.check_hostname = False
        self.context.set_alpn_protocols(["h2"])
        self.context.load_cert_chain(pki / "staller.pem", pki / "staller.key")
        self.attacked = attacked
        self.stalls: list[Stall] = []

    async def hold(self, seconds: float) -> int:
        """Stall; return the most that the aggregator has held meanwhile, in bytes."""
        lives = [asyncio.create_task(self.connect()) for _ in range(CONNECTIONS)]
        most = 0
        for _ in range(int(seconds * 10)):
            await asyncio.sleep(0.1)
            most = max(most, self.attacked.rss_bytes())
        for each in lives:
            each.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
        return most

    async def connect(self) -> None:
        stall = Stall(
            *await asyncio.open_connection(
                "127.0.0.1", self.attacked.port, ssl=self.context
            )
        )
        self.stalls.append(stall)
        await stall.live()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame of HTTP/2 (RFC 9113 §4.1)."""
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes([kind, flags])
        + struct.pack(">I", stream)
        + payload
    )


def headers() -> bytes:
    """Return a call of ShareKeys, every header spelt out (RFC 7541 §6.2.2)."""
    lines = (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", f"/{SERVICE}/ShareKeys".encode()),
        (b":authority", b"aggregator"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    return b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in lines
    )


async def relay_ms_per_mib(mib: int = 256) -> float:
    """Return what the relay costs, in a process of its own: it carries 256 MiB."""
    begun, done = asyncio.Event(), asyncio.Event()

    async def swallow(reader: asyncio.StreamReader, _: object) -> None:
        while await reader.read(1 << 20):
            begun.set()
        done.set()

    sink = await asyncio.start_server(swallow, "127.0.0.1", 0)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--relay-to"),
        str(sink.sockets[0].getsockname()[1]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    port = int(await process.stdout.readline())
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello())
    await begun.wait()  # TLS waits for an answer, too
    for _ in range(mib):
        writer.write(bytes(1 << 20))
        await writer.drain()
    writer.close()
    await done.wait()
    said, _ = await process.communicate(b"")
    sink.close()
    return 1000 * float(said) / mib


async def relay_to(port: int) -> None:
    """Run a relay until standard input ends; print the port, and then the CPU time."""
    relay = await Relay.listen(
        Address("127.0.0.1", 0),
        AdmissionLimits(handshake_seconds=600),
        inside=Address("127.0.0.1", port),
        most=16,
    )
    began = time.process_time()
    print(relay.address.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(time.process_time() - began, flush=True)
    await relay.close()


def attacks(directory: Path, faults: list[str]) -> Iterator[dict[str, object]]:
    """Carry the attacks of unauthenticated peers out, one after the other."""
    attacked = Attacked(directory)
    with attacked.serving():
        seconds, codes = attacked.honest()
        yield {"attack": "none", "seconds": seconds, "files": attacked.files()}
        for name, attack in (
            ("1600 of one address", lambda: crowd(attacked.port, 1600, 1)),
            ("3000 of 100 addresses", lambda: crowd(attacked.port, 3000, 100)),
            ("8 dial for ever", lambda: diallers(attacked.port, 8)),
        ):
            lines, began = len(attacked.lines()), time.monotonic()
            spent = attacked.cpu_seconds()
            with attack():
                attacked.wait_for_peers()
                seconds, codes = attacked.honest()
                files = attacked.files()
            lasted = time.monotonic() - began
            lines = len(attacked.lines()) - lines
            yield {
                "attack": name,
                "seconds": seconds,
                "lasted": lasted,
                "lines_per_second": lines / lasted,
                "files": files,
                "server_cpu_seconds": attacked.cpu_seconds() - spent,
            }
            if seconds >= MOST_SECONDS or any(codes):
                faults.append(f"{name}: clients took {seconds:.1f} s, ended {codes}")
            # A second begins with its first line: one may have begun before, of which
            # the number comes, and the last one may have just begun.
            most = 1 + MOST_LINES * (int(lasted) + 1)
            if not lasted <= lines <= most:
                faults.append(f"{name}: {lines} lines in {lasted:.1f} s")


def stalled(directory: Path, faults: list[str]) -> Iterator[dict[str, object]]:
    """Have one client stall, with as many connections as it may, and with ten."""
    for connections in (2, CONNECTIONS):
        place = directory / f"stalled-{connections}"
        attacked = Attacked(place, f"per_identity = {connections}")
        with attacked.serving():
            attacked.honest()
            before = attacked.rss_bytes()
            staller = Staller(attacked)
            grown = asyncio.run(staller.hold(8.0)) - before
            seconds, codes = attacked.honest()
        yield {
            "attack": f"{CONNECTIONS} x {CALLS} calls stall, {connections} admitted",
            "rss_growth_mib": grown / (1 << 20),
            "sent_mib": sum(each.sent for each in staller.stalls) / (1 << 20),
            "refused": sum(each.refused for each in staller.stalls),
            "seconds_after": seconds,
        }
        if grown > MOST_GROWTH or any(codes):
            faults.append(f"{connections} connections: {grown >> 20} MiB, {codes}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/chaos/unauthenticated_peers.py",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument("--relay-to", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.relay_to is not None:
        asyncio.run(relay_to(asked.relay_to))
        return 0
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    directory, faults = Path(tempfile.mkdtemp(prefix="secagg-unauthenticated-")), []
    cost = asyncio.run(relay_ms_per_mib())
    print(json.dumps({"relay_cpu_ms_per_mib": cost, "load": os.getloadavg()}))
    if cost > MOST_RELAY_MS:
        faults.append(f"the relay takes {cost:.2f} ms for each MiB")
    for said in chain(attacks(directory, faults), stalled(directory, faults)):
        print(json.dumps(said), flush=True)
    for fault in faults:
        print(f"FAULT: {fault}")
    print(f"files: {directory}" if faults else "all is well")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
