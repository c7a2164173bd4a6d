"""Errors are made by their code: `ErrorCode.X.error(...)`, never by their class.

The table of `secagg/errors.py` says which class a code has. A class that writes its own
text is made by its name: the text stands there once, and callers catch that class.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each names in its constructor what its text is made of, and the code with it.
WRITES_ITS_TEXT = {
    "AnotherAggregatorError": "the aggregator of a state, and the one that answers",
    "BudgetSpentError": "a charge that finds no budget",
    "ChangedMeanwhileError": "a task whose row another operator has changed",
    "DeliveryDeferredError": "the error of a disk, and when it is tried again",
    "DuplicateRecordError": "a record that is stored already",
    "InvalidDealerError": "the shares of a dealer that fit together in no way",
    "LeaseLostError": "a session that another replica drives",
    "NoAdminSocketError": "a socket at which no aggregator answers",
    "NoiseChangedError": "a task with other noise than before",
    "NumberTakenError": "a session number that is used already",
    "ReceiptError": "the step at which a receipt fails",
    "SessionConflictError": "a task that another session has",
    "SessionsSpentError": "a task without a session left",
    "StateDamagedError": "where a store is damaged",
    "StoreFailoverError": "a store that is behind what was committed",
    "StoreInUseError": "a store that another process holds",
    "StoreNotFoundError": "a place without a store",
    "StoreUnavailableError": "a database that does not answer",
    "ThresholdNotMetError": "how many clients are left, and how many are needed",
    "UnexpectedPeerError": "a certificate of another peer than the expected one",
}


def name_of(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def trees():
    for path in sorted((ROOT / "secagg").rglob("*.py")):
        if "_pb2" not in path.name:
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def error_classes(parsed):
    """Return the names of all classes of errors."""
    nodes = [node for _, tree in parsed for node in ast.walk(tree)]
    classes = {each.name: each for each in nodes if isinstance(each, ast.ClassDef)}
    found = {"SecAggError"}
    while more := {
        name
        for name, node in classes.items()
        if name not in found and found & set(map(name_of, node.bases))
    }:
        found |= more
    return found


def made_by_class(parsed, classes):
    """Return (class, place) of every error that is made by its class."""
    return [
        (name_of(node.func), f"{path}:{node.lineno}")
        for path, tree in parsed
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node.func) in classes
    ]


def test_errors_are_constructed_by_their_code():
    parsed = list(trees())
    made = made_by_class(parsed, error_classes(parsed))
    wrong = [place for name, place in made if name not in WRITES_ITS_TEXT]
    assert not wrong, "make these errors by their code: ErrorCode.X.error(...)"
    assert WRITES_ITS_TEXT.keys() == {name for name, _ in made}


def test_an_error_constructed_by_its_class_is_found():
    text = "class A(ServiceError): ...\nraise A('x')\nraise errors.SecAggError('x')\n"
    parsed = [
        (Path("x.py"), ast.parse("class ServiceError(SecAggError): ...\n" + text))
    ]
    made = made_by_class(parsed, error_classes(parsed))
    assert made == [("A", "x.py:3"), ("SecAggError", "x.py:4")]
