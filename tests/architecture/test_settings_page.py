"""The reference of settings is made from their classes, and current."""

import runpy
from pathlib import Path

PAGE = runpy.run_path(
    str(Path(__file__).parents[2] / "docs" / "settings_page.py"), run_name="page"
)


def test_the_page_is_current():
    assert PAGE["PAGE"].read_text("utf-8") == PAGE["settings_page"]()


def test_every_key_has_a_type_a_default_and_a_meaning():
    rows = [row for row in PAGE["settings_page"]().splitlines() if row[:3] == "| `"]
    assert len(rows) > 150
    for row in rows:
        key, kind, default, meaning = row.strip("| ").split(" | ")
        assert key.strip("`").isidentifier()
        assert kind
        assert default
        assert meaning.endswith((".", ")"))
