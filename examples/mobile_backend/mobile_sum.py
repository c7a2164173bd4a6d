"""A backend and its phones, all on this machine: one sum over devices that sleep.

    python examples/mobile_backend/mobile_sum.py [--day SECONDS]

A day is compressed to some seconds. Rounds last two days; phones look once a day, and
earlier when a push says that something is new.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import urllib.request
from pathlib import Path

import uvicorn

import secagg
from secagg import advanced

sys.path.insert(0, str(Path(__file__).parent))
from backend import Application, Push, run, task_of
from phone import Phone

FAULTS = {
    "ada": {},
    "bob": {"ShareKeys": "killed", "RevealShares": "killed"},
    "cyd": {"UploadChunk": "network", "SignConsistency": "network"},
    "dan": {"AdvertiseKeys": "killed", "UploadChunk": "killed"},
    "eve": {"GetUpdate": "network"},
}


async def enrol(phone: Path, name: str, url: str, command: Path) -> None:
    """Make a key on a phone, and have the app's server get its credential."""
    await run(
        *(command, "pki", "identity", "new", phone),
        *("--name", name, "--trust-domain", "secagg.local"),
    )
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{url}/enrol",
        data=(phone / "request.bin").read_bytes(),
        headers={"authorization": f"token of {name}"},
    )

    def ask() -> bytes:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return bytes(answer.read())

    (phone / "credential.bin").write_bytes(await asyncio.to_thread(ask))


async def main(home: Path, day: float) -> None:
    """Run one sum."""
    found = shutil.which("secagg", path=str(Path(sys.executable).parent))
    command = Path(found or "secagg")
    await run(command, "pki", "init", home / "pki", "--clients", "1")
    pki, issuer = home / "pki", home / "pki" / "issuer"
    key_text = (await run(command, "pki", "enrol", "list", issuer)).split("ed25519:")
    key = key_text[-1][:64]

    logins = {f"token of {name}": name for name in FAULTS}
    web = uvicorn.Server(
        uvicorn.Config(
            Application(issuer, command, logins), port=0, log_level="critical"
        )
    )
    serving = asyncio.create_task(web.serve())
    while not web.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = web.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for name in FAULTS:
        await enrol(home / name, name, url, command)

    round_seconds = max(2, round(2 * day))
    deadlines = advanced.RoundDeadlines.of(
        secagg.Profile.MALICIOUS_SERVER,
        **dict.fromkeys(
            (
                "advertise_keys",
                "share_keys",
                "masked_input",
                "consistency",
                "unmasking",
            ),
            round_seconds,
        ),
    )
    identity = secagg.TLSIdentity.load(
        certificate=pki / "server.pem",
        private_key=pki / "server.key",
        authority=pki / "ca.pem",
        role=advanced.Role.SERVER,
    )
    # A deployment has a certificate of a public authority here, for its host name.
    edge = advanced.EdgeOptions(
        listen="127.0.0.1:0",
        authority="localhost",
        certificate=pki / "server.pem",
        private_key=pki / "server.key",
        trust_domain="secagg.local",
        enrolment_key=bytes.fromhex(key),
    )
    push = Push()
    async with secagg.Server(
        "127.0.0.1:0",
        identity=identity,
        state_dir=home / "server",
        rollback_mark=home / "server.mark",
        keep_seconds=day,
        edge=edge,
        on_progress=push.note,
    ) as server:
        prepared = task_of(len(FAULTS), bytes.fromhex(key), deadlines)
        task = await server.add_task("steps", prepared)
        released = asyncio.create_task(task.next_sum())
        address = None if server.edge is None else server.edge.address

        def connect(enrolled: advanced.EnrolledIdentity) -> advanced.EdgeConnection:
            return advanced.connect_edge(
                "localhost",
                enrolled,
                aggregator="aggregator",
                authorities=pki / "ca.pem",
                address=address,
            )

        phones = [
            Phone(
                name=name,
                directory=home / name,
                enrolment_key=f"ed25519:{key}",
                connect=connect,
                woken=push.device(name),
                day=day,
                faults=dict(faults),
            )
            for name, faults in FAULTS.items()
        ]
        endings = await asyncio.gather(*(phone.live() for phone in phones))
        total = await released
        if total is None:
            raise SystemExit("the task has ended without a sum")
        task.take()
        for phone, ending in zip(phones, endings, strict=True):
            inputs = getattr(ending, "inputs", ending)
            print(f"{phone.name}: {phone.visits} visits, sum of {inputs}")
        print(f"sum of {total.inputs} vectors: {total.values.tolist()}")
    web.should_exit = True
    await serving


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--day", type=float, default=4.0, help="seconds of a day")
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name), parser.parse_args().day))
