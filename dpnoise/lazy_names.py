"""One table of names for a package whose modules load when a name is first used.

A package says in `_MODULES` which module has which of its names. A stub beside it says
the same to type checkers, and a test compares the two.
"""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(
    package: str,
    modules: Mapping[str, tuple[str, ...]],
    submodules: tuple[str, ...] = (),
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name, `__name__` there.
        modules: Public names by the module that has them; a module of the package
            itself begins with a dot.
        submodules: Public modules that a program may name without importing them.

    Returns:
        The sorted names, and two functions. The first imports a name at its first use
        and keeps it in the package. The second lists the names.
    """
    places = {name: place for place, names in modules.items() for name in names}
    public = sorted(places)

    def get(name: str) -> object:
        """Import a public name when it is first used."""
        place = places.get(name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(place, package), name)
        setattr(sys.modules[package], name, found)
        return found

    def listed() -> list[str]:
        """List the public names, and what has been loaded."""
        return sorted({*public, *submodules, *vars(sys.modules[package])})

    return public, get, listed
