"""The examples run as they stand."""

import asyncio
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

import secagg
from secagg import advanced
from secagg.crypto.entropy import SystemEntropy
from secagg.crypto.signature import IdentityKey
from secagg.protocol.enrolment import CredentialRequest, IssuedCredential

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *options):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_shortest_example_prints_a_sum():
    assert run("private_sum.py").startswith("sum of 20 vectors (session 1): ")


def test_a_histogram_has_error_bars_that_hold():
    # All intervals hold but for two chances in a million: a false alarm.
    printed = run("private_histogram.py")
    mean = re.search(
        r"interval (-?[\d.]+) to ([\d.]+), 40 answers +truly ([\d.]+)", printed
    )
    lowest, highest, true_mean = map(float, mean.groups())
    assert lowest <= true_mean <= highest
    rows = re.findall(r"(\d+) to \d+ +(-?\d+) ± (\d+) +truly (\d+)", printed)
    assert [row[0] for row in rows] == ["0", "18", "30", "65"]
    assert all(abs(int(f) - int(t)) <= int(h) for _, f, h, t in rows)
    assert sum(int(true) for *_, true in rows) == 40
    assert "epsilon" in printed


def test_two_aggregators_release_one_sum_over_tls():
    printed = run("two_aggregators.py")
    truth, released = (
        [float(number) for number in row.split()]
        for row in re.findall(r"\[([^]]+)\]", printed)
    )
    assert truth == [2.25] * 4
    stddev = float(re.search(r"errs by (\d\.\d+)", printed)[1])
    # Ten truncations of 2^-15 and noise: six deviations, 10^-8 false alarms.
    assert all(abs(value - 2.25) < 6 * stddev + 0.001 for value in released)
    assert "10 vectors" in printed
    assert "all clients have the same sum: True" in printed
    assert "against both aggregators together: nothing is promised" in printed


def test_every_profile_releases_its_sum_over_tls():
    rows = re.findall(r"(\S+): 6 vectors.*same sum: True", run("three_profiles.py"))
    assert rows == [profile.label for profile in secagg.Profile]


def test_thirty_lines_train_a_model():
    lines = (EXAMPLES / "train_in_one_process.py").read_text().split("\n")
    assert sum(1 for line in lines if line) <= 30
    printed = run("train_in_one_process.py")
    assert len(re.findall(r"accuracy (0\.\d+)", printed)) == 5


def test_the_training_example_learns():
    # Guessing gives 0.1.  In 400 simulated runs with Gaussian noise of the same
    # variance the best of the five had mean 0.62 and deviation 0.056, at least 0.45: a
    # false alarm is a deviation of more than five times that.
    printed = re.findall(r"accuracy (\S+)", run("train_digits.py"))
    assert len(printed) == 5
    assert max(map(float, printed)) > 0.3


async def test_the_web_application_shows_the_last_sum(tmp_path):
    path = EXAMPLES / "web_aggregator.py"
    spec = importlib.util.spec_from_file_location("web_aggregator", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    authority = advanced.CertificateAuthority.create()
    authority.issued().write(tmp_path, "ca")
    authority.issue_server("server", ["127.0.0.1"]).write(tmp_path, "server")

    def identity(name, role):
        return secagg.TLSIdentity.in_directory(tmp_path, name, role=role)

    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    app = example.application(
        secagg.PreparedTask.exact(
            waiver,
            secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3),
            dimension=2,
        ),
        listen="127.0.0.1:0",
        identity=identity("server", advanced.Role.SERVER),
        state_dir=tmp_path / "server-state",
    )

    async def contribute(name, vector):
        authority.issue_client(name).write(tmp_path, name)
        async with secagg.Client(
            app.state.address,
            task="visits",
            privacy_limits=waiver,
            identity=identity(name, advanced.Role.CLIENT),
            state_dir=tmp_path / f"{name}-state",
        ) as one:
            return await one.contribute(vector)

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://web"
        ) as browser,
    ):
        assert (await browser.get("/")).json() == {"inputs": 0}
        given = await asyncio.gather(
            *(contribute(name, [number, 1]) for number, name in enumerate("abc"))
        )
        shown = (await browser.get("/")).json()
    np.testing.assert_array_equal(given[0].values, [3, 3])
    assert shown == {"session": 1, "inputs": 3, "sum": [3, 3], "epsilon": None}


