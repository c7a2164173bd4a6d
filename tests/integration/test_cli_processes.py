"""The programs as users start them: real processes, real files, real signals."""

import json
import re
import resource
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.programs import TIMEOUT_SECONDS, Programs

from secagg.cli import main
from secagg.distributed_dp import TaskNoiseVerifier
from secagg.protocol.receipts.receipt import AuditReceipt, Outcome, WrittenBy
from secagg.protocol.receipts.verifier import verify_receipt

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sum_of_vectors"

# A client that stops for ever before one message of one session, to be killed there.
PAUSING_CLIENT = """
import asyncio, sys
from pathlib import Path
from secagg import (Client, TLSIdentity,)
from secagg.advanced import (Address, GrpcConnection, Role,)
from secagg.config import load_client_settings
from secagg.client.input_files import FileInput
from secagg.client.program import client_policy
from secagg.config.policy import privacy_limits_of
from secagg.testbed.connections import PausingConnection

async def main(config, vector, session, before, *overrides):
    settings = load_client_settings(
        Path(config), environment={}, overrides=overrides
    ).settings
    identity = TLSIdentity.load(
        certificate=settings.tls.certificate,
        private_key=settings.tls.key,
        authority=settings.tls.ca,
        role=Role.CLIENT,
    )
    source = FileInput(Path(vector), state_dir=settings.client.state_dir)
    address = Address.parse(settings.client.server)
    async with GrpcConnection(address, identity=identity) as connection, Client(
        PausingConnection(
            connection, session_number=int(session), before=before,
            on_pause=lambda: print('{"event": "paused"}', flush=True),
        ),
        task=settings.client.task,
        privacy_limits=privacy_limits_of(settings.policy),
        cohort=client_policy(settings),
        state_dir=settings.client.state_dir,
    ) as one:
        while True:
            await one.contribute(source.vector, accept=source.check)

asyncio.run(main(*sys.argv[1:]))
"""


class Walkthrough(Programs):
    """The walkthrough's programs, in its folder.

    Attributes:
        address: Where the server listens, once one has.
    """

    address = "127.0.0.1:0"

    def server(self, *overrides: str, config: str = "server.exact.toml"):
        words = [
            item if item.startswith("--") else f"--set={item}"
            for item in (f"server.listen={self.address}", *overrides)
        ]
        process = self.start(*("server", "--until-done", "--config", config), *words)
        line = wait_for(process, "listening on ")
        self.address = line.split("listening on ")[1].split()[0]
        return process

    def overrides(self, number: int, *more: str) -> list[str]:
        return [
            f"client.server={self.address}",
            f"tls.certificate=pki/client-{number}.pem",
            f"tls.key=pki/client-{number}.key",
            f"client.state_dir=client-{number}-state",
            *more,
        ]

    def client(
        self, number: int, *words: str, kind: str = "n", sets: Sequence[str] = ()
    ) -> subprocess.Popen:
        more = ["policy.require_noise=false"] if kind == "n" else []
        return self.start(
            *("client", "--config", "client.toml"),
            *("--input", f"{kind}-{number}.npy", "--output", f"received-{number}.npy"),
            *(f"--set={item}" for item in self.overrides(number, *sets, *more)),
            *words,
        )

    def pausing_client(
        self, number: int, before: str, *, kind: str = "n", session: int = 1
    ) -> subprocess.Popen:
        more = ["policy.require_noise=false"] if kind == "n" else []
        vector = f"{kind}-{number}.npy"
        return self.python(
            *("-c", PAUSING_CLIENT, "client.toml", vector, str(session), before),
            *self.overrides(number, *more),
        )


def wait_for(process: subprocess.Popen, text: str) -> str:
    """Read lines until one contains the text."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, output
    return output


def commands_of(page: Path, heading: str) -> list[list[str]]:
    """Return the words of the commands below a heading, for client 1."""
    _, found, rest = f"\n{page.read_text('utf-8')}".partition(f"\n{heading}\n")
    assert found
    blocks = re.findall(r"```console\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [
        [re.sub(r"\b(x|received|client)-\d", r"\1-1", word) for word in words]
        for words in (shlex.split(line, comments=True)[1:] for line in lines)
    ]


SHOWN = commands_of(ROOT / "README.md", "## Several machines, or four terminals")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The folder of the walkthrough, after its first two commands."""
    directory = tmp_path_factory.mktemp("prepared")
    for path in [*EXAMPLE.glob("*.toml"), *EXAMPLE.glob("*.py")]:
        shutil.copy(path, directory)
    programs = Walkthrough(directory)
    (_, *make), (_, *issue), *_ = SHOWN
    finish(programs.python(*make))
    made = programs.run(*issue)
    assert made.returncode == 0, made.stderr
    return directory


