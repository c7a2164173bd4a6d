"""The kit: its own driver passes, every rule has a cell, no program ends a run."""

import json
import math
import re
import select
import signal
import sys
import textwrap
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from secagg.cli import main
from secagg.cli.failures import exit_code_of
from secagg.conformance import kit, noise_law, report
from secagg.conformance.driver import Driver
from secagg.conformance.lies import LIES
from secagg.conformance.plays import PLAYS
from secagg.conformance.program import Program, ProgramFailedError
from secagg.conformance.run import LIMITS
from secagg.conformance.scene import scene, scene_names
from secagg.conformance.server_role import server_cases
from secagg.crypto.entropy import SeededEntropy
from secagg.crypto.secret_bytes import SecretBytes
from secagg.errors import ErrorCode

ROOT = Path(__file__).parents[4]
RULE = re.compile(r"\bR\d+(?:\.\d+)?-\d+\b")
PROTOCOL = (ROOT / "protos" / "PROTOCOL.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("first", range(3))
def test_the_driver_of_this_package_passes_every_case(play, first):
    """Every third case from the `first`: those of one rule are adjacent."""
    verdicts = play(chosen=slice(first, None, 3))
    assert len(verdicts) == len(kit.cases()[first::3])
    assert [
        (v.case.id, v.why) for v in verdicts if v.state is not kit.State.PASSED
    ] == []


def test_every_rule_has_a_case_or_a_reason():
    """A new rule of PROTOCOL.md needs a case, or a line in not_live.toml."""
    rules = set(RULE.findall(PROTOCOL))
    every = (*kit.cases(), *server_cases())
    live = {rule for case in every for rule in case.rules}
    reasons = kit.unplayed_reasons()
    assert rules == live | set(reasons)
    assert not live & set(reasons)
    assert all(len(why) > 20 for why in reasons.values())


def test_every_case_can_be_played():
    ids = [case.id for case in kit.cases()]
    assert len(set(ids)) == len(ids)
    for case in kit.cases():
        assert re.fullmatch(r"[a-z0-9-]+", case.id)
        assert case.scene in scene_names()
        assert not case.play or case.play in PLAYS
        assert not case.lie or case.play or case.lie[0] in LIES
        assert case.codes <= {code.name for code in ErrorCode}
    assert {case.scene for case in kit.cases()} == set(scene_names())
    assert {case.play for case in kit.cases()} - {""} == set(PLAYS)
    told = {str(word) for case in kit.cases() for word in case.lie}
    assert set(LIES) - told <= {"trust", "aborted"}


# --- noise ----------------------------------------------------------------------------


VARIANCE, ENTRIES = 900, 16_384


@pytest.fixture
def drawn():
    """Return draws of the law, from the product's own sampler."""
    sampler = scene("noised").task.mechanism.sampler(Fraction(VARIANCE))
    steps = np.zeros(ENTRIES, np.int64)
    sampler.add_to(steps, bytes(range(32)), b"tests", start=0)
    return steps


@pytest.mark.parametrize("kind", ["right", "little", "much", "shifted", "repeated"])
def test_noise_is_tested_against_its_law(kind, drawn):
    """Right noise is blamed once in 10^9 seeds, by each statistic."""
    changed = {
        "right": drawn,
        "little": np.round(drawn * 0.95),
        "much": np.round(drawn * 1.05),
        "shifted": drawn + 2,
        "repeated": np.repeat(drawn[::2], 2),
    }[kind]
    assert bool(noise_law.noise_fault(changed, VARIANCE)) == (kind != "right")


def test_noise_of_another_law_with_the_same_variance_is_detected(drawn):
    """Right noise is blamed once in 10^9 seeds."""
    assert noise_law.law_complaint(drawn, VARIANCE) == ""
    ranks = np.argsort(np.argsort(drawn, kind="stable"), kind="stable")
    uniform = (ranks * 103) // ENTRIES - 51
    assert not noise_law.noise_fault(uniform, float(np.mean(uniform**2)))
    assert noise_law.law_complaint(uniform, VARIANCE)


# --- programs that break the lines ----------------------------------------------------

HELLO = {
    "name": "x",
    "version": "1",
    "profiles": [1],
    "graphs": ["complete"],
    "mechanisms": [],
    "restart": None,
}


@pytest.fixture
def program(home):
    """Return a function that starts a program that acts on the line `begin`."""
    started = []

    def start(act, timeout=20.0):
        text = f"""
            import sys, json, signal
            for line in sys.stdin:
                if '"hello"' in line:
                    print(json.dumps({HELLO!r}), flush=True)
                    continue
                {act}
        """
        command = [sys.executable, "-S", "-c", textwrap.dedent(text)]
        started.append(Program(command, timeout=timeout, state=home))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.mark.parametrize(
    ("act", "timeout", "why"),
    [
        ("signal.pause()", 0.5, "silent"),
        ("sys.exit(3)", 20, "ended"),
        ("print('nonsense', flush=True)", 20, "no JSON"),
        ("print('[' * 100000, flush=True)", 20, "no JSON"),
        ("print('[1]', flush=True)", 20, "no JSON object"),
        ("print('{}\\n{}', flush=True)", 20, "more than one line"),
        ("print('{}', flush=True)", 20, "not of the contract"),
        ("print('{\"messages\": 7}', flush=True)", 20, "not of the contract"),
        ('print(\'{"messages": ["zz"]}\', flush=True)', 20, "not of the contract"),
        (
            "print(json.dumps({'left': 'DEADLINE', 'released': True}), flush=True)",
            20,
            "not of the contract",
        ),
        (
            "print(json.dumps({'messages': ['00'] * 65}), flush=True)",
            20,
            "not of the contract",
        ),
    ],
)
def test_a_program_that_violates_the_line_protocol_fails_only_its_case(
    program, act, timeout, why
):
    tested = program(act, timeout)
    abilities = kit.hello(tested)
    (case,) = kit.chosen((1,), "honest")
    for _ in range(2):
        verdict = kit.play(case, tested, abilities, seed=bytes(32))
        assert why in verdict.why
        expected = kit.State.SILENT if why == "silent" else kit.State.FAILED
        assert verdict.state is expected
    assert kit.hello(tested) == abilities


def test_a_late_second_line_is_not_accepted_as_the_next_answer(program):
    tested = program(
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]);"
        "print('{}', flush=True); signal.sigwait([signal.SIGUSR1]);"
        "print('{}', flush=True)"
    )
    kit.hello(tested)
    assert tested.call({"do": "begin"}) == {}
    tested._process.send_signal(signal.SIGUSR1)
    select.select([tested._process.stdout], [], [], 20.0)
    with pytest.raises(ProgramFailedError, match="more than one line"):
        tested.call({"do": "begin"})


