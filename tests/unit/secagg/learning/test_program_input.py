"""`secagg client --exec`: a program makes the vectors, and failures become zeros."""

import asyncio
import sys
from dataclasses import replace

import numpy as np
import pytest

import secagg
from secagg.learning import FederatedAveraging
from secagg.learning.program_input import ProgramInput
from secagg.runtime.external_program import ExternalProgram, split_command
from secagg.testbed.connections import PausingConnection

QUICK = {"mechanism": "skellam", "bits": 30, "scale_factor": 1000.0, "ladder": 0}
LIMITS = secagg.PrivacyLimits(max_epsilon=8.0, max_delta=1e-5)
GOOD = """
import os, sys, numpy as np
given = np.load(sys.argv[1])
assert os.environ["SECAGG_STEP"] == "1" and os.environ["SECAGG_CONFIG"] == '{"rate": 2}'
np.savez(sys.argv[2], w=given["w"] + 0.25)
"""
FAILURES = {
    "exit": ("import sys; print('no data', file=sys.stderr); sys.exit(75)", "code 75"),
    "nothing": ("", "was not written"),
    "another name": (
        "import sys, numpy as n; n.savez(sys.argv[2], v=n.ones(4))",
        "other",
    ),
    "NaN": ("import sys, numpy as n; n.savez(sys.argv[2], w=n.full(4, n.nan))", "NaN"),
    "shape": ("import sys, numpy as n; n.savez(sys.argv[2], w=n.ones(5))", "shape"),
    "bomb": (
        "import sys, numpy as n; n.savez_compressed(sys.argv[2], w=n.zeros(1 << 20))",
        "unpacks to",
    ),
    "large": ("import sys; open(sys.argv[2], 'wb').truncate(1 << 40)", "more than"),
    "link": ("import os, sys; os.symlink(sys.argv[1], sys.argv[2])", "regular file"),
    "text": ("import sys; open(sys.argv[2], 'w').write('x')", "not an .npz"),
    "weight": (
        "import sys, numpy as n; n.savez(sys.argv[2], **{'secagg.weight': n.ones(2)})",
        "one number",
    ),
}


def averaging():
    return FederatedAveraging({"w": np.zeros(4)}, config={"rate": 2})


@pytest.fixture(scope="module")
def task():
    return averaging().plan(
        clients=3, l2_clip=2.0, epsilon=8.0, delta=1e-5, steps=1, spare=2, **QUICK
    )


@pytest.fixture(scope="module")
def session(task):
    server = secagg.StepServer(
        task, aggregator="hub", task_id="train", session_number=7
    )
    given = {"aggregator": "hub", "tasks": ["train"], "privacy_limits": LIMITS}
    with secagg.StepClient("ann", state_dir=None, **given) as one:
        return replace(one.check_offer(server.offer), payload=averaging().payload(0))


def made(tmp_path, script, *, places="{payload} {model}", **changes):
    path = tmp_path / "a program.py"
    path.write_text(script)
    words = split_command("--exec", f"'{sys.executable}' '{path}' {places}")
    return ProgramInput(ExternalProgram(words), state_dir=tmp_path / "state", **changes)


def left(tmp_path):
    return [path.name for path in (tmp_path / "state").rglob("*") if path.is_file()]


def test_a_program_trains_once_and_keeps_its_vector_for_a_restart(tmp_path, session):
    source = made(tmp_path, GOOD)
    np.testing.assert_array_equal(source.vector(session), np.full(4, 0.25))
    (kept,) = left(tmp_path)
    assert kept.endswith(".npy")
    again = made(tmp_path, "raise SystemExit(1)")
    np.testing.assert_array_equal(again.vector(session), np.full(4, 0.25))
    again.ready()
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_of_the_program_is_reported_and_leaves_no_files(
    tmp_path, session, name
):
    script, text = FAILURES[name]
    with pytest.raises(secagg.InputError, match=text) as caught:
        made(tmp_path, script).vector(session)
    assert caught.value.next_step
    assert left(tmp_path) == []


