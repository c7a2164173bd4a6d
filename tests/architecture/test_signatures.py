"""No public signature uses a name that means two things in the literature."""

import importlib
import inspect
import pkgutil

import dpnoise
from tests.cases import each_of

# One paper's mu is a variance, another's a Gaussian shift; lam is a rate or half a
# variance; sigma and scale are a deviation, a variance parameter, or their inverses.
AMBIGUOUS = {"mu", "lam", "lambda_", "lambd", "sigma", "scale", "noise", "std"}


def modules():
    for found in pkgutil.walk_packages(dpnoise.__path__, "dpnoise."):
        yield found.name


def public_members(module):
    """Every public class and function that a module defines."""
    for name, member in vars(module).items():
        is_own = getattr(member, "__module__", None) == module.__name__
        if is_own and callable(member) and not name.startswith("_"):
            yield name, member


def signatures(module):
    """Every public callable of a module, and every public method of it."""
    for name, member in public_members(module):
        yield name, member
        if inspect.isclass(member):
            for method, function in inspect.getmembers(member, inspect.isroutine):
                if not method.startswith("_"):
                    yield f"{name}.{method}", function


@each_of(sorted(modules()))
def test_public_parameters_name_their_quantity(module_name):
    for name, member in signatures(importlib.import_module(module_name)):
        try:
            parameters = inspect.signature(member).parameters
        except (TypeError, ValueError):  # builtins of enumerations and exceptions
            continue
        ambiguous = AMBIGUOUS & set(parameters)
        assert not ambiguous, f"{module_name}.{name} takes a bare {ambiguous}"


@each_of(sorted(modules()))
def test_public_names_of_dpnoise_are_documented(module_name):
    module = importlib.import_module(module_name)
    assert module.__doc__
    for name, member in public_members(module):
        if inspect.isclass(member) or inspect.isfunction(member):
            assert member.__doc__, f"{module_name}.{name}"
