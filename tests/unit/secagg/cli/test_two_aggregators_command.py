"""`secagg two-aggregators`: both aggregators and their clients, from settings files.

The programs run in one process and one event loop, over TLS on the loopback.
"""

import asyncio
import gc
import json
import sys
import time
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest
from secagg_testing.manual_clock import STARTED_AT, ManualClock, run
from secagg_testing.tls_deployment import crl_of
from secagg_testing.two_aggregators import (
    HELPER_KEY,
    LEADER_KEY,
    TwoAggregators,
    noise_for,
)

from secagg import advanced
from secagg.cli import main
from secagg.cli.output import Output
from secagg.cli.two_aggregators import _print_contribution
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    SharingClientSettings,
    load_two_aggregator_settings,
)
from secagg.errors import (
    ErrorCode,
    RemoteProtocolError,
    ServiceError,
    SessionAbortedError,
)
from secagg.pki.key_files import key_text, parse_key
from secagg.protocol.policy import NO_NOISE_ACKNOWLEDGEMENT
from secagg.runtime.garbage import STAYING
from secagg.server import service
from secagg.server.admin.channel import admin_socket_of, call_admin, watch_admin
from secagg.server.rpc.certificates import LOOK_EVERY_SECONDS
from secagg.server.service import meter_of, watching
from secagg.transport.channel_options import HEALTH_SERVICE
from secagg.two_aggregators import SharedContribution
from secagg.two_aggregators.program import (
    ReleasingLeader,
    _connection_to,
    contribute_vector,
    noise_of,
    opened_parties,
    run_parties,
)
from secagg.wire.calls import GetOffer, Wait

ROOT = Path(__file__).parents[4]
SAMPLES = ROOT / "deploy" / "config" / "two-aggregators"
KINDS = {
    "leader": LeaderSettings,
    "helper": HelperSettings,
    "client": SharingClientSettings,
}
TASK = {
    "id": "between-two",
    "dimension": 4,
    "rho": 2.0,
    "epsilon": 9.0,
    "delta": 1e-5,
    "steps": 2,
    "min_survivors": 2,
    "max_clients": 3,
    "collect_seconds": 300,
}
KEYS = {"leader": LEADER_KEY.public_bytes, "helper": HELPER_KEY.public_bytes}
VECTORS = [np.full(4, place / 10) for place in range(3)]


def text_of(sections):
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in keys.items())
        for name, keys in sections.items()
    )


class House:
    """Two organisations, their certificates, and all settings files."""

    def __init__(self, place):
        self.place = place
        self.authorities = {}
        for name in ("leader", "helper"):
            (place / name).mkdir()
            self.authorities[name] = advanced.CertificateAuthority.create(
                f"{name}.example"
            )
            self.authorities[name].issued().write(place / name, "ca")

    def files(self, at, stem, issue):
        """Where a certificate lies; issued when it is first asked for."""
        place = self.place / at
        if not (place / f"{stem}.pem").exists():
            issue().write(place, stem)
        return {
            "ca": str(place / "ca.pem"),
            "certificate": str(place / f"{stem}.pem"),
            "key": str(place / f"{stem}.key"),
        }

    def caller(self, at, name):
        issuing = self.authorities[at]
        return self.files(at, f"for-{name}", lambda: issuing.issue_client(name))

    def aggregator(self, name, **task):
        issuing = self.authorities[name]
        place = self.place / f"of-{name}"
        sections = {
            "server": {
                "name": name,
                "listen": "127.0.0.1:0",
                "state_dir": str(place / "state"),
                "rollback_mark": str(self.place / f"{name}.mark"),
            },
            "tls": self.files(
                name, name, lambda: issuing.issue_server(name, ["127.0.0.1"])
            ),
            "task": TASK | task,
        }
        if name == "helper":
            return sections | {"leader": {"name": "leader"}}
        sections["server"]["output_dir"] = str(place / "sums")
        calls = self.caller("helper", "leader")
        key = key_text(HELPER_KEY.public_bytes)
        helper = {"name": "helper", "address": "", "receipt_key": key, **calls}
        return sections | {"helper": helper}

    def client(self, name, ports, keys=KEYS):
        sections = {
            "client": {
                "task": "between-two",
                "state_dir": str(self.place / name / "state"),
                "rollback_mark": str(self.place / f"{name}.mark"),
            },
            "policy": {"max_epsilon": 9.0, "max_delta": 1e-5, "min_survivors": 2},
        }
        for other, address in ports.items():
            sections[other] = {"name": other, "address": address}
            sections[other]["receipt_key"] = key_text(keys[other])
            sections[other] |= self.caller(other, name)
        return sections

    def written(self, name, sections):
        path = self.place / f"{name}.toml"
        path.write_text(text_of(sections))
        return path

    def settings(self, name, sections):
        kind = KINDS.get(name, SharingClientSettings)
        path = self.written(name, sections)
        return load_two_aggregator_settings(kind, path, environment={}).settings


