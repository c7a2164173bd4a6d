"""Error texts and log events, as the source constructs them.

Both are read from the syntax trees of the package: a field of an f-string becomes
`{}`, a parameter of a factory is followed to its calls, and where the source chooses
between texts, each of them is a row. Where a module lies makes no difference.
"""

import ast
import functools
import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import secagg
from secagg.errors import ErrorCode

ROOT = Path(secagg.__file__).parent
BASE = "SecAggError"
FIELD = "{}"
UNKNOWN = "*"
# Factories that call factories; beyond that the text counts as unknown.
DEPTH = 4


@dataclass(frozen=True)
class Parameter:
    """A text that the callers of a function choose."""

    name: str


@dataclass(eq=False)
class Module:
    """What one file defines, by name."""

    tree: ast.Module
    constants: dict = field(default_factory=dict)
    functions: dict = field(default_factory=dict)  # of each call: function around it
    owners: dict = field(default_factory=dict)  # of each call: class around it
    calls: list = field(default_factory=list)
    by_name: dict = field(default_factory=dict)  # calls, by the last word of the name
    defined: set = field(default_factory=set)  # names of functions and classes
    classes: dict = field(default_factory=dict)
    imported: set = field(default_factory=set)


def read_module(tree):
    module = Module(tree)
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        if isinstance(target, ast.Name) and node.value is not None:
            module.constants[target.id] = node.value
    pending = [(tree, None, None)]
    while pending:
        node, function, owner = pending.pop()
        if isinstance(node, ast.Call):
            module.calls.append(node)
            module.by_name.setdefault(name_of(node.func), []).append(node)
            module.functions[node] = function
            module.owners[node] = owner
        if isinstance(node, ast.ImportFrom):
            module.imported |= {each.name for each in node.names}
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node
            module.defined.add(node.name)
        if isinstance(node, ast.ClassDef):
            owner, function = node, None
            module.defined.add(node.name)
            module.classes[node.name] = node
        pending += [(child, function, owner) for child in ast.iter_child_nodes(node)]
    return module


@pytest.fixture(scope="module")
def modules():
    paths = [path for path in ROOT.rglob("*.py") if "_pb2" not in path.name]
    return [read_module(ast.parse(path.read_text())) for path in sorted(paths)]


def name_of(expression):
    """Return the last part of a dotted name, or "" for other expressions."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def parameters_of(function):
    if function is None:
        return []
    arguments = function.args
    return [
        each.arg
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    ]


@functools.cache
def assigned_to(function, name):
    """Return what a function assigns to a local name; empty where more is done."""
    values = []
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = [node.target]
        names = [each for each in targets if isinstance(each, ast.Name)]
        values += [node.value for each in names if each.id == name]
        if isinstance(node, ast.AugAssign) and name_of(node.target) == name:
            return []
    return values


def texts_of(expression, module, function, depth=0):  # noqa: C901, PLR0911 - a row for each kind
    """Return the possible texts of an expression, each a tuple of parts."""
    unknown = [(FIELD,)]
    if depth > DEPTH:
        return unknown

    def of(part):
        return texts_of(part, module, function, depth + 1)

    match expression:
        case ast.Constant(value=str(text)):
            return [(text,)]
        case ast.JoinedStr(values=values):
            parts = [
                of(each.value) if isinstance(each, ast.FormattedValue) else of(each)
                for each in values
            ]
            return [sum(each, ()) for each in itertools.product(*parts)]
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return [a + b for a, b in itertools.product(of(left), of(right))]
        case ast.IfExp(body=body, orelse=orelse):
            return of(body) + of(orelse)
        case ast.Attribute(value=ast.Name(id="ErrorCode"), attr=code):
            return [(code,)]
        case ast.Name(id=name) if name in parameters_of(function):
            return [(Parameter(name),)]
        case ast.Name(id=name) if function is not None:
            if values := assigned_to(function, name):
                return list(dict.fromkeys(itertools.chain(*map(of, values))))
            if name in module.constants:
                return of(module.constants[name])
        case ast.Name(id=name) if name in module.constants:
            return of(module.constants[name])
    return unknown


def argument(call, name, function, *, is_bound):
    """Return the expression that a call passes for a parameter, or its default."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    arguments = function.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    defaults = dict(
        zip(reversed(positional), reversed(arguments.defaults), strict=False)
    )
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults |= {each.arg: value for each, value in named if value is not None}
    if name in positional:
        place = positional.index(name) - is_bound
        if 0 <= place < len(call.args) and not any(
            isinstance(each, ast.Starred) for each in call.args
        ):
            return call.args[place]
    return defaults.get(name)


def is_method(function):
    return parameters_of(function)[:1] in (["self"], ["cls"])


