"""The table of operations: arguments, offline answers, one command each."""

import asyncio
import dataclasses
import json

import pytest

from secagg.cli import app, main, operator
from secagg.errors import ErrorCode, ServiceError
from secagg.server.admin import operations
from secagg.server.admin.channel import call_admin
from secagg.server.admin.operations import (
    OPERATIONS,
    Operation,
    Sources,
    argument,
    operation_of,
    read_arguments,
)
from secagg.server.admin.socket import AdminSocket
from secagg.server.admin.views import StoreViews
from secagg.server.server import OperatedServer
from secagg.storage.open_store import STORE_FILE, open_store, reading

FILE = {"settings": {"task": {"id": "digits"}}, "origin": "digits.toml"}
VALUES = {
    "task": "digits",
    "reason": "why",
    "outcome": "released",
    "file": FILE,
    "expect_version": 1,
    "number": 1,
    "since": 0,
    "limit": 1,
    "finish": True,
}
WRONG = {
    str: (1, [], {}),
    int: (True, "1", "", 1.5),
    bool: (1, "yes"),
}
FIELDS = [
    pytest.param(name, field.name, id=f"{name} {field.name}")
    for name, operation in OPERATIONS.items()
    for field in dataclasses.fields(operation.arguments)
]


def full(name):
    fields = dataclasses.fields(OPERATIONS[name].arguments)
    return {field.name: VALUES[field.name] for field in fields}


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_an_argument_of_another_type_is_refused_by_name(name, field):
    kind = OPERATIONS[name].arguments
    read_arguments(kind, full(name))
    for wrong in WRONG.get(type(VALUES[field]), ()):
        with pytest.raises(ServiceError, match=rf"{field} must be") as caught:
            read_arguments(kind, full(name) | {field: wrong})
        assert caught.value.code is ErrorCode.BAD_INPUT


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ([], "file must be an object"),
        ({"origin": "f"}, "settings must be a section"),
        ({"settings": [], "origin": "f"}, "settings must be a section"),
        ({"settings": {}, "origin": 1}, "origin must be a text"),
        ({"settings": {}}, "origin must be a text"),
    ],
)
def test_task_add_requires_an_object_with_the_file_name(file, why):
    with pytest.raises(ServiceError, match=why) as caught:
        read_arguments(OPERATIONS["task.add"].arguments, {"file": file})
    assert caught.value.code is ErrorCode.BAD_INPUT


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("session.show", {"number": 0}),
        ("session.list", {"limit": 0}),
        ("session.list", {"limit": 1001}),
        ("session.list", {"outcome": "U3_TO_SMALL"}),
        ("session.list", {"since": 1 << 63}),
        ("task.apply", {"expect_version": 0}),
    ],
    ids=str,
)
def test_the_limits_of_an_option_apply_at_the_socket_too(name, given):
    with pytest.raises(ServiceError, match="must be") as caught:
        read_arguments(OPERATIONS[name].arguments, full(name) | given)
    assert caught.value.code is ErrorCode.BAD_INPUT


def test_an_empty_task_name_selects_no_other_task():
    found = read_arguments(OPERATIONS["session.list"].arguments, {"task": ""})
    assert found.task == ""


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_missing_argument_is_rejected_unless_it_has_a_default(name):
    kind = OPERATIONS[name].arguments
    for field in dataclasses.fields(kind):
        rest = {key: value for key, value in full(name).items() if key != field.name}
        if field.default is dataclasses.MISSING:
            with pytest.raises(ServiceError, match=field.name):
                read_arguments(kind, rest)
        elif field.default is None:
            assert getattr(read_arguments(kind, rest), field.name) is None


@pytest.mark.parametrize("given", [None, [], "task", 1])
def test_arguments_must_be_an_object(given):
    with pytest.raises(ServiceError, match="args must be an object"):
        read_arguments(OPERATIONS["status"].arguments, given)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_unknown_argument_is_refused_by_name(name, tmp_path):
    """At the socket and offline alike: both read arguments by the one table."""
    await make_store(tmp_path)
    given = full(name) | {"forse": True}
    with reading(tmp_path / STORE_FILE) as store:
        sources = Sources(StoreViews(store, tmp_path), tmp_path)
        with pytest.raises(
            ServiceError, match="'forse' is not a key of args"
        ) as raised:
            await answered(OPERATIONS[name], sources, given)
    assert raised.value.code is ErrorCode.BAD_INPUT
    async with (
        OperatedServer(None) as server,
        AdminSocket(
            tmp_path / "s", server, None, state_dir=tmp_path, finish=lambda _: None
        ),
    ):
        with pytest.raises(
            ServiceError, match="'forse' is not a key of args"
        ) as raised:
            await call_admin(tmp_path / "s", name, given)
    assert raised.value.code is ErrorCode.BAD_INPUT
    assert raised.value.next_step


