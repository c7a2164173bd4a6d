"""What people read stays in step with what the programs do."""

import re
import signal
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from dpnoise.mechanisms.registry import mechanism_names
from secagg.advanced import ClippingWarning
from secagg.cli import main
from secagg.cli.failures import (
    EXIT_OK,
    EXIT_USAGE,
    FIRST_SIGNAL_EXIT_CODE,
    exit_code_of,
)
from secagg.conformance import report
from secagg.conformance.kit import Abilities
from secagg.conformance.server_driver import ServerDriver
from secagg.errors import FINAL_CODES
from secagg.protocol.profiles import Profile

ROOT = Path(__file__).parents[2]
VERBS = {
    "demo",
    "server",
    "client",
    "simulate",
    "plan",
    "graph",
    "load",
    "conformance",
    "sessions",
    "tasks",
    "status",
    "doctor",
    "state",
    "budget",
    "drain",
    "pki",
    "enrol",
    "two-aggregators",
}


def test_the_page_of_commands_lists_every_verb_and_no_other(capsys):
    listed = set(
        re.findall(
            r"^\| `secagg ([\w-]+)",
            (ROOT / "docs" / "commands.md").read_text(),
            re.MULTILINE,
        )
    )
    assert listed == VERBS
    main(["--help"])
    explained = capsys.readouterr().out
    assert all(f" {verb} " in explained for verb in VERBS)


def test_every_exit_code_without_an_error_is_documented():
    text = (ROOT / "docs" / "commands.md").read_text()
    (table,) = re.findall(r"## Exit codes\n\n(.*?)\n\n", text, re.DOTALL)
    rows = dict(re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.MULTILINE))
    assert rows.pop(str(EXIT_OK)) == "success"
    assert rows.pop(str(EXIT_USAGE)) == "the command line"
    caught = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL}
    caught.add(signal.SIGPIPE)
    assert rows == {
        str(FIRST_SIGNAL_EXIT_CODE + number): number.name for number in caught
    }


def test_the_citation_is_of_this_release():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    facts = dict(re.findall(r"^([a-z-]+): *(.*)$", citation, re.MULTILINE))
    assert facts["cff-version"] == "1.2.0"
    assert facts["version"] == project["version"]
    assert facts["license"] == project["license"]
    assert {"message", "title", "authors", "type"} <= set(facts)
    assert "  - name: The secagg developers" in citation


def test_the_status_names_every_mechanism_and_profile_and_only_real_extras():
    page = (ROOT / "docs" / "status.md").read_text("utf-8")
    parts = re.findall(r"^\| (.*) \| .* \|$", page, re.MULTILINE)
    marked = set(re.findall(r"`([^`]+)`", " ".join(parts)))
    assert {each.name.lower().replace("_", "-") for each in Profile} <= marked
    named = set(
        re.findall(r"`([a-z-]+)`", " ".join(p for p in parts if "mechanisms" in p))
    )
    assert named == set(mechanism_names())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(re.findall(r"extra `(\w+)`", page)) <= set(
        project["optional-dependencies"]
    )


def test_the_status_page_lists_what_the_conformance_kit_has_no_case_for():
    page = (ROOT / "docs" / "status.md").read_text("utf-8")
    (row,) = re.findall(r"^\| conformance kit for aggregators.*$", page, re.MULTILINE)
    found = report.certificate(
        Abilities.of(ServerDriver.hello()), [], role="server", seed=1
    )
    *others, last = found["without_cases"]
    assert f"no {', '.join(others)} or {last}" in row


def test_the_index_of_decisions_has_every_decision_under_its_title():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| (.+) \|$", index, re.MULTILINE)
    titles = [
        (path.name[:4], path.name, path.read_text("utf-8").splitlines()[0][8:])
        for path in sorted(folder.glob("0*.md"))
    ]
    assert listed == titles


def test_the_python_of_the_readme_runs(capsys):
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    first, second, *_ = capsys.readouterr().out.splitlines()
    stated = r"(-?[\d.]+) ± 3\.02"
    assert re.fullmatch(
        rf"sum of 100 vectors \(session 1\): {stated}, {stated}, {stated}; "
        "epsilon 4, delta 1e-06",
        first,
    )
    assert re.fullmatch(r"\[.*\] to \[.*\]", second)


def test_the_python_about_questions_runs(capsys):
    pytest.importorskip("matplotlib").use("Agg")
    text = (ROOT / "docs" / "questions.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    try:
        exec(compile(block, "questions.md", "exec"), {})
    finally:
        sys.modules["matplotlib.pyplot"].close("all")
    mean, *buckets = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"mean .*, 95 % interval .* to .*, 30 answers", mean)
    assert [line.split(" ±")[0].split()[:3] for line in buckets] == [
        [low, "to", high]
        for low, high in (("0", "18"), ("18", "30"), ("30", "65"), ("65", "120"))
    ]


