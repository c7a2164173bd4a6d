"""No program writes over one of its own files, whatever two paths name it."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from secagg_testing.two_aggregators import LEADER_KEY

from secagg.cli import main
from secagg.cli.checks.preflight import written_files
from secagg.cli.checks.setup_checks import doctor_results
from secagg.config import load_client_settings, load_server_settings
from secagg.config.paths import (
    NamedPath,
    client_paths,
    refuse_shared_paths,
    server_paths,
    two_aggregator_paths,
)
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    SharingClientSettings,
    load_two_aggregator_settings,
)
from secagg.errors import ErrorCode, ServiceError
from secagg.pki.key_files import key_text

CONFIG = Path(__file__).parents[4] / "deploy" / "config"
IO = {
    "inputs": [("--input", Path("x-{session}.npy"))],
    "outputs": written_files({"--output": Path("sum.npy"), "--payload-out": Path("m")}),
}
# Every path that can be set is set.
KEY = f"enrolment.enrolment_key={key_text(LEADER_KEY.public_bytes)}"
CLIENT = [
    KEY,
    "enrolment.identity=identity.seed",
    "enrolment.credential=credential.bin",
    "policy.data=ours",
    "policy.total_epsilon=1",
    "policy.total_delta=1e-6",
    "policy.data_dir=claims",
]
DATA = [each for each in CLIENT if each.startswith("policy.")]


def of_client():
    file = CONFIG / "client.full.toml"
    loaded = load_client_settings(file, environment={}, overrides=CLIENT)
    return client_paths(loaded.settings, file, **IO)


def of_server():
    file = CONFIG / "server.full.toml"
    changed = [
        KEY,
        "task.payload=model.bin",
        "enrolment.revocations=revocations.bin",
        "server.revoked=ca.crl",
        "server.tasks_dir=tasks",
        "server.admin_socket=admin.sock",
        "server.blobs=file:/uploads",
    ]
    loaded = load_server_settings(file, environment={}, overrides=changed).settings
    folders = [loaded.server.output_dir / "another"]
    return server_paths(loaded.host, file, [loaded.own_task], folders=folders)


def of_two(kind, name, overrides=()):
    file = CONFIG / "two-aggregators" / f"{name}.toml"
    loaded = load_two_aggregator_settings(
        kind, file, environment={}, overrides=overrides
    )
    options = IO if name == "client" else {}
    return two_aggregator_paths(loaded.settings, file, **options)


PROGRAMS = {
    "client": of_client,
    "server": of_server,
    "leader": lambda: of_two(LeaderSettings, "leader"),
    "helper": lambda: of_two(HelperSettings, "helper"),
    "sharing client": lambda: of_two(SharingClientSettings, "client", DATA),
}
NAMES = {
    "client": {"--config", "--input", "--output", "--payload-out", "tls.key"}
    | {"tls.ca", "tls.certificate", "enrolment.identity", "enrolment.credential"}
    | {"client.state_dir", "client.rollback_mark", "policy.data_dir"}
    | {"policy.data_rollback_mark"},
    "server": {"--config", "tls.ca", "tls.certificate", "tls.key", "server.revoked"}
    | {"server.tasks_dir", "server.state_dir", "server.rollback_mark"}
    | {"server.output_dir", "server.admin_socket", "server.blobs"}
    | {"task 'sum-of-vectors': task.payload"}
    | {"task 'sum-of-vectors': enrolment.revocations"},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_sample_settings_use_every_file_once(program):
    paths = PROGRAMS[program]()
    assert (
        refuse_shared_paths(paths) == f"{len(paths)} paths, none written over another"
    )
    assert NAMES.get(program, set()) <= {each.name for each in paths}


@pytest.mark.parametrize("program", PROGRAMS)
def test_any_two_equal_paths_are_rejected(program):
    paths = PROGRAMS[program]()
    kept = 0
    for one, other in itertools.permutations(range(len(paths)), 2):
        changed = list(paths)
        changed[one] = replace(paths[one], path=paths[other].path)
        if changed[one].may_share(changed[other]):
            kept += 1
            assert not changed[one].is_written or changed[one].name == paths[other].name
            continue
        with pytest.raises(ServiceError) as caught:
            refuse_shared_paths(changed)
        assert caught.value.code is ErrorCode.BAD_SETTINGS
        assert caught.value.next_step
    # Certificates of [tls], a mark and its lock, a directory and its own files.
    assert kept < len(paths) * (len(paths) - 1) / 4


def pair(one, other, *, sent=False, state=False):
    return [
        NamedPath("read", Path(one), is_sent=sent),
        NamedPath("written", Path(other), is_written=True, is_state=state),
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x.npy", "./x.npy"),
        ("x.npy", "d/../x.npy"),
        ("x.npy", "link.npy"),
        ("x.npy", "hard.npy"),
        ("d/new.npy", "linked-d/new.npy"),
        ("x-{session}.npy", "x-{session}.npy"),
        ("x-7.npy", "x-{session}.npy"),
        ("x-1{session}.npy", "x-{session}.npy"),  # session 1 is read by session 11
        ("{session}/1.npy", "1/{session}.npy"),
        ("x-{session}-{session}.npy", "x-12-{session}.npy"),
        ("x.npy", "hard-{session}.npy"),
        ("circle", "circle"),
    ],
)
def test_two_paths_to_one_file_are_rejected(tmp_path, monkeypatch, one, other):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "x.npy").write_bytes(b"x")
    (tmp_path / "link.npy").symlink_to("x.npy")
    (tmp_path / "linked-d").symlink_to("d")
    (tmp_path / "circle").symlink_to("circle")
    os.link(tmp_path / "x.npy", tmp_path / "hard.npy")
    os.link(tmp_path / "x.npy", tmp_path / "hard-3.npy")
    for paths in (pair(one, other), pair(other, one)):
        with pytest.raises(ServiceError, match="written would be written over it"):
            refuse_shared_paths(paths)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x.npy", "y.npy"),
        ("x-{session}.npy", "x-{session}-sum.npy"),
        ("x-{session}.npy", "x-.npy"),
        ("x-{session}.npy", "x-a.npy"),
        ("x[1].npy", "x-{session}.npy"),
    ],
)
def test_patterns_that_differ_for_every_number_are_accepted(
    tmp_path, monkeypatch, one, other
):
    monkeypatch.chdir(tmp_path)
    refuse_shared_paths(pair(one, other))


def test_a_state_directory_must_not_contain_other_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    for file in ("state/book.sqlite3", "link/deep/er.bin"):
        with pytest.raises(ServiceError, match="lies in written"):
            refuse_shared_paths(pair(file, "state", sent=True, state=True))
    # A key that stays on this machine may lie there.
    refuse_shared_paths(pair("state/tls.key", "state", state=True))


@pytest.fixture
def place(tmp_path, monkeypatch, settings_texts):
    monkeypatch.chdir(tmp_path)
    for role, text in settings_texts.items():
        (tmp_path / f"{role}.toml").write_text(text)
    assert main(["pki", "init", "pki", "--clients", "1"]) == 0
    np.save("x.npy", np.ones(2))
    return tmp_path


SHOW = pytest.mark.parametrize("show", [[], ["--show-settings"]], ids=["start", "show"])


@SHOW
@pytest.mark.parametrize(
    "case",
    [
        ("--output", "x.npy", "--input"),
        ("--payload-out", "x.npy", "--input"),
        ("--output", "pki/client-1.key", "tls.key"),
        ("--output", "client.toml", "--config"),
        ("--payload-out", "y.receipt.bin", "--output"),
        ("--output", "client-state/book.sqlite3", "client.state_dir"),
    ],
)
def test_the_client_rejects_shared_paths_before_writing(place, capsys, show, case):
    option, path, other = case
    before = Path("x.npy").read_bytes()
    options = [option, path] + ["--output", "y.npy"] * (option == "--payload-out")
    command = ["client", "--config", "client.toml", "--input", "x.npy", *options]
    assert main([*command, *show]) == 72
    said = capsys.readouterr().err
    assert option in said
    assert other in said
    assert Path("x.npy").read_bytes() == before
    assert not (place / "client-state").exists()


@SHOW
@pytest.mark.parametrize(
    "change",
    [
        "server.output_dir=server-state",
        "server.rollback_mark=pki/server.key",
        "server.rollback_mark=server-state/mark",
        "task.payload=pki/server.key",
        "task.payload=server-state/book.sqlite3",
        "task.payload=sums/sum-3.npy",
    ],
)
def test_the_server_rejects_shared_paths_before_writing(place, capsys, show, change):
    file = place / "server.toml"
    assert main(["server", "--config", str(file), "--set", change, *show]) == 72
    assert change.partition("=")[0] in capsys.readouterr().err
    assert not (place / "server-state").exists()


@SHOW
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("client", ["--input", "x.npy", "--output", "x.npy"]),
        ("client", ["--input", "x.npy", "--receipt", "x.npy"]),
        ("leader", ["--set", "server.output_dir=/var/lib/secagg/state"]),
        ("helper", ["--set", "server.rollback_mark=/etc/secagg/helper.key"]),
    ],
)
def test_two_aggregators_reject_shared_paths_before_writing(
    place, capsys, show, part, words
):
    file = CONFIG / "two-aggregators" / f"{part}.toml"
    changed = ["--set", "tls.key=/etc/secagg/helper.key"] if part == "helper" else []
    command = ["two-aggregators", part, "--config", str(file), *words, *changed, *show]
    assert main(command) == 72
    assert "may be one file" in capsys.readouterr().err
    assert np.load(place / "x.npy").tolist() == [1, 1]


async def test_the_doctor_reports_shared_paths_like_the_start(place):
    text = (place / "server.toml").read_text()
    (place / "server.toml").write_text(
        text.replace("[server]", '[server]\noutput_dir = "server-state"')
    )
    text = (place / "client.toml").read_text()
    (place / "client.toml").write_text(
        text.replace("[client]", '[client]\nrollback_mark = "client.toml"')
    )
    for found in (
        (await doctor_results(place / "server.toml"))[1],
        (await doctor_results(place / "client.toml"))[1],
    ):
        assert next(each.number[2:] for each in found if each.error) == "05"
