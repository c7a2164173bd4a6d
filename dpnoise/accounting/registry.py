"""The accountants by name.

Numbered rules:

1. A name always means the same accountant; nothing here falls back to another one.
2. Modules are imported when their name is first asked for, so that asking for a
   closed form does not pay for a table.
3. `default_accountant` names proven or certified accountants only.

This module deliberately holds no theorem.
"""

from __future__ import annotations

import difflib
import importlib
from types import MappingProxyType
from typing import Final

from dpnoise.accounting.accountant import Accountant
from dpnoise.errors import ParameterError
from dpnoise.events import Adjacency, Adversary

__all__ = ["accountant_class", "accountant_names", "make_accountant"]

_PLACES: Final = MappingProxyType(
    {
        "skellam-gdp": ("skellam_gdp", "SkellamGDPAccountant"),
        "skellam-rdp": ("rdp", "SkellamRDPAccountant"),
        "mixture-rdp": ("rdp", "MixtureRDPAccountant"),
        "mixture-contour": ("contour", "MixtureContourAccountant"),
        "mixture-pld": ("mixture_pld", "MixturePLDAccountant"),
        "zcdp": ("rdp", "ZCDPAccountant"),
        "gaussian-pld": ("gaussian_pld", "GaussianPLDAccountant"),
        "skellam-paper": ("rdp", "SkellamPaperAccountant"),
        "smm-paper": ("rdp", "SMMPaperAccountant"),
        "ddgauss-paper": ("rdp", "DDGaussPaperAccountant"),
    }
)


def accountant_names() -> tuple[str, ...]:
    """Return the names of all accountants, in the order of the documentation."""
    return tuple(_PLACES)


def accountant_class(name: str) -> type[Accountant]:
    """Return the class behind a name.

    Args:
        name: One of `accountant_names()`.

    Returns:
        The accountant class.

    Raises:
        ParameterError: There is no such accountant; the error names the nearest one.
    """
    if name not in _PLACES:
        near = difflib.get_close_matches(name.replace("_", "-"), _PLACES, n=1)
        raise ParameterError(
            f"accountant must be one of {', '.join(_PLACES)}; got {name!r}",
            parameter="accountant",
            value=name,
            nearest=near[0] if near else None,
        )
    module_name, class_name = _PLACES[name]
    module = importlib.import_module(f"dpnoise.accounting.{module_name}")
    found: type[Accountant] = getattr(module, class_name)
    return found


def make_accountant(
    name: str, *, adversary: Adversary, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Accountant:
    """Build an empty accountant.

    Args:
        name: One of `accountant_names()`.
        adversary: Whom its answers must hold against.
        adjacency: Which two worlds must look alike.

    Returns:
        An accountant that has composed nothing yet.

    Raises:
        ParameterError: The name is unknown, or the accountant has no theorem for the
            adjacency; the error names the nearest choice that works.
    """
    return accountant_class(name)(adversary=adversary, adjacency=adjacency)
