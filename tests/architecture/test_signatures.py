"""No public signature uses a name that means two things in the literature."""

import importlib
import inspect
import pkgutil

import pytest

import dpnoise

# One paper's mu is a variance, another's a Gaussian shift; lam is a rate or half a
# variance; sigma and scale are a deviation, a variance parameter, or their inverses.
AMBIGUOUS = {"mu", "lam", "lambda_", "lambd", "sigma", "scale", "noise", "std"}


def modules():
    for found in pkgutil.walk_packages(dpnoise.__path__, "dpnoise."):
        yield found.name


def signatures(module):
    """Every public callable that a module exports, and every public method of it."""
    for name in getattr(module, "__all__", ()):
        member = getattr(module, name)
        if not callable(member):
            continue
        yield name, member
        if inspect.isclass(member):
            for method, function in inspect.getmembers(member, inspect.isroutine):
                if not method.startswith("_"):
                    yield f"{name}.{method}", function


@pytest.mark.parametrize("module_name", sorted(modules()))
def test_public_signatures_say_which_quantity_they_mean(module_name):
    for name, member in signatures(importlib.import_module(module_name)):
        try:
            parameters = inspect.signature(member).parameters
        except (TypeError, ValueError):  # builtins of enumerations and exceptions
            continue
        ambiguous = AMBIGUOUS & set(parameters)
        assert not ambiguous, f"{module_name}.{name} takes a bare {ambiguous}"


@pytest.mark.parametrize("module_name", sorted(modules()))
def test_public_names_of_dpnoise_are_documented(module_name):
    module = importlib.import_module(module_name)
    assert module.__doc__
    for name in getattr(module, "__all__", ()):
        member = getattr(module, name)
        if inspect.isclass(member) or inspect.isfunction(member):
            assert member.__doc__, f"{module_name}.{name}"
