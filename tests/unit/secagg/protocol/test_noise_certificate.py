"""Certificates of noise: what follows from what, and what is refused."""

from dataclasses import replace
from fractions import Fraction

import pytest

from secagg.protocol.noise_terms import NoiseCertificate

CERTIFICATE = NoiseCertificate(
    share_holders=10,
    survivors=8,
    unseen=0,
    colluders=1,
    required=Fraction(27, 2),
    base=Fraction(2),
    layers=(Fraction(1, 4), Fraction(1, 4), Fraction(1, 2)),
    removed=(0, 2),
    given=(8, 7),
)


def test_the_figures_follow_from_the_sets_and_the_layers():
    assert CERTIFICATE.losses == 2
    assert CERTIFICATE.remaining == Fraction(9, 4)
    # Eight survivors but for one colluder and the user itself.
    assert CERTIFICATE.present == 6 * Fraction(9, 4)
    assert CERTIFICATE.total == 8 * 3 - 8 * Fraction(1, 4) - 7 * Fraction(1, 2)
    assert CERTIFICATE.is_sufficient
    # Who may be missing unseen has added no noise that counts.
    assert replace(CERTIFICATE, unseen=2).present == 4 * Fraction(9, 4)
    assert not replace(CERTIFICATE, unseen=1).is_sufficient
    assert not replace(CERTIFICATE, required=Fraction(14)).is_sufficient
    assert replace(CERTIFICATE, given=None).total is None


@pytest.mark.parametrize("given", [(8, 7), None])
def test_a_certificate_survives_its_dictionary(given):
    made = replace(CERTIFICATE, given=given)
    assert NoiseCertificate.from_dict(made.to_dict()) == made
    assert b" " not in made.encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("losses", 3),
        ("noise_present", "27/1"),
        ("noise_total", "19/1"),
        ("noise_required", "54/4"),
        ("surprise", 1),
    ],
)
def test_a_certificate_that_contradicts_itself_is_refused(key, value):
    with pytest.raises(ValueError, match="contradicts"):
        NoiseCertificate.from_dict(CERTIFICATE.to_dict() | {key: value})