def test_the_python_of_the_guide_for_embedders_runs(capsys):
    path = ROOT / "docs" / "embed.md"
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    together = {}  # later blocks use what earlier ones have made
    for block in blocks:
        exec(compile(block, path.name, "exec"), together)
    first, *given, signed, one, two, three = capsys.readouterr().out.splitlines()
    assert first.startswith("the sum of 3 vectors: [")
    assert [line.split()[0] for line in given] == ["3", "3", "3"]
    assert signed.startswith("signed by all: [")
    assert all((one, two, three))


def test_the_python_of_the_page_on_training_runs(capsys):
    path = ROOT / "docs" / "learning.md"
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    together = {}
    with warnings.catch_warnings():  # noise alone decides which updates are long
        warnings.simplefilter("ignore", ClippingWarning)
        for block in blocks:
            exec(compile(block, path.name, "exec"), together)
    said = capsys.readouterr().out
    assert len(re.findall(r"step \d .* without privacy 0\.\d+\n", said)) == 3
    assert "costs each client epsilon 8, delta 1e-05 against the server" in said
    assert "zeros" not in said


def test_the_python_of_the_page_on_local_privacy_runs(capsys):
    text = (ROOT / "docs" / "local-privacy.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "local-privacy.md", "exec"), {})
    alone, server, readers, error, chance = capsys.readouterr().out.splitlines()
    assert alone.startswith("against a server that breaks the masks: epsilon 100 per")
    assert server.startswith("against the server and its colluders: epsilon 8")
    assert readers.startswith("against readers of the sums: epsilon 8")
    assert error.endswith("0.48")
    assert float(chance.rpartition(" ")[2]) < 1e-90


def test_the_python_of_the_page_on_two_aggregators_runs(capsys):
    text = (ROOT / "docs" / "two-aggregators.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "two-aggregators.md", "exec"), {})
    together, one, readers, error = capsys.readouterr().out.splitlines()
    assert together.endswith("nothing is promised")
    assert "the other one adds its noise: epsilon 1.99" in one
    assert "if both do: epsilon 1.3" in readers
    assert error.endswith("2.828")


def test_the_python_of_the_page_on_experiments_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "bench.md").read_text()
    names = {}
    for program in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(program, names)
    error = ((names["estimate"] - names["faster"]) ** 2).mean()
    assert 0.0 < error < 6.0 * names["made"].forecast.expected_mse
    assert (tmp_path / "table.svg").exists()
    assert "certified" in capsys.readouterr().out


def test_the_python_of_the_page_on_bayesian_accounting_runs(capsys):
    text = (ROOT / "docs" / "accounting.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "accounting.md", "exec"), {})
    worst, drawn = capsys.readouterr().out.splitlines()
    assert worst.startswith("worst case: epsilon")
    assert drawn.startswith("client drawn at random: epsilon")


def unit(role: str) -> str:
    return (ROOT / "deploy" / "systemd" / f"secagg-{role}.service").read_text()


@pytest.mark.parametrize("role", ["server", "client"])
def test_units_do_not_restart_after_errors_that_need_a_person(role):
    final = {str(exit_code_of(code)) for code in FINAL_CODES}
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit(role), re.MULTILINE)
    assert set(codes.split()) == {str(EXIT_USAGE), *final}


@pytest.mark.parametrize("role", ["server", "client"])
def test_units_run_what_the_instructions_install_with_a_key_they_may_read(role):
    text = unit(role)
    (program,) = re.findall(r"^ExecStart=(\S+/secagg) ", text, re.MULTILINE)
    readme = (ROOT / "deploy" / "README.md").read_text()
    home = Path(program).parent.parent
    assert f"python3 -m venv {home}\n" in readme
    assert f"{home}/bin/pip install dist/secagg-*.whl\n" in readme
    assert f"ExecStart={program} {role} --config /etc/secagg/{role}.toml" in text
    # The key of the samples, by the name that the credential gives it.
    sample = (ROOT / "deploy" / "config" / f"{role}.minimal.toml").read_text()
    key = tomllib.loads(sample)["tls"]["key"]
    assert f"LoadCredential={Path(key).name}:{key}\n" in text
    assert f"SECAGG_TLS_KEY=%d/{Path(key).name}\n" in text
    # Where the unit may write is where the sample settings write.
    assert "StateDirectory=secagg\n" in text
    assert f'state_dir = "/var/lib/secagg/{role}"' in sample


def test_the_client_unit_reads_a_new_vector_for_every_session():
    text = unit("client")
    (client,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert " --service " in client
    for option in ("input", "output"):
        (path,) = re.findall(rf"--{option} (\S+)", client)
        assert path.startswith("${STATE_DIRECTORY}/")
        assert "{session}" in path


def test_sections_of_the_protocol_that_the_code_cites_exist():
    protocol = (ROOT / "protos" / "PROTOCOL.md").read_text()
    headings = set(re.findall(r"^#+ §?(\d+(?:\.\d+)?)\.? ", protocol, re.MULTILINE))
    for path in (ROOT / "secagg").rglob("*.py"):
        for cited in re.findall(r"PROTOCOL §(\d+(?:\.\d+)?)", path.read_text()):
            assert cited in headings, f"{path.relative_to(ROOT)} cites §{cited}"


def test_every_make_target_is_named_where_contributors_look():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", page))
    assert len(targets) > 20
    assert named == set(targets)
