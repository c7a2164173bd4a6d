"""Every way in which a set-up is broken has a number, a sentence and a next step."""

import asyncio
import fcntl
import json
import math
import os
import resource
import socket
import sqlite3
import ssl
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import asyncpg
import pytest
from secagg_testing.tls_deployment import crl_of

from secagg.cli import main
from secagg.cli.checks import connectivity as way_to_aggregator
from secagg.cli.checks import state_checks
from secagg.cli.checks.setup_checks import doctor_results
from secagg.config.common import DataSection
from secagg.errors import ErrorCode
from secagg.pki.certificate_authority import CertificateAuthority
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT, ExactSumWaiver
from secagg.server.server import Server
from secagg.server.task.setup import Cohort, PreparedTask
from secagg.storage.budget_ledger import BudgetKey, Claim, ClaimAdversary
from secagg.storage.change import Change, NewSession, Side
from secagg.storage.changes import PutClaim
from secagg.storage.journal import SumAttempt, record_of
from secagg.storage.leases import Heartbeat
from secagg.storage.open_store import open_state, open_store
from secagg.storage.rollback_mark import SLOT_BYTES, Mark, RollbackMark, default_mark
from secagg.storage.rows import Replica
from secagg.transport import handshake
from secagg.transport.peer_identity import Role
from secagg.transport.tls import TLSIdentity

SERVER = f"""
[server]
listen = "127.0.0.1:0"
state_dir = "state"
output_dir = "sums"
[tls]
ca = "pki/ca.pem"
certificate = "pki/server.pem"
key = "pki/server.key"
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
"""
CLIENT = """
[client]
server = "127.0.0.1:%d"
task = "t"
state_dir = "client-state"
[tls]
ca = "pki/ca.pem"
certificate = "pki/client.pem"
key = "pki/client.key"
[policy]
require_noise = false
"""
WAIVER = ExactSumWaiver(NO_NOISE_ACKNOWLEDGEMENT)
EXACT = PreparedTask.exact(
    WAIVER, Cohort(min_clients=3, max_clients=3, min_survivors=3), dimension=2
)


@pytest.fixture(scope="module")
def authorities():
    return CertificateAuthority.create("ours.example"), CertificateAuthority.create(
        "ours.example"
    )


@pytest.fixture
def place(tmp_path, authorities, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "marks"))
    # How fast the disk of a busy machine is, is not checked here.
    monkeypatch.setattr(state_checks, "_SLOW_DISK_SECONDS", math.inf)
    ours, theirs = authorities
    pki = tmp_path / "pki"
    ours.issued().write(pki, "ca")
    theirs.issued().write(pki, "their-ca")
    ours.issue_server("agg", ["127.0.0.1"]).write(pki, "server")
    ours.issue_server("elsewhere", ["example.org"]).write(pki, "elsewhere")
    ours.issue_client("client-1").write(pki, "client")
    theirs.issue_server("agg", ["127.0.0.1"]).write(pki, "theirs")
    theirs.issue_client("client-1").write(pki, "their-client")
    return tmp_path


