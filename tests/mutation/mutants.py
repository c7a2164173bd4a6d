"""Which checks of a file can be removed or weakened, and the file without them.

A mutant is the source of one module with one change.  The kinds:

* `never`     an `if` that raises, returns or continues a loop is never taken;
* `bound`     `<` becomes `<=` and back, `>` becomes `>=` and back;
* `part`      a condition loses one of the parts that `and` or `or` joins;
* `rule`      a condition that stands beside its complaint always holds;
* `call`      a call whose only effect is that it may raise is removed;
* `handler`   an error is raised unchanged where the handler converts it;
* `extreme`   `max` and `min` become one of what they choose from;
* `code`      a rejection has another code;
* `row`       a table of transitions loses a row;
* `cell`      a table has another word in one cell.

Texts, names and arithmetic stay unchanged: the search is for checks that no test
covers, not for every change that a test could detect.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, NamedTuple

MODULE: Final = -1
"""Stands for the functions of a file, where sites are told apart by number."""

_OTHER_BOUND: Final = MappingProxyType(
    {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
)
_CHECKING: Final = re.compile(
    r"^_?(check|verify|judge|refuse|require|validate|end$)", re.IGNORECASE
)
_RULE: Final = re.compile(r"R\d+(?:\.\d+)?-\d+|PROTOCOL §\d+(?:\.\d+)?")
_LONGEST: Final = 120


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: Path below the root of the repository.
        number: Of its site in the file.
        scope: Function or class that is changed; "" for the module.
        kind: See the head of this module.
        change: What is changed, in words and code.
        rule: The rule of PROTOCOL.md that is cited nearest above it; "" if none is.
        function: Qualified name of the outermost function that is changed, and the
            line on which its code begins; None if the change acts at import.
        digest: Of the code of that function, or of the table: comments, docstrings
            and the layout of lines do not count.
    """

    file: str
    number: int
    scope: str
    kind: str
    change: str
    rule: str
    function: tuple[str, int] | None
    digest: str

    @property
    def name(self) -> str:
        """What the mutant is called in results and explanations."""
        return f"{self.file}: {self.scope or 'module'}: {self.change}"


class _Site(NamedTuple):
    kind: str
    change: str
    scope: str
    line: int
    within: "_Within | None"
    statement: ast.stmt | None
    block: list[ast.stmt] | None
    apply: Callable[[], object]


def mutants_of(file: str, source: str) -> tuple[Mutant, ...]:
    """Return all mutants of a file, in the order of its lines.

    Args:
        file: Path below the root of the repository.
        source: Its text.
    """
    lines = source.splitlines()
    seen: Counter[tuple[str, str]] = Counter()
    found, tree = [], ast.parse(source)
    digests: dict[ast.AST, str] = {}
    for number, site in enumerate(_sites(tree)):
        seen[site.scope, site.change] += 1
        again = seen[site.scope, site.change]
        found.append(
            Mutant(
                file,
                number,
                site.scope,
                site.kind,
                site.change if again == 1 else f"{site.change} (no. {again})",
                _rule_near(lines, site),
                site.within and (site.within.name, site.within.first),
                _digest(tree, site, digests),
            )
        )
    return tuple(found)


def changed(source: str, number: int) -> ast.Module:
    """Return a module with one of its mutations."""
    tree = ast.parse(source)
    list(_sites(tree))[number].apply()
    return ast.fix_missing_locations(tree)


