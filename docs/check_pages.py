"""Check the pages that people read: sentences, links, and names of the product.

    python docs/check_pages.py [PAGE ...]

A page is a Markdown file of this repository; without arguments all are checked.

* A sentence has at most 25 words, and the mean of a page is at most 16.  Code marks
  count as one word, code blocks not at all; a heading, an item and a cell each end a
  sentence.  Cells are no part of the mean: they are fragments.
* A relative link leads to a file, and its fragment to a heading of that file.
* Inline code that looks like a command, a setting, a metric or a name of `secagg` or
  `dpnoise` in Python names one that exists.  So does every command of a console block,
  with its options, and every setting of a TOML block.

It prints one line for each fault and ends with 1 if there is any.
`tests/architecture/test_pages.py` runs it.
"""

import functools
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_type_hints

from typer.main import get_command

from secagg.cli.app import command_line
from secagg.config import ClientSettings, ServerSettings
from secagg.config.two_aggregators import (
    HelperSettings,
    LeaderSettings,
    SharingClientSettings,
)
from secagg.integrations.flower.terms import NodeSettings
from secagg.runtime.metrics import METRICS

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_WORDS: Final = 25
MOST_MEAN: Final = 16.0

_MADE: Final = frozenset({"build", "dist", "node_modules", "__pycache__"})
_ENDINGS: Final = frozenset({"toml", "md", "py", "json", "bin", "txt", "seed"})
# Fields of the noise block in an offer, which are named like settings.
_MODULES: Final = frozenset({"secagg_testing", "secagg_service", "secagg_mod"})
# Keys of a table in the file of `secagg client --tasks`; its sections name tasks.
_TASK: Final = frozenset({"input", "exec", "output", "payload_out", "sessions"})
_BLOCK: Final = frozenset({"noise.counted_variance", "noise.min_survivors"})