class Babbler:
    """Answers any line with an answer of the contract that makes no sense."""

    def __init__(self, seed):
        self._entropy = SeededEntropy(SecretBytes(bytes(32)), b"%d" % seed)
        self._said = []

    def call(self, _line):
        draw = self._entropy.token(8)
        kinds = (1, 2, 3, 4, 10, 11, 99)
        message = bytes([kinds[draw[0] % 7]]) + self._entropy.token(draw[1])
        self._said.append(message.hex())
        return (
            {"messages": [self._said[draw[2] % len(self._said)]]},
            {"messages": [message.hex()], "view": draw.hex() * 4},
            {"messages": []},
            {"left": "\x1b[31m\ud800"},
            {"ended": "DEADLINE"},
            {"released": True},
            {"released": True, "sum": ["1"] * draw[3]},
            {"messages": [], "left": "BAD_ENCODING"},
        )[draw[4] % 8]

    def restart(self):
        pass


@pytest.mark.parametrize("seed", range(5))
def test_no_answer_of_a_program_crashes_the_kit(seed):
    babbler = Babbler(seed)
    abilities = kit.Abilities.of(Driver.hello())
    for case in kit.cases():
        verdict = kit.play(case, babbler, abilities, seed=bytes(32))
        assert verdict.why.isprintable()
        assert verdict.state in {kit.State.PASSED, kit.State.FAILED}


