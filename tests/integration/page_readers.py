"""What the readers of the pages bring along, and do beside the commands of a page.

Each function takes the machines of `test_page_commands`.
"""

import asyncio
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np

from secagg.storage.budget_ledger import BudgetKey, Claim, ClaimAdversary
from secagg.storage.changes import PutClaim, Touch
from secagg.storage.open_store import open_state

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "deploy" / "config"
EXAMPLE = ROOT / "examples" / "sum_of_vectors"
EXAMPLE_PAGE = "examples/sum_of_vectors/README.md"


SERVER = """
[server]
listen = "127.0.0.1:{port}"
state_dir = "state"
rollback_mark = "the.mark"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
[task]
id = "beds"
[vector]
dimension = 4
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
mechanism = "skellam"
epsilon = 4.0
delta = 1e-6
l2_clip = 30.0
"""
CLIENT = """
[client]
server = "127.0.0.1:{port}"
task = "beds"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client-1.pem"
key = "pki/client-1.key"
[policy]
min_clients = 3
min_survivors = 3
max_epsilon = 4.0
max_delta = 1e-6
"""


def with_certificates(machines):
    """Issue what a server and three clients show, and write their settings."""
    machines.call("", "pki", "init", "pki", "--clients", "3", "--host", "127.0.0.1")
    for name, text in (("server.toml", SERVER), ("client.toml", CLIENT)):
        (machines.directory / name).write_text(text.format(port=machines.port))


def enrolling(machines):
    for folder in ("etc/secagg", "usr/local/bin"):
        (machines.directory / folder).mkdir(parents=True)
    fetch = machines.directory / "usr/local/bin/fetch-certificate"
    fetch.write_text("#!/bin/sh\n")
    fetch.chmod(0o700)
    settings = CLIENT.format(port=machines.port)
    for written, here in (
        ("pki/client-1.pem", "hospital-a.pem"),
        ("pki/client-1.key", "etc/secagg/tls/hospital-a.key"),
    ):
        settings = settings.replace(written, here)
    (machines.directory / "client.toml").write_text(settings)
    machines.call("", "pki", "ca", "pki", "--trust-domain", "example.org")


def backing_up(machines):
    place = machines.directory
    for folder in ("etc/systemd/system", "run/systemd/system", "backup", "var/lib"):
        (place / folder).mkdir(parents=True)
    (place / "var/lib/secagg").mkdir()
    machines.call("", "pki", "init", "etc/secagg/pki", "--host", "127.0.0.1")
    text = SERVER.format(port=machines.port).replace('"pki/', '"/etc/secagg/pki/')
    text = text.replace('"state"', '"/var/lib/secagg/server"')
    text = text.replace('"the.mark"', '"/var/lib/secagg/server.mark"')
    for path in ("server.toml", "etc/secagg/server.toml"):
        (place / path).write_text(machines.here(text))
    use_state(machines)


def use_state(machines):
    """Have the state that the sample settings name used once, or once more."""

    async def run():
        state = machines.directory / "var/lib/secagg/server"
        mark = state.with_name("server.mark")
        store = await open_state(state, mark=mark)
        await store.commit(Touch())
        await store.close()

    asyncio.run(run())


def naming_the_copy(machines):
    (copy,) = (machines.directory / "backup").iterdir()
    text = (machines.directory / "server.toml").read_text()
    state = machines.directory / "var/lib/secagg/server"
    (machines.directory / "backup.toml").write_text(
        text.replace(f'"{state}"', f'"{copy}"')
    )


def restoring(machines):
    """Go on after the backup was taken, lose the state, and copy the old one back."""
    use_state(machines)
    state = machines.directory / "var/lib/secagg/server"
    shutil.rmtree(state)
    (copy,) = (machines.directory / "backup").iterdir()
    shutil.copytree(copy, state)


def deploying(machines):
    (machines.directory / "etc/systemd/system").mkdir(parents=True)
    (machines.directory / "client.toml").write_text(CLIENT.format(port=machines.port))


