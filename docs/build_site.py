"""Build the documentation site: every page, every example, every public name.

    python docs/build_site.py ZENSICAL DIRECTORY

ZENSICAL is the program that renders; `make site` installs it. The site is written to
DIRECTORY/html. It needs no network; only its search needs a web server. Git says which
files of a linked directory belong to the product.

* Pages keep their place in the repository, so that their links lead to each other. A
  file or directory that a page links to becomes a page itself.
* The sections of docs/README.md are the order of the site.
* The reference has a page for each module of `MODULES`, from the docstrings.

It ends with 1 if a link or an anchor leads nowhere, if no page leads to a page, if a
page loads anything from another host, or if a public name has no docstring.
"""

import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import check_pages

ROOT: Final = check_pages.ROOT
START: Final = "README.md"
CONTENTS: Final = "docs/README.md"

# A page each. Other modules are no part of what releases promise.
MODULES: Final = (
    "secagg",
    "secagg.advanced",
    "secagg.blocking",
    "secagg.learning",
    "dpnoise",
    "dpnoise.accounting",
    "dpnoise.accounting.bayesian",
    "dpnoise.encoding",
    "dpnoise.errors",
    "dpnoise.events",
    "dpnoise.local",
    "dpnoise.mechanisms",
    "dpnoise.planning",
    "dpnoise.answers",
    "dpnoise.bench",
    "dpnoise.samplers",
)
# Wrapped where it is published; the docstring stands at the function itself.
DEFINED: Final = {"secagg.plan": "dpnoise.plan"}

_PICTURES: Final = frozenset({".png", ".svg"})
_LANGUAGES: Final = {
    "py": "python",
    "ts": "typescript",
    "service": "ini",
    "yml": "yaml",
}
_LANGUAGES_BY_NAME: Final = frozenset({"toml", "yaml", "json", "sh"})
_MERMAID: Final = re.compile(r"```mermaid\nstateDiagram-v2\n(.*?)\n```", re.DOTALL)
_ARROW: Final = re.compile(r" *(\w+) --> (\w+): (\w+)")
_FENCES: Final = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
# Python-Markdown wants an empty line before a list, and CommonMark does not.
_LIST: Final = re.compile(r"^([^\n|#>* ][^\n]*)\n(?=[*-] |1\. )", re.MULTILINE)
_ADDRESS: Final = re.compile(r"[a-z][a-z+.-]*:|//")
_LOADED_BY_STYLE: Final = re.compile(r"(?:url\(|@import )[\"']?([^)\"']*)")
_STYLE: Final = """\
/* Wide tables and code scroll by themselves; the page never does. */
.md-typeset table:not([class]) { font-size: .7rem; }
.md-typeset td code { overflow-wrap: normal; word-break: normal; }
.md-typeset h1 code, .md-typeset h2 code { overflow-wrap: anywhere; }
.md-typeset img { background: #fff; }
/* On a phone a row of settings or errors becomes a paragraph, as wide as the screen. */
@media screen and (max-width: 44.9844em) {
  .md-typeset table:not([class]) :is(th, td) { min-width: 0; padding: .6em .7em; }
  :is(#settings, #errors) ~ :not(#on-the-wire ~ *) table:not([class]) {
    & thead { display: none; }
    & :is(tbody, tr) { display: block; }
    & tr { padding: .6em .2em; }
    & td { border: 0; display: inline; padding: 0 .5em; }
    & td:is(:nth-child(4):last-child, :nth-child(n + 5)) {
      display: block; padding-top: .2em;
    }
  }
}
"""


class SiteError(Exception):
    """The site would break a promise; its lines say which."""


