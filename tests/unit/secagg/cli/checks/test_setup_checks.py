"""Start, `--show-settings` and the doctor report the same list of checks."""

import asyncio
import json
import math
import re
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.two_aggregators import HELPER_KEY, LEADER_KEY

from secagg.cli import main
from secagg.cli.checks import state_checks
from secagg.cli.checks.setup_checks import SETUP_CHECKS
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.pki.key_files import key_text
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.server import service
from secagg.storage.open_store import open_state

ROOT = Path(__file__).parents[5]
KEY = key_text(LEADER_KEY.public_bytes)
OTHER_KEY = key_text(HELPER_KEY.public_bytes)
TASK = """[task]
id = "t"
dimension = 4
rho = 2.0
epsilon = 9.0
delta = 1e-5
steps = 2
min_survivors = 2
max_clients = 3
"""
TLS = """ca = "pki/ca.pem"
certificate = "pki/{0}.pem"
key = "pki/{0}.key"
"""
TEXTS = {
    "server": f"""[server]
listen = "127.0.0.1:0"
state_dir = "state"
rollback_mark = "the.mark"
output_dir = "sums"
[tls]
{TLS.format("server")}
[task]
id = "t"
[vector]
dimension = 2
[cohort]
min_clients = 3
max_clients = 3
min_survivors = 3
[noise]
none = "{NO_NOISE_ACKNOWLEDGEMENT}"
""",
    "client": f"""[client]
server = "127.0.0.1:1"
task = "t"
state_dir = "state"
rollback_mark = "the.mark"
wait_seconds = 0.0
[tls]
{TLS.format("client")}
[policy]
require_noise = false
""",
    "leader": f"""[server]
name = "leader"
listen = "127.0.0.1:0"
state_dir = "state"
rollback_mark = "the.mark"
output_dir = "sums"
[tls]
{TLS.format("leader")}
[helper]
name = "helper"
address = "127.0.0.1:1"
receipt_key = "{KEY}"
{TLS.format("leader-client")}
{TASK}""",
    "helper": f"""[server]
name = "helper"
listen = "127.0.0.1:0"
state_dir = "state"
rollback_mark = "the.mark"
[tls]
{TLS.format("helper")}
[leader]
name = "leader"
{TASK}""",
    "sharing client": f"""[client]
task = "t"
state_dir = "state"
rollback_mark = "the.mark"
[leader]
name = "leader"
address = "127.0.0.1:1"
receipt_key = "{KEY}"
{TLS.format("client")}
[helper]
name = "helper"
address = "127.0.0.1:2"
receipt_key = "{OTHER_KEY}"
{TLS.format("client")}
[policy]
max_epsilon = 9.0
max_delta = 1e-5
min_survivors = 2
""",
}
COMMANDS = {
    "server": ["server"],
    "client": ["client", "--input", "x.npy", "--output", "out/sum.npy"],
    "leader": ["two-aggregators", "leader"],
    "helper": ["two-aggregators", "helper"],
    "sharing client": ["two-aggregators", "client", "--input", "x.npy"],
}


def changed(old, new):
    """Return a fault that is written into the settings."""

    def plant(place, _):
        text = (place / "settings.toml").read_text()
        assert old in text
        (place / "settings.toml").write_text(text.replace(old, new))

    return plant


def opened(place, state="state", mark="the.mark"):
    """Have a state that has run once."""

    async def run():
        await (await open_state(place / state, mark=place / mark)).close()

    asyncio.run(run())


def wide(place, _):
    opened(place)
    (place / "state").chmod(0o755)


def lost(place, _):
    opened(place)
    for path in (place / "state").iterdir():
        path.unlink()


def lost_task(place, _):
    """As `lost`, of the only task of a leader or a helper."""
    opened(place, "state/tasks/t", "the.mark.t")
    for path in (place / "state" / "tasks" / "t").iterdir():
        path.unlink()


def wide_task(place, _):
    opened(place, "state/tasks/t", "the.mark.t")
    (place / "state" / "tasks" / "t").chmod(0o755)