def claiming(machines):
    """Have a client whose data a task has a claim on."""
    with_certificates(machines)
    place = machines.directory / "var/lib/secagg/data"
    text = CLIENT.format(port=machines.port)
    page = (ROOT / "docs" / "choosing-a-budget.md").read_text("utf-8")
    (total,) = re.findall(r"\n(data = .*?)```", page, re.DOTALL)
    (machines.directory / "client.toml").write_text(text + machines.here(total))
    claim = Claim(
        data="patients-2027",
        holder=bytes(16),
        budget=BudgetKey(trust_domain="o", aggregator="sums-1", task="task-a"),
        noise_digest=bytes(32),
        against=ClaimAdversary.SERVER,
        epsilon=4.0,
        delta=1e-6,
        shift=0.83786,  # of epsilon 4 at delta 1e-6
        distance=0.0,
        added_delta=0.0,
    )

    async def run():
        place.parent.mkdir(parents=True)
        mark = machines.directory / "data.mark"
        store = await open_state(place, mark=mark)
        assert await store.commit(PutClaim(claim, after=0))
        await store.close()
        mark = machines.directory / "client.mark"
        await (await open_state(machines.directory / "client-state", mark=mark)).close()

    asyncio.run(run())


def summing(machines):
    for path in sorted(EXAMPLE.iterdir()):
        if path.suffix in {".toml", ".py"}:
            shutil.copy(path, machines.directory)
            text = path.read_text().replace("7400", machines.port)
            (machines.directory / path.name).write_text(text)


def anew(machines):
    """Begin in another copy of the directory of the example."""
    machines.finish("")
    machines.has_clients = False
    for name in ("pki", "server-state", "sums"):
        shutil.rmtree(machines.directory / name)
    for path in machines.directory.glob("*state*"):
        path.unlink() if path.is_file() else shutil.rmtree(path)
    shutil.rmtree(os.environ["XDG_STATE_HOME"])  # marks belong to a directory
    machines.call("", "pki", "init", "pki", "--clients", "3", "--host", "127.0.0.1")
    machines.call("", "pki", "enrol", "revoke", "pki/issuer")
    with (machines.directory / "server.toml").open("a") as file:
        file.write('[enrolment]\nrevocations = "pki/issuer/revocations.bin"\n')


def received(machines):
    """Have the receipts of an enrolled session, under the names of the page."""
    machines.read(EXAMPLE_PAGE)
    place = machines.directory
    for name in ("alice", "bob"):
        number = 1 + ("alice", "bob").index(name)
        shutil.copy(
            place / f"received-{number}.receipt.bin", place / f"{name}.receipt.bin"
        )
    shutil.copy(place / "sums/receipt-1.bin", place)
    shutil.copy(place / "pki/issuer/revocations.bin", place)


def beside(*numbers):
    """Return what starts the clients of the other terminals, too."""

    def start(machines, command):
        for number in numbers:
            own = re.sub(r"(-)\d(?=[./-])", rf"\g<1>{number}", command)
            machines.start("", shlex.split(own)[1:], "")

    return start


def operating(machines):
    """Have an aggregator that was restored while its session waited for clients."""
    with_certificates(machines)
    place = machines.directory
    text = (place / "server.toml").read_text()
    (place / "backup.toml").write_text(
        text.replace('"state"', '"backup"').replace("the.mark", "backup.mark")
    )
    task = text[text.index("[task]") :].replace("beds", "digits")
    (place / "digits.toml").write_text(task)
    machines.start("", ["server", "--config", "server.toml"], "")
    joins(machines)
    server = machines.running[0][1]
    server.send_signal(signal.SIGSTOP)
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(place / "state", place / "backup", ignore=sockets)
    server.send_signal(signal.SIGCONT)
    own = ("tls.certificate=pki/client-2.pem", "tls.key=pki/client-2.key")
    joins(machines, *own, "client.state_dir=two")
    machines.stop(signal.SIGKILL)
    shutil.rmtree(place / "state")
    shutil.copytree(place / "backup", place / "state")
    machines.start("", ["server", "--config", "server.toml", "--restored"], "")


def joins(machines, *changes):
    """Have a client join, wait until it has, and kill it."""
    words = ["client", "--config", "client.toml", "--input", "x.npy"]
    np.save(machines.directory / "x.npy", np.ones(4))
    process = machines.programs.start(
        *words, *(f"--set={each}" for each in changes), cwd=machines.directory
    )
    for line in process.stdout:
        if "joined" in line or "joining" in line:
            break
    process.kill()


def sharing(machines):
    for name in ("leader", "helper", "client", "client-2", "auditor"):
        (machines.directory / name).mkdir()