_FENCE: Final = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CONSOLE: Final = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_TOML: Final = re.compile(r"^ *```toml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_PROMPT: Final = re.compile(r"^ *(?:[\w-]*\$|#) (secagg .*)$", re.MULTILINE)
# `secagg.v1` has the names of the service on the wire.
_PYTHON: Final = re.compile(
    r"\b((?:secagg(?!\.v1\.)|dpnoise)(?:\.[a-z_]\w*)*\.[A-Z]\w*)"
)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_INDENTED: Final = re.compile(r"(?:^|\n)\n(?: {4}.*\n|\n)+")
LINK: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)]*)\)")
_CODE: Final = re.compile(r"``.+?``|`[^`]+`")
_ENDS: Final = re.compile(
    r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`]|\([a-z]\) |gRPC)"
)
_ABBREVIATION: Final = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|No)\.", re.IGNORECASE)
_ITEM: Final = re.compile(r"^\s*(?:[*+-]|\d+\.)\s+")


@dataclass(frozen=True)
class Prose:
    """The sentences of a page, each with its number of words.

    Attributes:
        running: Sentences of paragraphs and items.
        cells: Sentences of table cells.
    """

    running: tuple[tuple[int, str], ...]
    cells: tuple[tuple[int, str], ...]

    @property
    def long(self) -> list[tuple[int, str]]:
        """Sentences with more than `MOST_WORDS` words."""
        return [each for each in self.running + self.cells if each[0] > MOST_WORDS]

    @property
    def mean(self) -> float:
        """Mean number of words of the running sentences; 0 without any."""
        if not self.running:
            return 0.0
        return sum(words for words, _ in self.running) / len(self.running)


def prose_of(text: str) -> Prose:
    """Return the sentences of a page."""
    text = _COMMENT.sub("", _FENCE.sub("", text))
    text = _INDENTED.sub("\n\n", text)
    running: list[str] = []
    cells: list[str] = []
    block: list[str] = []

    def end_block() -> None:
        running.extend(_sentences(" ".join(block)))
        block.clear()

    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("|"):
            end_block()
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                cells.extend(_sentences(cell.strip()))
        elif not stripped or stripped.startswith("#"):
            end_block()
        else:
            if _ITEM.match(line):
                end_block()
            block.append(_ITEM.sub("", stripped).lstrip("> "))
    end_block()
    return Prose(_counted(running), _counted(cells))


def _sentences(text: str) -> list[str]:
    """Split a block into sentences."""
    text = LINK.sub(lambda found: found[1], text)
    text = _CODE.sub(lambda found: found[0].replace(" ", "_"), text)
    text = _ABBREVIATION.sub(lambda found: found[0].replace(".", "\u2024"), text)
    return [part.strip() for part in _ENDS.split(text) if part.strip()]


def _counted(sentences: list[str]) -> tuple[tuple[int, str], ...]:
    counted = []
    for sentence in sentences:
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if words:
            counted.append((len(words), sentence))
    return tuple(counted)


def link_faults(path: Path) -> Iterator[str]:
    """Say which relative links of a page lead nowhere."""
    text = _FENCE.sub("", path.read_text("utf-8"))
    for _, target in LINK.findall(text):
        place, _, fragment = target.partition("#")
        if ":" in place:
            continue
        file = path if not place else path.parent / place
        if not file.exists():
            yield f"no such file: {target}"
        elif fragment and file.suffix == ".md" and fragment not in anchors_of(file):
            yield f"no such heading: {target}"


@functools.cache
def anchors_of(path: Path) -> frozenset[str]:
    """Return the fragments of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    anchors = set()
    text = _FENCE.sub("", path.read_text("utf-8"))
    for title in re.findall(r"^#+ +(.*?) *#*$", text, re.MULTILINE):
        plain = LINK.sub(lambda found: found[1], title).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.get(name, 0)
        found[name] = number + 1
        anchors.add(name if not number else f"{name}-{number}")
    return frozenset(anchors)


@functools.cache
def settings() -> dict[str, frozenset[str]]:
    """Return section -> keys, over the settings of all programs."""
    found: dict[str, set[str]] = {}
    for kind in (
        ServerSettings,
        ClientSettings,
        LeaderSettings,
        HelperSettings,
        SharingClientSettings,
        NodeSettings,
    ):
        hints = get_type_hints(kind)
        for section in fields(kind):
            part = hints[section.name]
            if is_dataclass(part):
                keys = {each.name for each in fields(part)}
                found.setdefault(section.name, set()).update(keys)
    return {name: frozenset(keys) for name, keys in found.items()}


@functools.cache
def _root() -> Any:  # noqa: ANN401 - a group of click, whose package is typer's affair
    return get_command(command_line())


def command_fault(words: list[str]) -> str | None:
    """Say what is wrong with a command line of `secagg`, or None.

    Args:
        words: What follows `secagg`; a word in capitals or with a brace is free.
    """
    command, rest = _root(), list(words)
    while rest and hasattr(command, "commands"):
        name = rest[0]
        if name.startswith("-") or not re.fullmatch(r"[a-z][a-z-]*", name):
            break
        if name not in command.commands:
            return f"no such command: {name}"
        command, rest = command.commands[name], rest[1:]
    known = {option for each in command.params for option in each.opts}
    known |= {option for each in command.params for option in each.secondary_opts}
    for word in rest:
        option = word.partition("=")[0]
        if re.fullmatch(r"--[a-z][a-z0-9-]*", option) and option not in {
            *known,
            "--help",
        }:
            return f"no such option: {option}"
    return None


def name_faults(text: str) -> Iterator[str]:
    """Say which commands, settings, metrics and Python names do not exist."""
    metrics = {metric.name for metric in METRICS}
    for mark in _CODE.findall(_FENCE.sub("", text)):
        code = mark.strip("`").strip()
        for name in re.findall(r"\bsecagg_[a-z_]+\b", code):
            if name not in metrics and name not in _MODULES:
                yield f"no such metric: {name}"
        yield from _python_faults(code)
        if code.startswith("secagg "):
            yield from _command_faults(code)
        if found := re.fullmatch(r"([a-z]+)\.([a-z_]+)(?: ?=.*)?", code):
            section, key = found.groups()
            known = settings().get(section)
            if known is None or key in _ENDINGS or f"{section}.{key}" in _BLOCK:
                continue
            if key not in known:
                yield f"no such setting: {code}"
    yield from _block_faults(text)


def _block_faults(text: str) -> Iterator[str]:
    """Say which settings and commands in blocks of a page do not exist."""
    for block in _TOML.findall(text):
        for section, keys in tomllib.loads(block).items():
            unknown = keys.keys() - settings().get(section, _TASK)
            yield from (f"no such setting: {section}.{key}" for key in unknown)
    for block in _CONSOLE.findall(text):
        for line in _PROMPT.findall(block.replace("\\\n", " ")):
            yield from _command_faults(line)


def _python_faults(code: str) -> Iterator[str]:
    for name in _PYTHON.findall(code):
        if not _is_in_python(name):
            yield f"no such name in Python: {name}"


@functools.cache
def _is_in_python(name: str) -> bool:
    """Return whether a dotted name leads to an object of a module."""
    module, _, own = name.rpartition(".")
    with suppress(ImportError):
        return hasattr(import_module(module), own)
    return False


def _command_faults(line: str) -> Iterator[str]:
    words = shlex.split(line.replace("…", ""), comments=True)[1:]
    if fault := command_fault([word.rstrip(",") for word in words]):
        yield f"{fault} in `{line}`"


def pages() -> list[Path]:
    """Return all pages of the repository, in order of their paths."""
    found = []
    for folder, inner, names in os.walk(ROOT):
        inner[:] = [each for each in inner if each[0] != "." and each not in _MADE]
        found += [Path(folder, name) for name in names if name.endswith(".md")]
    return sorted(found)


def faults_of(path: Path) -> list[str]:
    """Return one line for each fault of a page."""
    text = path.read_text("utf-8")
    prose = prose_of(text)
    faults = [f"{words} words: {sentence}" for words, sentence in prose.long]
    if prose.mean > MOST_MEAN:
        faults.append(f"mean of {prose.mean:.1f} words, at most {MOST_MEAN:g}")
    return [*faults, *link_faults(path), *name_faults(text)]


def main() -> int:
    """Print the faults of the named pages, or of all; return the status."""
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    count = 0
    for path in chosen:
        for fault in faults_of(path):
            count += 1
            sys.stdout.write(f"{path.relative_to(ROOT)}: {fault}\n")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