def calls_of(function, owner, module, modules, *, is_event=False):
    """Yield the calls of a function: everywhere if no other module defines its name.

    Of a log event, a private method is otherwise looked for in its module and where
    its class is imported, a public one wherever a method of its name is called.
    """
    if function is None:
        return
    name = owner.name if function.name == "__init__" else function.name
    others = [each for each in modules if name in each.defined and each is not module]
    places = modules
    if others:
        places = [module]
        if is_event:
            places = modules
            if name.startswith("_"):
                base = owner.name if owner is not None else ""
                heirs = [each for each in modules if base in each.imported]
                places = [module, *heirs]
    if parameters_of(function)[:1] == ["cls"]:  # else `path.open("rb")` is one
        yield from (
            (place, call)
            for place in modules
            for call in place.by_name.get(name, ())
            if isinstance(call.func, ast.Attribute)
            and name_of(call.func.value) in {"cls", owner.name}
        )
        return
    for place in places:
        for call in place.by_name.get(name, ()):
            yield place, call


def resolved(row, function, owner, module, modules, depth=0):  # noqa: PLR0913, PLR0917 - where a call is
    """Yield the rows that a row with parameters stands for, one set for each call."""
    wanted = {part.name for text in row for part in text if isinstance(part, Parameter)}
    if not wanted:
        yield row
        return
    calls = list(calls_of(function, owner, module, modules)) if depth < DEPTH else []
    if not calls:
        yield tuple(
            tuple(FIELD if isinstance(part, Parameter) else part for part in text)
            for text in row
        )
    for place, call in calls:
        around = place.functions[call]
        choices = {}
        for name in wanted:
            given = argument(call, name, function, is_bound=is_method(function))
            choices[name] = texts_of(given, place, around)
        names = sorted(choices)
        for chosen in itertools.product(*(choices[name] for name in names)):
            known = dict(zip(names, chosen, strict=True))
            replaced = tuple(
                tuple(
                    itertools.chain.from_iterable(
                        known[part.name] if isinstance(part, Parameter) else (part,)
                        for part in text
                    )
                )
                for text in row
            )
            owns = place.owners[call]
            yield from resolved(replaced, around, owns, place, modules, depth + 1)


# --- errors ---------------------------------------------------------------------------


def error_classes(modules):
    """Return the classes of errors, each with the code that it has by default."""
    classes = {}
    for module in modules:
        classes |= module.classes
    found = {}

    def default_code(name):
        node = classes.get(name)
        if node is None:
            return None
        for each in node.body:
            targets = each.targets if isinstance(each, ast.Assign) else []
            targets = [each.target] if isinstance(each, ast.AnnAssign) else targets
            if any(name_of(target) == "default_code" for target in targets):
                return name_of(each.value)
        codes = [default_code(name_of(base)) for base in node.bases]
        return next((code for code in codes if code is not None), None)

    def is_error(name):
        node = classes.get(name)
        bases = [] if node is None else map(name_of, node.bases)
        return name == BASE or any(map(is_error, bases))

    for name in classes:
        if is_error(name):
            found[name] = (default_code(name), classes[name])
    return found


def own_init(node):
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return each
    return None


def writes_its_own_text(node, classes):
    """Whether the constructor of a class, or of a base, composes the message."""
    init = own_init(node)
    if init is not None:
        return parameters_of(init)[1:2] != ["message"]
    return any(
        writes_its_own_text(classes[name][1], classes)
        for name in map(name_of, node.bases)
        if name in classes
    )


def code_that_makes(call):
    """Return the code of a call of its method `error`, else None."""
    maker = call.func
    if not isinstance(maker, ast.Attribute) or maker.attr != "error":
        return None
    is_code = name_of(getattr(maker.value, "value", None)) == "ErrorCode"
    has_kind = any(keyword.arg == "kind" for keyword in call.keywords)
    return maker.value if is_code or has_kind else None


def error_rows(modules):
    """Return class, code, text and next steps of every error, as templates."""
    classes = error_classes(modules)
    rows = set()
    for module in modules:
        for call in module.calls:
            name, owner = name_of(call.func), module.owners[call]
            is_super = (
                name == "__init__"
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Call)
                and name_of(call.func.value.func) == "super"
                and owner is not None
                and owner.name in classes
            )
            if is_super:
                name = owner.name
                if not writes_its_own_text(owner, classes):
                    continue
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            code = code_that_makes(call)
            if code is not None:
                kind = given.get("kind")
                name = (
                    type(ErrorCode[code.attr].error("")).__name__
                    if kind is None
                    else name_of(kind)
                )
                if name not in classes:  # a class that is chosen where it runs
                    continue
                given |= {"code": code}
                given["next_step"] = given.get("fix", ast.Constant(value=""))
            elif not is_super and (
                name not in classes or writes_its_own_text(classes[name][1], classes)
            ):
                continue
            function = module.functions[call]
            default = ast.Constant(value=classes[name][0])
            parts = (
                call.args[0] if call.args else given.get("message"),
                given.get("code", default),
                given.get("next_step", ast.Constant(value="")),
                given.get("at_command", ast.Constant(value="")),
            )
            texts = [texts_of(part, module, function) for part in parts]
            for row in itertools.product(*texts):
                for message, code, *steps in resolved(
                    row, function, owner, module, modules
                ):
                    # A code that is None is the default of the class.
                    words = "".join(code)
                    rest = ("".join(step) for step in steps)
                    rows.add((name, words, "".join(message), *rest))
    return rows


