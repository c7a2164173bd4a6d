"""The drawn pictures are current, small, and shown on a page."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAW = runpy.run_path(str(ROOT / "docs" / "draw_pictures.py"), run_name="pictures")
DRAWN = DRAW["pictures"]()
LARGEST_BYTES = 20_000


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_matches_the_output_of_its_script(name):
    assert (DRAW["PICTURES"] / name).read_text("utf-8") == DRAWN[name]
    assert len(DRAWN[name]) < LARGEST_BYTES


@pytest.mark.parametrize("name", DRAWN)
def test_every_picture_is_on_a_page_and_has_a_title(name):
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    assert any(f"pictures/{name})" in page.read_text("utf-8") for page in pages)
    assert "<title>" in DRAWN[name]
