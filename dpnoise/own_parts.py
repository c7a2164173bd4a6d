"""What a program adds to the mechanisms and accountants of this package.

* A name begins with "own-": it hides nothing that is built in, and says in every plan,
  offer and statement whose work it is.
* A name means one class as long as the process lives.
"""

import importlib
import re
from typing import Any, Final, TypeVar

from dpnoise.errors import ParameterError

OWN_PREFIX: Final = "own-"
_NAME: Final = re.compile(r"own-[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST: Final = 64  # a noise block holds it, and every report prints it

_Part = TypeVar("_Part")


def is_own(name: str) -> bool:
    """Return whether a name is that of a program's own mechanism or accountant."""
    return name.startswith(OWN_PREFIX)


def load_class(package: str, place: str) -> Any:  # noqa: ANN401 - the caller names its kind
    """Return a class of this package, and import its module.

    Args:
        package: The package of the module.
        place: Module and class, as "module:Class".
    """
    module, _, class_name = place.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), class_name)


def register_own(parts: dict[str, _Part], name: object, part: _Part) -> _Part:
    """Add a part under its name.

    Args:
        parts: What was registered before; changed in place.
        name: As the part states it.
        part: The part.

    Returns:
        The part.

    Raises:
        ParameterError: The name is not of this form, or another part has it.
    """
    if not isinstance(name, str) or len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise ParameterError(
            "a registered name begins with own- and has at most "
            f"{_LONGEST} small letters, digits and single hyphens",
            parameter="name",
            value=name if isinstance(name, str) else None,
            nearest="own-skellam",
        )
    if parts.setdefault(name, part) is not part:
        raise ParameterError(
            f"the name {name} is registered for something else: choose another one",
            parameter="name",
            value=name,
        )
    return part
