"""The table of operations: arguments, offline answers, one command each."""

import dataclasses
import re
from pathlib import Path

import pytest

from secagg.errors import ErrorCode, ServiceError
from secagg.server.admin.operations import (
    OPERATIONS,
    Sources,
    operation_of,
    read_arguments,
)
from secagg.server.admin.views import StoreViews
from secagg.storage.open_store import STORE_FILE, open_store, reading

ROOT = Path(__file__).parents[5]
VALUES = {
    "task": "digits",
    "reason": "why",
    "origin": "digits.toml",
    "outcome": "released",
    "settings": {},
    "version": 1,
    "number": 1,
    "since": 0,
    "limit": 1,
    "finish": True,
}
WRONG = {str: (1, [], {}), int: (True, "1", 1.5), bool: (1, "yes"), dict: ([], "{}")}
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
    for wrong in WRONG[type(VALUES[field])]:
        with pytest.raises(ServiceError, match=rf"{field} must be") as caught:
            read_arguments(kind, full(name) | {field: wrong})
        assert caught.value.code is ErrorCode.BAD_INPUT


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_missing_argument_is_refused_unless_it_has_a_default(name):
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


def test_an_unknown_operation_is_refused():
    with pytest.raises(ServiceError, match="unknown operation") as caught:
        operation_of("task.delete")
    assert caught.value.code is ErrorCode.BAD_INPUT


@pytest.mark.parametrize("name", OPERATIONS)
async def test_what_needs_a_process_says_so_and_the_rest_is_read(name, tmp_path):
    await (await open_store(f"sqlite:{tmp_path / STORE_FILE}")).close()
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
        given = full(name) | {"settings": {"task": {"id": "digits"}}}
        with pytest.raises(ServiceError, match="needs an aggregator") as caught:
            await operation.call(sources, given)
        assert caught.value.code is ErrorCode.UNREACHABLE


def test_every_operation_has_one_command():
    text = "".join(path.read_text() for path in (ROOT / "secagg" / "cli").glob("*.py"))
    for word, is_offline in (("ask", False), ("look", True)):
        named = re.findall(rf'\b{word}\(\s*config,\s*"([\w.]+)"', text)
        rows = [n for n, row in OPERATIONS.items() if row.is_offline is is_offline]
        assert sorted(named) == sorted(rows)