def stage(directory: Path) -> list[str]:
    """Write the sources of the site: mkdocs.yml, and the pages with their pictures.

    Args:
        directory: Where to write; what is there is removed.

    Returns:
        The paths of all pages, as in the site.

    Raises:
        SiteError: No page leads to a page, or a public name has no docstring.
    """
    shutil.rmtree(directory, ignore_errors=True)
    pages = directory / "pages"
    reference = write_reference(pages)
    pending, staged = [START, CONTENTS], set[str]()
    while pending:
        name = pending.pop()
        if name in staged:
            continue
        staged.add(name)
        source = ROOT / name
        if source.suffix in _PICTURES:
            (pages / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, pages / name)
            continue
        text, linked = page_of(name)
        place = pages / site_path(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        pending += linked
    written = {path.relative_to(ROOT).as_posix() for path in check_pages.pages()}
    if alone := sorted(
        name for name in written - staged if not name.startswith("tests/")
    ):
        raise SiteError(f"no page leads to {', '.join(alone)}")
    (pages / "site.css").write_text(_STYLE, encoding="utf-8")
    (directory / "mkdocs.yml").write_text(configuration(reference), encoding="utf-8")
    pictures = {name for name in staged if Path(name).suffix in _PICTURES}
    return sorted(site_path(name) for name in staged - pictures) + reference


def site_path(name: str) -> str:
    """Return where the site has what the repository has under a name."""
    path = ROOT / name
    if path.is_dir():
        return f"{name}/{'README.md' if (path / 'README.md').exists() else 'files.md'}"
    if path.suffix == ".md" or path.suffix in _PICTURES:
        return name
    return f"{name}.md"


def page_of(name: str) -> tuple[str, list[str]]:
    """Return the page for a Markdown file, a directory or a source file.

    Returns:
        Its text, and the names of what it leads to.
    """
    path = ROOT / name
    if path.is_dir():
        if (path / "README.md").exists():
            return page_of(f"{name}/README.md")
        files = [each for each in committed(path) if Path(each).name[0] != "."]
        rows = "\n".join(f"* [{each}]({each})" for each in files)
        return _with_links(f"{name}/files.md", f"# Files in `{name}`\n\n{rows}\n")
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return _with_links(name, text)
    ending = path.suffix.removeprefix(".")
    known = ending if ending in _LANGUAGES_BY_NAME else "text"
    language = _LANGUAGES.get(ending, known)
    return f"# `{name}`\n\n`````{language}\n{text.rstrip()}\n`````\n", []


def committed(folder: Path) -> list[str]:
    """Return the files of a folder that git has, as paths in it.

    Others are no part of the product: a tried example leaves keys and states there.
    """
    done = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607 - the git of the checkout
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(filter(None, done.stdout.split("\0")))


def _with_links(name: str, text: str) -> tuple[str, list[str]]:
    """Return a page as the site has it, and the names of what it leads to."""
    linked = []
    folder = (ROOT / name).parent

    def lead(found: re.Match[str]) -> str:
        place, mark, fragment = found[2].partition("#")
        if ":" in place or not place:
            return found[0]
        target = (folder / place).resolve().relative_to(ROOT).as_posix()
        linked.append(target)
        there = Path(site_path(target))
        up = "../" * (len(Path(name).parts) - 1)
        shown = found[0][: found.start(2) - found.start()]
        return f"{shown}{up}{there.as_posix()}{mark}{fragment})"

    text = _MERMAID.sub(_table_of, text)
    parts = _FENCES.split(text)
    for index in range(0, len(parts), 2):  # every other one is a fence
        spaced = _LIST.sub(r"\1\n\n", parts[index])
        parts[index] = check_pages.LINK.sub(lead, spaced)
    return "".join(parts), linked


def _table_of(diagram: re.Match[str]) -> str:
    """Return a state diagram as a table, which needs no script and fits a phone."""
    rows = [
        f"| `{source}` | `{event}` | `{target}` |"
        for source, target, event in _ARROW.findall(diagram[1])
    ]
    return "\n".join(["| In state | after | comes |", "|---|---|---|", *rows])


def write_reference(pages: Path) -> list[str]:
    """Write a page for each module that is a promise; return their paths.

    Raises:
        SiteError: A public name has no docstring.
    """
    silent, written = [], []
    (pages / "reference").mkdir(parents=True)
    for name in MODULES:
        module = import_module(name)
        parts = [f"# `{name}`", inspect.cleandoc(module.__doc__ or "")]
        for public in sorted(names_of(name), key=str.lower):
            value = getattr(module, public)
            if callable(value) and not inspect.getdoc(value):
                silent.append(f"{name}.{public}")
            place = DEFINED.get(f"{name}.{public}", f"{name}.{public}")
            parts.append(f"::: {place}\n    options: {{heading: {public}}}")
        path = f"reference/{name}.md"
        (pages / path).write_text("\n\n".join(parts) + "\n", encoding="utf-8")
        written.append(path)
    if silent:
        raise SiteError(f"without a docstring: {', '.join(silent)}")
    return written


def names_of(name: str) -> list[str]:
    """Return the names that a package lists, or that a module defines, in order.

    Submodules are not among them: they have pages of their own.
    """
    module = import_module(name)
    defined = [
        own
        for own, value in vars(module).items()
        if not own.startswith("_") and getattr(value, "__module__", None) == name
    ]
    return [
        public
        for public in getattr(module, "__all__", defined)
        if not inspect.ismodule(getattr(module, public))
    ]


def configuration(reference: list[str]) -> str:
    """Return docs/mkdocs.yml with the order of the pages."""
    text = (ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    order: list[object] = [{f"secagg {project['version']}": [START, CONTENTS]}]
    contents = (ROOT / CONTENTS).read_text("utf-8")
    seen = {START, CONTENTS}
    for section in re.split(r"^## ", contents, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0].partition(":")[0]
        _, linked = _with_links(CONTENTS, section)
        pages = [site_path(name) for name in linked if name not in seen]
        seen.update(linked)
        order.append({title: list(dict.fromkeys(pages))})
    order.append({"Python": [{Path(path).stem: path} for path in reference]})
    # JSON is YAML, and cannot be indented wrongly.
    root = json.dumps([str(ROOT)])
    return f"{text.replace('[ROOT]', root)}nav: {json.dumps(order)}\n"


class _Places(HTMLParser):
    """What a page has and what it leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.marks = {"", "__top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchors and targets of a tag."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.marks.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given.get("href", ""))
        if "src" in given:
            self.loaded.append(given["src"])


def faults_of(site: Path) -> Iterator[str]:
    """Say what leads nowhere in a built site, is missing, or comes from elsewhere."""
    found = {path: _Places(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, places in sorted(found.items()):
        if path.name != "404.html":  # stands for any address
            name = path.relative_to(site).as_posix()
            yield from _loaded_from_elsewhere(name, places.loaded)
            yield from _leading_nowhere(path, name, found)
    for path in sorted(site.rglob("*.css")):
        targets = _LOADED_BY_STYLE.findall(path.read_text("utf-8"))
        yield from _loaded_from_elsewhere(path.relative_to(site).as_posix(), targets)
    for module in MODULES:
        page = found[site / "reference" / f"{module}.html"]
        for place in (f"{module}.{public}" for public in names_of(module)):
            if DEFINED.get(place, place) not in page.marks:
                yield f"{place} is missing in the reference"


def _loaded_from_elsewhere(name: str, targets: list[str]) -> Iterator[str]:
    for target in targets:
        if _ADDRESS.match(target) and not target.startswith("data:"):
            yield f"{name} loads {target}"


def _leading_nowhere(
    path: Path, name: str, found: dict[Path, _Places]
) -> Iterator[str]:
    for target in found[path].links + found[path].loaded:
        place, _, mark = target.partition("#")
        if _ADDRESS.match(place):
            continue
        file = path if not place else (path.parent / unquote(place)).resolve()
        if file.is_dir():
            file /= "index.html"
        if not file.exists():
            yield f"{name} leads to {target}, which is not there"
        elif file in found and unquote(mark) not in found[file].marks:
            yield f"{name} leads to {target}, which has no such heading"


def build(zensical: Path, directory: Path) -> int:
    """Build the site; return the number of its pages.

    Raises:
        SiteError: Something leads nowhere, is missing, or comes from elsewhere.
    """
    pages = stage(directory)
    done = subprocess.run(  # noqa: S603 - the program that the caller named
        [zensical, "build", "--strict", "--clean", "-f", directory / "mkdocs.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    # A docstring that does not fit its signature is a warning, also where it is strict.
    if done.returncode or "griffe: " in said:
        raise SiteError(said)
    if faults := list(faults_of((directory / "html").resolve())):
        raise SiteError("\n".join(faults))
    return len(pages)


if __name__ == "__main__":
    try:
        number = build(Path(sys.argv[1]), Path(sys.argv[2]))
    except SiteError as refusal:
        sys.exit(str(refusal))
    sys.stdout.write(f"{number} pages: {sys.argv[2]}/html/index.html\n")