@pytest.fixture
def programs(prepared, tmp_path):
    programs = Walkthrough(shutil.copytree(prepared, tmp_path / "programs"))
    yield programs
    programs.end()


def exact_sum(directory: Path):
    return sum(np.load(directory / f"n-{number}.npy") for number in (1, 2, 3))


def test_the_walkthrough_of_the_readme_produces_the_sum_file(programs, json_answer):
    _, _, (_, *serve), (_, *give) = SHOWN
    server = programs.start(*serve, "--set=server.listen=127.0.0.1:0", "--json")
    address = wait_for(server, "listening on ").split("listening on ")[1].split()[0]
    clients = [
        programs.start(
            *(word.replace("-1", f"-{number}") for word in give),
            f"--set=client.server={address}",
            *(["--json"] if number == 3 else []),
        )
        for number in (1, 2, 3)
    ]
    outputs = [finish(client) for client in clients]
    assert all("epsilon" in output for output in outputs)
    assert all(", each entry ± " in output for output in outputs[:-1])
    json_answer("client", json.loads(outputs[-1].splitlines()[-1]))
    json_answer("server", json.loads(finish(server).splitlines()[-1]))
    released = np.load(programs.directory / "sums" / "sum-1.npy")
    report = json.loads((programs.directory / "sums" / "report-1.json").read_text())
    true = np.load(programs.directory / "true-sum.npy")
    assert report["inputs"] == 3
    assert report["privacy"]["server"]["epsilon"] <= 8.0
    # The noise is announced; sixteen entries stray more than eight deviations with
    # a probability below 1e-13.
    assert np.abs(released - true).max() < 8 * report["standard_error"]
    assert report["no_interval"] == []
    received = np.load(programs.directory / "received-2.npy")
    np.testing.assert_array_equal(received, released)
    receipt = (programs.directory / "sums" / "receipt-1.bin").read_bytes()
    for number in (1, 2, 3):
        own = programs.directory / f"received-{number}.receipt.bin"
        shown = replace(AuditReceipt.decode(own.read_bytes()), writer=WrittenBy.SERVER)
        assert shown.encode() == receipt
    # The page beside the files shows the same commands, and one to compare.
    *same, compare = commands_of(EXAMPLE / "README.md", "# A sum of three vectors")
    assert same == SHOWN
    finish(programs.python(*compare[1:]))


COUNTS = """
[task]
id = "counts"

[vector]
dimension = 2
modulus_bits = 32

[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3

[noise]
none = "I understand that the sum itself is released without noise"
"""


def test_one_process_contributes_to_two_tasks_from_one_state(programs):
    home = programs.directory
    (home / "more").mkdir()
    (home / "more" / "counts.toml").write_text(COUNTS)
    settings = ("--set=server.listen=127.0.0.1:0", "--set=server.tasks_dir=more")
    server = programs.start("server", "--config", "server.exact.toml", *settings)
    programs.address = wait_for(server, "listening on ").split()[-1]
    named = "client.aggregator=aggregator"

    def client(number, *sets):
        np.save(home / f"c-{number}.npy", np.array([number, 1]))
        (home / f"tasks-{number}.toml").write_text(
            f"[sum-of-vectors]\ninput = 'n-{number}.npy'\noutput = 'v-{number}.npy'\n"
            f"[counts]\ninput = 'c-{number}.npy'\noutput = 'counts-{number}.npy'\n"
        )
        overrides = programs.overrides(number, "policy.require_noise=false", *sets)
        return programs.start(
            *("client", "--config", "client.toml", "--json"),
            *("--tasks", f"tasks-{number}.toml"),
            *(f"--set={item}" for item in overrides),
        )

    unnamed = client(1)
    said, _ = unnamed.communicate(timeout=TIMEOUT_SECONDS)
    assert unnamed.returncode == 72
    assert "client.aggregator is empty" in said
    clients = [client(number, named) for number in (1, 2, 3)]
    for number, one in enumerate(clients, start=1):
        tasks = json.loads(finish(one).splitlines()[-1])["tasks"]
        assert [each["sessions"][0]["inputs"] for each in tasks.values()] == [3, 3]
        for name, total in (("v", exact_sum(home)), ("counts", [6, 3])):
            np.testing.assert_array_equal(np.load(home / f"{name}-{number}.npy"), total)
        assert len(list((home / f"client-{number}-state").rglob("*.sqlite3"))) == 1
    # Without --tasks the same state knows what it has given, and to which task.
    alone = finish(programs.client(1, "--output", "v-1.npy"))
    assert "the task is over" in alone


