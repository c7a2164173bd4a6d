"""The models: their form, their output, and a runner that accepts no wrong verdict.

ProVerif itself is not part of the suite; a program of its name stands in.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "protos" / "models"
PROGRAM = """#!{python}
import pathlib, sys
text = pathlib.Path(sys.argv[1]).read_text()
is_resume, kind = "session_id" in text, {kind!r}
rule = "if own = who then\\n    ( (  out" if is_resume else "(bundles, c) then"
found = "true" if rule in text else "false"
security = ["event(Refund(A,s)) ==> event(SaysFate0(A,s))", "not attacker(input[])"]
security += ["event(Answers(A,s,u)) ==> event(Shows(A,s,u))"]
security += ["event(Believes(A,s,x)) ==> event(Releases(A,s,x))"]
reachable = ["not event(Refund(A,s))", "not event(Believes(A,s,x))"]
if not is_resume:
    security, reachable = ["not attacker(x[])"], ["not event(Reached)"]
if kind == "no attack":
    found = "true"
if kind == "does nothing":
    print("RESULT " + reachable.pop() + " is true.")
if kind == "one query less":
    security.pop()
if kind == "silent":
    sys.exit(2)
for query in security:
    if kind == "unsettled" and found == "true":
        print("RESULT " + query + " cannot be proved.")
    else:
        print("RESULT " + query + " is " + found + ".")
for query in reachable:
    print("RESULT " + query + " is false.")
"""


def run(tmp_path, kind):
    """Run the runner with a program that answers so; None for no program."""
    if kind is not None:
        program = tmp_path / "proverif"
        program.write_text(PROGRAM.format(python=sys.executable, kind=kind))
        program.chmod(0o755)
    return subprocess.run(
        [sys.executable, str(MODELS / "symbolic.py")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["resume", "answer"])
def test_each_model_marks_its_rule_in_exactly_one_place(name):
    text = (MODELS / f"{name}.pv.in").read_text()
    assert text.count("(* RULE *)") == 1


def test_no_claim_is_printed_without_the_prover(tmp_path):
    done = run(tmp_path, None)
    assert done.returncode == 0
    assert "were NOT run" in done.stdout
    assert "true" not in done.stdout


def test_the_model_check_requires_an_attack_without_and_a_proof_with_each_rule(
    tmp_path,
):
    done = run(tmp_path, "as it must be")
    assert done.returncode == 0, done.stdout
    assert "WRONG" not in done.stdout
    assert done.stdout.count(": true: ") == 5
    assert done.stdout.count(": false: ") == 11


@pytest.mark.parametrize(
    "kind", ["no attack", "does nothing", "one query less", "silent", "unsettled"]
)
def test_an_unexpected_prover_verdict_fails_the_check(tmp_path, kind):
    done = run(tmp_path, kind)
    assert done.returncode == 1
    assert "WRONG" in done.stdout


def test_the_committed_output_is_that_of_these_models_and_has_no_wrong_verdict():
    output = (MODELS / "output.txt").read_text()
    assert "WRONG" not in output
    assert "all as they must be" in output
    variants = runpy.run_path(str(MODELS / "agreement.py"))["VARIANTS"]
    lines = output.splitlines()
    for model, of_model in variants.items():
        for variant, must_fail in of_model.items():
            found = "a claim fails" if must_fail else "every claim holds"
            name = variant or "as specified"
            assert any(
                line.startswith(model) and f" {name} " in line and found in line
                for line in lines
            ), (model, name)


@pytest.mark.parametrize(
    ("rule", "claim"),
    [
        ("R5-8, one roster", "Lemma 3"),
        ("R5.4-6, one set", "Lemma 1"),
        ("R5.4-6, stored before signed", "Lemma 1"),
        ("R5.5-4, a quorum", "Lemma 1"),
        ("R5.3-13, all have signed the roster", "Lemma 3"),
        ("R5.0-6 at the upload", "upload"),
        ("R5.0-6 at the answer", "answer"),
        ("R5.0-6 at the refund", "refund"),
        ("R5.0-6 at the sum", "sum"),
    ],
)
def test_committed_output_proves_claims_that_fail_without_each_rule(rule, claim):
    output = (MODELS / "output.txt").read_text()
    assert f"  {claim}: holds in every run\n" in output
    assert f"  without {rule}: {claim} fails after " in output
    # The text of the model has the rule; z3 itself is not part of the suite.
    place = rule.removeprefix("R5.0-6 at the ")
    assert f'"{place}"' in (MODELS / "unbounded.py").read_text()
