"""The picture of a demo shows its numbers, in the frame and apart."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from secagg.testbed.demo.run import accuracy_picture, demo_title

SVG = "{http://www.w3.org/2000/svg}"
LOW, HIGH = [0.05, 0.2, 0.21], [0.5, 0.9, 0.93]


def drawn(private, central, nonprivate):
    text = accuracy_picture(
        demo_title(40, 6.0, 3), private=private, central=central, nonprivate=nonprivate
    )
    return ET.fromstring(text)


@pytest.mark.parametrize("private", [LOW, HIGH])
def test_higher_accuracy_is_drawn_higher_and_inside_the_frame(private):
    root = drawn(private, HIGH, HIGH)
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 3
    for line, values in zip(lines, (HIGH, HIGH, private), strict=True):
        points = [
            tuple(map(float, each.split(","))) for each in line.get("points").split()
        ]
        assert [x for x, _ in points] == [60.0, 260.0, 460.0]
        heights = [y for _, y in points]
        assert heights == sorted(heights, reverse=True)
        assert values == sorted(values)
        assert all(40.0 <= y <= 230.0 for y in heights)


def test_labels_of_equal_curves_do_not_hide_each_other():
    root = drawn(HIGH, HIGH, HIGH)
    heights = [
        float(text.get("y"))
        for text in root.findall(f"{SVG}text")
        if text.text in ("no privacy", "trusted server", "secagg")
    ]
    assert len(heights) == 3
    assert min(b - a for a, b in pairwise(heights)) >= 14


def test_equal_results_give_equal_bytes_and_load_nothing():
    texts = {
        accuracy_picture("<a & b>", private=LOW, central=LOW, nonprivate=LOW)
        for _ in range(2)
    }
    (text,) = texts
    assert "&lt;a &amp; b&gt;" in text
    assert not re.search(r"href|url\(|<script", text)