@pytest.mark.parametrize("before", [["upload"], ["share", "upload", "reveal"]])
def test_kill_9_of_server_and_client_in_any_round_loses_nothing(programs, before):
    steps = f"task.steps={len(before)}"
    server = programs.server(steps)
    others = [
        programs.client(
            *(number, "--same-input-again"),
            *("--output", f"received-{number}-{{session}}.npy"),
            sets=[f"client.sessions={len(before)}"],
        )
        for number in (1, 2)
    ]
    for session, each in enumerate(before, start=1):
        paused = programs.pausing_client(3, each, session=session)
        wait_for(paused, '"paused"')
        server.send_signal(signal.SIGKILL)
        paused.send_signal(signal.SIGKILL)
        server.wait(TIMEOUT_SECONDS)
        server = programs.server(steps)
    for client in [*others, programs.client(3)]:
        finish(client)
    finish(server)
    for session in range(1, len(before) + 1):
        for name in (f"sums/sum-{session}.npy", f"received-1-{session}.npy"):
            np.testing.assert_array_equal(
                np.load(programs.directory / name), exact_sum(programs.directory)
            )
    np.testing.assert_array_equal(
        np.load(programs.directory / "received-3.npy"), exact_sum(programs.directory)
    )


def test_whatever_ends_a_server_its_task_continues(programs):
    server = programs.server("server.log_level=info")
    first = programs.client(1)
    wait_for(first, "joining")
    # From here on the server's disk takes nothing: what it cannot keep it refuses.
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    second = programs.client(2)
    assert "client-2" in wait_for(
        server, "AdvertiseKeys identity=client-2 code=STORAGE_FAILED"
    )
    server.send_signal(signal.SIGKILL)
    server.wait(TIMEOUT_SECONDS)

    server = programs.server()
    server.send_signal(signal.SIGTERM)
    assert "start again" in finish(server)

    server = programs.server("server.output_dir=blocked")
    (programs.directory / "blocked").write_text("a file where a directory is needed")
    for client in [first, second, programs.client(3)]:
        finish(client)
    output, _ = server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 55, output
    assert "no client's data were lost" in output

    finish(programs.server())
    np.testing.assert_array_equal(
        np.load(programs.directory / "sums" / "sum-1.npy"),
        exact_sum(programs.directory),
    )
    # The budget of the task is spent: the same task is refused from now on.
    again = programs.run(
        *("server", "--until-done", "--config", "server.exact.toml", "--json"),
        f"--set=server.listen={programs.address}",
    )
    assert again.returncode == 60
    assert "budget" in json.loads(again.stdout.splitlines()[-1])["error"]["message"]


def test_a_rejected_client_disturbs_no_session(programs):
    server = programs.server()
    same_state = programs.run(
        "server", "--config", "server.exact.toml", "--set=server.listen=127.0.0.1:0"
    )
    assert same_state.returncode == 55, same_state.stderr
    same_port = programs.run(
        *("server", "--config", "server.exact.toml"),
        f"--set=server.listen={programs.address}",
        "--set=server.state_dir=other-state",
    )
    assert same_port.returncode == 73, same_port.stderr
    for refused in (same_state, same_port):
        assert "next step" in refused.stderr
        assert "Traceback" not in refused.stderr

    assert (
        main(["pki", "init", str(programs.directory / "strangers"), "--clients=1"]) == 0
    )
    stranger = programs.run(
        *("client", "--config", "client.toml", "--input", "n-1.npy", "--json"),
        f"--set=client.server={programs.address}",
        *("--set=tls.ca=pki/ca.pem", "--set=policy.require_noise=false"),
        *("--set=tls.certificate=strangers/client-1.pem",),
        *("--set=tls.key=strangers/client-1.key", "--set=client.wait_seconds=2"),
    )
    assert stranger.returncode in (51, 58, 74), stranger.stderr
    assert "Traceback" not in stranger.stderr

    words = [f"--set={item}" for item in programs.overrides(1)]
    wants_noise = programs.run(
        *("client", "--config", "client.toml", "--input", "n-1.npy", "--json"), *words
    )
    assert wants_noise.returncode == 13, wants_noise.stderr
    error = json.loads(wants_noise.stdout.splitlines()[-1])["error"]
    assert "without noise" in error["message"]

    clients = [programs.client(number) for number in (1, 2, 3)]
    for client in clients:
        finish(client)
    finish(server)