@pytest.mark.parametrize("entry", [math.nan, math.inf, "x", None, [], "9" * 5000, 0.5])
def test_a_sum_with_a_wrong_entry_is_detected(play, entry):
    class Faulty(Driver):
        def answer(self, line):
            answer = super().answer(line)
            if "sum" in answer:
                answer["sum"][0] = entry
            return answer

    (verdict, noised) = play(only="h[o]nest", make=Faulty) + play(
        only="noise-signed", make=Faulty
    )
    assert verdict.is_bad
    assert noised.is_bad


def test_a_flood_without_a_line_break_is_cut_off(program, monkeypatch):
    monkeypatch.setattr("secagg.conformance.program.MAX_LINE_BYTES", 1 << 20)
    tested = program("while True: sys.stdout.write('x' * 65536)")
    kit.hello(tested)
    with pytest.raises(ProgramFailedError, match="longer than"):
        tested.call({"do": "begin"})


def test_error_output_is_read_and_bounded(program):
    tested = program("sys.stderr.write('e' * 3_000_000); print('{}', flush=True)")
    kit.hello(tested)
    assert tested.call({"do": "begin"}) == {}
    assert len(tested.read_errors()) <= 1 << 14
    assert tested.read_errors() == b""


def test_a_program_that_always_fails_is_restarted_only_a_few_times(home):
    command = [sys.executable, "-S", "-c", "pass"]
    tested = Program(command, timeout=20.0, state=home, max_restarts=2)
    for _ in range(3):
        with pytest.raises(ProgramFailedError, match=r"ended|read"):
            tested.call({"do": "hello"})
    with pytest.raises(ProgramFailedError, match="too often"):
        tested.call({"do": "hello"})


def test_a_program_is_terminated_after_its_timeout(program):
    tested = program("signal.pause()", 0.5)
    kit.hello(tested)
    process = tested._process
    with pytest.raises(ProgramFailedError):
        tested.call({"do": "begin"})
    assert process.returncode is not None


@pytest.mark.parametrize(
    "change",
    [{"more": 1}, {"restart": "sometimes"}, {"profiles": None}, {"graphs": 3}],
)
def test_an_incomplete_hello_is_rejected(change):
    with pytest.raises(ProgramFailedError, match="hello"):
        kit.Abilities.of(HELLO | change)


def test_cases_of_abilities_not_claimed_are_skipped_with_a_reason():
    abilities = kit.Abilities.of(HELLO)
    lacking = {case.id: abilities.skip_reason(case) for case in kit.cases()}
    assert lacking["honest"] == ""
    assert "profile 2" in lacking["honest-signed"]
    assert "ring" in lacking["honest-ring"]
    assert "mechanism" in lacking["noise-of-zeros"]
    assert "restart" in lacking["restart-everywhere"]


# --- reports --------------------------------------------------------------------------


def _verdicts():
    one, two, three, four, *_ = kit.chosen((1,))
    return [
        kit.CaseVerdict(one, kit.State.PASSED),
        kit.CaseVerdict(two, kit.State.FAILED, 'it says "<&\x07'),
        kit.CaseVerdict(three, kit.State.SILENT, "silent"),
        kit.CaseVerdict(four, kit.State.SKIPPED, "not claimed"),
    ]


def test_junit_names_rule_and_case():
    suite = ET.fromstring(report.junit(_verdicts()))
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "4", "failures": "1", "errors": "1", "skipped": "1"}
    first, second, third, fourth = suite
    assert (first.get("classname"), first.get("name")) == ("R4-1", "honest")
    assert [len(each) for each in suite] == [0, 1, 1, 1]
    assert second[0].tag == "failure"
    assert '"<&' in second[0].get("message")
    assert (third[0].tag, fourth[0].tag) == ("error", "skipped")


def test_a_known_failure_must_fail(home):
    passed, failed, *_ = _verdicts()
    path = home / "known.txt"
    path.write_text(f"# known\n{passed.case.id}  # why\n\n{failed.case.id}\n")
    known = report.known_failing(path)
    assert report.with_known(passed, known).is_bad
    assert not report.with_known(failed, known).is_bad
    path.write_text("no-such-case\n")
    with pytest.raises(ValueError, match="no-such-case"):
        report.known_failing(path)