@pytest.fixture
def deployment(tmp_path):
    return House(tmp_path)


class Running:
    """Helper and leader, as long as the context lasts."""

    def __init__(self, deployment, **task):
        self.deployment, self.task = deployment, task
        self.sums, self.failures, self._stack = [], [], AsyncExitStack()

    async def __aenter__(self):
        deployment, stack = self.deployment, self._stack
        settings = deployment.settings(
            "helper", deployment.aggregator("helper", **self.task)
        )
        helper = await stack.enter_async_context(opened_parties(settings))
        await helper.start()
        sections = deployment.aggregator("leader", **self.task)
        sections["helper"]["address"] = str(helper.transport.address)
        sections["helper"]["receipt_key"] = key_text(helper.receipt_key)
        lead = await stack.enter_async_context(
            opened_parties(
                deployment.settings("leader", sections),
                written=self.sums.append,
                failed=self.failures.append,
            )
        )
        await lead.start()
        self.ports = {"leader": str(lead.transport.address)}
        self.ports["helper"] = str(helper.transport.address)
        self.keys = {"leader": lead.receipt_key, "helper": helper.receipt_key}
        self.releasing = asyncio.ensure_future(lead.released())
        stack.push_async_callback(asyncio.wait, {self.releasing})
        stack.push_async_callback(lead.close)
        return self

    async def __aexit__(self, *reason):
        return await self._stack.__aexit__(*reason)

    async def contribute_as(self, names):
        giving = asyncio.gather(
            *(
                contribute_vector(
                    self.deployment.settings(
                        name, self.deployment.client(name, self.ports, self.keys)
                    ),
                    vector,
                )
                for name, vector in zip(names, VECTORS, strict=False)
            )
        )
        await asyncio.wait(
            {giving, self.releasing}, return_when=asyncio.FIRST_COMPLETED
        )
        if self.releasing.done() and self.releasing.exception():
            giving.cancel()  # they would wait for minutes for a leader that has failed
            await asyncio.wait({giving})
            await self.releasing
        return await giving


def test_a_task_from_settings_files_resumes_after_a_restart(
    deployment, capsys, json_answer
):
    async def main_task():
        async with Running(deployment) as first:
            given = await first.contribute_as("abc")
            (written,) = first.sums
            values = np.load(written.path)
        # As if the process had been killed between the release and the file.
        written.path.unlink()
        async with Running(deployment) as second:
            later = await second.contribute_as("abc")
            await second.releasing  # of two sums; the task is over
            again, last = second.sums
            assert again == written
            np.testing.assert_array_equal(np.load(again.path), values)
            assert last.session_number == written.session_number + 1
            assert not first.failures + second.failures
        for one in given:
            assert one.is_included
            assert (one.session_number, one.inputs) == (written.session_number, 3)
            np.testing.assert_array_equal(one.values, values)
        for one in later:
            np.testing.assert_array_equal(one.values, np.load(last.path))
        report = json.loads((last.path.parent / "report-2.json").read_text())
        assert report["inputs"] == 3
        assert first.keys == second.keys  # made once
        verified = last.path.parent / report["receipt"]
        mine = deployment.place / "mine.bin"
        mine.write_bytes(later[0].receipt)
        return second.keys, verified, mine, report

    keys, verified, mine, report = asyncio.run(main_task())
    words = ["sessions", "verify", str(verified), "--json"]
    assert main(words) != 0
    assert "needs the keys of both" in capsys.readouterr().err
    for part, key in keys.items():
        words += [f"--{part}", key_text(key)]
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["finding"] == "agreed"
    assert facts["sum_sha256"] == report["sum_hash"]
    assert facts["epsilon_aggregator"] == report["privacy"]["aggregator"]["epsilon"]
    assert (facts["survivors"], facts["is_included"]) == (3, None)
    words[2] = str(mine)
    assert main(words) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    json_answer("sessions verify of two aggregators", facts)
    assert (facts["client"], facts["is_included"]) == ("a", True)
    words[-1] = key_text(keys["leader"])  # which is not the helper's
    assert main(words) != 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not facts["valid"]
    assert "credentials" in facts["reason"]


