"""Lines over time as plain SVG text, one panel below the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 760, 110, 60, 40, 36
COLOURS = ("#1f5fa8", "#c2571a", "#3b7d3b")
MOST_POINTS = 700


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    lines: Sequence[Line]


def svg(title: str, panels: Sequence[Panel]) -> str:
    tall = TOP + len(panels) * (HEIGHT + GAP)
    body = "".join(_panel(panel, TOP + place * (HEIGHT + GAP)) for place, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {tall}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>{body}</svg>\n'
    )


def _panel(panel: Panel, top: float) -> str:
    highest = max((value for line in panel.lines for value in line.values), default=0) or 1
    seconds = max((len(line.values) for line in panel.lines), default=0)
    parts = [
        f'<text x="{LEFT}" y="{top + 10}">{escape(panel.title)}</text>',
        f'<text x="{LEFT - 6}" y="{top + 24}" text-anchor="end">{highest:g}</text>',
        f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">0</text>',
        f'<text x="{LEFT + WIDTH}" y="{top + HEIGHT + 14}" text-anchor="end">{seconds} s</text>',
        f'<path d="M{LEFT} {top + 16}V{top + HEIGHT}H{LEFT + WIDTH}" stroke="#999" fill="none"/>',
    ]
    for place, line in enumerate(panel.lines):
        colour = COLOURS[place % len(COLOURS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _points(line.values, top, highest))
        parts.append(f'<polyline points="{points}" stroke="{colour}" fill="none"/>')
        if line.name:
            x = LEFT + WIDTH - 70 * (len(panel.lines) - place)
            parts.append(f'<text x="{x}" y="{top + 10}" fill="{colour}">{escape(line.name)}</text>')
    return "".join(parts)


def _points(values: Sequence[float], top: float, highest: float) -> list[tuple[float, float]]:
    """Where there are too many, the highest of each stretch."""
    stretch = max(1, -(-len(values) // MOST_POINTS))
    kept = [max(values[first : first + stretch]) for first in range(0, len(values), stretch)]
    usable = HEIGHT - 16
    return [
        (LEFT + place * WIDTH / max(1, len(kept) - 1), top + HEIGHT - value / highest * usable)
        for place, value in enumerate(kept)
    ]
