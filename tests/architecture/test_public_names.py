"""What `secagg` promises can be used and annotated with what `secagg` promises."""

import ast
import enum
import importlib
import inspect
import re
import types
import typing
from pathlib import Path

import grpc
import pytest

import secagg
from secagg import advanced
from tests.cases import each_of

ROOT = Path(__file__).parents[2]
# Other packages, and `dpnoise`, make promises of their own.
FOREIGN = {
    *(
        "builtins",
        "collections",
        "concurrent",
        "typing",
        "types",
        "pathlib",
        "datetime",
        "asyncio",
        "fractions",
    ),
    *("numpy", "cryptography", "grpc", "dpnoise"),
}
# What the protocol's messages and calls are made of, for those who carry bytes
# themselves with PROTOCOL.md at hand; and what a server writes down.
VOCABULARY = (
    *("secagg.protocol.messages", "secagg.wire.calls", "secagg.crypto.canonical"),
    "secagg.storage.rows",
)
# Parts of advanced classes that no program builds or reads by itself; may only shrink.
INNER = {
    *("HonestCuriousParameters", "MaliciousParameters", "SparseParameters"),
    *("NoiseSecrets", "NoisyInput", "Trust"),
}
PUBLIC = {
    name: getattr(package, name)
    for package in (secagg, advanced)
    for name in package.__all__
}


def types_in(annotation):
    """Every class inside an annotation."""
    if isinstance(annotation, list | tuple):
        for part in annotation:
            yield from types_in(part)
    elif typing.get_origin(annotation) is not None:
        yield from types_in(typing.get_args(annotation))
    elif isinstance(annotation, types.UnionType):
        yield from types_in(annotation.__args__)
    elif inspect.isclass(annotation):
        yield annotation


def hints_of(member):
    """The annotations of one member; what a client never loads is named in quotes."""
    return typing.get_type_hints(member, localns=PUBLIC | {"grpc": grpc})


def annotations_of(name, member):
    """The annotations that a user of a public name meets."""
    if not inspect.isclass(member):
        if inspect.isfunction(member):
            yield name, hints_of(inspect.unwrap(member))
        return
    if issubclass(member, enum.Enum):
        return
    public = {
        field: hint
        for field, hint in hints_of(member).items()
        if not field.startswith("_")
    }
    yield name, public
    for method, found in inspect.getmembers(member):
        is_made_elsewhere = "made by `" in (member.__doc__ or "")
        if method.startswith("_") and (method != "__init__" or is_made_elsewhere):
            continue
        function = found.fget if isinstance(found, property) else found
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function):
            yield f"{name}.{method}", hints_of(function)


@each_of(sorted(PUBLIC))
def test_types_in_public_signatures_are_public(name):
    for place, hints in annotations_of(name, PUBLIC[name]):
        for hint in hints.values():
            for used in types_in(hint):
                if used.__module__.split(".")[0] in FOREIGN:
                    continue
                if used.__module__.startswith(VOCABULARY):
                    continue
                if name not in secagg.__all__ and used.__name__ in INNER:
                    continue
                assert used in PUBLIC.values(), f"{place} uses {used.__qualname__}"


@each_of(sorted(PUBLIC))
def test_public_names_are_documented(name):
    member = PUBLIC[name]
    if not (inspect.isclass(member) or inspect.isfunction(member)):
        return
    assert member.__doc__, name
    if inspect.isclass(member):
        for method, found in vars(member).items():
            if not method.startswith("_") and callable(found):
                assert found.__doc__, f"{name}.{method}"


# Packages whose names load when they are first used.
LAZY = sorted(
    path
    for package in ("secagg", "dpnoise")
    for path in (ROOT / package).rglob("*.py")
    if re.search("= lazy_names", path.read_text())
)


def read_by_type_checkers(path):
    """The statements in which a package states its names."""
    stub = path.with_suffix(".pyi")
    if stub.exists():
        return ast.parse(stub.read_text()).body
    blocks = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.If)]
    assert [ast.unparse(block.test) for block in blocks] == ["TYPE_CHECKING"]
    return blocks[0].body


