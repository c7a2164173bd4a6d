"""The exception tree: one root, built-in kinds, and fields that survive a copy."""

import copy
import pickle

import pytest

from dpnoise import errors
from dpnoise.errors import (
    CalibrationError,
    CertificateError,
    DPNoiseError,
    InputError,
    ParameterError,
    TheoremNotApplicableError,
    UnknownEventError,
)


def test_every_exported_error_derives_from_dpnoise_error():
    exported_names = [name for name in vars(errors) if name[0].isupper()]
    assert len(exported_names) > 5
    for name in exported_names:
        exported = getattr(errors, name)
        if exported.__module__ != errors.__name__:
            continue
        assert issubclass(exported, DPNoiseError)
        assert name.endswith("Error")
        assert exported.__doc__


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ParameterError, ValueError),
        (TheoremNotApplicableError, ParameterError),
        (InputError, ValueError),
        (UnknownEventError, TypeError),
        (CalibrationError, DPNoiseError),
        (CertificateError, DPNoiseError),
    ],
)
def test_errors_also_derive_from_the_builtin_types(error, builtin):
    assert issubclass(error, builtin)


def test_a_parameter_error_names_parameter_value_and_the_nearest_that_works():
    error = ParameterError("too small", parameter="bits", value=1, nearest="2")
    assert str(error) == "too small (nearest value that works: 2)"
    assert (error.parameter, error.value, error.nearest) == ("bits", 1, "2")
    assert str(ParameterError("no way", parameter="bits", value=1)) == "no way"


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, None])
def test_all_fields_survive_copying_and_pickling(duplicate):
    error = TheoremNotApplicableError(
        "outside", theorem="Theorem 5", parameter="order", value=9, nearest="8"
    )
    twin = pickle.loads(pickle.dumps(error)) if duplicate is None else duplicate(error)
    assert type(twin) is TheoremNotApplicableError
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