def test_a_session_without_a_sum_is_reported_and_the_next_one_follows(tmp_path):
    async def main(clock):
        deployment = TwoAggregators(clock, noise_for(participations=1))
        sums, failures = [], []
        lead = ReleasingLeader(deployment.leader, tmp_path / "sums", clock)
        releasing = asyncio.ensure_future(
            lead.release(written=sums.append, failed=failures.append)
        )
        vectors = [np.full(5, place / 10) for place in range(4)]
        alone = deployment.client("c0").contribute(vectors[0])  # two are too few
        with pytest.raises(SessionAbortedError):
            await asyncio.gather(alone, deployment.client("c1").contribute(vectors[1]))
        await asyncio.gather(
            *(
                deployment.client(f"d{place}").contribute(vector)
                for place, vector in enumerate(vectors)
            )
        )
        await releasing
        return sums, failures

    sums, failures = run(main)
    assert failures
    assert {error.code for error in failures} == {ErrorCode.U3_TOO_SMALL}
    assert [(each.inputs, each.path.exists()) for each in sums] == [(4, True)]


def test_certificates_can_be_revoked_and_health_needs_none(deployment):
    sections = deployment.aggregator("helper")
    certificate = Path(deployment.caller("helper", "a")["certificate"])
    revoked = deployment.place / "ca.crl"
    revoked.write_bytes(
        crl_of(
            deployment.authorities["helper"], certificate.read_bytes(), now=time.time()
        )
    )
    sections["server"] |= {"health_listen": "127.0.0.1:0", "revoked": str(revoked)}
    sections["server"]["metrics_listen"] = "127.0.0.1:0"

    async def main():
        settings = deployment.settings("helper", sections)
        meter = meter_of(settings.server)
        async with (
            opened_parties(settings, meter=meter) as helper,
            watching(helper, settings.server, meter) as watched,
        ):
            await helper.start()
            probed = str(helper.transport.health_address)
            async with grpc.aio.insecure_channel(probed) as probe:
                check = probe.unary_unary(f"/{HEALTH_SERVICE}/Check")
                assert await check(b"", timeout=30) == b"\x08\x01"
            async with httpx.AsyncClient(trust_env=False) as http:
                pages = {
                    path: (await http.get(f"http://{watched.metrics}{path}")).text
                    for path in ("/metrics", "/healthz", "/readyz")
                }
            assert pages["/readyz"] == "ready\n"
            assert pages["/healthz"] == "alive\n"
            for line in (
                "secagg_is_ready 1.0",
                'secagg_task_sums_left{task="between-two"} 2.0',
                'secagg_certificate_expires_timestamp_seconds{which="server"}',
            ):
                assert line in pages["/metrics"]
            ports = {"leader": "127.0.0.1:1", "helper": str(helper.transport.address)}
            for name in "ab":
                settings = deployment.settings(name, deployment.client(name, ports))
                async with _connection_to("helper", settings.helper) as way:
                    if name == "a":
                        with pytest.raises(ServiceError, match="revoked"):
                            await way.call(GetOffer("between-two"))
                    else:
                        assert isinstance(await way.call(GetOffer("between-two")), Wait)

    asyncio.run(main())


def test_a_client_rejects_a_task_below_its_own_limits(deployment):
    async def main():
        async with Running(deployment) as running:
            sections = deployment.client("a", running.ports)
            sections["policy"]["max_epsilon"] = 0.5
            await contribute_vector(deployment.settings("a", sections), VECTORS[0])

    with pytest.raises(RemoteProtocolError, match="epsilon") as refused:
        asyncio.run(main())
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("is_included", [True, False])
def test_a_sum_without_a_signed_inclusion_is_not_reported_as_included(
    capsys, is_included, json_answer
):
    given = SharedContribution(
        session_number=7,
        inputs=3,
        is_included=is_included,
        values=VECTORS[0],
        error=noise_for().sum_error(inputs=3),
        privacy=noise_for().report(),
        receipt=b"",
    )
    _print_contribution(given, Path("sum.npy"), Output(as_json=True))
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    json_answer("client of two aggregators", answer)
    _print_contribution(given, None, Output(as_json=False))
    said = capsys.readouterr().out.splitlines()[0]
    assert (
        said
        == "session 7: 3 vectors, "
        + (
            "with this one"
            if is_included
            else "the leader does not list it as included; do not contribute it again"
        )
        + f"; each entry ± {given.standard_error:.2f}"
    )