@pytest.mark.parametrize("path", LAZY, ids=lambda path: str(path.relative_to(ROOT)))
def test_stub_files_match_the_names_exported_at_runtime(path):
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    package = importlib.import_module(dotted.removesuffix(".__init__"))
    told = {}
    for node in read_by_type_checkers(path):
        assert isinstance(node, ast.ImportFrom), ast.unparse(node)
        for each in node.names:
            assert each.asname == each.name, f"{each.name} is not exported"
            told.setdefault(node.module, []).append(each.name)
    submodules = told.pop(package.__name__, [])
    assert sorted(name for names in told.values() for name in names) == package.__all__
    assert {*package.__all__, *submodules} <= set(dir(package))
    for name in submodules:
        assert inspect.ismodule(getattr(package, name))
    # The contracts of imports do not see a stub.
    own = (dotted.split(".")[0] + ".",)
    if dotted == "secagg.distributed_dp.__init__":
        own = ("secagg.distributed_dp.", "dpnoise.")
    assert all(place.startswith(own) for place in told)


# A program may name these without importing them.
MODULES_TO_NAME = ("advanced", "blocking", "learning", "two_aggregators")


def test_the_root_package_exports_few_names_and_none_twice():
    assert len(secagg.__all__) == 24
    assert not set(secagg.__all__) & set(advanced.__all__)
    assert {*secagg.__all__, "advanced"} <= set(dir(secagg))
    assert all(getattr(secagg, name).__all__ for name in MODULES_TO_NAME)
    with pytest.raises(AttributeError, match="'secagg' has no attribute 'Clients'"):
        secagg.Clients  # noqa: B018


# Whence programs import, and what single examples import besides; may only shrink.
PROMISED = {
    *("secagg", "secagg.advanced", "secagg.blocking", "secagg.two_aggregators"),
    "secagg.integrations.flower",
    "secagg.learning",
    *("dpnoise", "dpnoise.bench", "dpnoise.encoding", "dpnoise.mechanisms"),
    "dpnoise.accounting.bayesian",
}
STILL_INNER = {
    "examples/three_profiles.py": {"secagg.crypto.entropy", "secagg.pki.key_files"},
    "examples/two_aggregators.py": {
        "secagg.server.storage",
    },
}


def programs_to_copy():
    """Every example and notebook, and every block of Python on a page."""
    for folder in ("examples", "docs/notebooks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            yield path, block


def test_examples_and_pages_import_only_public_names():
    found = {}
    for path, text in programs_to_copy():
        for node in ast.walk(ast.parse(text)):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module]
                if node.module in {"secagg", "dpnoise"}:
                    names = [
                        inner if inner in PROMISED else node.module
                        for each in node.names
                        for inner in [f"{node.module}.{each.name}"]
                    ]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = {"secagg": secagg, "advanced": advanced}.get(node.value.id)
                if module is not None and f"secagg.{node.attr}" not in PROMISED:
                    assert node.attr in module.__all__, f"{path}: {node.attr}"
            for name in names:
                if name.split(".")[0] in {"secagg", "dpnoise"}:
                    place = str(path.relative_to(ROOT))
                    found.setdefault(place, set()).add(name)
    inner = {place: names - PROMISED for place, names in found.items()}
    assert {place: names for place, names in inner.items() if names} == STILL_INNER


def examples_of(path):
    """Every example in a docstring of a module, parsed; commands are none of Python."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        _, _, example = (ast.get_docstring(node) or "").partition("Example:\n")
        body = re.match(r"(?: .*\n?|\n)*", example)[0]
        try:
            yield ast.parse(inspect.cleandoc(body))
        except SyntaxError:
            continue


@pytest.mark.parametrize("package", ["secagg", "dpnoise"])
def test_docstring_examples_use_no_module_they_do_not_import(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        if "Example:\n" not in path.read_text():
            continue
        modules = {
            alias.asname
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if alias.asname
        }
        for example in examples_of(path):
            names = [each for each in ast.walk(example) if isinstance(each, ast.Name)]
            made = {each.id for each in names if isinstance(each.ctx, ast.Store)}
            assert not ({each.id for each in names} - made) & modules, path


# A state of either side, or the row of either state machine; a call and the state of
# the round that it belongs to; an error of each package.
TWINS = {
    *("AdvertiseKeys", "ChooseEdges", "ShareKeys", "Completed", "Failed", "Edge"),
    "InputError",
}


def test_one_name_means_one_class():
    places = {}
    for package in ("secagg", "dpnoise"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(path.name)
    assert {name for name, where in places.items() if len(where) > 1} == TWINS