def test_the_certificate_states_what_was_tested():
    abilities = kit.Abilities.of(HELLO | {"name": "a\x1b[31mred"})
    found = report.certificate(abilities, _verdicts(), role="client", seed=7)
    assert "\x1b" not in found["program"]
    assert found["cases"] == kit.digest()
    assert found["counts"] == {"failed": 1, "passed": 1, "skipped": 1, "timeout": 1}
    lines = report.certificate_text(found)
    # Cases that were not chosen have not passed.
    assert f"has passed 1 of {len(kit.cases())} cases for a client" in lines[0]
    assert f"not chosen: {len(kit.cases()) - 4}." in lines[3]
    assert "It claims profiles" in lines[1]
    assert lines[-1] == "It says that these cases passed, and nothing more."
    of_server = report.certificate(abilities, [], role="server", seed=7)
    assert of_server["without_cases"] == ["receipts", "deadlines", "several sessions"]
    assert "no case for: receipts, " in "".join(report.certificate_text(of_server))


# --- the page -------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "write-a-client.md").read_text(encoding="utf-8")


def test_the_hello_on_the_page_is_valid():
    (shown,) = re.findall(r"```json\n(.*)\n```", PAGE)
    abilities = kit.Abilities.of(json.loads(shown))
    assert abilities.profiles == {1}
    assert not abilities.restart


def test_the_page_names_every_limit_line_and_option(capsys):
    limits = PAGE[PAGE.index("* `limits`") :]
    named = set(re.findall(r"`(\w+)`", limits))
    assert set(LIMITS) <= named
    does = set(re.findall(r'"do": "(\w+)"', PAGE))
    of_servers = {"open", "receive", "close_round", "update_for", "total"}
    of_clients = {"hello", "begin", "update", "bind", "refused", "restart", "sum"}
    assert does == of_clients | of_servers
    assert main(["conformance", "drive", "--help"]) == 0
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert options <= set(re.findall(r"--[a-z-]+", PAGE))


# --- the command ----------------------------------------------------------------------

DRIVER = [sys.executable, "-m", "secagg.conformance.driver"]


def test_the_command_drives_a_process(home, capsys, json_answer):
    junit, known = home / "junit.xml", home / "known.txt"
    known.write_text("")
    words = ["conformance", "drive", "--json", "--profile", "1", "--only", "roster-cut"]
    words += ["--junit", str(junit), "--known-failing", str(known)]
    words += ["--transcript", str(home / "said"), "--timeout", "60"]
    assert main([*words, "--", *DRIVER]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["ok"]
    json_answer("conformance drive", found)
    assert found["certificate"]["program"] == "secagg.StepClient"
    assert [each["id"] for each in found["cases"]] == ["roster-cut"]
    assert len(ET.parse(junit).getroot()) == 1
    said = (home / "said" / "roster-cut.jsonl").read_text().splitlines()
    assert json.loads(said[0])["line"]["do"] == "begin"
    assert json.loads(said[-1]) == {"verdict": "passed", "why": ""}


def test_a_program_that_claims_no_case_does_not_conform(capsys):
    nothing = json.dumps(HELLO | {"graphs": []})
    words = ["conformance", "drive", "--json", "--", sys.executable, "-S", "-c"]
    assert main([*words, f"input(); print({nothing!r})"]) == exit_code_of(
        ErrorCode.NOT_CONFORMING
    )
    assert not json.loads(capsys.readouterr().out.splitlines()[-1])["ok"]


def test_the_command_fails_with_not_conforming(capsys):
    words = ["conformance", "drive", "--json", "--", sys.executable, "-S", "-c", ""]
    assert main(words) == exit_code_of(ErrorCode.NOT_CONFORMING)
    assert "hello" in capsys.readouterr().out
    assert main([*words[:2], "--only", "nothing", "--", *DRIVER]) == exit_code_of(
        ErrorCode.BAD_SETTINGS
    )
    missing = ["conformance", "drive", "--known-failing", "/no/such/list", "--", "x"]
    assert main(missing) == exit_code_of(ErrorCode.BAD_SETTINGS)
    absent = ["conformance", "drive", "--", "/no/such/program"]
    assert main(absent) == exit_code_of(ErrorCode.NOT_CONFORMING)
    assert "cannot be started" in capsys.readouterr().err