@pytest.mark.parametrize("part", KINDS)
def test_the_samples_list_every_setting_of_one_task(part):
    path = SAMPLES / f"{part}.toml"
    document = tomllib.loads(path.read_text())
    loaded = load_two_aggregator_settings(KINDS[part], path, environment={})
    listed = {f"{name}.{key}" for name, keys in document.items() for key in keys}
    assert listed == {key for key, _, _ in loaded.rows()}
    if part == "client":
        policy, task = loaded.settings.policy, document_of("leader")["task"]
        assert policy.max_epsilon >= task["epsilon"]
        assert policy.min_survivors <= task["min_survivors"]
        return
    assert document["task"] == document_of("leader")["task"]
    assert noise_of(loaded.settings.task).budget.charges == 12


def document_of(part):
    return tomllib.loads((SAMPLES / f"{part}.toml").read_text())


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_settings_are_shown_with_the_cost_of_the_task(
    deployment, capsys, part, json_answer
):
    path = deployment.written(part, deployment.aggregator(part))
    words = [
        "two-aggregators",
        part,
        "--config",
        str(path),
        "--show-settings",
        "--json",
    ]
    if part == "leader":
        words += ["--set", "helper.address=127.0.0.1:1"]
    assert main(words) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out.splitlines()[-1])
    json_answer(f"{part} show settings", answer)
    assert answer["task.rho"] == "2.0"
    assert "against either aggregator, if the other one adds its noise" in shown.err


@pytest.mark.parametrize(
    ("part", "changed", "said"),
    [
        ("leader", ("task", "epsilon", 0.1), "but task.epsilon is 0.1"),
        ("helper", ("task", "rho", -1.0), "rho"),
        ("helper", ("task", "max_client", 3), "max_clients"),
        ("leader", ("helper", "address", "helper"), "helper.address: expected host"),
        ("client", ("policy", "min_survivors", 1), "policy.min_survivors"),
        ("leader", ("helper", "receipt_key", "ed25519:..."), "helper.receipt_key: "),
        ("client", ("helper", "receipt_key", ""), "helper.receipt_key: "),
        ("client", ("leader", "receipt_key", None), "leader.receipt_key"),
    ],
)
def test_invalid_two_aggregator_settings_are_rejected_by_name(
    deployment, capsys, part, changed, said
):
    ports = {"leader": "127.0.0.1:1", "helper": "127.0.0.1:2"}
    words = ["two-aggregators", part, "--json", "--config"]
    if part == "client":
        sections = deployment.client("a", ports)
        np.save(deployment.place / "x.npy", VECTORS[0])
        words[2:2] = ["--input", str(deployment.place / "x.npy")]
    else:
        sections = deployment.aggregator(part)
        if part == "leader":
            sections["helper"]["address"] = ports["helper"]
    section, key, value = changed
    if value is None:
        del sections[section][key]
    else:
        sections[section][key] = value
    code = main([*words, str(deployment.written(part, sections))])
    told = capsys.readouterr()
    assert said in told.err
    failure = json.loads(told.out.splitlines()[-1])["error"]
    assert failure["name"] == "BAD_SETTINGS"
    assert code == failure["exit_code"]


