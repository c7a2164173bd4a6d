"""The accountants by name.

* A name always means the same accountant; nothing here falls back to another one.
* Modules are imported when their name is first asked for, so that asking for a
  closed form does not pay for a table.

It holds no theorem and prefers none (`defaults`).
"""

import difflib
import functools
import importlib
import math
from types import MappingProxyType
from typing import Final

from dpnoise.accounting.accountant import Accountant
from dpnoise.accounting.statement import Status
from dpnoise.errors import ParameterError
from dpnoise.events import Adjacency, Adversary

_PLACES: Final = MappingProxyType(
    {
        "skellam-gdp": ("tradeoff.skellam_gdp", "SkellamGDPAccountant"),
        "log-concave-gdp": ("tradeoff.log_concave_gdp", "LogConcaveGDPAccountant"),
        "lattice-pld": ("loss.lattice_pld", "LatticePLDAccountant"),
        "skellam-rdp": ("renyi.skellam_rdp", "SkellamRDPAccountant"),
        "mixture-gdp": ("tradeoff.mixture_gdp", "MixtureGDPAccountant"),
        "mixture-simple": ("tradeoff.mixture_simple", "MixtureSimpleAccountant"),
        "mixture-rdp": ("renyi.mixture_rdp", "MixtureRDPAccountant"),
        "mixture-contour": ("contour.mixture_contour", "MixtureContourAccountant"),
        "mixture-pld": ("contour.mixture_pld", "MixturePLDAccountant"),
        "zcdp": ("renyi.concentrated", "ZCDPAccountant"),
        "gaussian-pld": ("loss.gaussian_pld", "GaussianPLDAccountant"),
        "skellam-paper": ("published.skellam", "SkellamPaperAccountant"),
        "smm-paper": ("published.smm", "SMMPaperAccountant"),
        "ddgauss-paper": ("published.ddgauss", "DDGaussPaperAccountant"),
        "cpsgd-recalled": ("published.cpsgd", "BinomialPaperAccountant"),
    }
)

_HYPOTHETICAL: Final = "hypothetical-"


def accountant_names() -> tuple[str, ...]:
    """Return the names of all accountants, in the order of the documentation."""
    return tuple(_PLACES)


def accountant_class(name: str) -> type[Accountant]:
    """Return the class behind a name.

    Args:
        name: One of `accountant_names()`, or one with "hypothetical-" before it: the
            accountant that counts the sampling of users even where every participant
            adds noise of its own, as published experiments do. Its figures are
            marked `Status.HYPOTHETICAL`, because no deployment has that privacy.

    Returns:
        The accountant class.

    Raises:
        ParameterError: There is no such accountant; the error names the nearest one.
    """
    if name.startswith(_HYPOTHETICAL):
        return _hypothetical(name.removeprefix(_HYPOTHETICAL))
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


@functools.cache
def _hypothetical(name: str) -> type[Accountant]:
    """Derive the accountant that counts sampling where noise comes in shares."""
    real = accountant_class(name)
    facts = {
        "__doc__": f"{real.__name__}, counting sampling that no deployment hides.",
        "name": _HYPOTHETICAL + real.name,
        "status_of_theorem": Status.HYPOTHETICAL,
        "counts_sampled_shares": True,
    }
    return type(f"Hypothetical{real.__name__}", (real,), facts)


def make_accountant(
    name: str, *, adversary: Adversary, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Accountant:
    """Build an empty accountant.

    Args:
        name: As for `accountant_class`.
        adversary: Whom its answers must hold against.
        adjacency: Which two worlds must look alike.

    Returns:
        An accountant that has composed nothing yet.

    Raises:
        ParameterError: The name is unknown, or the accountant has no theorem for the
            adjacency; the error names the nearest choice that works.
    """
    return accountant_class(name)(adversary=adversary, adjacency=adjacency)


def make_guesser(
    name: str, *, adversary: Adversary, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> Accountant:
    """Build what a search asks in place of an accountant whose answers are dear.

    Args:
        name: As for `accountant_class`.
        adversary: As for `make_accountant`.
        adjacency: As for `make_accountant`.

    Returns:
        An accountant whose answers are within thousandths and no bounds, or the
        accountant itself where a guess would cost as much.

    Raises:
        ParameterError: As for `make_accountant`.
    """
    return _guessing(name)(adversary=adversary, adjacency=adjacency)


@functools.cache
def _guessing(name: str) -> type[Accountant]:
    """Derive the accountant that guesses, if there is one."""
    real = accountant_class(name)
    if real.guesses_from == math.inf and not real.has_close_guess:
        return real
    facts = {
        "__doc__": f"{real.__name__}, guessing what it would answer.",
        "status_of_theorem": Status.HYPOTHETICAL,
        "guesses": True,
    }
    return type(f"Guessing{real.__name__}", (real,), facts)
