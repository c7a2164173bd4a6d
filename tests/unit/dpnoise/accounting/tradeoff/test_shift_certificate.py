"""The certificate of unit shifts against high-precision arithmetic."""

import dataclasses
from fractions import Fraction

import mpmath
import pytest

from dpnoise.accounting.tradeoff import shift_certificate
from dpnoise.accounting.tradeoff.shift_certificate import (
    certify_unit_shift,
    tail_enclosures,
)
from dpnoise.accounting.tradeoff.unit_shift import (
    CLOSED_FORM_FROM,
    discrete_gaussian_shift,
    skellam_shift,
    skellam_shift_closed_form,
)
from dpnoise.errors import CertificateError, ParameterError


def central_increment(variance):
    """2·Φ^(−1)(F(0)) in 60 digits, by Bessel functions."""
    with mpmath.workdps(60):
        v = mpmath.mpf(variance)
        centre = (1 + mpmath.exp(-v) * mpmath.besseli(0, v)) / 2
        start = 1 / mpmath.sqrt(4 * v + 1)
        return 2 * mpmath.findroot(lambda z: mpmath.ncdf(z) - centre, start)


@pytest.mark.parametrize(
    ("variance", "factor"),
    [
        (0.5, "1.3082"),
        (1.0, "1.2431"),
        (4.0, "1.0497"),
        (16.0, "1.0108"),
        (64.0, "1.00263"),
        (256.0, "1.00065"),
    ],
)
def test_certified_bound_is_the_central_increment_to_twelve_digits(variance, factor):
    certificate = certify_unit_shift(Fraction(variance), 1)
    exact = central_increment(variance)
    assert exact <= certificate.unit_gdp <= exact * (1 + mpmath.mpf("1e-12"))
    assert certificate.largest_at == 0
    assert float(exact) * variance**0.5 == pytest.approx(float(factor), abs=6e-5)


def test_value_at_variance_sixteen():
    assert certify_unit_shift(Fraction(16), 3).unit_gdp == pytest.approx(
        0.252697489562098, rel=1e-14
    )


def test_every_increment_up_to_the_last_threshold_is_bounded():
    # Independent of the certificate: quantiles of a 40-digit cdf, one by one.
    certificate = certify_unit_shift(Fraction(1, 2), 2)
    with mpmath.workdps(50):
        v = mpmath.mpf("0.5")
        pmf = [mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(60)]
        previous = None
        for threshold in range(8):
            tail = mpmath.fsum(pmf[threshold + 1 :])
            start = mpmath.sqrt(-2 * mpmath.log(tail)) * mpmath.mpf("0.9")
            z = mpmath.findroot(
                lambda x, tail=tail: (
                    mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - mpmath.log(tail)
                ),
                start,
            )
            increment = 2 * z if previous is None else z - previous
            assert increment <= certificate.unit_gdp
            previous = z


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(7, 3), Fraction(90)])
def test_tail_enclosures_hold_the_exact_tail(variance):
    bits, size = 300, 260
    low, high = tail_enclosures(variance, size=size, bits=bits)
    with mpmath.workdps(100):
        v = mpmath.mpf(variance.numerator) / variance.denominator
        pmf = [mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(size + 200)]
        for threshold in (0, 1, 10, 30):
            tail = mpmath.fsum(pmf[threshold + 1 :]) * mpmath.mpf(2) ** bits
            assert low[threshold] <= tail <= high[threshold]
            assert high[threshold] - low[threshold] < 2**60


def test_a_corrupted_weight_moves_the_bound(monkeypatch):
    # A pmf whose third weight is a quarter too large is no Skellam pmf: its increments
    # differ, and the certificate must see it.
    honest = certify_unit_shift(Fraction(5), 1)

    def corrupted(noise_variance, *, size, bits):
        low, high = tail_enclosures(noise_variance, size=size, bits=bits)
        extra = (low[2] - low[3]) // 4
        return (
            [entry + extra * (index < 3) for index, entry in enumerate(low)],
            [entry + extra * (index < 3) for index, entry in enumerate(high)],
        )

    monkeypatch.setattr(shift_certificate, "tail_enclosures", corrupted)
    forged = certify_unit_shift.__wrapped__(Fraction(5), 1)
    assert forged.unit_gdp > honest.unit_gdp * 1.05
    assert forged.largest_at == 3