PHONES = EXAMPLES / "mobile_backend"
BUILT = EXAMPLES.parent / "clients" / "typescript" / "dist" / "node.js"


@pytest.mark.parametrize("kind", ["python", "mixed"])
def test_phones_that_are_killed_or_offline_still_contribute(kind):
    """Right noise of 64 numbers is 1.5 times as large once in 10^7 runs."""
    if kind == "mixed" and (shutil.which("node") is None or not BUILT.exists()):
        pytest.skip("needs Node, and clients/typescript built by `npm run build`")
    printed = run(
        "mobile_backend/mobile_sum.py", *["--python-only"] * (kind == "python")
    )
    exact, noised = printed.split("short rounds, with noise:")
    phone = r"^  (\w+) \((\w+)\): \d+ visits, (.+)$"
    ended = {name: end for name, _, end in re.findall(phone, exact, re.MULTILINE)}
    assert ended.pop("fay") == "UNAUTHENTICATED"
    assert set(ended) == {"ada", "bob", "cyd", "dan", "eve", "gus"}
    assert set(ended.values()) == {"sum of 6"}
    assert "sum of 6 vectors: [0, 6, 12, 18, ...]" in exact
    ended = {name: end for name, _, end in re.findall(phone, noised, re.MULTILINE)}
    assert ended.pop("gus") == "POLICY_VIOLATION"
    assert set(ended.values()) == {"sum of 5"}
    languages = [row[1] for row in re.findall(phone, printed, re.MULTILINE)]
    assert languages.count("TypeScript") == (6 if kind == "mixed" else 0)
    found = re.search(r"error of a number (\S+), announced (\S+)", noised)
    assert 0 < float(found[1]) < 1.5 * float(found[2])


async def test_the_demo_ends_when_all_phones_have_ended_without_a_sum(monkeypatch):
    monkeypatch.syspath_prepend(str(PHONES))
    demo = importlib.import_module("mobile_sum")

    async def refused():
        return demo.Ending(refusal="U3_TOO_SMALL")

    living = {"ada": asyncio.create_task(refused())}
    with pytest.raises(SystemExit, match=r"U3_TOO_SMALL.*--day"):
        await demo.unless_all_end(asyncio.Event().wait(), living)


async def test_the_command_line_of_a_phone_shows_neither_login_nor_vector(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(PHONES))
    phone = importlib.import_module("phone")
    node = tmp_path / "node"
    node.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        "print(json.dumps([sys.argv[1:], json.load(sys.stdin)]))\n"
    )
    node.chmod(0o700)
    one = phone.NodePhone(
        **dict.fromkeys(("name", "enrolment_key", "authority"), "ada"),
        **dict.fromkeys(("directory", "authorities"), tmp_path),
        woken=asyncio.Event(),
        day=1.0,
        node=node,
    )
    words, told = await one._node("visit", token="login of ada", vector=[0.5])
    assert words == [str(PHONES / "phone.mjs")]
    assert (told["token"], told["vector"]) == ("login of ada", [0.5])


async def test_the_backend_does_not_enrol_a_user_under_another_name(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(PHONES))
    backend = importlib.import_module("backend")
    secagg_command = Path(sys.executable).with_name("secagg")
    issuer = tmp_path / "issuer"
    domain = ("--trust-domain", backend.TRUST_DOMAIN)
    await backend.run(secagg_command, "pki", "enrol", "init", issuer, *domain)
    app = backend.Application(issuer, secagg_command, {"ada's": "ada", "bob's": "bob"})
    key = IdentityKey.generate(SystemEntropy())
    made = CredentialRequest.make(
        key, trust_domain=backend.TRUST_DOMAIN, name="ada", made_at=int(time.time())
    ).encode()

    async def issued():
        listed = await backend.run(
            secagg_command, "pki", "enrol", "list", issuer, "--json"
        )
        return [
            each["name"] for each in json.loads(listed.splitlines()[-1])["credentials"]
        ]

    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://app"
    ) as phone:

        async def ask(token, body=made, path="/enrol"):
            told = {"login-token": token}
            return await phone.post(path, content=body, headers=told)

        for refused in (
            ask("bob's"),
            ask("no login"),
            ask("ada's", path="/"),
            ask("ada's", body=made[:-1]),
        ):
            assert (await refused).status_code == 403
        assert await issued() == []
        answer = await ask("ada's")
        assert IssuedCredential.decode(answer.content).credential.name == "ada"
        assert await issued() == ["ada"]