def configure(machines, *roles):
    """Write the settings of some of three parties, with values of the others."""
    for role in roles:
        text = (SAMPLES / "two-aggregators" / f"{role}.toml").read_text()
        for given, here in (
            ("0.0.0.0:7400", machines.places.get(role, "")),
            ("leader.example.org:7400", machines.places["leader"]),
            ("helper.example.net:7400", machines.places["helper"]),
            ("/etc/secagg/pki/", "pki/"),
            ("/etc/secagg/leader/", "../leader/pki/"),
            ("/etc/secagg/helper/", "../helper/pki/"),
            ("/var/lib/secagg/", ""),
            ("min_survivors = 500", "min_survivors = 2"),
            ("max_clients = 1000\n", "max_clients = 2\n"),
        ):
            text = text.replace(given, here)
        for name, key in machines.variables.items():
            before, section, rest = text.partition(f"\n[{name.lower()}]")
            text = before + section + rest.replace("ed25519:...", key, 1)
        (machines.directory / role / f"{role}.toml").write_text(text)


def helping(machines):
    for name in ("leader", "helper"):
        machines.call(name, "pki", "client", "pki", "client-2")
    configure(machines, "helper")


def leading(machines):
    machines.variables["HELPER"] = machines.keys["ed25519"]
    configure(machines, "leader")


def giving(machines):
    """Have the settings and vectors of two clients."""
    machines.finish("client")
    machines.finish("client-2")
    if "LEADER" in machines.variables:
        return
    machines.variables["LEADER"] = machines.keys["ed25519"]
    configure(machines, "client")
    text = (machines.directory / "client/client.toml").read_text()
    (machines.directory / "client-2/client.toml").write_text(
        text.replace("/client-1.", "/client-2.")
    )
    for name in ("client", "client-2"):
        np.save(machines.directory / name / "x.npy", np.full(1000, 0.01))


def auditing(machines):
    machines.finish("client")
    machines.finish("client-2")
    place = machines.directory
    shutil.copytree(place / "leader/sums", place / "auditor/sums")


UPDATE = """
import sys, numpy
model, mean = numpy.load(sys.argv[1]), numpy.load(sys.argv[2])
numpy.savez(sys.argv[3], **{name: model[name] + mean[name] for name in model})
"""


COUNT = """
import sys, numpy
numpy.save(sys.argv[1], numpy.full(170, 0.01))
"""


def start_again(machines):
    """Wait for the hospitals and their server, and let them begin again."""
    for place in sorted(machines.directory.glob("hospital-?")):
        machines.finish(place.name)
        shutil.rmtree(place / "client-state")
    machines.finish("server")
    machines.has_clients = False
    for name in ("server-state", "sums"):
        shutil.rmtree(machines.directory / "server" / name)
    shutil.rmtree(os.environ["XDG_STATE_HOME"])


def updating(machines):
    start_again(machines)
    (machines.directory / "server/update.py").write_text(UPDATE)


def in_both(machines):
    """Have a server of both tasks, and each hospital's vector of the second."""
    server = machines.directory / "server"
    for number in (1, 2, 3):
        words = ["client", "--config", "client.toml"]
        words += ["--exec", "python train.py {payload} {model}"]
        machines.start(f"hospital-{number}", words, "")
    machines.finish("server")
    assert (server / "sums/model-2.npz").exists()
    start_again(machines)
    (server / "tasks").mkdir()
    text = SERVER.format(port=machines.port)
    (server / "tasks/beds.toml").write_text(text[text.index("[task]") :])
    words = ["--config", "server.toml", "--set=server.tasks_dir=tasks"]
    machines.start("server", ["server", *words], "")
    for number in (1, 2, 3):
        place = machines.directory / f"hospital-{number}"
        settings = (place / "client.toml").read_text()
        (place / "client.toml").write_text(
            settings.replace("[client]", '[client]\naggregator = "aggregator"')
        )
        np.save(place / "beds-1.npy", np.ones(4))
        (place / "count.py").write_text(COUNT)
        if number > 1:
            shutil.copy(machines.directory / "hospital-1/tasks.toml", place)


def others(machines, command):
    for number in (2, 3):
        machines.start(f"hospital-{number}", shlex.split(command)[1:], "")


def joined_both(machines):
    for place in sorted(machines.directory.glob("hospital-?")):
        machines.finish(place.name)
        assert (place / "beds-sum-1.npy").exists()
