"""`secagg client` as a program under test: ``python client_command.py``.

The lines of the kit become the answers of an aggregator on loopback, and what a real
process of the command tells it becomes the answers to the lines.  The command has its
settings file, its state directory, its certificate, its identity and its vector as a
file.  Only its date is the kit's, read from a file.

With `over_edge` it calls an HTTP edge in place of gRPC.  The command has no setting for
that, so its process is given the connection; what carries sessions is the same.

Rule 1: a line is answered once the process has nothing more to say: when it asks for an
        update, shows its view, reads the sum, asks for another session, or has ended.
Rule 2: a process that has left is started again by the next update, as a supervisor
        would: it must find nothing to say.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from secagg_testing.inline_store import inline_store

from secagg.conformance.driver import Driver, _code_in
from secagg.conformance.program import STATE_VARIABLE
from secagg.conformance.scene import TESTED, membership_line
from secagg.crypto.cipher_suite import CipherSuite
from secagg.errors import ErrorCode, SecAggError
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.messages import Envelope, Upload
from secagg.protocol.profiles import Profile
from secagg.protocol.receipts.receipt import AuditReceipt
from secagg.runtime.clock import SystemClock
from secagg.server.call_guards import CallGuards, CallLimits
from secagg.server.http_edge.listener import EdgeOptions, HttpEdge
from secagg.server.rpc.grpc_server import GrpcServer
from secagg.simulation.driver import TRUST_DOMAIN
from secagg.testbed.child_process import child_environment
from secagg.transport.address import Address
from secagg.transport.handshake_limits import AdmissionLimits
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity
from secagg.wire.calls import (
    Blob,
    BlobChunk,
    FetchChunk,
    GetOffer,
    GetUploadStatus,
    SendMessage,
    UploadChunk,
    UploadStatus,
    WatchSession,
)

_PROMPT_SECONDS: Final = 120.0  # only a hang reaches it
# What `python -m secagg` does, at the date in a file.
_COMMAND: Final = """
import sys
from pathlib import Path
from secagg.runtime.clock import SystemClock
date, sys.argv = Path(sys.argv[1]), ["secagg", *sys.argv[2:]]
SystemClock.date = lambda _: float(date.read_text())
from secagg.cli import main
sys.exit(main())
"""
_AUTHORITY: Final = "edge.example"
# The same over the HTTP edge, whose clock is the machine's.
_COMMAND_OVER_EDGE: Final = f"""
import time
from pathlib import Path
from secagg.client import grpc_connection
from secagg.client.edge_connection import EdgeConnection
from secagg.pki.client_identity import load_client_identity
def connect(address, *, identity, aggregator):
    text = Path("enrolment").read_text().split()
    name = identity.identity.name
    member = load_client_identity(
        seed=Path("identity.seed"), credential=Path("credential.bin"),
        enrolment_key=bytes.fromhex(text[0]), trust_domain=text[1], name=name,
        now=int(time.time()),
    )
    return EdgeConnection(
        {_AUTHORITY!r}, identity=member, aggregator=text[2], address=address,
        authorities=Path("../ca.pem"), direct=True,
    )
