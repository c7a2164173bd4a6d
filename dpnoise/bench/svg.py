"""A drawing as SVG, by the standard library.

It places nothing; `picture` does.
"""

from html import escape

from dpnoise.bench.picture import Disc, Sheet, Stroke, drawing


def svg_text(sheet: Sheet) -> str:
    """Return the document; equal sheets give equal text.

    Args:
        sheet: What to show.
    """
    made = drawing(sheet)
    size = f"{made.width:.1f} {made.height:.1f}"
    width, height = size.split()
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"',
        f' viewBox="0 0 {size}" width="{width}pt" height="{height}pt">',
        f"<title>{escape(sheet.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for part in made.parts:
        if isinstance(part, Stroke):
            points = " ".join(f"{x:.2f},{y:.2f}" for x, y in part.points)
            dashes = ' stroke-dasharray="4 3"' if part.broken else ""
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{part.colour}" '
                f'stroke-width="{part.width:g}"{dashes}/>'
            )
        elif isinstance(part, Disc):
            lines.append(
                f'<circle cx="{part.x:.2f}" cy="{part.y:.2f}" r="{part.radius:g}" '
                f'fill="{part.colour}"/>'
            )
        else:
            lines.append(
                f'<text x="{part.x:.2f}" y="{part.y:.2f}" font-size="{part.size:g}" '
                f'text-anchor="{part.anchor}">{escape(part.text)}</text>'
            )
    return "\n".join([*lines, "</svg>", ""])
