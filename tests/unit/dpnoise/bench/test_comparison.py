"""Comparisons: rows in order, honest intervals, and forms that agree."""

import csv
import dataclasses
import math
import sys
import xml.etree.ElementTree as ET
from fractions import Fraction

import numpy as np
import pytest
import scipy

from dpnoise.bench import compare
from dpnoise.bench.comparison import _Cell, _join_measured
from dpnoise.errors import InputError, ParameterError
from dpnoise.mechanisms import make_mechanism
from dpnoise.planning import plan

SEED = bytes(range(32))
ASKED = {
    "mechanisms": ["skellam", "ddgauss"],
    "bits": [10, 2],
    "epsilons": [1.0, 4.0],
    "clients": 12,
    "dimension": 64,
    "delta": 1e-5,
    "seed": SEED,
    "repeats": 8,
    # A forecast outside of its interval is a false alarm of at most one in 10^6.
    "confidence": 1.0 - 1e-6,
}


@pytest.fixture(scope="module")
def table():
    return compare(**ASKED)


def test_rows_keep_the_requested_order(table):
    cells = [(row.mechanism, row.bits, row.epsilon) for row in table.rows]
    assert cells == [
        (name, bits, epsilon)
        for name in ("skellam", "ddgauss")
        for bits in (10, 2)
        for epsilon in (1.0, 4.0)
    ]


def test_an_infeasible_plan_is_a_row_with_its_reason(table):
    for row in table.rows:
        if row.bits == 2:
            assert "modulus" in row.refused
            rest = (row.mse, row.mse_low, row.forecast, row.gaussian, row.accountant)
            assert rest == (None,) * 5
        else:
            assert not row.refused


def test_forecasts_lie_within_the_intervals(table):
    for row in table.rows:
        if not row.refused:
            assert 0.0 <= row.mse_low < row.mse < row.mse_high
            assert row.mse_low < row.forecast < row.mse_high
            assert row.forecast_low <= row.forecast <= row.forecast_high
            assert row.wrap_low <= row.wrap_probability <= row.wrap_high
            assert row.gaussian < row.forecast < 2.0 * row.gaussian


def test_intervals_use_the_t_distribution():
    made = plan(
        mechanism="skellam",
        clients=12,
        dimension=64,
        l2_clip=1.0,
        epsilon=1,
        delta=1e-5,
    )
    errors = np.array([3.0, 5.0, 4.0, 4.5, 3.5])
    cell, norms = _Cell("skellam", None, 1.0, made), (3.0, 3.5, 3.2)
    pilots = np.array([(norm * norm, 12.0) for norm in norms])
    row = _join_measured(cell, made, errors, 0.01, pilots=pilots)
    low, high = scipy.stats.t.interval(
        0.98, 4, loc=errors.mean(), scale=scipy.stats.sem(errors)
    )
    assert (row.mse, row.mse_low, row.mse_high) == pytest.approx((4.0, low, high))
    assert row.bits == made.parameters.bits
    expected = [
        make_mechanism(made.parameters).forecast(sum_l2_norm=norm).expected_mse
        for norm in norms
    ]
    low, high = scipy.stats.t.interval(
        0.98, 2, loc=np.mean(expected), scale=scipy.stats.sem(expected)
    )
    assert (row.forecast_low, row.forecast_high) == pytest.approx((low, high))
    assert row.forecast == pytest.approx(np.mean(expected))
    wide = _join_measured(cell, made, errors, 1e-6, pilots=pilots)
    assert wide.mse_low == 0.0  # no squared error is less


def test_intervals_are_widened_for_the_number_of_rows():
    one, two = (
        compare(**ASKED | {"mechanisms": ["skellam"], "bits": [10], "epsilons": each})
        for each in ([1.0], [1.0, 4.0])
    )
    first, same = one.rows[0], two.rows[0]
    assert first.mse == same.mse
    level = ASKED["confidence"]
    expected = scipy.stats.t.isf((1.0 - level**0.5) / 2.0, 7) / scipy.stats.t.isf(
        (1.0 - level) / 2.0, 7
    )
    widened = (same.mse_high - same.mse) / (first.mse_high - first.mse)
    assert widened == pytest.approx(expected, rel=1e-6)