def test_an_update_or_a_vector_file_is_accepted(tmp_path, session):
    script = "import sys, numpy as n; n.savez(sys.argv[1], w=n.arange(4.0))"
    source = made(tmp_path, script, places="{update}")
    np.testing.assert_array_equal(source.vector(session), np.arange(4.0))
    source.ready()
    script = "import sys, numpy as n; n.save(sys.argv[1], n.arange(4.0) + 1)"
    source = made(tmp_path, script, places="{vector}")
    np.testing.assert_array_equal(source.vector(session), np.arange(4.0) + 1)
    source.ready()
    script = "import sys, numpy as n; n.save(sys.argv[1], n.ones(3))"
    with pytest.raises(secagg.InputError, match="has 3 entries"):
        made(tmp_path, script, places="{vector}").vector(session)


def test_a_program_must_finish_before_its_vector_is_due(tmp_path, session):
    parameters = session.descriptor.parameters
    deadlines = replace(parameters.deadlines, masked_input=1)
    descriptor = replace(
        session.descriptor, parameters=replace(parameters, deadlines=deadlines)
    )
    hurried = replace(session, descriptor=descriptor)
    with pytest.raises(secagg.InputError, match="ended after 0 seconds: the vector is"):
        made(tmp_path, "while True: pass", answer_at=0.2).vector(hurried)
    with pytest.raises(secagg.InputError, match="seconds: --exec-seconds"):
        made(tmp_path, "while True: pass", seconds=0.2).vector(session)


@pytest.mark.parametrize("places", ["{payload}", "{model} {update}", "{output}"])
def test_a_command_must_name_its_output_file(tmp_path, places):
    with pytest.raises(secagg.ServiceError, match="says in no way") as caught:
        made(tmp_path, "", places=places)
    assert caught.value.code is secagg.ErrorCode.BAD_SETTINGS


def test_a_payload_that_is_not_a_model_is_rejected(tmp_path, session):
    with pytest.raises(secagg.InputError, match="not a model"):
        made(
            tmp_path,
            "import sys, numpy as n; n.savez(sys.argv[1], w=n.ones(4))",
            places="{update}",
        ).vector(replace(session, payload=b"text"))


async def test_failed_programs_contribute_zeros_and_the_sum_is_released(tmp_path, task):
    fed = averaging()
    async with secagg.Server(None) as server:
        running = await server.add_task("train", task, payload=fed.payload)

        async def give(name, script):
            source = made(tmp_path / name, script)
            async with secagg.Client(
                server.connection(name), task="train", privacy_limits=LIMITS
            ) as one:
                return await one.contribute(source.vector, accept=source.check)

        for name in "abc":
            (tmp_path / name).mkdir()
        giving = asyncio.gather(
            give("a", GOOD), give("b", GOOD), give("c", "raise SystemExit('sick')")
        )
        async for step in fed.train_served(running):
            assert step.inputs == 3
        given = await giving
    assert [one.replaced is None for one in given] == [True, True, False]
    assert "ended with the code 1; it printed: sick" in given[2].replaced


async def test_a_client_stopped_after_training_does_not_train_again(tmp_path, task):
    fed, runs = averaging(), tmp_path / "runs"
    # Another model each time: a second run would be refused.
    script = (
        "import os, sys, numpy as n\n"
        f"open({str(runs)!r}, 'a').write('.')\n"
        "n.savez(sys.argv[2], w=n.frombuffer(os.urandom(4), n.uint8) / 255)\n"
    )
    limits = {"task": "train", "privacy_limits": LIMITS}
    async with secagg.Server(None) as server:
        running = await server.add_task("train", task, payload=fed.payload)
        stopped = asyncio.Event()

        async def give(connection):
            source = made(tmp_path, script)
            async with secagg.Client(
                connection, state_dir=tmp_path / "own", **limits
            ) as one:
                return await one.contribute(source.vector, accept=source.check)

        async def other(name):
            async with secagg.Client(server.connection(name), **limits) as one:
                return await one.contribute(np.zeros(4))

        direct = server.connection("a")
        pausing = PausingConnection(
            direct, session_number=1, before="upload", on_pause=stopped.set
        )
        others = asyncio.gather(other("b"), other("c"), running.next_sum())
        first = asyncio.create_task(give(pausing))
        await stopped.wait()
        first.cancel()
        await asyncio.wait({first})
        given = await give(direct)
        *_, total = await others
        running.take()
    assert given.replaced is None
    assert total.inputs == 3
    assert runs.read_text() == "."
