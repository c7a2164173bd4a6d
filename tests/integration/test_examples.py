"""The examples run as they stand."""

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np

import secagg
from secagg import advanced

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
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


def test_phones_that_are_killed_and_lose_the_network_give_an_exact_sum():
    printed = run("mobile_backend/mobile_sum.py")
    assert printed.splitlines()[-1] == "sum of 5 vectors: [0, 5, 10, 15]"
    assert len(re.findall(r"^\w+: \d+ visits, sum of 5$", printed, re.MULTILINE)) == 5
