"""`secagg server --learn` and `--update-with`: the next model, and what goes wrong."""

import asyncio
import os
import select
import shlex
import sys

import numpy as np
import pytest

import secagg
from secagg import advanced, blocking
from secagg.cli import main
from secagg.learning import FederatedAveraging, ServerOptimizer, VectorSpec
from secagg.learning.payload import StepPayload
from secagg.learning.served_training import ProgramOptimizer, ServedTraining, read_model
from secagg.runtime.external_program import ExternalProgram, split_command

GOOD = """
import os, sys, numpy as np
model, mean = np.load(sys.argv[1]), np.load(sys.argv[2])
assert float(os.environ["SECAGG_STANDARD_ERROR"]) > 0
np.savez(sys.argv[3], **{name: model[name] + 2 * mean[name] for name in model})
"""
FIRST = {"layer": {"w": np.ones((1, 3)), "b": np.zeros(1)}}


@pytest.fixture(scope="module")
def task():
    return secagg.PreparedTask.from_plan(
        secagg.plan(
            clients=3,
            dimension=4,
            l2_clip=2.0,
            epsilon=8.0,
            delta=1e-5,
            steps=2,
            mechanism="skellam",
            bits=30,
            scale_factor=1000.0,
        )
    )


@pytest.fixture(scope="module")
def totals(task):
    with blocking.local(task) as people:
        return [people.sum([np.full(4, 0.5)] * 3) for _ in range(2)]


@pytest.fixture
def made(tmp_path, task):
    def make(script, rule=None, **changes):
        path = tmp_path / "update.py"
        path.write_text(script)
        command = shlex.join([sys.executable, str(path), "{model}", "{mean}", "{next}"])
        rule = rule or ProgramOptimizer(
            ExternalProgram(split_command("--update-with", command)),
            VectorSpec.of(FIRST),
            directory=tmp_path / "update",
            seconds=60.0,
        )
        given = {"max_weight": None, "prepared": task} | changes
        return ServedTraining(
            FIRST,
            rule,
            state_dir=tmp_path / "state",
            output_dir=tmp_path / "sums",
            **given,
        )

    return make


async def test_a_program_computes_the_next_model_once(made, totals, tmp_path):
    step, path = await made(GOOD).apply_sum(totals[0])
    assert (step.number, path) == (1, tmp_path / "sums" / "model-1.npz")
    model = read_model(path)["layer"]
    # Entries of the model in the order of their names, "layer/b" first.
    np.testing.assert_allclose(model["b"], 2 * totals[0].mean[:1])
    np.testing.assert_allclose(model["w"], 1 + 2 * totals[0].mean[None, 1:])
    # The next process is given the sum again, and does not run the program.
    path.unlink()
    again = made("raise SystemExit(1)")
    assert await again.apply_sum(totals[0]) == (step, path)
    assert path.exists()
    payload = StepPayload.decode(again.payload(1))
    np.testing.assert_array_equal(payload.arrays["layer/w"], model["w"])
    assert not (tmp_path / "update").exists()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("raise SystemExit('no disk')", "ended with the code 1; it printed: no disk"),
        ("", r"the file of {next} was not written"),
        ("import sys, numpy as n; n.savez(sys.argv[3], w=n.ones(3))", "no array"),
        ("import sys; open(sys.argv[3], 'w').write('model')", "not an .npz"),
    ],
)
async def test_a_sum_is_kept_until_a_program_succeeds(made, totals, script, text):
    broken = made(script)
    with pytest.raises(secagg.InputError, match=text) as caught:
        await broken.apply_sum(totals[0])
    assert "the sum is kept, and its budget is spent" in str(caught.value)
    assert StepPayload.decode(broken.payload(0)).step == 1
    step, _ = await made(GOOD).apply_sum(totals[0])
    assert step.number == 1


async def test_a_running_program_is_terminated_with_its_server(made, totals, tmp_path):
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    hanging = made(f"alive = open({str(pipe)!r}, 'wb')\nwhile True: pass")
    taking = asyncio.create_task(hanging.apply_sum(totals[0]))
    with await asyncio.to_thread(pipe.open, "rb") as alive:
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        ready, _, _ = select.select([alive], [], [], 30.0)
        assert ready
        assert alive.read(1) == b""


async def test_a_built_in_optimiser_moves_the_model_by_the_mean(made, totals):
    training = made("", rule=ServerOptimizer("fedavg", 0.5))
    for number, total in enumerate(totals, 1):
        step, path = await training.apply_sum(total)
        assert step.number == number
    np.testing.assert_allclose(
        read_model(path)["layer"]["b"], 0.5 * (totals[0].mean + totals[1].mean)[:1]
    )


def test_a_task_that_does_not_fit_the_model_is_rejected(made, task, tmp_path):
    def refused(text, **changes):
        with pytest.raises(secagg.LocalProtocolError, match=text) as caught:
            made("", **changes)
        assert caught.value.next_step

    refused("has 4 entries, and the model needs 5", max_weight=10.0)
    waiver = secagg.ExactSumWaiver(advanced.NO_NOISE_ACKNOWLEDGEMENT)
    cohort = secagg.Cohort(min_clients=3, max_clients=3, min_survivors=3)
    exact = secagg.PreparedTask.exact(waiver, cohort, dimension=4)
    refused("has no noise", prepared=exact)
    with pytest.raises(secagg.LocalProtocolError, match="hides the sum of the weights"):
        FederatedAveraging(np.zeros(3), max_weight=1.0).check_task(task)
    for words, text in [("{mean} x", "does not name"), ("{model} {next}", "does not")]:
        with pytest.raises(secagg.LocalProtocolError, match=text):
            ProgramOptimizer(
                ExternalProgram(words.split()),
                VectorSpec.of(FIRST),
                directory=tmp_path,
                seconds=1.0,
            )


def test_a_model_file_contains_only_plain_arrays(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, **{"a/w": np.ones(2), "a/b~1c": np.zeros(1), "d": np.ones(1)})
    tree = read_model(path)
    assert {name: sorted(part) for name, part in tree.items() if name == "a"} == {
        "a": ["b/c", "w"]
    }
    assert [entry.name for entry in VectorSpec.of(tree).entries] == [
        *("a/b~1c", "a/w", "d")
    ]
    np.savez(path, **{"a": np.ones(2), "a/b": np.zeros(1)})
    with pytest.raises(secagg.InputError, match="inside of another"):
        read_model(path)
    np.savez(path, a=np.array([object()]))
    with pytest.raises(secagg.InputError, match=r"not an \.npz file of numbers"):
        read_model(path)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--model", "m.npz"], "go with --learn or"),
        (["--learning-rate", "0"], "go with --learn or"),
        (["--learn", "fedavg"], "need --model"),
        (["--learn", "fedavg", "--update-with", "x"], "exclude each other"),
        (["--learn", "fedavg", "--model", "m.npz"], "go with --until-done"),
        (
            ["--update-with", "x", "--model", "m.npz", "--learning-rate", "1"],
            "--learning-rate goes with --learn",
        ),
    ],
)
def test_conflicting_options_are_rejected(capsys, words, text):
    assert main(["server", "--config", "server.toml", *words]) == 2
    assert text in " ".join(capsys.readouterr().err.replace("│", "").split())
