"""The API reference that `make docs` builds."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISED = [
    "secagg",
    "dpnoise",
    *(
        f"dpnoise.{path.parent.name}"
        for path in sorted((ROOT / "dpnoise").glob("*/__init__.py"))
    ),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("reference")
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "reference.py", directory],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("name", PROMISED)
def test_every_public_name_has_its_place_and_its_docstring(pages, name):
    page = (pages / f"{name.replace('.', '/')}.html").read_text()
    places = set(re.findall(r'<section id="([^"]+)"', page))
    assert set(importlib.import_module(name).__all__) <= places


def test_the_pages_load_nothing_from_a_network(pages):
    for page in pages.rglob("*.html"):
        loaded = re.findall(
            r'(?:src|<link[^>]*href)="(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, page


def test_a_docstring_reaches_its_page_as_sections(pages):
    page = (pages / "dpnoise" / "accounting.html").read_text()
    (section,) = re.findall(
        r'<section id="make_accountant">.*?</section>', page, re.DOTALL
    )
    assert "Arguments:" in section
    assert "Raises:" in section


def test_a_name_that_is_promised_and_missing_fails_the_build(tmp_path):
    script = (
        "import runpy, sys, dpnoise;"
        "dpnoise.__all__.append('absent');"
        f"sys.argv = ['reference.py', {str(tmp_path)!r}];"
        f"runpy.run_path({str(ROOT / 'docs' / 'reference.py')!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "absent" in done.stderr
