"""What `secagg client` may be told to give, and to how many tasks."""

import asyncio
import json

import pytest

import secagg
from secagg.cli import main
from secagg.cli.client_inputs import give_to_all, read_tasks
from secagg.cli.output import Output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "one of --input, --exec and --tasks is needed"),
        (["--input", "x.npy", "--exec", "train {model}"], "exclude each other"),
        (["--tasks", "t.toml", "--output", "sum.npy"], "its file says"),
        (["--input", "x.npy", "--exec-seconds", "3"], "go with --exec"),
        (["--exec", "train {model}", "--payload-out", "x"], "go with --input"),
    ],
)
def test_options_that_exclude_each_other_are_refused(capsys, words, text):
    assert main(["client", "--config", "client.toml", *words]) == 2
    assert text in " ".join(capsys.readouterr().err.replace("│", "").split())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no task"),
        ("[a", "is not TOML"),
        ("a = 1", "has 'a' outside of any task"),
        ("[a]\ninptu = 'x'", "has a.inptu"),
        ("[a]\ninput = 1", "another a.input than str"),
        ("[a]\nsessions = true", "another a.sessions than int"),
        ("[a]\noutput = 'x'", "none or both of a.input and a.exec"),
        ("[a]\ninput = 'x'\nexec = 'y'", "none or both"),
        ("[a]\ninput = 'x'\nsessions = 0", "a.sessions = 0"),
    ],
)
def test_a_file_of_tasks_that_cannot_work_is_refused(tmp_path, text, fault):
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    with pytest.raises(secagg.ServiceError, match=fault) as caught:
        read_tasks(path)
    assert caught.value.code is secagg.ErrorCode.BAD_SETTINGS
    assert caught.value.next_step
    with pytest.raises(secagg.ServiceError, match="cannot read"):
        read_tasks(tmp_path / "none.toml")


async def test_a_task_that_fails_leaves_the_others(capsys):
    ended = asyncio.Event()

    async def give(number, output):
        if number == 0:
            raise secagg.InputError("no file", next_step="Look.")
        output.line("at work")
        ended.set()
        return {"sessions": [number]}

    with pytest.raises(secagg.InputError, match="no file"):
        await give_to_all(["flu", "beds"], give, Output(as_json=True))
    said = capsys.readouterr().err
    assert "flu: ended: no file" in said
    assert "beds: at work" in said
    assert ended.is_set()

    async def good(number, _):
        return {"sessions": [number]}

    given = await give_to_all(["flu", "beds"], good, Output(as_json=True))
    assert json.dumps(given) == '{"flu": {"sessions": [0]}, "beds": {"sessions": [1]}}'