def test_a_table_is_reproducible_and_its_rows_are_independent(table):
    again = compare(**ASKED)
    assert again == table
    other = compare(**ASKED | {"seed": bytes(32)})
    assert other.rows[0].mse != table.rows[0].mse
    alike = {"mechanisms": ["skellam", "skellam"], "bits": [10], "epsilons": [1.0]}
    zeros = {"inputs": lambda _: np.zeros((12, 64))}
    first, second = compare(**ASKED | alike | zeros).rows
    assert first.scale_factor == second.scale_factor
    assert first.mse != second.mse


def test_one_draw_is_rejected_if_the_shares_have_another_law():
    made = compare(**ASKED | {"bits": [10], "epsilons": [1.0], "one_draw": True})
    skellam, ddgauss = made.rows
    assert skellam.mse_low < skellam.forecast < skellam.mse_high
    assert "another law" in ddgauss.refused


def test_the_inputs_determine_the_probability_of_wrapping():
    asked = ASKED | {"mechanisms": ["skellam"], "bits": [None], "epsilons": [4.0]}
    seen = []

    def own(seed):
        seen.append(seed)
        return np.zeros((12, 64))

    spread, same, mine = (
        compare(**asked | {"inputs": inputs}).rows[0]
        for inputs in ("sphere", "same", own)
    )
    assert spread.bits < same.bits
    assert same.mse_low < same.forecast < same.mse_high
    assert mine.mse is not None
    assert len(set(seen)) == 16  # as many pilots as repeats


def test_if_every_sum_wraps_the_forecast_averages_over_cohorts():
    """Half of the cohorts agree, the others cancel: no single one speaks for all.

    Intervals that do not meet are a false alarm of at most one in 10^6.
    """
    point = np.full((4, 64), 1.0 / 8.0)
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    settings = {"max_wrap_probability": 0.9, "scale_factor": 14.0, "sum_l2_norm": 2.0}
    asked = {"clients": 4, "delta": 1e-5, "mechanism": "skellam-mixture", "bits": 3}
    made = plan(**asked, **settings, dimension=64, l2_clip=1.0, epsilon=20.0)
    mechanism = make_mechanism(made.parameters)
    agree, cancel = (
        mechanism.forecast(sum_l2_norm=norm).expected_mse for norm in (4.0, 1e-9)
    )
    row = compare(
        **ASKED
        | {
            "mechanisms": ["skellam-mixture"],
            "clients": 4,
            "epsilons": [20.0],
            "bits": [3],
            "repeats": 100,
            "one_draw": True,
            "settings": settings,
            "inputs": lambda seed: point if seed & 1 else point * signs,
        }
    ).rows[0]
    assert row.scale_factor == made.parameters.scale_factor
    assert row.wrap_low > 0.1
    # One pilot cohort would have said one of these.
    assert cancel < min(row.mse_low, row.forecast_low)
    assert max(row.mse_high, row.forecast_high) < agree
    assert max(row.mse_low, row.forecast_low) < min(row.mse_high, row.forecast_high)


def test_forecasts_count_that_selection_shortens_the_sum():
    settings = {"selection_rate": Fraction(1, 4), "scale_factor": 10.0}
    settings |= {"max_wrap_probability": 0.9, "sum_l2_norm": 5.0}
    few = {"mechanisms": ["skellam-mixture"], "bits": [5], "epsilons": [20.0]}
    row = compare(
        **ASKED
        | few
        | {"clients": 20, "inputs": "same", "one_draw": True, "settings": settings}
    ).rows[0]
    # A fourth of twenty equal vectors of length 1, and what coins vary it by.
    selected = math.sqrt(5.0**2 + 20 * 3 / 16)
    made = plan(
        clients=20,
        dimension=64,
        l2_clip=1.0,
        delta=1e-5,
        mechanism="skellam-mixture",
        bits=5,
        epsilon=20.0,
        **settings,
    )
    mechanism = make_mechanism(made.parameters)
    expected = mechanism.forecast(sum_l2_norm=selected)
    assert row.wrap_probability == pytest.approx(expected.wrap_probability)
    assert row.wrap_probability > 0.03
    assert row.forecast == pytest.approx(
        16.0 * expected.expected_mse + made.selection_mse
    )


def test_further_settings_are_passed_to_the_plan():
    asked = ASKED | {"mechanisms": ["skellam"], "bits": [12], "epsilons": [1.0]}
    one, ten = (
        compare(**asked | {"settings": {"steps": steps}}).rows[0] for steps in (1, 10)
    )
    assert ten.gaussian == pytest.approx(10.0 * one.gaussian)