def test_an_aborted_session_is_followed_by_one_that_succeeds(programs):
    # All three are needed: without the third, the first session cannot release a sum.
    server = programs.server("rounds.masked_input=2", config="server.toml")
    others = [programs.client(number, kind="x") for number in (1, 2)]
    paused = programs.pausing_client(3, "upload", kind="x")
    wait_for(paused, '"paused"')
    paused.send_signal(signal.SIGKILL)
    for client in others:
        assert "aborted" in wait_for(client, "aborted")
    # A session that released nothing has spent nothing of the budget of one.
    for client in [*others, programs.client(3, kind="x")]:
        finish(client)
    assert "aborted" in finish(server)
    # Session 1 has left a receipt on either side; the third client was killed in it.
    for path in ("received-1.receipt-1.bin", "received-2.receipt-1.bin"):
        data = (programs.directory / path).read_bytes()
        verdict = verify_receipt(data, noise=TaskNoiseVerifier())
        assert verdict.receipt.outcome is Outcome.ABORTED
        assert verdict.descriptor.session_number == 1
        assert verdict.clients == 3
    released = np.load(programs.directory / "sums" / "sum-2.npy")
    np.testing.assert_array_equal(
        np.load(programs.directory / "received-3.npy"), released
    )


def test_an_input_file_damaged_during_a_session_is_replaced_by_zeros(programs):
    """The other clients get their sum, and the owner of the file an error."""
    server = programs.server("rounds.masked_input=60", config="server.toml")
    fixed = ["client.answer_at=0.05"]
    others = [programs.client(number, kind="x", sets=fixed) for number in (1, 2)]
    paused = programs.pausing_client(3, "share", kind="x")
    wait_for(paused, '"paused"')
    paused.send_signal(signal.SIGKILL)
    path = programs.directory / "x-3.npy"
    np.save(path, np.full(16, np.nan))
    told = finish(programs.client(3, "--json", kind="x", sets=fixed))
    (session,) = json.loads(told.splitlines()[-1])["sessions"]
    assert session["inputs"] == 3
    assert "x-3.npy has NaN or infinity" in session["replaced"]
    assert "zeros were given" in told
    for each in others:
        assert "zeros were given" not in finish(each)
    finish(server)
    assert (programs.directory / "sums" / "sum-1.npy").exists()
    for part in ("0", "1"):
        sets = [f"--set={each}" for each in programs.overrides(3)]
        refused = programs.run(
            *("client", "--config", "client.toml", "--input", "x-3.npy", *sets),
            f"--set=client.answer_at={part}",
        )
        assert refused.returncode == 72, refused.stderr
        assert "answer_at" in refused.stderr


def test_each_session_uses_its_own_file_until_the_task_is_over(programs):
    for client in (1, 2, 3):
        for session in (1, 2, 3):
            vector = np.full(16, 10 * session + client)
            np.save(programs.directory / f"v-{client}-{session}.npy", vector)
    (programs.directory / "model.bin").write_bytes(b"weights")
    server = programs.server("task.steps=2", "task.payload=model.bin")

    def client(number, *sets):
        return programs.client(
            number,
            *("--json", "--input", f"v-{number}-{{session}}.npy"),
            *("--output", f"sum-{number}-{{session}}.npy"),
            *("--payload-out", f"payload-{number}-{{session}}.bin"),
            sets=["client.sessions=3", *sets],
        )

    clients = [client(number) for number in (1, 2, 3)]
    for number, one in enumerate(clients, start=1):
        lines = finish(one).splitlines()
        said = json.loads(lines[-1])
        sums = [f"sum-{number}-1.npy", f"sum-{number}-2.npy"]
        assert [each["session_number"] for each in said["sessions"]] == [1, 2]
        assert [each["output"] for each in said["sessions"]] == sums
        assert [each["shortened_by"] for each in said["sessions"]] == [1.0, 1.0]
        assert said["sessions"][1]["payload"] == f"payload-{number}-2.bin"
        assert said["task_over"]
        assert said["last_part"] == {
            "session_number": 2,
            "inputs": 3,
            "output": sums[1],
        }
        assert any("the task is over" in line for line in lines)
        assert any("last sum" in line and sums[1] in line for line in lines)
    finish(server)
    for number in (1, 2, 3):
        for session in (1, 2):
            np.testing.assert_array_equal(
                np.load(programs.directory / f"sum-{number}-{session}.npy"),
                np.full(16, 30 * session + 6),
            )
            payload = programs.directory / f"payload-{number}-{session}.bin"
            assert payload.read_bytes() == b"weights"
    late = client(1, "client.wait_seconds=1")
    said, _ = late.communicate(timeout=TIMEOUT_SECONDS)
    assert late.returncode == 58
    assert any(
        "last sum" in line and "sum-1-2.npy" in line for line in said.split("\n")
    )
