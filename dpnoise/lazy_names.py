"""Names of a package whose modules load when a name is first used.

A package states its names once, as imports that type checkers read: in the stub beside
it, or below `if TYPE_CHECKING` where it has none.  A program gets the same names here.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any


def lazy_names(
    package: str,
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name, `__name__` there.  What is imported from the package itself
            are modules that a program may name without importing them.

    Returns:
        The sorted names, and two functions. The first imports a name at its first use
        and keeps it in the package. The second lists the names.
    """
    places, submodules = _stated_names(package)
    public = sorted(places)

    def get(name: str) -> object:
        """Import a public name when it is first used."""
        place = places.get(name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(place), name)
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        """List the public names, and what has been loaded."""
        return sorted({*public, *submodules, *vars(sys.modules[package])})

    return public, get, listed


def _stated_names(package: str) -> tuple[dict[str, str], frozenset[str]]:
    """Return the module of each public name, and the public modules of a package."""
    stated = [
        (alias.name, each.module)
        for each in _statements(package)
        if isinstance(each, ast.ImportFrom) and each.module
        for alias in each.names
    ]
    submodules = frozenset(name for name, place in stated if place == package)
    return {n: place for n, place in stated if place != package}, submodules


def _statements(package: str) -> Iterable[ast.stmt]:
    """Return the statements of a package that type checkers alone read."""
    spec: Any = sys.modules[package].__spec__
    try:
        stub: bytes = spec.loader.get_data(spec.origin + "i")  # .py, .pyi
    except OSError:
        source: bytes = spec.loader.get_data(spec.origin)
        return next(n.body for n in ast.parse(source).body if isinstance(n, ast.If))
    return ast.parse(stub).body