@pytest.mark.parametrize("which", ["leader", "helper", "for-leader"])
def test_a_certificate_of_another_party_is_refused_at_the_start(
    deployment, capsys, which
):
    part = which.removeprefix("for-")
    sections = deployment.aggregator(part)
    if which == "for-leader":
        sections["helper"]["address"] = "127.0.0.1:1"
        sections["helper"] |= deployment.caller("helper", "other")
    else:
        sections["server"]["name"] = "other"
    path = deployment.written(part, sections)
    assert main(["two-aggregators", part, "--json", "--config", str(path)]) != 0
    told = capsys.readouterr()
    assert "is a certificate for" in told.err
    failure = json.loads(told.out.splitlines()[-1])["error"]
    assert failure["name"] == "BAD_SETTINGS"


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_an_aggregator_without_standard_output_continues(deployment, monkeypatch, part):
    usual, while_serving = gc.get_threshold(), []

    async def stopped_at_once(_, work, **__):
        while_serving.append(gc.get_threshold())
        work.close()

    monkeypatch.setattr(service, "run_until_signalled", stopped_at_once)
    sections = deployment.aggregator(part)
    if part == "leader":
        sections["helper"]["address"] = "127.0.0.1:1"  # which is not called here
    path = deployment.written(part, sections)
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["two-aggregators", part, "--config", str(path)]) == 0
    # It may serve for months, and gRPC leaves messages in cycles.
    assert while_serving == [STAYING]
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("part", ["leader", "client"])
def test_an_aggregator_with_an_unwritable_output_is_rejected_at_the_start(
    deployment, capsys, part
):
    taken, vector = deployment.place / "taken", deployment.place / "x.npy"
    taken.write_text("this is no directory")
    np.save(vector, VECTORS[0])
    words = ["two-aggregators", part, "--config"]
    if part == "leader":
        sections = deployment.aggregator(part)
        sections["server"]["output_dir"] = str(taken)
    else:
        sections = deployment.client(
            "a", dict.fromkeys(deployment.authorities, "127.0.0.1:1")
        )
        words[2:2] = ["--input", str(vector), "--output", str(taken / "sum.npy")]
    assert main([*words, str(deployment.written(part, sections))]) == 55
    assert f"{taken} cannot be written" in capsys.readouterr().err


