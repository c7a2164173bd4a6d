"""Writes what `make bench` has measured into the tables of the page on performance.

``python cost_tables.py build/benchmarks.jsonl docs/performance.md``

* A table is found by its heading, which stays unchanged; its rows are replaced.  A
  table whose lines are missing is not changed.
* The pictures beside them show the same lines (`cost_figures.py`).
"""

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

_ROUNDS: Final = ("advertise_keys", "share_keys", "masked_input", "unmasking")
_SIDES: Final = ("client", "server", "up", "down")
_TIMES: Final = _SIDES[:2]
_BOTH: Final = ("ours", "Flower")
_TEN: Final = 10

_Line = dict[str, Any]
_Rows = list[list[str]]


def main() -> int:
    """Replace the rows of all tables whose lines exist."""
    source, page = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    text = page.read_text("utf-8")
    for heading, rows in (
        ("| clients | one client |", _growth(lines, "clients", "clients", _whole)),
        ("| entries | one client |", _growth(lines, "entries", "dimension", _power)),
        ("| round | clients |", _by_round(lines)),
        ("| clients | entries | lost |", _flower(lines)),
    ):
        if rows:
            text = _replaced(text, heading, rows)
    for line in lines:
        if line["name"].startswith("flower/"):
            version = line["baseline"].removesuffix(", SecAgg+")
            text = re.sub(r"Flower [\d.]+, ours", f"{version}, ours", text)
    page.write_text(text, "utf-8")
    return 0


def _replaced(text: str, heading: str, rows: _Rows) -> str:
    """Return a page with other rows below the heading that begins with `heading`."""
    if text.count(f"\n{heading}") != 1:
        raise ValueError(f"the page has not one table {heading}")
    before, after = text.split(f"\n{heading}")
    # The rest of the heading, the rule below it, and the rows.
    title, rule, *rest = after.split("\n")
    kept = rest[next(i for i, line in enumerate(rest) if not line.startswith("|")) :]
    body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"{before}\n{heading}{title}", rule, *body, *kept])


def _growth(
    lines: Iterable[_Line], series: str, by: str, shown: Callable[[int], str]
) -> _Rows:
    found: dict[int, dict[str, float]] = {}
    for line in lines:
        name, _, what = line["name"].partition("/")
        if name == f"growth with {series}":
            found.setdefault(line["parameters"][by], {})[what] = line["value"]
    return [
        [shown(size), *_cells([values[what] for what in _SIDES])]
        for size, values in found.items()
    ]


def _by_round(lines: Iterable[_Line]) -> _Rows:
    found = {line["name"]: line["value"] for line in lines}
    sides = ("clients", *_SIDES[1:])
    rows = [
        [
            name.replace("_", " "),
            *_cells(found[f"round {name}/{what}"] for what in sides),
        ]
        for name in _ROUNDS
        if f"round {name}/clients" in found
    ]
    if rows:
        rows[-1][0] += ", the sum included"
    return rows


def _cells(values: Iterable[float]) -> list[str]:
    """Return two times and two counts of bytes."""
    client, server, up, down = values
    return [f"{_time(client)} ms", f"{_time(server)} ms", _whole(up), _whole(down)]


def _flower(lines: Iterable[_Line]) -> _Rows:
    found: dict[tuple[int, ...], dict[str, float]] = {}
    for line in lines:
        if line["name"].startswith("flower/"):
            sizes = line["parameters"]
            key = (sizes["clients"], sizes["dimension"], sizes["lost"])
            values = found.setdefault(key, {})
            values[line["name"].removeprefix("flower/")] = line["value"]
    return [
        [
            *map(_whole, key),
            *(
                " / ".join(_short(what, values[f"{what}, {whose}"]) for whose in _BOTH)
                for what in _SIDES
            ),
        ]
        for key, values in found.items()
    ]


def _short(what: str, value: float) -> str:
    """Return a time in ms, or bytes in MB."""
    return _time(value) if what in _TIMES else f"{value / 1e6:.1f}"


def _time(value: float) -> str:
    return (
        f"{value:.2g}"
        if value < 1
        else f"{value:.1f}"
        if value < _TEN
        else _whole(value)
    )


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _power(value: int) -> str:
    exponent = len(str(value)) - 1
    return f"10^{exponent}" if value == 10**exponent else _whole(value)


if __name__ == "__main__":
    sys.exit(main())
