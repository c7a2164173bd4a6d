"""A start fails with nothing that its checks cannot say: every error has its place.

Start, `--show-settings` and `secagg doctor` share one list of checks. So each function
that refuses a set-up is called by one of these checks, or stands in
`start_errors.toml` under the reason why it need not be.

What a check calls is found in the source alone, without running it: functions by their
imports, methods by their name where their class is named too.  That finds a little too
much, never too little, except behind calls that a string names.
"""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = "secagg.cli.checks.setup_checks"
CODES = {
    "BAD_CERTIFICATE",
    "BAD_SETTINGS",
    "MISSING_EXTRA",
    "PORT_IN_USE",
    "RESTORED_STATE",
    "STATE_DAMAGED",
    "STORAGE_FAILED",
}
TABLE = tomllib.loads((Path(__file__).parent / "start_errors.toml").read_text())
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def statements_of(node):
    """Yield the statements below a node, at any depth: a tenth of its nodes."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, field, ()):
            yield each
            yield from statements_of(each)


class Source:
    """Every function and class of the package, and what each names."""

    def __init__(self):
        self.nodes, self.methods, self.imports = {}, {}, {}
        for path in sorted((ROOT / "secagg").rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            tree = ast.parse(path.read_text())
            stub = path.with_suffix(".pyi")  # has what a table of lazy names imports
            lazy = ast.parse(stub.read_text() if stub.exists() else "")
            self.imports[module] = {
                (alias.asname or alias.name): f"{each.module}.{alias.name}"
                for each in (*statements_of(tree), *statements_of(lazy))
                if isinstance(each, ast.ImportFrom) and each.module
                for alias in each.names
            }
            self._read(module, tree, module, "")

    def _read(self, module, tree, place, owner):
        rest = [each for each in tree.body if not _is_def(each)]
        for each in tree.body:
            if isinstance(each, ast.ClassDef):
                name = f"{place}.{each.name}"
                self._record(name, module, [n for n in each.body if not _is_def(n)])
                self._read(module, each, name, name)
            elif isinstance(each, FUNCTIONS):
                name = f"{place}.{each.name}"
                self._record(name, module, [each])
                if owner:
                    self.methods.setdefault(each.name, []).append((owner, name))
        for each in rest if not owner else ():  # tables of checks name functions
            if isinstance(each, ast.Assign | ast.AnnAssign):
                targets = (
                    each.targets if isinstance(each, ast.Assign) else [each.target]
                )
                for target in targets:
                    if isinstance(target, ast.Name):
                        self._record(f"{place}.{target.id}", module, [each])

    def _record(self, name, module, body):
        names, attributes, codes = set(), set(), set()
        for each in (n for part in body for n in ast.walk(part)):
            if isinstance(each, ast.Name):
                names.add(each.id)
            elif isinstance(each, ast.Attribute):
                attributes.add(each.attr)
                if each.attr == "error":  # ErrorCode.X.error(...)
                    codes.add(getattr(each.value, "attr", ""))
            elif isinstance(each, ast.keyword) and each.arg == "code":
                codes.add(getattr(each.value, "attr", ""))
        self.nodes[name] = module, names, attributes, bool(codes & CODES)

    def named_by(self, name):
        """Return the full names and the attributes that a function names."""
        module, names, attributes, _ = self.nodes[name]
        found = {self._resolved(module, each) for each in names}
        return found - {None}, attributes

    def _resolved(self, module, name):
        for _ in range(5):  # a name may be passed on by several packages
            full = f"{module}.{name}"
            if full in self.nodes:
                return full
            found = self.imports.get(module, {}).get(name)
            if found is None:
                return None
            module, _, name = found.rpartition(".")
        return None

    def reached_from(self, roots, *, without=frozenset()):
        """Return all that is named, directly or not."""
        reached, attributes, waiting = set(), set(), list(roots)
        while waiting:
            while waiting:
                name = waiting.pop()
                if name in reached | without or name not in self.nodes:
                    continue
                reached.add(name)
                names, more = self.named_by(name)
                attributes |= more
                waiting += names - reached
            special = {"__init__", "__post_init__", "__enter__", "__aenter__"}
            waiting = [
                name
                for method in attributes | special
                for owner, name in self.methods.get(method, ())
                if owner in reached and name not in reached
            ]
        return reached

    def refusals(self):
        """Return the functions and classes that name a code of a start."""
        return {name for name, (*_, refuses) in self.nodes.items() if refuses}


def _is_def(node):
    return isinstance(node, ast.ClassDef | FUNCTIONS)


@pytest.fixture(scope="module")
def source():
    return Source()


@pytest.fixture(scope="module")
def unchecked(source):
    reached = source.reached_from(n for n in source.nodes if n.startswith(CHECKS))
    return {name.removeprefix("secagg.") for name in source.refusals() - reached}


def test_every_setup_failure_belongs_to_a_check_or_has_a_reason(unchecked):
    excused = {name for group in TABLE.values() for name in group["functions"]}
    assert unchecked - excused == set(), (
        "call these from a check of secagg/cli/checks/setup_checks.py, or name the "
        "reason in tests/architecture/start_errors.toml"
    )


def test_every_excused_rejection_exists_and_has_no_check(unchecked):
    for reason, group in TABLE.items():
        assert group["why"], reason
        assert set(group["functions"]) <= unchecked, reason
        assert group["functions"] == sorted(group["functions"]), reason


def test_a_rejection_without_a_check_is_detected(source):
    roots = {n for n in source.nodes if n.startswith(CHECKS)}
    refusal = "secagg.two_aggregators.program.check_name"
    assert refusal in source.reached_from(roots)
    left = {n for n in roots if refusal not in source.named_by(n)[0]}
    assert len(left) == len(roots) - 1
    assert refusal not in source.reached_from(left, without=roots - left)