class Operated:
    """A leader or a helper as its command runs it, and commands beside it."""

    def __init__(self, deployment, capsys, part, sections):
        self.capsys, self.told, self.sums, self.failures = capsys, [], [], []
        self.settings = deployment.settings(part, sections)
        self.file = deployment.place / f"{part}.toml"
        self._ready = asyncio.Event()

    async def __aenter__(self):
        self.running = asyncio.ensure_future(
            run_parties(
                self.settings,
                listening=self._listens,
                notify=self.told.append,
                written=self.sums.append,
                failed=self.failures.append,
            )
        )
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait({self.running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            await self.running
        return self

    async def __aexit__(self, *_):
        if not self.running.done():
            await call_admin(admin_socket_of(self.settings.server), "drain", {})
        self.tasks = await self.running

    def _listens(self, address):
        self.address = str(address)
        self._ready.set()

    @property
    def key(self):
        return self.told[0].removeprefix("signs receipts as ")

    async def request(self, verb, **arguments):
        socket = admin_socket_of(self.settings.server)
        return await call_admin(socket, verb, arguments)

    def command(self, *words):
        """What a command prints with --json, and its exit code."""
        code = main([*words, "--config", str(self.file), "--json"])
        return code, json.loads(self.capsys.readouterr().out.splitlines()[-1])

    async def page(self, name):
        (line,) = [each for each in self.told if each.startswith(name)]
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(line.rpartition(" ")[2])).text


WATCHED = {"page_listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0"}


SOLE = {
    "task": {"id": "second"},
    "vector": {"dimension": 2},
    "cohort": {"min_clients": 2, "max_clients": 2, "min_survivors": 2},
    "noise": {"none": NO_NOISE_ACKNOWLEDGEMENT},
}


async def assert_refused(party):
    for verb, arguments in (
        ("task.add", {"file": {"settings": SOLE, "origin": "x.toml"}}),
        ("task.apply", {"file": {"settings": SOLE, "origin": "x.toml"}}),
        ("task.stop", {"task": "second", "reason": "why"}),
    ):
        with pytest.raises(ServiceError) as said:
            await party.request(verb, **arguments)
        assert said.value.code is ErrorCode.UNEXPECTED_MESSAGE, verb
    watching = watch_admin(admin_socket_of(party.settings.server), "session.watch", {})
    with pytest.raises(ServiceError, match="cannot be watched") as said:
        await anext(watching)
    assert said.value.code is ErrorCode.UNEXPECTED_MESSAGE


async def assert_watched(party):
    """Socket, page, metrics and doctor of an aggregator whose tasks have a sum each."""
    status = await party.request("status")
    assert status["server"]["address"] == party.address
    assert [each["task"] for each in status["tasks"]] == ["between-two", "second"]
    page = await party.page("the operator")
    for word in ("between-two", "second", "released", "certified"):
        assert word in page
    metrics = await party.page("metrics")
    for task in ("between-two", "second"):
        ended = f'{{outcome="released",task="{task}"}} 1.0'
        assert f"secagg_sessions_total{ended}" in metrics
    code, looked = await asyncio.to_thread(party.command, "doctor")
    assert code == 0, looked
    (port,) = [each for each in looked["checks"] if each["number"] == "D185"]
    assert "an aggregator runs with it" in port["found"]
    code, shown = await asyncio.to_thread(party.command, "status")
    assert (code, shown["server"]["is_running"]) == (0, True)


def assert_readable(party, version):
    """What is left says the same when no process runs."""
    code, shown = party.command("status")
    assert (code, shown["server"]["is_running"]) == (0, False)
    assert shown["tasks"] == party.tasks
    assert [each["sums"] for each in party.tasks] == [1, 1]
    assert party.command("budget")[1]["budgets"][1]["task"] == "second"
    code, listed = party.command("sessions", "list")
    assert {each["outcome"] for each in listed["sessions"]} == {"released"}
    assert party.command("sessions", "show", "1", "--task", "second")[0] == 0
    assert party.command("tasks", "show", "second")[1]["version"] == version
    assert party.command("doctor")[0] == 0
    assert party.command("state", "check")[1]["ok"]


def test_operators_can_inspect_and_pause_two_aggregators(deployment, capsys):
    """Two tasks in each process; commands, page, metrics, the doctor, the states."""
    (deployment.place / "more").mkdir()
    second = text_of({"task": TASK | {"id": "second", "steps": 1}})
    (deployment.place / "more" / "second.toml").write_text(second)
    sections = {
        part: deployment.aggregator(part, steps=1) for part in ("helper", "leader")
    }
    for each in sections.values():
        each["server"] |= WATCHED | {"tasks_dir": str(deployment.place / "more")}

    async def contribute_as(helper, lead, task):
        ports = {"leader": lead.address, "helper": helper.address}
        keys = {"leader": parse_key(lead.key), "helper": parse_key(helper.key)}
        giving = []
        for name, vector in zip("abc", VECTORS, strict=True):
            own = deployment.client(f"{name}-{task}", ports, keys)
            own["client"]["task"] = task
            giving.append(
                contribute_vector(deployment.settings(f"{name}-{task}", own), vector)
            )
        return await asyncio.gather(*giving)

    async def main_task():
        async with Operated(deployment, capsys, "helper", sections["helper"]) as helper:
            sections["leader"]["helper"]["address"] = helper.address
            sections["leader"]["helper"]["receipt_key"] = helper.key
            async with Operated(
                deployment, capsys, "leader", sections["leader"]
            ) as lead:
                paused = await lead.request("task.pause", task="second", reason="look")
                assert (paused["state"], paused["version"]) == ("paused", 1)
                given = [await contribute_as(helper, lead, "between-two")]
                assert (await lead.request("task.resume", task="second"))[
                    "version"
                ] == 2
                given.append(await contribute_as(helper, lead, "second"))
                for party in (helper, lead):
                    await assert_refused(party)
                    await assert_watched(party)
        return helper, lead, given

    helper, lead, given = asyncio.run(main_task())
    assert not lead.failures
    one, two = lead.sums
    assert two.path.parent == one.path.parent / "second"
    for each, found in zip(given, (one, two), strict=True):
        np.testing.assert_array_equal(each[0].values, np.load(found.path))
    for party, version in ((helper, 0), (lead, 2)):
        assert_readable(party, version)
    # Damage is told with the name of its task.
    state = helper.settings.server.state_dir / "tasks" / "second"
    (stored,) = state.glob("spool/*/sum")
    stored.unlink()
    code, checked = helper.command("state", "check")
    assert code == 77
    assert checked["faults"][0]["where"].startswith("task 'second': ")


def test_drain_finishes_the_session_that_has_contributions(deployment, capsys):
    """And opens no other one, though the task wants a second sum."""

    async def main_task():
        settings = deployment.settings("helper", deployment.aggregator("helper"))
        async with opened_parties(settings) as helper:
            await helper.start()
            sections = deployment.aggregator("leader")
            sections["helper"]["address"] = str(helper.transport.address)
            sections["helper"]["receipt_key"] = key_text(helper.receipt_key)
            async with Operated(deployment, capsys, "leader", sections) as lead:
                ports = {
                    "leader": lead.address,
                    "helper": str(helper.transport.address),
                }
                keys = {"leader": parse_key(lead.key), "helper": helper.receipt_key}

                def contribute_as(name):
                    own = deployment.settings(
                        name, deployment.client(name, ports, keys)
                    )
                    return asyncio.ensure_future(contribute_vector(own, VECTORS[0]))

                giving = [contribute_as("a"), contribute_as("b")]
                answered = 0
                while answered < 2:
                    task = await lead.request("task.show", task="between-two")
                    live = [each["live"] for each in task["running"] if "live" in each]
                    answered = sum(each["answered"] for each in live)
                await lead.request("drain", finish=True)
                giving.append(contribute_as("c"))
                await lead.running
                for each in giving:
                    each.cancel()
                await asyncio.wait(giving)
            return lead

    lead = asyncio.run(main_task())
    assert [each.inputs for each in lead.sums] == [3]
    assert lead.sums[0].path.exists()
    assert [each["sessions_opened"] for each in lead.tasks] == [1]


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_a_revoked_client_loses_its_access_within_a_minute(deployment, part):
    revoked = deployment.place / "ca.crl"
    revoked.write_bytes(crl_of(deployment.authorities[part], now=STARTED_AT))
    sections = deployment.aggregator(part)
    sections["server"] |= {"revoked": str(revoked), "listen": "127.0.0.1:0"}
    sections["server"]["max_revocation_days"] = 0.01  # 864 seconds
    if part == "leader":
        sections["helper"]["address"] = "127.0.0.1:1"  # which is not called here
    certificate = Path(deployment.caller(part, "a")["certificate"]).read_bytes()

    async def main_task():
        clock = ManualClock()
        async with opened_parties(
            deployment.settings(part, sections), clock=clock
        ) as party:
            await party.listen()
            ports = dict.fromkeys(KEYS, str(party.transport.address))
            settings = {
                name: deployment.settings(name, deployment.client(name, ports))
                for name in "ab"
            }
            ways = {
                name: _connection_to(part, getattr(settings[name], part))
                for name in "ab"
            }
            async with ways["a"] as gone, ways["b"] as stays:
                call = GetOffer("between-two")
                for way in (gone, stays):
                    assert isinstance(await way.call(call), Wait)
                revoked.write_bytes(
                    crl_of(
                        deployment.authorities[part],
                        certificate,
                        number=2,
                        now=clock.date(),
                    )
                )
                clock.advance(LOOK_EVERY_SECONDS)
                for _ in range(5):
                    await asyncio.sleep(0)
                with pytest.raises(ServiceError, match="revoked") as refused:
                    await gone.call(call)
                assert refused.value.code is ErrorCode.UNAUTHENTICATED
                assert isinstance(await stays.call(call), Wait)
                clock.advance(864)
                with pytest.raises(ServiceError, match="has expired") as refused:
                    await stays.call(call)
                assert refused.value.code is ErrorCode.UNREACHABLE

    asyncio.run(main_task())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("between-two", "two tasks of one name"),
        ("between-two.lock", "server.rollback_mark of task between-two"),
    ],
)
def test_two_tasks_with_one_name_or_one_mark_are_rejected(
    deployment, capsys, name, said
):
    sections = deployment.aggregator("helper")
    sections["server"]["tasks_dir"] = str(deployment.place / "more")
    (deployment.place / "more").mkdir()
    again = text_of({"task": TASK | {"id": name}})
    (deployment.place / "more" / "again.toml").write_text(again)
    path = deployment.written("helper", sections)
    assert main(["two-aggregators", "helper", "--config", str(path)]) == 72
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("part", ["leader", "helper"])
def test_a_postgresql_store_is_rejected_with_its_reason(deployment, capsys, part):
    path = deployment.written(part, deployment.aggregator(part))
    words = ["two-aggregators", part, "--json", "--config", str(path)]
    words += ["--set", "server.store=postgresql://u@host/name"]
    if part == "leader":
        words += ["--set", "helper.address=127.0.0.1:1"]
    assert main(words) != 0
    told = capsys.readouterr()
    assert "overwrites what is erased" in told.err
    assert json.loads(told.out.splitlines()[-1])["error"]["name"] == "BAD_SETTINGS"
