"""Draw the pictures of the pages that need no measurement.

    python docs/draw_pictures.py            # all, from the kept data
    python docs/draw_pictures.py --plan     # plan the error curves again first

* `error_by_bits_and_epsilon.svg`: from `error_by_bits_and_epsilon.json` beside it.
* `demo_result.svg`: from `demo_result.json`, the last table that `secagg demo` printed.
* `noise_ladder.svg`: the layers of one share, as `NoiseRule` computes them.
* `trust.svg`: which party has to trust which, in each profile.
* `rounds.svg`: the rounds of a session and what travels in each.

The same data give the same bytes.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any, Final

import dpnoise
from dpnoise.errors import DPNoiseError
from dpnoise.mechanisms.noise_share import NoiseRule
from secagg.testbed.demo.run import accuracy_picture, demo_title

PICTURES: Final = Path(__file__).with_name("pictures")
DATA: Final = PICTURES / "error_by_bits_and_epsilon.json"
DEMO: Final = PICTURES / "demo_result.json"
BITS: Final = (4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18)
EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
MECHANISMS: Final = ("skellam-mixture", "skellam")

# Colours that stay apart for colour-blind readers, after M. Okabe and K. Ito.
_BLUE, _RED, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
_COLOURS: Final = dict(zip(MECHANISMS, (_BLUE, _RED), strict=True))
_STYLE: Final = "font-family='sans-serif' font-size='12' fill='#222'"


def pictures() -> dict[str, str]:
    """Return all pictures by the name of their file."""
    return {
        "error_by_bits_and_epsilon.svg": _error(json.loads(DATA.read_text("utf-8"))),
        "demo_result.svg": _demo(json.loads(DEMO.read_text("utf-8"))),
        "noise_ladder.svg": _ladder(),
        "trust.svg": _trust(),
        "rounds.svg": _rounds(),
    }


def planned() -> dict[str, list[dict[str, object]]]:
    """Plan the points of the error curves: standard error of one entry, in clips."""
    rows: list[dict[str, object]] = []
    points = [(1.0, bits) for bits in BITS] + [(epsilon, None) for epsilon in EPSILONS]
    for mechanism in MECHANISMS:
        for epsilon, bits in points:
            try:
                made = dpnoise.plan(
                    mechanism=mechanism,
                    clients=100,
                    dimension=65536,
                    l2_clip=1.0,
                    epsilon=epsilon,
                    delta=1e-5,
                    bits=bits,
                )
            except DPNoiseError:
                continue
            point = {"epsilon": epsilon} | ({} if bits is None else {"bits": bits})
            error = math.sqrt(made.estimate_mse)
            central = math.sqrt(made.gaussian_mse)
            rows.append(
                {"mechanism": mechanism, **point, "error": error, "central": central}
            )
    return {"rows": rows}


def _svg(width: int, height: int, parts: Iterable[str], title: str) -> str:
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
        f"width='{width}' height='{height}' role='img' {_STYLE}>\n"
        f"<title>{escape(title)}</title>\n"
        f"<rect width='{width}' height='{height}' fill='#fff'/>\n{body}\n</svg>\n"
    )


def _text(  # noqa: PLR0913 - a place, a text and how it stands there
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 12,
    colour: str = "#222",
    is_bold: bool = False,
) -> str:
    weight = " font-weight='bold'" if is_bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' font-size='{size}' "
        f"fill='{colour}'{weight}>{escape(text)}</text>"
    )


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' "
        f"fill='{colour}' fill-opacity='0.15' stroke='{colour}'/>"
    )


def _arrow(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    angle = math.atan2(to_y - y, to_x - x)
    ends = [
        f"{to_x - 8 * math.cos(each):.1f},{to_y - 8 * math.sin(each):.1f}"
        for each in (angle - 0.45, angle + 0.45)
    ]
    return (
        f"<line x1='{x:g}' y1='{y:g}' x2='{to_x:g}' y2='{to_y:g}' stroke='{colour}' "
        f"stroke-width='1.5'/><polygon points='{to_x:g},{to_y:g} {ends[0]} {ends[1]}' "
        f"fill='{colour}'/>"
    )


def _error(data: dict[str, list[dict[str, object]]]) -> str:
    """Two panels: error against bits at epsilon 1, and against epsilon."""
    rows = data["rows"]
    parts = [
        _text(
            400,
            18,
            "Standard error of one entry of the sum, in clips: "
            "100 clients, 65 536 entries, δ = 10⁻⁵",
            anchor="middle",
            is_bold=True,
        )
    ]
    for panel, (key, label, ticks) in enumerate(
        (
            ("bits", "bits of one entry (ε = 1)", (4, 6, 8, 10, 12, 14, 16, 18)),
            ("epsilon", "ε, bits chosen by the planner", EPSILONS),
        )
    ):
        chosen = [row for row in rows if ("bits" in row) == (key == "bits")]
        parts += _panel(60 + 400 * panel, chosen, key, label, ticks)
    for place, (name, colour) in enumerate(
        [*_COLOURS.items(), ("a trusted party's Gaussian", _GREY)]
    ):
        parts.append(_text(150 + 180 * place, 318, f"● {name}", colour=colour))
    return _svg(800, 330, parts, "Error against bits, and against epsilon")


def _panel(
    left: float,
    rows: Sequence[dict[str, object]],
    key: str,
    label: str,
    ticks: Sequence[float],
) -> list[str]:
    wide, top, high = 310.0, 40.0, 220.0
    is_log = key == "epsilon"
    low_y, high_y = (0.5, 16.0) if is_log else (3.5, 5.0)

    def across(value: float) -> float:
        first, last, own = ticks[0], ticks[-1], value
        if is_log:
            first, last, own = (math.log(each) for each in (first, last, own))
        return left + wide * (own - first) / (last - first)

    def down(value: float) -> float:
        part = (value - low_y) / (high_y - low_y)
        if is_log:
            part = math.log(value / low_y) / math.log(high_y / low_y)
        return top + high * (1.0 - min(max(part, 0.0), 1.0))

    frame = f"x='{left:g}' y='{top:g}' width='{wide:g}' height='{high:g}'"
    parts = [
        f"<rect {frame} fill='none' stroke='#999'/>",
        _text(left + wide / 2, top + high + 36, label, anchor="middle"),
    ]
    parts += [
        _text(across(tick), top + high + 16, f"{tick:g}", anchor="middle", size=10)
        for tick in ticks
    ]
    for tick in (1, 2, 4, 8) if is_log else (3.5, 4.0, 4.5, 5.0):
        parts.append(
            f"<line x1='{left:g}' x2='{left + wide:g}' y1='{down(tick):.1f}' "
            f"y2='{down(tick):.1f}' stroke='#ddd'/>"
        )
        parts.append(
            _text(left - 6, down(tick) + 4, f"{tick:g}", anchor="end", size=10)
        )
    lines = [(name, "error", colour) for name, colour in _COLOURS.items()]
    for name, what, colour in [(MECHANISMS[0], "central", _GREY), *lines]:
        points = [
            (across(float(str(row[key]))), down(float(str(row[what]))))
            for row in rows
            if row["mechanism"] == name
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = " stroke-dasharray='4 3'" if what == "central" else ""
        parts.append(
            f"<polyline points='{drawn}' fill='none' stroke='{colour}' "
            f"stroke-width='2'{dash}/>"
        )
        if what == "error":
            parts += [
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>"
                for x, y in points
            ]
    return parts


def _demo(data: dict[str, Any]) -> str:
    """The picture that the demo itself draws, of the run that the pages show."""

    def curve(kind: str) -> list[float]:
        return [each[kind] / 100 for each in data["steps"]]

    return accuracy_picture(
        demo_title(data["clients"], data["epsilon"], data["killed"]),
        private=curve("private"),
        central=curve("central"),
        nonprivate=curve("none"),
    )


def _ladder() -> str:
    """The noise of one client after 0 to 20 dropouts: needed, and left in the sum."""
    clients, dropouts = 100, 20
    session = NoiseRule(
        counted_variance=Fraction(1000),
        min_survivors=clients - dropouts,
        loss_fraction=Fraction(dropouts, clients),
        ladder=4,
    ).session(clients)
    parts = [
        _text(
            300,
            18,
            "Variance that one survivor leaves: 100 clients, 20 may drop out",
            anchor="middle",
            is_bold=True,
        )
    ]
    most = float(session.remaining(dropouts))
    floor = 0.7 * float(session.needed(0))

    def down(value: float) -> float:
        return 240.0 - 200.0 * (value - floor) / (most - floor)

    for lost in range(dropouts + 1):
        x = 60 + 24.0 * lost
        kept, needed = float(session.remaining(lost)), float(session.needed(lost))
        parts.append(
            f"<rect x='{x:g}' y='{down(kept):.1f}' width='18' "
            f"height='{240 - down(kept):.1f}' fill='{_BLUE}' fill-opacity='0.35'/>"
        )
        parts.append(
            f"<rect x='{x:g}' y='{down(most):.1f}' width='18' "
            f"height='{down(kept) - down(most):.1f}' fill='{_GREY}' "
            "fill-opacity='0.15'/>"
        )
        parts.append(
            f"<line x1='{x - 2:g}' x2='{x + 20:g}' y1='{down(needed):.1f}' "
            f"y2='{down(needed):.1f}' stroke='{_RED}' stroke-width='2'/>"
        )
        if lost % 4 == 0:
            parts.append(_text(x + 9, 256, f"{lost}", anchor="middle", size=10))
    parts += [
        _text(
            312,
            274,
            "clients that dropped out (the bars do not begin at 0)",
            anchor="middle",
        ),
        _text(60, 296, "■ added and left", colour=_BLUE),
        _text(220, 296, "■ added and removed by survivors", colour=_GREY),
        _text(440, 296, "— needed for ε", colour=_RED),
    ]
    return _svg(600, 306, parts, "The noise ladder")


def _trust() -> str:
    """For each profile, what a client has to believe of whom."""
    columns = (
        (
            "honest-curious-server",
            (
                ("server", "runs this code; may record everything", _RED),
                ("colluders", "at most c clients tell it everything", _GREY),
                ("certificate authority", "names clients and server", _RED),
                ("issuer", "not needed", _GREEN),
            ),
        ),
        (
            "malicious-server",
            (
                ("server", "may do anything", _GREEN),
                ("colluders", "at most c clients tell it everything", _GREY),
                ("certificate authority", "names the server", _RED),
                ("issuer", "names clients; apart from the server", _RED),
            ),
        ),
        (
            "two aggregators",
            (
                ("leader or helper", "one may do anything, the other not", _RED),
                ("clients", "any may collude; none can reveal another", _GREEN),
                ("certificate authority", "names clients and aggregators", _RED),
                ("noise", "the other aggregator adds it", _RED),
            ),
        ),
    )
    parts = [
        _text(
            435,
            20,
            "What a client relies on: red is trusted, green is not, grey is counted",
            anchor="middle",
            is_bold=True,
        )
    ]
    for column, (title, rows) in enumerate(columns):
        left = 15 + 285 * column
        parts.append(_text(left + 135, 46, title, anchor="middle", is_bold=True))
        for row, (name, what, colour) in enumerate(rows):
            top = 58 + 56 * row
            parts.append(_box(left, top, 270, 46, colour))
            parts.append(_text(left + 10, top + 19, name, is_bold=True))
            parts.append(_text(left + 10, top + 36, what, size=11))
    return _svg(870, 292, parts, "Which party a client trusts in each profile")


def _rounds() -> str:
    """What travels between a client and the server, round by round."""
    steps = (
        ("offer", "parameters, payload hash, noise block", "down"),
        ("1 advertise keys", "two public keys", "up"),
        ("", "roster U1: all public keys", "down"),
        ("3 share keys", "sealed shares for the other clients", "up"),
        ("", "U2 and the shares for this client", "down"),
        ("4 masked input", "vector + noise + masks", "up"),
        ("", "U3: whose input arrived", "down"),
        ("5 consistency", "a signature on U3 (malicious-server only)", "up"),
        ("6 unmasking", "shares for the masks of U3 and of dropouts", "up"),
        ("end", "the noisy sum", "down"),
    )
    parts = [
        _text(90, 24, "client", anchor="middle", is_bold=True),
        _text(610, 24, "server", anchor="middle", is_bold=True),
        f"<line x1='150' x2='150' y1='34' y2='{54 + 34 * len(steps)}' stroke='#999'/>",
        f"<line x1='550' x2='550' y1='34' y2='{54 + 34 * len(steps)}' stroke='#999'/>",
    ]
    for place, (name, what, way) in enumerate(steps):
        y = 58 + 34 * place
        start, end = (150, 550) if way == "up" else (550, 150)
        parts.append(_arrow(start, y, end, y, _BLUE if way == "up" else _RED))
        parts.append(_text(350, y - 5, what, anchor="middle", size=11))
        parts.append(_text(140, y + 4, name, anchor="end", size=11, is_bold=True))
    parts += [
        _text(558, 232, "sees only", size=11),
        _text(558, 247, "masked vectors", size=11),
        _text(558, 350, "removes the masks", size=11),
        _text(558, 365, "from the sum", size=11),
    ]
    return _svg(700, 70 + 34 * len(steps), parts, "The rounds of a session")


def main() -> int:
    """Write all pictures."""
    if "--plan" in sys.argv[1:]:
        DATA.write_text(json.dumps(planned(), indent=1) + "\n", "utf-8")
    for name, picture in pictures().items():
        (PICTURES / name).write_text(picture, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