def test_error_texts(modules, golden):
    lines, head = [], None
    for name, code, text, step, at_command in sorted(error_rows(modules)):
        if head != (name, code):
            head = (name, code)
            lines.append(f"\n{name} {code}")
        lines.append(f"  {text!r}")
        if step:
            lines.append(f"      next step: {step!r}")
        if at_command:
            lines.append(f"      at a command: {at_command!r}")
    golden("error_texts.txt", "\n".join(lines).lstrip() + "\n")


# --- log events -----------------------------------------------------------------------


def log_constants(modules):
    """Return the constants of the module that defines `log_event`."""
    (module,) = (
        each
        for each in modules
        if any(getattr(node, "name", "") == "log_event" for node in each.tree.body)
    )
    return {
        name: value.value
        for name, value in module.constants.items()
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def keys_of(expression, module, function):
    """Return the keys of a dictionary that a call spreads; `*` where unknown."""
    if isinstance(expression, ast.Dict):
        return {getattr(key, "value", UNKNOWN) for key in expression.keys}
    if isinstance(expression, ast.Name) and function is not None:
        values = assigned_to(function, expression.id)
        return set().union(*(keys_of(each, module, function) for each in values)) or {
            UNKNOWN
        }
    if isinstance(expression, ast.Attribute):
        keys = set()
        for node in ast.walk(module.tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = [name_of(e) for e in targets if isinstance(e, ast.Attribute)]
            if expression.attr in names and isinstance(node.value, ast.Dict):
                keys |= keys_of(node.value, module, function)
        return keys or {UNKNOWN}
    return {UNKNOWN}


def events_of(expression, constants, function):
    if isinstance(expression, ast.IfExp):
        return events_of(expression.body, constants, function) + events_of(
            expression.orelse, constants, function
        )
    name = name_of(expression)
    if name in parameters_of(function):
        return [Parameter(name)]
    return [constants.get(name, UNKNOWN)]


def event_rows(modules):  # noqa: C901 - two functions that call each other
    """Return (event, its fields) of every line that is logged."""
    constants = log_constants(modules)
    rows = set()

    def add(expression, keys, place, call, depth=0):
        function, owner = place.functions[call], place.owners[call]
        spread = function is not None and function.args.kwarg
        for event in events_of(expression, constants, function):
            if not isinstance(event, Parameter):
                rows.add((event, tuple(sorted(keys))))
            elif depth < DEPTH:
                for caller, outer in calls_of(
                    function, owner, place, modules, is_event=True
                ):
                    given = argument(
                        outer, event.name, function, is_bound=is_method(function)
                    )
                    # Another class may have a method of this name that logs nothing.
                    around = caller.functions[outer]
                    if UNKNOWN in events_of(given, constants, around):
                        continue
                    found = set(keys)
                    if spread and f"**{spread.arg}" in found:
                        found.remove(f"**{spread.arg}")
                        taken = parameters_of(function)
                        found |= fields(outer, caller) - set(taken)
                    add(given, found, caller, outer, depth + 1)

    def fields(call, place):
        function = place.functions[call]
        spread = function.args.kwarg if function is not None else None
        keys = set()
        for keyword in call.keywords:
            if keyword.arg is not None:
                keys.add(keyword.arg)
            elif spread is not None and name_of(keyword.value) == spread.arg:
                keys.add(f"**{spread.arg}")
            else:
                keys |= keys_of(keyword.value, place, function)
        return keys

    for module in modules:
        for call in module.calls:
            name = name_of(call.func)
            if name in {"log_event", "log_defect"}:
                place = 2 if name == "log_event" else 1
                add(call.args[place], fields(call, module), module, call)
    return rows, constants


def test_log_events(modules, golden):
    rows, constants = event_rows(modules)
    loggers = {value for name, value in constants.items() if name.endswith("_LOGGER")}
    logged = {event for event, _ in rows}
    assert set(constants.values()) - loggers == logged
    lines = sorted(f"{event}: {', '.join(keys)}".rstrip(": ") for event, keys in rows)
    golden("log_events.txt", "\n".join(lines) + "\n")
