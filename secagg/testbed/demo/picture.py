"""Draws what a demo has come to: accuracy by step, as SVG text.

Equal results give equal text. It takes the standard library alone, because the demo
must not need a library for plots.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

# Colours that stay apart for colour-blind readers, after M. Okabe and K. Ito.
_LINES: Final = (
    ("no privacy", "#777777"),
    ("trusted server", "#009E73"),
    ("secagg", "#0072B2"),
)
_WIDTH, _HEIGHT = 600, 265
_LEFT, _TOP, _WIDE, _HIGH = 60.0, 40.0, 400.0, 190.0
_LABEL_HEIGHT: Final = 14.0


def demo_title(clients: int, epsilon: float, killed: int) -> str:
    """Return the heading of the picture of a run."""
    return f"Accuracy of the demo: {clients} clients, ε = {epsilon:g}, {killed} killed"


def accuracy_picture(
    title: str,
    *,
    private: Sequence[float],
    central: Sequence[float],
    nonprivate: Sequence[float],
) -> str:
    """Return a drawing of the accuracy over the steps of a demo.

    Args:
        title: Heading of the drawing.
        private: Accuracy after each step, 0 to 1; at least two steps.
        central: The same with noise that a trusted server adds.
        nonprivate: The same without noise.
    """
    curves = (nonprivate, central, private)
    lowest = min(min(each) for each in curves)
    floor = min(80, int(lowest * 5) * 20)  # percent, so that curves fill the frame

    def place(step: int, accuracy: float) -> tuple[float, float]:
        across = _LEFT + _WIDE * step / (len(private) - 1)
        part = (100.0 * accuracy - floor) / (100.0 - floor)
        return across, _TOP + _HIGH * (1.0 - part)

    parts = [_text(_WIDTH / 2, 20, title, "text-anchor='middle' font-weight='bold'")]
    for percent in range(floor, 101, 20):
        _, y = place(0, percent / 100)
        parts.append(
            f"<line x1='{_LEFT:g}' x2='{_LEFT + _WIDE:g}' y1='{y:.1f}' y2='{y:.1f}' "
            "stroke='#ddd'/>"
        )
        parts.append(_text(_LEFT - 8, y + 4, f"{percent} %", "text-anchor='end'"))
    for (_, colour), curve in zip(_LINES, curves, strict=True):
        points = [place(step, each) for step, each in enumerate(curve)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f"<polyline points='{drawn}' fill='none' stroke='{colour}' "
            "stroke-width='2'/>"
        )
    labels = sorted(
        (place(len(curve) - 1, curve[-1])[1] + 4, name, colour)
        for (name, colour), curve in zip(_LINES, curves, strict=True)
    )
    last = 0.0
    for y, name, colour in labels:
        last = max(y, last + _LABEL_HEIGHT)  # no label hides another one
        parts.append(_text(_LEFT + _WIDE + 10, last, name, f"fill='{colour}'"))
    for step in range(len(private)):
        x, _ = place(step, 1.0)
        label = f"step {step + 1}" if len(private) <= 8 else str(step + 1)  # noqa: PLR2004 - what the width holds
        parts.append(_text(x, _TOP + _HIGH + 18, label, "text-anchor='middle'"))
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' "
        f"width='{_WIDTH}' height='{_HEIGHT}' font-family='sans-serif' font-size='12' "
        f"fill='#222'>\n<title>{escape(title)}</title>\n"
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='#fff'/>\n{body}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, look: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}>{escape(text)}</text>"