def test_an_enclosure_that_is_too_wide_raises_an_error(monkeypatch):
    def widened(noise_variance, *, size, bits):
        low, high = tail_enclosures(noise_variance, size=size, bits=bits)
        return low, [entry + (1 << (bits - 30)) for entry in high]

    monkeypatch.setattr(shift_certificate, "tail_enclosures", widened)
    with pytest.raises(CertificateError):
        certify_unit_shift.__wrapped__(Fraction(5), 1)


def test_bound_falls_with_the_variance_and_the_tail_is_negligible():
    certificates = [
        certify_unit_shift(Fraction(number, 8), 2) for number in range(1, 200, 11)
    ]
    bounds = [certificate.unit_gdp for certificate in certificates]
    assert bounds == sorted(bounds, reverse=True)
    assert all(certificate.tail < 2.0**-120 for certificate in certificates)


def test_a_longer_shift_changes_what_is_examined_but_not_the_bound():
    short, long = certify_unit_shift(Fraction(9), 1), certify_unit_shift(Fraction(9), 9)
    assert long.last_threshold == short.last_threshold + 16
    assert dataclasses.replace(
        long, linf_sensitivity=1, last_threshold=short.last_threshold
    ) == dataclasses.replace(short)


@pytest.mark.parametrize("variance", [4, 6, 64, 1024, 4096, 1 << 14])
def test_the_closed_form_is_a_tight_upper_bound(variance):
    exact = float(central_increment(variance))
    closed = skellam_shift_closed_form(Fraction(variance))
    assert exact < closed < exact * (1 + 0.6 / variance)


def test_choice_of_method_follows_variance_and_shift():
    assert skellam_shift(Fraction(100), linf_sensitivity=2).method == "certificate"
    assert skellam_shift(Fraction(100), linf_sensitivity=500).method == "closed form"
    large = skellam_shift(Fraction(CLOSED_FORM_FROM), linf_sensitivity=2)
    assert (large.method, large.tail) == ("closed form", 0.0)


@pytest.mark.parametrize("variance", [2, 10, 100])
def test_discrete_gaussian_closed_form_bounds_its_increments(variance):
    with mpmath.workdps(40):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / (2 * variance)) for k in range(200)]
        total = weights[0] + 2 * mpmath.fsum(weights[1:])
        largest, previous = 0, None
        for threshold in range(25):
            tail = mpmath.fsum(weights[threshold + 1 :]) / total
            start = (threshold + 0.5) / variance**0.5
            z = mpmath.findroot(
                lambda x, tail=tail: (
                    mpmath.log(mpmath.erfc(x / mpmath.sqrt(2)) / 2) - mpmath.log(tail)
                ),
                start,
            )
            largest = max(largest, 2 * z if previous is None else z - previous)
            previous = z
    bound = discrete_gaussian_shift(Fraction(variance))
    assert largest <= bound <= float(largest) * (1 + 0.5 / variance)


@pytest.mark.parametrize(
    ("variance", "shift", "parameter"),
    [
        (Fraction(0), 1, "noise_variance"),
        (Fraction(1 << 20), 1, "noise_variance"),
        (Fraction(1), 0, "linf_sensitivity"),
        (Fraction(1), 10**6, "linf_sensitivity"),
    ],
)
def test_values_that_cannot_be_certified_are_rejected_by_name(
    variance, shift, parameter
):
    with pytest.raises(ParameterError) as caught:
        certify_unit_shift(variance, shift)
    assert caught.value.parameter == parameter