def instrumented(source: str, call: str) -> ast.Module:
    """Return a module that reports which of its sites are reached.

    Args:
        source: Of the module.
        call: Name of a built-in that is called with the number of each site, and with
            `MODULE` at the start of each function.
    """
    tree = ast.parse(source)
    marks: list[tuple[list[ast.stmt], ast.stmt, int]] = [
        (node.body, node.body[0], MODULE)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for number, site in enumerate(_sites(tree)):
        if site.block is not None and site.statement is not None:
            marks.append((site.block, site.statement, number))
    for block, statement, number in marks:
        mark = ast.parse(f"{call}({number})").body[0]
        place = next(i for i, each in enumerate(block) if each is statement)
        block.insert(place, mark)
    return ast.fix_missing_locations(tree)


class _Within(NamedTuple):
    """The outermost function around a node."""

    name: str
    first: int
    function: ast.FunctionDef | ast.AsyncFunctionDef


class _Place(NamedTuple):
    """A node, where it hangs, and what surrounds it."""

    node: ast.AST
    put: Callable[[Any], None]
    scope: str
    within: _Within | None
    statement: ast.stmt | None
    block: list[ast.stmt] | None


def _places(tree: ast.Module) -> Iterator[_Place]:
    root = _Place(tree, lambda _: None, "", None, None, None)
    stack = [root]
    while stack:
        place = stack.pop()
        yield place
        stack.extend(reversed(list(_children(place))))


def _children(parent: _Place) -> Iterator[_Place]:
    node, scope = parent.node, parent.scope
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    elif not scope:
        scope = _assigned(node)
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list"}:
            continue
        inside = parent.within
        if (
            inside is None
            and field == "body"
            and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            marks = [node.lineno, *(mark.lineno for mark in node.decorator_list)]
            inside = _Within(scope, min(marks), node)
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST):
                continue
            statement, block = parent.statement, parent.block
            if isinstance(child, ast.stmt) and inside is not None:
                statement, block = child, value
            elif isinstance(child, ast.ExceptHandler) and inside is not None:
                statement, block = child.body[0], child.body
            put = _putter(node, field, index if isinstance(value, list) else None)
            yield _Place(child, put, scope, inside, statement, block)


def _assigned(node: ast.AST) -> str:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name)):
            return name
        case _:
            return ""


def _putter(parent: ast.AST, field: str, index: int | None) -> Callable[[Any], None]:
    def put(new: Any) -> None:
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return put


def _sites(tree: ast.Module) -> Iterator[_Site]:
    words = _words(tree)
    for place in list(_places(tree)):
        for kind, change, apply in _changes(place, words):
            yield _Site(
                kind,
                change,
                place.scope,
                getattr(place.node, "lineno", 1),
                place.within,
                place.statement,
                place.block,
                apply,
            )


_Change = tuple[str, str, Callable[[], object]]


def _changes(place: _Place, words: frozenset[str]) -> Iterator[_Change]:
    yield from _of_statements(place)
    yield from _of_conditions(place)
    yield from _of_words(place, words)


def _of_statements(place: _Place) -> Iterator[_Change]:
    node = place.node
    match node:
        case ast.If(test=test, body=[*_, ast.Raise() | ast.Return() | ast.Continue()]):
            yield (
                "never",
                f"never `if {_text(test)}`",
                lambda: setattr(node, "test", ast.Constant(value=False)),
            )
        case ast.Expr(value=ast.Call(func=func)) if _CHECKING.match(_last_name(func)):
            yield "call", f"without `{_text(node)}`", lambda: place.put(ast.Pass())
        case ast.ExceptHandler(body=[*_, ast.Raise(exc=exc)]) if exc is not None:
            yield (
                "handler",
                f"`except {_text(node.type)}` raises it again",
                lambda: setattr(node, "body", [ast.Raise(exc=None, cause=None)]),
            )
        case _:
            pass


def _of_conditions(place: _Place) -> Iterator[_Change]:
    node = place.node
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                if type(op) in _OTHER_BOUND:
                    yield _other_bound(node, index)
        case ast.BoolOp(values=values):
            for index, value in enumerate(values):
                yield (
                    "part",
                    f"without `{_text(value)}` in `{_text(node)}`",
                    partial(place.put, _without(node, index)),
                )
        case ast.Tuple(elts=[condition, text], ctx=ast.Load()) if _is_text(
            text
        ) and not _is_text(condition):
            yield (
                "rule",
                f"always `{_text(condition)}`",
                lambda: node.elts.__setitem__(0, ast.Constant(value=True)),
            )
        case ast.Call(func=ast.Name(id="max" | "min"), args=[_, _], keywords=[]):
            for arg in node.args:
                yield (
                    "extreme",
                    f"`{_text(node)}` is `{_text(arg)}`",
                    partial(place.put, arg),
                )
        case _:
            pass