def use_taken_port(place, monkeypatch):
    listening = socket.create_server(("127.0.0.1", 0))
    OPEN.append(listening)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    changed("127.0.0.1:0", address)(place, monkeypatch)


OPEN = []


def without(package, old, new):
    def plant(place, monkeypatch):
        monkeypatch.setitem(sys.modules, package, None)
        changed(old, new)(place, monkeypatch)

    return plant


def nowhere(place, _):
    (place / "out").rmdir()
    (place / "out").write_text("")


def in_place_of(name):
    def plant(place, _):
        (place / name).write_text("")

    return plant


def folder_in_place_of(name):
    return lambda place, _: (place / name).mkdir(parents=True)


def without_input(place, _):
    (place / "x.npy").unlink()


def remove_claims(place, _):
    """The claims on data are deleted, and their mark is not."""
    text = (place / "settings.toml").read_text().replace("require_noise = false\n", "")
    total = 'data = "ours"\ntotal_epsilon = 9.0\ntotal_delta = 1e-5\n'
    where = 'data_dir = "claims"\ndata_rollback_mark = "claims.mark"\n'
    limits = "" if "max_epsilon" in text else "max_epsilon = 9.0\nmax_delta = 1e-5\n"
    (place / "settings.toml").write_text(text + limits + total + where)

    async def run():
        await (await open_state(place / "claims", mark=place / "claims.mark")).close()

    asyncio.run(run())
    for path in (place / "claims").iterdir():
        path.unlink()


