"""The demo in small: real processes, real pictures, clients killed for real."""

import json

import pytest
from secagg_testing.programs import Programs

KEYS = {
    "clients",
    "steps",
    "sessions_completed",
    "clients_lost",
    "exact",
    "epsilon",
    "delta",
    "accuracy",
    "baseline_accuracy",
    "nonprivate_accuracy",
    "wall_seconds",
}


@pytest.mark.parametrize(
    ("clients", "profile"),
    [
        (8, "honest-curious-server"),
        (8, "malicious-server"),
        (8, "malicious-server-sparse"),
    ],
)
def test_the_demo_is_exact_with_clients_killed_in_three_rounds(
    tmp_path, clients, profile, json_answer
):
    words = ["--clients", str(clients), "--steps", "4", "--round-seconds", "3"]
    if profile != "honest-curious-server":  # what is run where nothing is asked for
        words += ["--profile", profile]
    done = Programs(tmp_path).run("demo", *words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result) >= KEYS
    if profile == "honest-curious-server":
        json_answer("demo", result)
    assert result["exact"] is True
    assert result["profile"] == profile
    assert result["clients"] == clients
    assert result["sessions_completed"] == 4
    assert result["clients_lost"] == 3
    assert result["epsilon"] <= 6.0
    # A client killed after its upload is still in the sum; the two others are not.
    in_sums = [clients, clients - 1, clients, clients - 1]
    assert [each["inputs"] for each in result["sessions"]] == in_sums
    drawn = tmp_path / "secagg-demo.svg"
    assert list(tmp_path.iterdir()) == [drawn]
    assert result["picture"] == drawn.name
    assert f"{clients} clients, ε = 6, 3 killed</title>" in drawn.read_text()
    assert done.stderr.splitlines()[-1] == "The picture is in secagg-demo.svg."