@pytest.mark.parametrize(
    ("change", "parameter"),
    [
        ({"mechanisms": ["skelam"]}, "mechanism"),
        ({"repeats": 1}, "repeats"),
        ({"confidence": 1.0}, "confidence"),
        ({"inputs": "ball"}, "inputs"),
        ({"settings": {"clients": 13}}, "settings"),
        ({"settings": {"epsilon": 2.0}}, "settings"),
        ({"seed": b""}, "seed"),
    ],
)
def test_an_invalid_experiment_is_rejected_at_once(change, parameter):
    with pytest.raises(ParameterError) as caught:
        compare(**ASKED | change)
    assert caught.value.parameter == parameter


def test_a_matrix_of_another_shape_is_refused():
    with pytest.raises(InputError, match=r"\(12, 64\)"):
        compare(**ASKED | {"inputs": lambda _: np.zeros((12, 63))})


def test_csv_has_every_figure_in_full(table, tmp_path):
    table.to_csv(tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(table.rows)
    for line, row in zip(read, table.rows, strict=True):
        for name, value in dataclasses.asdict(row).items():
            written = line[name]
            if value is None:
                assert not written
            else:
                assert type(value)(written) == value


def test_a_data_frame_has_the_same_columns(table):
    pandas = pytest.importorskip("pandas")
    frame = table.to_dataframe()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.shape == (len(table.rows), len(table.columns()))
    assert frame["epsilon"].tolist() == [row.epsilon for row in table.rows]
    assert frame.loc[frame.refused != "", "mse"].isna().all()


@pytest.mark.parametrize(
    ("library", "form"),
    [
        ("pandas", lambda t, _: t.to_dataframe()),
        ("matplotlib", lambda t, p: t.to_pdf(p)),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    table, tmp_path, monkeypatch, library, form
):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"{library}.*secagg\[research\]"):
        form(table, tmp_path / "t.pdf")
    assert not list(tmp_path.iterdir())


def test_the_picture_has_a_circle_for_every_measured_row(table, tmp_path):
    table.to_svg(tmp_path / "t.svg")
    root = ET.parse(tmp_path / "t.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    measured = sum(not row.refused for row in table.rows)
    assert len(root.findall(f"{space}circle")) == measured + 2  # and in the legend
    words = [text.text for text in root.findall(f"{space}text")]
    assert {"skellam", "ddgauss", "ε", table.title} <= set(words)


def test_the_picture_escapes_labels(table, tmp_path):
    odd = dataclasses.replace(table.rows[0], mechanism="<circle r='1'/>&")
    dataclasses.replace(table, rows=(odd,)).to_svg(tmp_path / "t.svg")
    root = ET.parse(tmp_path / "t.svg").getroot()
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert odd.mechanism in words


def test_points_are_placed_at_their_ratios(table):
    sheet = table.sheet()
    (panel,) = sheet.panels  # one width was measured: the budgets stand along the axis
    row = table.rows[0]
    point = panel.curves[0].points[0]
    assert (panel.curves[0].label, point.x) == ("skellam", 1.0)
    assert point.y == pytest.approx(row.mse / row.gaussian)
    rows = [dataclasses.replace(row, bits=bits) for bits in (8, 10)]
    by_bits = dataclasses.replace(table, rows=tuple(rows)).sheet().panels
    assert [each.title for each in by_bits] == ["ε = 1"]
    assert [each.x for each in by_bits[0].curves[0].points] == [8.0, 10.0]


def test_a_pdf_is_written_reproducibly(table, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        table.to_pdf(tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a", "b"))
    assert first.startswith(b"%PDF")
    assert first == second


def test_terminal_and_notebook_show_the_same_figures(table):
    first = table.rows[0]
    shown, marked = str(table), table._repr_html_()
    for text in (f"{first.mse:.5g}", "skellam", table.title):
        assert text in shown
        assert text in marked
    odd = dataclasses.replace(table.rows[-1], refused="m < 3 & more")
    marked = dataclasses.replace(table, rows=(odd,))._repr_html_()
    assert "m &lt; 3 &amp; more" in marked


def test_a_table_of_infeasible_plans_has_a_picture(table, tmp_path):
    refused = tuple(row for row in table.rows if row.refused)
    dataclasses.replace(table, rows=refused).to_svg(tmp_path / "t.svg")
    assert "<circle" not in (tmp_path / "t.svg").read_text(encoding="utf-8")