IDENTITY = f"""[enrolment]
identity = "none.seed"
credential = "none.bin"
enrolment_key = "{KEY}"
[policy]"""
METRICS = ('0"', '0"\nmetrics_listen = "127.0.0.1:0"')
PARTY = {
    "D105": changed('"the.mark"', '"settings.toml"'),
    "D110": changed("pki/ca.pem", "none.pem"),
    "D120": changed("pki/ca.pem", "pki/other.pem"),
    "D122": changed('[server]\nname = "', '[server]\nname = "x'),
    "D125": changed('"the.mark"', '"the.mark"\nrevoked = "settings.txt"'),
    "D145": without("prometheus_client", *METRICS),
    "D150": in_place_of("state"),
    "D152": wide_task,
    "D162": lost_task,
    "D180": changed('listen = "127.0.0.1:0"', 'listen = "nonsense"'),
    "D185": use_taken_port,
    "D190": changed("epsilon = 9.0", "epsilon = 0.1"),
}
# Of every check that a start runs, what makes it fail, or warn.
PLANTED = {
    "server": {
        "D105": changed('"the.mark"', '"settings.toml"'),
        "D110": changed("pki/ca.pem", "none.pem"),
        "D120": changed("pki/ca.pem", "pki/other.pem"),
        "D125": changed('"sums"', '"sums"\nrevoked = "settings.txt"'),
        "D127": changed('"sums"', '"sums"\n[edge]\nlisten = "127.0.0.1:0"'),
        "D130": changed(
            "[noise]",
            f'[enrolment]\ntrust_domain = "x"\nenrolment_key = "{KEY}"\n[noise]',
        ),
        "D145": without("prometheus_client", *METRICS),
        "D150": in_place_of("state"),
        "D152": wide,
        "D157": changed('"sums"', '"sums"\nblobs = "nonsense"'),
        "D162": lost,
        "D170": in_place_of("sums"),
        "D180": changed('"127.0.0.1:0"', '"nonsense"'),
        "D185": use_taken_port,
        "D188": changed("[vector]", 'payload = "none.bin"\n[vector]'),
    },
    "client": {
        "D202": changed("[policy]", '[policy]\nprofiles = ["unknown"]'),
        "D205": changed('"the.mark"', '"settings.toml"'),
        "D210": changed("pki/ca.pem", "none.pem"),
        "D220": changed("pki/ca.pem", "pki/other.pem"),
        "D230": changed("[policy]", IDENTITY),
        "D235": changed("127.0.0.1:1", "nonsense"),
        "D240": in_place_of("state"),
        "D243": nowhere,
        "D245": wide,
        "D252": lost,
    },
    "leader": {
        **PARTY,
        "D170": in_place_of("sums"),
        "D195": changed(KEY, "ed25519:..."),
    },
    "helper": PARTY,
    "sharing client": {
        "D202": changed("[policy]", '[policy]\nsuites = ["unknown"]'),
        "D205": changed('"the.mark"', '"settings.toml"'),
        "D210": changed("pki/ca.pem", "none.pem"),
        "D220": changed("pki/ca.pem", "pki/other.pem"),
        "D235": changed("127.0.0.1:1", "nonsense"),
        "D240": in_place_of("state"),
        "D243": nowhere,
        "D245": wide,
        "D252": lost,
        "D232": changed("[policy]", '[policy]\ndata = "ours"'),
        "D295": changed(OTHER_KEY, KEY),
    },
}
PARTY_MET = {
    "D160": folder_in_place_of("state/tasks/t/store.sqlite3"),
    "D186": changed('"the.mark"', '"the.mark"\nadmin_socket = "settings.txt"'),
}
# What a start meets by itself, after the checks that it runs.
MET = {
    "server": {
        "D160": folder_in_place_of("state/store.sqlite3"),
        "D186": changed('"sums"', '"sums"\nadmin_socket = "settings.txt"'),
    },
    "client": {
        "D242": without_input,
        "D250": folder_in_place_of("state/store.sqlite3"),
        "D255": remove_claims,
    },
    "leader": PARTY_MET,
    "helper": PARTY_MET,
    "sharing client": {
        "D242": without_input,
        "D250": folder_in_place_of("state/store.sqlite3"),
        "D255": remove_claims,
    },
}
# What the settings do not name is not there to be broken.
ABSENT = {"helper": {"D170", "D195"}}
WITH_OPTIONS = {"D242", "D243"}  # the doctor is handed none
WARNS = {"D152", "D245"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    pki = tmp_path_factory.mktemp("certificates") / "pki"
    ours, theirs = (CertificateAuthority.create("ours.example") for _ in range(2))
    ours.issued().write(pki, "ca")
    theirs.issued().write(pki, "other")
    for name in ("server", "leader", "helper"):
        ours.issue_server(name, ["127.0.0.1"]).write(pki, name)
    ours.issue_client("client-1").write(pki, "client")
    ours.issue_client("leader").write(pki, "leader-client")
    return pki


@pytest.fixture
def place(tmp_path, monkeypatch, certificates):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(state_checks, "_SLOW_DISK_SECONDS", math.inf)
    (tmp_path / "pki").symlink_to(certificates)
    (tmp_path / "out").mkdir()
    (tmp_path / "settings.txt").write_text("no line\n")
    np.save("x.npy", np.ones(2))
    yield tmp_path
    while OPEN:
        OPEN.pop().close()


def ended(capsys, *words):
    code = main([*words, "--config", "settings.toml", "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out.splitlines()[-1]), said.err + said.out


def test_every_start_check_has_a_planted_fault():
    for part, branches in SETUP_CHECKS.items():
        checks = [check for branch in branches for check in branch]
        numbers = [check.number for check in checks]
        assert len(set(numbers)) == len(numbers)
        starting = {check.number for check in checks if check.starts}
        assert set(PLANTED[part]) == starting - ABSENT.get(part, set())
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for branches in SETUP_CHECKS.values():
        for check in (check for branch in branches for check in branch):
            assert re.search(rf"\b{check.number}\b", page), check.number


@pytest.mark.parametrize(
    ("part", "number"),
    [
        (part, number)
        for planted in (PLANTED, MET)
        for part, faults in planted.items()
        for number in faults
    ],
)
def test_start_show_settings_and_doctor_report_the_same_fault(
    place, monkeypatch, capsys, part, number
):
    (place / "settings.toml").write_text(TEXTS[part])
    (PLANTED[part] | MET[part])[number](place, monkeypatch)
    command = list(COMMANDS[part])
    if number == "D243" and part == "sharing client":
        command += ["--output", "out/sum.npy"]
    shown, _, text = ended(capsys, *command, "--show-settings")
    doctor, answer, _ = ended(capsys, "doctor")
    checks = {each["number"]: each for each in answer["checks"]}
    # The doctor of a client asks its aggregator, too, and none listens.
    sound = 58 if part == "client" else 0
    if number in WARNS:
        assert (shown, doctor) == (0, sound)
        assert checks[number]["state"] == "warning"
        assert "other users may use" in text
        return
    started, error, _ = ended(capsys, *command)
    assert started == shown != 0
    assert error["error"]["next_step"]
    if number in WITH_OPTIONS:
        assert doctor == sound
        return
    assert doctor == started
    assert checks[number]["state"] == "failed"
    assert checks[number]["found"] == error["error"]["message"]


@pytest.mark.parametrize(
    ("part", "number", "file"),
    [
        ("leader", "D110", "none.pem"),
        ("leader", "D120", "other.pem"),
        ("sharing client", "D210", "none.pem"),
        ("sharing client", "D220", "other.pem"),
    ],
)
def test_files_for_the_helper_are_checked(place, capsys, part, number, file):
    before, helper, behind = TEXTS[part].rpartition("[helper]")
    faulty = behind.replace("pki/ca.pem", f"pki/{file}")
    (place / "settings.toml").write_text(before + helper + faulty)
    _, answer, _ = ended(capsys, "doctor")
    checks = {each["number"]: each for each in answer["checks"]}
    assert checks[number]["state"] == "failed"
    started, error, _ = ended(capsys, *COMMANDS[part])
    assert started
    assert error["error"]["message"] == checks[number]["found"]


def test_the_doctor_checks_the_settings_after_set(place, capsys):
    """One settings file serves several clients, whose states `--set` tells apart."""
    (place / "settings.toml").write_text(TEXTS["client"])
    (place / "state").write_text("")
    code, answer, _ = ended(capsys, "doctor")
    assert code == 55
    code, answer, _ = ended(capsys, "doctor", "--set", "client.state_dir=other")
    assert code == 58, answer  # it reaches no aggregator, and all else is well
    changes = (
        "--set",
        "client.state_dir=other",
        "--set",
        "client.rollback_mark=b.mark",
    )

    async def run():
        await (await open_state(place / "other", mark=place / "b.mark")).close()

    asyncio.run(run())
    assert ended(capsys, "state", "check", *changes)[1]["ok"]
    assert ended(capsys, "budget")[0] == 55
    assert ended(capsys, "budget", *changes)[1]["budgets"][0]["task"] == "t"
    (place / "settings.toml").write_text(TEXTS["server"])
    words = ["budget", "--config", "settings.toml", "--set", "server.state_dir=other"]
    assert main(words) == 2


@pytest.mark.parametrize("part", ["client", "sharing client"])
def test_a_client_accepts_a_restored_state_only_with_the_full_sentence(
    place, capsys, part
):
    (place / "settings.toml").write_text(TEXTS[part])
    lost(place, None)
    code, error, _ = ended(capsys, *COMMANDS[part], "--restored", "yes")
    assert code == 72
    assert "may answer twice" in error["error"]["next_step"]


def test_checking_an_upload_store_does_not_create_it(place, capsys):
    text = TEXTS["server"].replace('"sums"', f'"sums"\nblobs = "file:{place}/a/b"')
    (place / "settings.toml").write_text(text)
    assert ended(capsys, "doctor")[0] == 0
    assert ended(capsys, "server", "--show-settings")[0] == 0
    assert not (place / "a").exists()


def test_an_empty_store_file_counts_as_no_store(place, capsys):
    """A process that is killed before its first commit leaves one."""
    (place / "settings.toml").write_text(TEXTS["server"])
    (place / "state").mkdir(mode=0o700)
    (place / "state" / "store.sqlite3").touch(mode=0o600)
    assert ended(capsys, "doctor")[0] == 0
    lost(place, None)
    (place / "state" / "store.sqlite3").touch(mode=0o600)
    assert ended(capsys, "doctor")[0] == 78  # and it has a mark


def test_a_dangling_link_is_rejected_as_a_state_directory(place, capsys):
    (place / "settings.toml").write_text(TEXTS["server"])
    (place / "state").symlink_to(place / "unmounted" / "state")
    codes = [
        ended(capsys, *words)[0]
        for words in (["doctor"], ["server", "--show-settings"], ["server"])
    ]
    assert codes == [55, 55, 55]


@pytest.mark.parametrize("part", ["server", "client", "helper", "sharing client"])
def test_a_rollback_mark_that_cannot_be_created_is_reported_before_the_start(
    place, capsys, part
):
    (place / "settings.toml").write_text(
        TEXTS[part].replace('"the.mark"', '"settings.txt/the.mark"')
    )
    shown, error, _ = ended(capsys, *COMMANDS[part], "--show-settings")
    doctor, answer, _ = ended(capsys, "doctor")
    started, said, _ = ended(capsys, *COMMANDS[part])
    assert shown == doctor == started == 55
    failed = [each["found"] for each in answer["checks"] if each["state"] == "failed"]
    assert failed[0] == error["error"]["message"] == said["error"]["message"]


def with_task_file(place, payload):
    """Have a folder of tasks whose one task hands out a file."""
    task = TEXTS["server"][TEXTS["server"].index("[task]") :]
    (place / "tasks").mkdir()
    (place / "tasks" / "a.toml").write_text(
        task.replace('id = "t"', f'id = "u"\npayload = "{payload}"')
    )
    text = TEXTS["server"].replace('"sums"', '"sums"\ntasks_dir = "tasks"')
    (place / "settings.toml").write_text(text)


def test_a_task_file_cannot_serve_the_private_key_of_its_server(
    place, monkeypatch, capsys
):
    """The paths of a task are checked wherever it comes from."""
    with_task_file(place, "../pki/server.key")
    checked = []

    async def run_service(_settings, proposed, *, check_task, **_):
        for task in proposed:
            checked.append(task.task.id)
            check_task(task)

    monkeypatch.setattr(service, "run_service", run_service)
    started, error, _ = ended(capsys, "server")
    assert checked == ["t", "u"]
    doctor, answer, _ = ended(capsys, "doctor")
    shown, _, _ = ended(capsys, "server", "--show-settings")
    assert started == doctor == shown == 72
    (found,) = [each for each in answer["checks"] if each["number"] == "D105"]
    assert found["found"] == error["error"]["message"]
    assert "tls.key" in found["found"]


@pytest.mark.parametrize("error", [PermissionError, NotADirectoryError])
def test_an_unreadable_task_folder_is_an_error(place, monkeypatch, capsys, error):
    with_task_file(place, "../settings.txt")
    original = Path.iterdir

    def refused(path):
        if path.name == "tasks":
            raise error(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    for words in (["doctor"], ["server", "--show-settings"], ["server"]):
        assert ended(capsys, *words)[0] == 72


def test_a_start_warns_of_a_state_accessible_to_others(place, capsys):
    (place / "settings.toml").write_text(TEXTS["client"])
    wide(place, None)
    code, _, text = ended(capsys, *COMMANDS["client"])
    assert code == 58, text  # continues, and reaches no aggregator
    assert "other users may use" in text


@pytest.mark.parametrize("part", list(TEXTS))
def test_a_sound_configuration_passes(place, capsys, part):
    (place / "settings.toml").write_text(TEXTS[part])
    for used in (False, True):
        if used:
            opened(place)
        command = [*COMMANDS[part], "--show-settings"]
        assert ended(capsys, *command)[0] == 0
        code, answer, _ = ended(capsys, "doctor")
        failed = {e["number"] for e in answer["checks"] if e["state"] == "failed"}
        # Of a client the doctor asks the aggregator, too.
        assert failed <= {"D270"}
        assert (code == 0) is (not failed)