grpc_connection.GrpcConnection = connect
{_COMMAND}"""
_WAITS: Final = {GetOffer: "gone", GetUploadStatus: "view"}
_POLICY: Final = (
    "min_graph_bits",
    "min_clients",
    "max_clients",
    "min_survivors",
    "max_dropouts",
    "min_colluders",
    "require_majority",
    "max_dimension",
    "max_modulus_bits",
    "max_revocation_days",
    "require_noise",
    "max_epsilon",
    "max_delta",
    "min_colluder_fraction",
)


class _Aggregator:
    """Answers one process of the command, with the messages of the kit.

    Attributes:
        moments: What the process waits for, each with the answer to come.
        said: Messages of the process since this was emptied.
    """

    def __init__(self) -> None:
        self._stored = 0
        self.begin(b"", {})

    def begin(self, offer: bytes, blobs: Mapping[Blob, bytes]) -> None:
        """Answer a new process."""
        self.moments: asyncio.Queue[tuple[str, asyncio.Future[Any]]] = asyncio.Queue()
        self.said: list[bytes] = []
        self.view = b""
        self._stored = 0 if offer else self._stored
        self._offer, self._blobs = offer, blobs
        self._upload = bytearray()

    def upload_status(self) -> UploadStatus | SecAggError:
        """Return the answer to an upload when its round is over."""
        if self._stored:
            return UploadStatus(self._stored, complete=True)
        return ErrorCode.DEADLINE.error("the round is over")

    async def _moment(self, what: str) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self.moments.put((what, answer))
        return await answer

    async def answer(self, _: str, request: Any) -> Any:
        """See `AggregatorService`."""
        if isinstance(request, GetOffer) and self._offer:
            return SimpleNamespace(encode=lambda: self._offer)
        is_early = isinstance(request, FetchChunk) and request.blob in self._blobs
        self._offer = self._offer if is_early else b""
        match request:
            case SendMessage(message=message):
                self.said.append(bytes([request.KIND.KIND]) + message)
                return None
            case UploadChunk():
                return self._take(request)
            case FetchChunk(offset=start):
                is_sum = request.blob is Blob.SUM
                data = self._blobs.get(request.blob, b"")
                data = await self._moment("sum") if is_sum else data
                return BlobChunk(data[start : start + request.max_bytes], len(data))
            case GetUploadStatus():
                self.view = request.view
        return await self._moment(_WAITS.get(type(request), "update"))

    async def watch(self, _: str, request: WatchSession) -> AsyncIterator[Any]:
        """See `AggregatorService`: one update, after which the client asks again."""
        yield await self.answer(_, request)

    def record_refusal(self, code: ErrorCode) -> None:
        """See `AggregatorService`."""

    def _take(self, chunk: UploadChunk) -> UploadStatus:
        del self._upload[chunk.offset :]
        self._upload += chunk.data
        is_whole = len(self._upload) == chunk.total_size
        if is_whole:
            self._stored = chunk.total_size
            named = Upload(chunk.total_size, chunk.digest, chunk.view).encode()
            self.said.append(bytes([Upload.KIND]) + named + self._upload)
        return UploadStatus(len(self._upload), complete=is_whole)


class ClientCommand:
    """Answers the kit's lines with processes of `secagg client`.

    Args:
        home: Directory for certificates, settings and states.
        over_edge: It calls an HTTP edge in place of gRPC.
    """

    def __init__(self, home: Path, *, over_edge: bool = False) -> None:
        self._home, self._over_edge = home, over_edge
        self._program = _COMMAND_OVER_EDGE if over_edge else _COMMAND
        self._loop = asyncio.new_event_loop()
        self._aggregator = _Aggregator()
        self._ports: dict[str, int] = {}
        self._servers: list[GrpcServer | HttpEdge] = []
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: tuple[str, asyncio.Future[Any]] | None = None
        self._told: Mapping[str, Any] = {}
        self._clients = self._starts = 0
        self._update = b""
        authority = CertificateAuthority.create(TRUST_DOMAIN)
        self._authority = authority
        home.mkdir(exist_ok=True)
        (home / "date").write_text("0")

    def answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to one line."""
        return self._loop.run_until_complete(self._answer(line))

    def close(self) -> None:
        """End the process and the aggregator."""

        async def close() -> None:
            await self._kill()
            for server in self._servers:
                await server.stop(0.0)

        self._loop.run_until_complete(close())
        self._loop.close()

    @staticmethod
    def hello() -> dict[str, Any]:
        """Return the abilities of the command."""
        return Driver.hello() | {"name": "secagg client"}

    async def _answer(self, line: Mapping[str, Any]) -> dict[str, Any]:
        if "now" in line:
            self._set_date(line["now"])
        match line["do"]:
            case "hello":
                return self.hello()
            case "begin" | "restart" as what:
                await self._kill()
                self._clients += what == "begin" and line["forget"]
                self._told = line
                self._update = b""
                await self._start(is_offered=what == "begin")
            case "update":
                await self._tell(bytes.fromhex(line["update"]))
            case "bind":
                await self._reply("view", UploadStatus(0))
            case "refused":
                code = ErrorCode[line["code"]]
                await self._reply("view", code.error("the kit refuses the view"))
            case "sum":
                return await self._sum(bytes.fromhex(line["packed"]))
        return await self._next()

    async def _tell(self, update: bytes) -> None:
        """Deliver an update to the process; start one if none runs."""
        if not update:
            return
        self._update = update
        if self._process is None:
            await self._start(is_offered=False)
            await self._next()
        if self._waits_for("view"):
            await self._reply("view", self._aggregator.upload_status())
            await self._next()
        kind: Any = SimpleNamespace(KIND=update[0])
        await self._reply("update", Envelope(kind, update[1:]))

    def _set_date(self, now: float) -> None:
        written = self._home / "date.new"
        written.write_text(str(now))
        written.replace(self._home / "date")

    # --- the process ------------------------------------------------------------------

    async def _start(self, *, is_offered: bool) -> None:
        """Start the command as the last line describes it."""
        self._starts += 1
        line, work = self._told, self._home / str(self._starts)
        work.mkdir()
        offer = bytes.fromhex(line["offer"]) if is_offered else b""
        blobs = {Blob.REVOCATIONS: bytes.fromhex(line.get("revocations") or "")}
        self._aggregator.begin(offer, blobs)
        np.save(work / "x.npy", _vector(line["vector"]))
        port = await self._port(line["aggregator"])
        (work / "client.toml").write_text(self._settings(line, work, port))
        out, errors = (work / "out").open("wb"), (work / "errors").open("wb")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self._program, str(self._home / "date"), "client"),
            *("--config", "client.toml", "--input", "x.npy", "--output", "sum.npy"),
            "--json",
            cwd=work,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
        )
        out.close()
        errors.close()

    @property
    def _work(self) -> Path:
        return self._home / str(self._starts)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        self._waiting = None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _port(self, name: str) -> int:
        """Return where the aggregator of this name listens."""
        if name not in self._ports:
            issued = self._authority.issue_server(name, ["127.0.0.1", _AUTHORITY])
            files = issued.write(self._home, name)
            identity = self._load(files, Role.SERVER)
            server = (
                await self._edge(files)
                if self._over_edge
                else await GrpcServer.start(
                    self._aggregator, Address("127.0.0.1", 0), identity=identity
                )
            )
            self._servers.append(server)
            self._ports[name] = server.address.port
        return self._ports[name]

    async def _edge(self, files: tuple[Path, Path]) -> HttpEdge:
        """Start an HTTP edge with this certificate."""
        clock = SystemClock()
        return await HttpEdge.start(
            self._aggregator,
            EdgeOptions(
                listen="127.0.0.1:0",
                authority=_AUTHORITY,
                certificate=files[0],
                private_key=files[1],
                trust_domain=TRUST_DOMAIN,
                enrolment_key=bytes.fromhex(membership_line(TESTED)["enrolment_key"]),
            ),
            guards=CallGuards(CallLimits(), clock.now),
            admission=AdmissionLimits(),
            store=inline_store(),
            clock=clock,
        )

    def _load(self, files: tuple[Path, Path], role: Role) -> TLSIdentity:
        authority = self._home / "ca.pem"
        if not authority.exists():
            self._authority.issued().write(self._home, "ca")
        return TLSIdentity.load(
            certificate=files[0], private_key=files[1], authority=authority, role=role
        )

    def _settings(self, line: Mapping[str, Any], work: Path, port: int) -> str:
        """Return the settings of the command, and write the files that they name."""
        name, limits = line["name"], line["limits"]
        certificate = self._home / f"{name}.pem"
        if not certificate.exists():
            self._authority.issue_client(name).write(self._home, name)
        membership = line.get("membership") or membership_line(name)
        seed, credential = work / "identity.seed", work / "credential.bin"
        seed.touch(0o600)
        seed.write_bytes(bytes.fromhex(membership["seed"]))
        credential.write_bytes(bytes.fromhex(membership["credential"]))
        enrolled = membership["enrolment_key"], TRUST_DOMAIN, line["aggregator"]
        (work / "enrolment").write_text("\n".join(enrolled))
        state = self._home / f"state-{self._clients}"
        policy = {
            "profiles": [Profile(each).label for each in limits["profiles"]],
            "suites": [CipherSuite(each).label for each in limits["suites"]],
            "graphs": limits["graphs"],
        } | {key: limits[key] for key in _POLICY if limits[key] is not None}
        sections = {
            "client": {
                "server": f"127.0.0.1:{port}",
                "task": "kit-task",
                "state_dir": str(state),
                "rollback_mark": f"{state}.mark",
                "attempts": 1,
            },
            "tls": {
                "ca": str(self._home / "ca.pem"),
                "certificate": str(certificate),
                "key": str(certificate.with_suffix(".key")),
            },
            "enrolment": {
                "identity": str(seed),
                "credential": str(credential),
                "enrolment_key": "ed25519:" + membership["enrolment_key"],
            },
            "policy": policy,
        }
        return "\n".join(
            f"[{section}]\n"
            + "".join(f"{k} = {json.dumps(v)}\n" for k, v in rows.items())
            for section, rows in sections.items()
        )

    # --- what it says -----------------------------------------------------------------

    def _waits_for(self, what: str) -> bool:
        return self._waiting is not None and self._waiting[0] == what

    async def _reply(self, what: str, answer: object) -> None:
        """Answer what the process waits for; nothing if it waits for something else."""
        while self._waiting is not None and self._waiting[1].cancelled():
            # On a machine under load a call runs out of time, and is repeated.
            self._waiting = await self._aggregator.moments.get()
        if self._waiting is None or not self._waits_for(what):
            return
        future, self._waiting = self._waiting[1], None
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    async def _next(self) -> dict[str, Any]:
        """Wait until the process is idle, and return its messages."""
        process = self._process
        if self._waiting is not None or process is None:
            return self._said()
        moment = asyncio.ensure_future(self._aggregator.moments.get())
        ended = asyncio.ensure_future(process.wait())
        done, _ = await asyncio.wait(
            {moment, ended},
            timeout=_PROMPT_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not done:
            raise TimeoutError(f"the command neither asks nor ends: {self._work}")
        if moment in done:
            ended.cancel()
            self._waiting = moment.result()
            if self._waiting[0] != "gone":
                return self._said()
            # The session is over for it: what became of it stands in its receipt.
            await self._reply("gone", ErrorCode.TASK_OVER.error("the kit has no other"))
            await process.wait()
        else:
            moment.cancel()
            await asyncio.gather(moment, return_exceptions=True)
        await self._kill()
        code = self._code()
        return {"ended" if ErrorCode[code] is _code_in(self._update) else "left": code}

    def _said(self) -> dict[str, Any]:
        """Return the messages of the process to the aggregator."""
        if self._waits_for("sum"):
            return {"released": True}
        said, self._aggregator.said = self._aggregator.said, []
        answer: dict[str, Any] = {"messages": [each.hex() for each in said]}
        if self._waits_for("view"):
            answer["view"] = self._aggregator.view.hex()
        return answer

    def _code(self) -> str:
        """Return the code with which the process, or its session, has ended."""
        for path in self._work.glob("sum*.receipt*.bin"):
            code = AuditReceipt.decode(path.read_bytes()).code
            return ErrorCode(code).name
        lines = (self._work / "out").read_text().splitlines()
        return str(json.loads(lines[-1])["error"]["name"])

    async def _sum(self, packed: bytes) -> dict[str, Any]:
        await self._reply("sum", packed)
        if self._process is not None:
            async with asyncio.timeout(_PROMPT_SECONDS):
                await self._process.wait()
        await self._kill()
        values = np.load(self._work / "sum.npy")
        if np.issubdtype(values.dtype, np.integer):
            return {"sum": [str(each) for each in values.tolist()]}
        return {"sum": values.tolist()}


def _vector(entries: list[Any]) -> Any:
    """Return the vector of a line as its file has it."""
    if all(isinstance(each, str) and each.lstrip("-").isdigit() for each in entries):
        return np.array([int(each) for each in entries])
    return np.array([float(each) for each in entries])


def main() -> None:
    """Answer line after line until the input ends."""
    with TemporaryDirectory() as own:
        command = ClientCommand(Path(os.environ.get(STATE_VARIABLE) or own))
        try:
            for line in sys.stdin:
                sys.stdout.write(json.dumps(command.answer(json.loads(line))) + "\n")
                sys.stdout.flush()
        finally:
            command.close()


if __name__ == "__main__":
    main()