def _of_words(place: _Place, words: frozenset[str]) -> Iterator[_Change]:
    node = place.node
    match node:
        case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=code) if (
            place.within is not None and code != "INTERNAL"
        ):
            yield (
                "code",
                f"`{code}` is INTERNAL",
                lambda: setattr(node, "attr", "INTERNAL"),
            )
        case ast.Dict(keys=[_, *_]):
            yield from _table(node, words, in_function=place.within is not None)
        case ast.Call(args=[_, *rest]) if place.within is None:
            for index, arg in enumerate(rest, 1):
                if isinstance(arg, ast.Name) and arg.id in words:
                    yield from _other_words(node.args, index, node.args[0], words)
        case _:
            pass


def _other_bound(node: ast.Compare, index: int) -> _Change:
    old = _text(node)
    new_op = _OTHER_BOUND[type(node.ops[index])]()
    new = ast.Compare(node.left, list(node.ops), node.comparators)
    new.ops[index] = new_op
    return (
        "bound",
        f"`{old}` is `{_text(new)}`",
        lambda: node.ops.__setitem__(index, new_op),
    )


def _without(node: ast.BoolOp, index: int) -> ast.expr:
    rest = [value for i, value in enumerate(node.values) if i != index]
    return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _words(tree: ast.Module) -> frozenset[str]:
    """Return the names that cells of tables are filled with, if the file has such.

    They are what one assignment of several names at once defines, in capitals.
    """
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple()):
                found = {name.id for name in names if isinstance(name, ast.Name)}
                if all(name.isupper() for name in found):
                    return frozenset(found)
            case _:
                pass
    return frozenset()


def _table(
    node: ast.Dict, words: frozenset[str], *, in_function: bool
) -> Iterator[_Change]:
    is_of_rows = any(isinstance(key, ast.Tuple) for key in node.keys)
    names = frozenset(v.id for v in node.values if isinstance(v, ast.Name))
    if words and len(names) > 1 and all(isinstance(v, ast.Name) for v in node.values):
        for index in range(len(node.keys)):
            yield from _other_words(node.values, index, node.keys[index], names)
    elif is_of_rows and not in_function:
        for index, (key, value) in enumerate(zip(node.keys, node.values, strict=True)):
            yield (
                "row",
                f"without row `{_text(key if key is not None else value)}`",
                partial(_lose_row, node, index),
            )


def _lose_row(node: ast.Dict, index: int) -> None:
    del node.keys[index], node.values[index]


def _other_words(
    cells: list[ast.expr], index: int, head: ast.expr | None, words: frozenset[str]
) -> Iterator[_Change]:
    old = _text(cells[index])
    for word in sorted(words - {old}):
        yield (
            "cell",
            f"cell {index} of `{_text(head)}`: `{old}` is `{word}`",
            partial(cells.__setitem__, index, ast.Name(id=word, ctx=ast.Load())),
        )


def _text(node: ast.AST | None) -> str:
    text = " ".join(ast.unparse(node).split()) if node is not None else ""
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _rule_near(lines: list[str], site: _Site) -> str:
    """Return the rules cited on the site's line, or nearest above in its function."""
    first = site.within.first if site.within else site.line
    for line in range(site.line, first - 1, -1):
        cited = _RULE.findall(lines[line - 1])
        if cited:
            return ", ".join(dict.fromkeys(cited))
    return ""


def _digest(tree: ast.Module, site: _Site, known: dict[ast.AST, str]) -> str:
    """Hash the code around a site, so that results stay valid after other changes.

    Args:
        tree: The module, as it was read.
        site: Of a mutant.
        known: Hashes of this module by function or statement; each is made once.
    """
    within: ast.AST = tree
    if site.within:
        within = site.within.function
    else:
        for statement in tree.body:
            if statement.lineno <= site.line <= (statement.end_lineno or site.line):
                within = statement
    if within not in known:
        code = ast.unparse(_WithoutDocstrings().visit(deepcopy(within)))
        known[within] = sha256(code.encode()).hexdigest()[:16]
    return known[within]


class _WithoutDocstrings(ast.NodeTransformer):
    """Skips strings that are statements."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _is_text(node.value) else node
