"""What `make site` builds, and which faults stop it; Zensical renders the pages."""

import importlib
import inspect
import re
import subprocess
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
def site():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        yield importlib.import_module("build_site")


@pytest.fixture(scope="module")
def staged(site, tmp_path_factory):
    directory = tmp_path_factory.mktemp("site") / "site"
    return directory, site.stage(directory)


def test_every_page_and_every_public_name_is_in_the_site(site, staged):
    directory, pages = staged
    for path in ROOT.glob("docs/**/*.md"):
        assert path.relative_to(ROOT).as_posix() in pages
    for name in PROMISED:
        page = (directory / "pages" / "reference" / f"{name}.md").read_text()
        placed = set(re.findall(r"heading: (\w+)", page))
        module = importlib.import_module(name)
        defined = [each for each in vars(module) if not each.startswith("_")]
        for each in getattr(module, "__all__", defined):
            value = getattr(module, each)
            is_own = getattr(value, "__module__", "").startswith(("secagg", "dpnoise"))
            assert each in placed or inspect.ismodule(value) or not is_own, each
        assert placed
    assert set(PROMISED) <= set(site.MODULES)


def test_links_to_files_lead_to_pages_with_their_content(staged):
    directory, pages = staged
    page = (directory / "pages" / "README.md").read_text()
    assert "(examples/private_histogram.py.md)" in page
    shown = (directory / "pages/examples/private_histogram.py.md").read_text()
    assert (ROOT / "examples/private_histogram.py").read_text().rstrip() in shown
    assert "deploy/config/files.md" in pages


def test_the_site_contains_only_committed_files(site, tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("one.toml", "inner/two.toml", "inner/client.key"):
        (tmp_path / name).write_text("text")
    for words in (["init", "-q"], ["add", "one.toml", "inner/two.toml"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert site.committed(tmp_path) == ["inner/two.toml", "one.toml"]
    assert site.committed(tmp_path / "inner") == ["two.toml"]


def test_diagrams_need_no_script(staged):
    directory, _ = staged
    page = (directory / "pages/docs/states.md").read_text()
    drawn = (ROOT / "docs/states.md").read_text()
    assert "mermaid" not in page
    assert page.count("\n| `") == drawn.count(" --> ")


def test_sections_of_the_contents_are_the_order(staged):
    directory, _ = staged
    text = (directory / "mkdocs.yml").read_text()
    order = re.findall(r'\{"([^"]+)": \[', text.split("\nnav: ")[1])
    headings = re.findall(
        r"^## ([\w -]+)", (ROOT / "docs/README.md").read_text(), re.MULTILINE
    )
    assert order[1:-1] == headings


def test_a_page_without_incoming_links_stops_the_build(site, tmp_path, monkeypatch):
    alone = ROOT / "docs" / "alone.md"
    pages = site.check_pages.pages
    monkeypatch.setattr(site.check_pages, "pages", lambda: [*pages(), alone])
    with pytest.raises(site.SiteError, match=r"no page leads to docs/alone\.md"):
        site.stage(tmp_path / "site")


def test_a_public_name_without_a_docstring_stops_the_build(site, tmp_path, monkeypatch):
    dpnoise = importlib.import_module("dpnoise")
    monkeypatch.setattr(dpnoise, "silent", lambda: None, raising=False)
    monkeypatch.setattr(dpnoise, "__all__", [*dpnoise.__all__, "silent"])
    with pytest.raises(site.SiteError, match=r"without a docstring: dpnoise\.silent"):
        site.stage(tmp_path / "site")


@pytest.fixture
def built(site, tmp_path, monkeypatch):
    """A site of two pages and the reference of one module."""
    monkeypatch.setattr(site, "MODULES", ("dpnoise.errors",))
    names = site.names_of("dpnoise.errors")
    (tmp_path / "reference").mkdir()
    marks = "".join(f"<h2 id='dpnoise.errors.{name}'></h2>" for name in names)
    (tmp_path / "reference/dpnoise.errors.html").write_text(marks)
    (tmp_path / "page.html").write_text("<h2 id='here'></h2>")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<a href='page.html#here'>", None),
        ("<a href='https://semver.org'>", None),
        ("<a href='away.html'>", "leads to away.html, which is not there"),
        ("<a href='page.html#away'>", "leads to page.html#away, which has no such"),
        ("<img src='away.png'>", "leads to away.png"),
        ("<script src='https://cdn.example/x.js'>", "loads https://cdn.example/x.js"),
        ("<link rel=stylesheet href='//cdn.example/x.css'>", "loads //cdn.example"),
    ],
)
def test_links_that_lead_nowhere_and_foreign_files_are_faults(site, built, text, fault):
    (built / "index.html").write_text(text)
    faults = list(site.faults_of(built))
    assert faults == [] if fault is None else fault in faults[0]


def test_a_font_of_another_host_is_a_fault(site, built):
    (built / "site.css").write_text("@font-face { src: url(https://fonts.example/a) }")
    assert list(site.faults_of(built)) == ["site.css loads https://fonts.example/a"]


def test_a_name_that_the_reference_lacks_is_a_fault(site, built):
    (built / "reference/dpnoise.errors.html").write_text("")
    (first, *_) = site.faults_of(built)
    assert first.startswith("dpnoise.errors.")
    assert first.endswith("is missing in the reference")