def written(place, name, text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = place / name
    path.write_text(text)
    return path


async def of_server(place, *changes):
    _, findings = await doctor_results(written(place, "server.toml", SERVER, *changes))
    return findings


async def of_client(place, port, *changes):
    path = written(place, "client.toml", CLIENT % port, *changes)
    _, findings = await doctor_results(path)
    return findings


def only_failure(findings, number, code, words):
    """One thing is wrong: what follows it in its branch is skipped, no more."""
    failed = [each for each in findings if each.state == "failed"]
    assert [each.number for each in failed] == [number], findings
    (failure,) = failed
    assert failure.error.code.name == code
    assert words in failure.found
    assert failure.next_step
    for each in findings:
        assert (each.state == "skipped") == (number in each.found), each
    return failure


async def test_a_new_server_passes_every_check(place):
    findings = await of_server(place)
    assert [each.state for each in findings] == ["ok"] * len(findings), findings
    numbers = [each.number for each in findings]
    assert numbers == sorted(numbers)
    assert sorted(path.name for path in place.iterdir()) == ["pki", "server.toml"]


@pytest.mark.parametrize(
    ("change", "number", "code", "words"),
    [
        (('id = "t"', 'idd = "t"'), "D100", "BAD_SETTINGS", "task.idd"),
        (('"sums"', '"sums"\ntasks_dir = "x"'), "D100", "BAD_SETTINGS", "tasks_dir"),
        (("server.pem", "absent.pem"), "D110", "BAD_CERTIFICATE", "absent.pem"),
        (("server.key", "client.key"), "D120", "BAD_CERTIFICATE", "does not belong"),
        (("ca.pem", "their-ca.pem"), "D120", "BAD_CERTIFICATE", "not issued by"),
        (
            (
                'pki/server.pem"\nkey = "pki/server',
                'pki/client.pem"\nkey = "pki/client',
            ),
            "D120",
            "BAD_CERTIFICATE",
            "a client's certificate",
        ),
        (('"sums"', '"server.toml/x"'), "D170", "STORAGE_FAILED", "not a directory"),
        (('"127.0.0.1:0"', '"nonsense"'), "D180", "BAD_SETTINGS", "host:port"),
        (("min_survivors = 3", "min_survivors = 9"), "D190", "BAD_SETTINGS", "surviv"),
    ],
)
async def test_each_planted_fault_of_a_server_fails_its_check(
    place, change, number, code, words
):
    only_failure(await of_server(place, change), number, code, words)


async def test_an_expired_certificate_fails_and_one_that_ends_soon_is_a_warning(
    place, authorities
):
    for ago, state in ((6, "failed"), (0, "warning")):
        issued = authorities[0].issue_server(
            "agg",
            ["127.0.0.1"],
            days=5,
            now=datetime.now(UTC) - timedelta(days=ago),
        )
        for path in (place / "pki").glob("server.*"):
            path.unlink()
        issued.write(place / "pki", "server")
        (found,) = [f for f in await of_server(place) if f.number == "D120"]
        assert found.state == state
        assert (" expired on " in found.found) == (ago > 0)
        assert "new" in found.next_step


async def test_an_invalid_revocation_list_fails_and_one_that_ends_soon_is_a_warning(
    place, authorities
):
    path, now = place / "ca.crl", time.time()
    setting = ('"sums"', f'"sums"\nrevoked = "{path}"')
    listed = authorities[0].issue_client("c").certificate
    for crl, state, text in (
        (b"no list", "failed", "not an X.509 revocation list"),
        (crl_of(authorities[1], now=now), "failed", "not a trusted authority"),
        (
            crl_of(authorities[0], now=now - 9 * 86_400, days=10),
            "warning",
            "valid until",
        ),
        (crl_of(authorities[0], listed, now=now), "ok", "1 certificates"),
    ):
        path.write_bytes(crl)
        (found,) = [f for f in await of_server(place, setting) if f.number == "D125"]
        assert (found.state, text in found.found) == (state, True)


async def test_a_key_readable_by_others_is_a_warning(place):
    (place / "pki" / "server.key").chmod(0o644)
    (found,) = [f for f in await of_server(place) if f.number == "D110"]
    assert (found.state, found.next_step[:9]) == ("warning", "chmod 600")


async def test_too_few_file_descriptors_for_the_cohort_fail(place, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    failure = only_failure(
        await of_server(place), "D140", "BAD_SETTINGS", "may open 200 files"
    )
    assert "ulimit" in failure.next_step


async def test_the_blob_store_for_uploads_is_checked(place):
    for blobs, state in (
        (f"file:{place}/shared", "ok"),
        ("file:shared", "failed"),
        (f"file:{place}/server.toml", "failed"),  # no directory
    ):
        setting = ('"sums"', f'"sums"\nblobs = "{blobs}"')
        (found,) = [f for f in await of_server(place, setting) if f.number == "D157"]
        assert found.state == state
    assert not any((place / "shared").rglob("doctor"))


async def test_aggregators_of_one_store_must_have_the_same_name(place, postgres_url):
    database = await asyncpg.connect(postgres_url)
    await database.execute("DROP SCHEMA IF EXISTS secagg CASCADE")
    await database.close()
    more = f'"sums"\nstore = "{postgres_url}"\nblobs = "file:{place}/shared"'
    for name, state, words in (
        (None, "ok", "no store exists"),
        ("agg", "ok", "'agg'"),
        ("elsewhere", "failed", "'elsewhere'"),
    ):
        if name is not None:
            store = await open_store(postgres_url, is_shared=True)
            database = await asyncpg.connect(postgres_url)
            await database.execute("DELETE FROM secagg.replica")
            await database.close()
            await store.commit(Heartbeat(Replica(name, "10.0.0.1:7400", "1.0", name)))
            await store.close()
        findings = await of_server(place, ('"sums"', more))
        (found,) = [each for each in findings if each.number == "D163"]
        assert (found.state, words in found.found) == (state, True)
    assert found.error.code is ErrorCode.BAD_SETTINGS


async def test_a_sum_that_terminated_its_aggregator_is_reported(place):
    begun, left = (record_of(SumAttempt(is_begun=each)) for each in (True, False))
    new = NewSession(role=Side.SERVER, task="t", number=7, header=b"h")
    store = await open_state(place / "state", mark=default_mark(place / "state"))
    at = await store.commit(Change(key="k", create=new))
    await store.close()
    for records, state, words in (
        ((), "ok", "no sum"),
        ((begun, begun, left), "warning", "session 7 of task 't' was begun 1 time"),
        ((left,), "ok", "no sum"),
    ):
        store = await open_state(place / "state", mark=default_mark(place / "state"))
        at = await store.commit(
            Change(key="k", expect=at.sequence, previous=at.chain, records=records)
        )
        await store.close()
        (found,) = [f for f in await of_server(place) if f.number == "D161"]
        assert (found.state, words in found.found) == (state, True)
        assert ("memory" in found.next_step) == (state == "warning")


@pytest.mark.services
async def test_an_unresponsive_engine_is_a_warning(place, monkeypatch):
    monkeypatch.setattr("secagg.server.engine.dask._CONNECT_SECONDS", 0.1)
    for engine, state, words in (
        ("threads", "ok", "workers"),
        ("dask:tcp://127.0.0.1:9", "warning", "OSError"),
        ("dask:tcp://elsewhere:9", "failed", "TLS"),
    ):
        setting = ('"sums"', f'"sums"\nengine = "{engine}"')
        (found,) = [f for f in await of_server(place, setting) if f.number == "D165"]
        assert found.state == state
        assert words in found.found


async def test_a_damaged_foreign_or_locked_store_fails(place):
    store = place / "state" / "store.sqlite3"
    store.parent.mkdir()
    with closing(sqlite3.connect(store)) as database:
        database.execute("CREATE TABLE t (x)")
    only_failure(await of_server(place), "D160", "STORAGE_FAILED", "not a store")
    store.unlink()
    await (await open_store(f"sqlite:{store}")).close()
    with closing(sqlite3.connect(store)) as database:
        database.execute(
            "INSERT INTO task VALUES ('t', 1, 'running', '', x'', '', x'00')"
        )
        database.commit()
    only_failure(await of_server(place), "D160", "STATE_DAMAGED", "checksum")
    store.unlink()
    held = await open_store(f"sqlite:{store}")
    (found,) = [f for f in await of_server(place) if f.number == "D160"]
    assert (found.state, "has" in found.found) == ("warning", True)
    await held.close()


async def test_the_claims_of_a_total_budget_are_checked(place):
    private = ("require_noise = false", "max_epsilon = 1.0\nmax_delta = 1e-5")
    total = 'data = "patients"\ntotal_epsilon = {}\ntotal_delta = {}\n'

    async def found(epsilon, *more, delta=1e-5):
        setting = total.format(epsilon, delta) + "".join(more)
        change = ("[policy]\n", f"[policy]\n{setting}")
        findings = await of_client(place, 1, private, change)
        (claims,) = [each for each in findings if each.number == "D255"]
        return claims

    assert "nothing is claimed of 'patients'" in (await found(1.0)).found
    claim = Claim(
        data="patients",
        holder=bytes(16),
        budget=BudgetKey(trust_domain="domain", aggregator="aggregator", task="first"),
        noise_digest=bytes(32),
        against=ClaimAdversary.SERVER,
        epsilon=0.51234,
        delta=1e-6,
        shift=None,
        distance=0.0,
        added_delta=0.0,
    )
    for where, more in (
        ("client-state", ()),
        ("shared", ('data_dir = "shared"\n',)),
    ):
        store = await open_state(place / where)
        await store.commit(PutClaim(claim, after=0))
        await store.close()
        claims = await found(1.0, *more)
        assert claims.state == "ok"
        assert "epsilon 0.5124 of 1 is claimed of 'patients' at" in claims.found
        assert "delta 1e-06 of 1e-05, tasks: 1" in claims.found
        assert str(place / where) in claims.found
        assert (await found(0.5, *more)).state == "warning"
        assert (await found(1.0, *more, delta=5e-7)).state == "warning"


async def test_shared_claims_are_read_under_their_lock(tmp_path, monkeypatch):
    """A read out of turn has a client refused that has its turn."""
    shared = tmp_path / "shared"
    store = await open_state(shared)
    await store.close()
    looked = []

    async def in_turn_only(directory, *_):
        lock = os.open(directory / "turn.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(lock)
        looked.append(directory)
        return "it is sound"

    monkeypatch.setattr(state_checks, "check_store", in_turn_only)
    policy = DataSection(
        data="patients", total_epsilon=1.0, total_delta=1e-5, data_dir=shared
    )
    settings = SimpleNamespace(
        policy=policy, client=SimpleNamespace(state_dir=tmp_path / "own")
    )
    await state_checks.check_claims(settings)
    assert looked == [shared]


def in_both_slots(mark):
    return 2 * mark.encode().ljust(SLOT_BYTES, b"\0")


async def test_a_restored_or_copied_state_fails(place):
    """What a start would refuse, the doctor finds."""
    for name, ask, number in (
        ("state", of_server, "D160"),
        ("client-state", lambda where: of_client(where, 1), "D250"),
    ):
        await (await open_state(place / name)).close()

        async def found(ask=ask, number=number):
            (found,) = [each for each in await ask(place) if each.number == number]
            return found

        assert (await found()).state == "ok"
        mark = default_mark(place / name)
        stands = RollbackMark(mark).read()
        newest, half = Mark(stands.store_id, stands.generation + 1), mark.read_bytes()
        for content, words in (
            (in_both_slots(newest), "an older state was restored"),
            (in_both_slots(Mark(bytes(8), 1)), "belongs to another state"),
            (half[:SLOT_BYTES], "half of the mark is damaged"),
            (b"", "is damaged"),
        ):
            mark.write_bytes(content)
            assert (await found()).error.code is ErrorCode.RESTORED_STATE
            assert words in (await found()).found
        mark.unlink()
        assert (await found()).state == "ok"  # nothing was ever sent


async def test_a_failing_disk_fails_and_a_slow_one_is_a_warning(place, monkeypatch):
    monkeypatch.setattr(state_checks, "_SLOW_DISK_SECONDS", -1.0)
    (found,) = [f for f in await of_server(place) if f.number == "D155"]
    assert (found.state, "faster disk" in found.next_step) == ("warning", True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    only_failure(await of_server(place), "D155", "STORAGE_FAILED", "No space left")
    assert not list(place.glob(".secagg*"))


async def test_a_port_in_use_fails(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        change = ('"127.0.0.1:0"', f'"127.0.0.1:{port}"')
        only_failure(await of_server(place, change), "D185", "PORT_IN_USE", str(port))


# --- clients ------------------------------------------------------------------------


def identity_of(place, name, ca="ca"):
    return TLSIdentity.load(
        certificate=place / "pki" / f"{name}.pem",
        private_key=place / "pki" / f"{name}.key",
        authority=place / "pki" / f"{ca}.pem",
        role=Role.SERVER,
    )


async def with_aggregator(place, *changes, name="server", ca="ca", task="t"):
    """Diagnose a client of an aggregator that runs."""
    async with Server(
        "127.0.0.1:0", identity=identity_of(place, name, ca), state_dir=place / "agg"
    ) as server:
        await server.add_task(task, EXACT)
        return await of_client(place, server.address.port, *changes)


async def test_a_client_with_an_offer_passes_every_check(place):
    findings = await with_aggregator(place)
    assert [each.state for each in findings] == ["ok"] * len(findings), findings
    numbers = [each.number for each in findings]
    assert numbers == sorted(numbers)
    assert "exact sums" in findings[-1].found


@pytest.mark.parametrize(
    ("change", "number", "code", "words"),
    [
        (("[policy]", "[polity]"), "D200", "BAD_SETTINGS", "polity"),
        (("client.key", "absent.key"), "D210", "BAD_CERTIFICATE", "absent.key"),
        (("client.key", "server.key"), "D220", "BAD_CERTIFICATE", "does not belong"),
        (("127.0.0.1", "no-such-host.invalid"), "D260", "UNREACHABLE", "name service"),
        (("127.0.0.1", "127.0.0.1"), "D270", "UNREACHABLE", "refuses connections"),
    ],
)
async def test_each_cause_of_an_unreachable_aggregator_fails_its_check(
    place, change, number, code, words
):
    only_failure(await of_client(place, 1, change), number, code, words)


async def test_a_network_that_drops_packets_is_distinguished_from_a_rejection(
    place, monkeypatch
):
    async def silent(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(handshake, "HANDSHAKE_SECONDS", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", silent)
    failure = only_failure(await of_client(place, 1), "D270", "UNREACHABLE", "filtered")
    assert "firewalls" in failure.next_step


async def test_a_listener_with_another_protocol_fails(place):
    async def hang_up(_, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    plain = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    only_failure(await of_client(place, port), "D280", "BAD_CERTIFICATE", "TLS 1.3")
    plain.close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place / "pki" / "server.pem", place / "pki" / "server.key")
    other = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    port = other.sockets[0].getsockname()[1]
    only_failure(await of_client(place, port), "D280", "BAD_CERTIFICATE", "HTTP/2")
    other.close()


@pytest.mark.parametrize(
    ("server", "change", "failure"),
    [
        (
            {"name": "theirs", "ca": "their-ca"},
            (),
            ("D290", "BAD_CERTIFICATE", "another authority"),
        ),
        ({"name": "elsewhere"}, (), ("D290", "BAD_CERTIFICATE", "for this address")),
        (
            {"ca": "their-ca", "name": "theirs"},
            (("ca.pem", "their-ca.pem"),),
            ("D220", "BAD_CERTIFICATE", "not issued by"),
        ),
        (
            {},
            (('"client-state"', '"client.toml/x"'),),
            ("D240", "STORAGE_FAILED", "not a dir"),
        ),
        ({"task": "u"}, (), ("D300", "UNKNOWN_SESSION", "no such task")),
        (
            {},
            (("require_noise = false", "max_epsilon = 1.0\nmax_delta = 1e-5"),),
            ("D320", "POLICY_VIOLATION", "noise"),
        ),
        (
            {},
            (("false", "false\nmin_clients = 4"),),
            ("D320", "POLICY_VIOLATION", "clients"),
        ),
    ],
)
async def test_an_aggregator_that_does_not_serve_this_client_fails(
    place, server, change, failure
):
    only_failure(await with_aggregator(place, *change, **server), *failure)


async def test_a_clock_off_by_hours_fails(place, monkeypatch):
    # The aggregator of this test lives in the same process, and keeps its own.
    late = SimpleNamespace(time=lambda: time.time() + 3 * 3600, monotonic=lambda: 0.0)
    monkeypatch.setattr(way_to_aggregator, "time", late)
    only_failure(
        await with_aggregator(place), "D310", "BAD_CLOCK", "clock of this host"
    )


def test_the_command_ends_with_the_code_of_the_first_failure(
    place, capsys, json_answer
):
    config = written(place, "server.toml", SERVER, ("server.pem", "absent.pem"))
    assert main(["doctor", "--config", str(config), "--json"]) == 74
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    json_answer("doctor", answer)
    assert (answer["role"], answer["ok"], answer["exit_code"]) == ("server", False, 74)
    checks = {each["number"]: each for each in answer["checks"]}
    assert checks["D110"]["error"] == "BAD_CERTIFICATE"
    assert checks["D120"]["state"] == "skipped"
    assert checks["D185"]["state"] == "ok"
    config = written(place, "server.toml", SERVER)
    assert main(["doctor", "--config", str(config)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    (place / "pki" / "server.key").chmod(0o640)
    assert main(["doctor", "--config", str(config)]) == 0
    assert capsys.readouterr().out.endswith("it works, with warnings: D110\n")