def test_an_unknown_key_of_a_file_is_named_as_one_line():
    file = {**FILE, "\x1b[2J" + "x" * 300: 1}
    with pytest.raises(ServiceError, match=r"' \[2Jx{60}' is not a key of file"):
        read_arguments(OPERATIONS["task.add"].arguments, {"file": file})


def test_an_unknown_operation_is_refused():
    with pytest.raises(ServiceError, match="unknown operation") as caught:
        operation_of("task.delete")
    assert caught.value.code is ErrorCode.BAD_INPUT


async def make_store(directory):
    await (await open_store(f"sqlite:{directory / STORE_FILE}")).close()


async def answered(operation, sources, given):
    if operation.changes is None:
        return await operation.call(sources, given)
    return operation.changes(sources, read_arguments(operation.arguments, given))


@pytest.mark.parametrize("name", OPERATIONS)
async def test_operations_that_need_a_process_say_so_and_others_read_the_store(
    name, tmp_path
):
    await make_store(tmp_path)
    operation = OPERATIONS[name]
    with reading(tmp_path / STORE_FILE) as store:
        sources = Sources(StoreViews(store, tmp_path), tmp_path)
        if operation.is_offline:
            named = {"task.show", "session.show", "session.list", "budget"}
            if name in named:
                with pytest.raises(ServiceError, match="exists here"):
                    await operation.call(sources, full(name))
            else:
                assert await operation.call(sources, full(name))
            return
        with pytest.raises(ServiceError, match="needs an aggregator") as caught:
            await answered(operation, sources, full(name))
        assert caught.value.code is ErrorCode.UNREACHABLE


@dataclasses.dataclass(frozen=True)
class Copies:
    """Takes a task and a number of copies."""

    task: str = argument("Of which task.", metavar="ID", is_positional=True)
    copies: int = argument("How many.", low=1, default=2)


async def copies(sources, given):
    """Count copies.

    No more.
    """
    return {"copied": given.task, "copies": given.copies, "dir": sources.state_dir.name}


TOY = Operation("task.copies", Copies, copies, is_offline=True)


@pytest.fixture
def with_a_row(monkeypatch, tmp_path):
    rows = {**OPERATIONS, TOY.name: TOY}
    monkeypatch.setattr(operations, "OPERATIONS", rows)
    monkeypatch.setattr(operator, "OPERATIONS", rows)
    app._command.cache_clear()
    tls = 'ca = "ca.pem"\ncertificate = "server.pem"\nkey = "server.key"\n'
    path = tmp_path / "server.toml"
    path.write_text(f'[server]\nstate_dir = "state"\n[tls]\n{tls}')
    yield path
    app._command.cache_clear()


def test_one_row_defines_an_operation_and_its_command(with_a_row, capsys):
    """Socket, offline reader and command line: an operation touches one file."""
    assert operation_of("task.copies") is TOY
    directory = with_a_row.parent / "state"
    directory.mkdir()
    words = ["tasks", "copies", "digits", "--config", str(with_a_row)]
    assert main(["tasks", "copies", "--help"]) == 0
    shown = capsys.readouterr().out
    for word in (
        "Count copies.",
        "No more.",
        "--copies",
        "How many.",
        "Of which task.",
    ):
        assert word in shown
    assert main([*words, "--copies", "0"]) == 2
    capsys.readouterr()
    assert main([*words, "--json"]) == 55  # no store was ever written there
    capsys.readouterr()
    asyncio.run(make_store(directory))
    assert main([*words, "--copies", "3"]) == 0
    assert "copied  digits" in " ".join(capsys.readouterr().out.split("\n"))
    assert main([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {"copied": "digits", "copies": 2, "dir": "state"}
