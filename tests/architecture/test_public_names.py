"""What `secagg` promises can be used and annotated with what `secagg` promises."""

import enum
import inspect
import types
import typing

import secagg
from tests.cases import each_of

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
    *("secagg.protocol.messages.", "secagg.wire.calls", "secagg.crypto.canonical"),
    "secagg.storage.rows",
)
PUBLIC = {name: getattr(secagg, name) for name in secagg.__all__}


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


def annotations_of(name, member):
    """The annotations that a user of a public name meets."""
    if not inspect.isclass(member):
        if inspect.isfunction(member):
            yield name, typing.get_type_hints(inspect.unwrap(member))
        return
    if issubclass(member, enum.Enum):
        return
    public = {
        field: hint
        for field, hint in typing.get_type_hints(member).items()
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
            yield f"{name}.{method}", typing.get_type_hints(function)


@each_of(secagg.__all__)
def test_types_in_public_signatures_are_public(name):
    for place, hints in annotations_of(name, PUBLIC[name]):
        for hint in hints.values():
            for used in types_in(hint):
                if used.__module__.split(".")[0] in FOREIGN:
                    continue
                if used.__module__.startswith(VOCABULARY):
                    continue
                assert used in PUBLIC.values(), f"{place} uses {used.__qualname__}"


@each_of(secagg.__all__)
def test_public_names_are_documented(name):
    member = PUBLIC[name]
    if not (inspect.isclass(member) or inspect.isfunction(member)):
        return
    assert member.__doc__, name
    if inspect.isclass(member):
        for method, found in vars(member).items():
            if not method.startswith("_") and callable(found):
                assert found.__doc__, f"{name}.{method}"
