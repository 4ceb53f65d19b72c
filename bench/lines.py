"""Draws curves as SVG: one chart above the other, the same lines in each, with the ends of concepts marked."""

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 720, 44, 12
CHART, GAP, TITLE, LEGEND = 150, 34, 26, 30
COLOURS = ("#1f6feb", "#8c959f", "#bf8700", "#8250df", "#1a7f37")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.grid{stroke:#d0d7de}.mark{stroke:#8c959f;stroke-dasharray:3 3}"
    "polyline{fill:none;stroke-width:1.6}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}}"
)

Curves = Mapping[str, Sequence[float]]
"""By name, shares from 0 to 1, evenly spaced."""


def lines(title: str, charts: Mapping[str, Curves], marks: Sequence[float]) -> str:
    """Each chart by its title, with the names of the first one's lines; `marks` are shares of the width."""
    names = list(next(iter(charts.values())))
    height = LEGEND + TITLE + len(charts) * (CHART + GAP)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    rows = [f"<title>{escape(title)}</title><style>{STYLE}</style>", f'<text x="0" y="16">{escape(title)}</text>']
    rows += [_legend(names)]
    for number, (name, curves) in enumerate(charts.items()):
        rows += _chart(name, curves, marks, LEGEND + TITLE + number * (CHART + GAP))
    return "\n".join([head, *rows, "</svg>\n"])


def _legend(names: Sequence[str]) -> str:
    parts, at = [], LEFT
    for name, colour in zip(names, COLOURS, strict=False):
        parts.append(f'<rect x="{at}" y="28" width="12" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17}" y="34">{escape(name)}</text>')
        at += 34 + 7 * len(name)
    return "".join(parts)


def _chart(title: str, curves: Curves, marks: Sequence[float], top: int) -> list[str]:
    wide = WIDTH - LEFT - RIGHT
    lowest = min(0.1 * int(10 * value) for curve in curves.values() for value in curve)

    def x(share: float) -> float:
        return round(LEFT + share * wide, 1)

    def y(value: float) -> float:
        return round(top + CHART - (value - lowest) / (1 - lowest) * CHART, 1)

    rows = [f'<text x="{LEFT}" y="{top - 6}">{escape(title)}</text>']
    steps = [lowest + (1 - lowest) * step / 4 for step in range(5)]
    for value in steps:
        rows.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        rows.append(f'<text x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{value:.0%}</text>')
    rows += [f'<line class="mark" x1="{x(mark)}" x2="{x(mark)}" y1="{top}" y2="{top + CHART}"/>' for mark in marks]
    for curve, colour in reversed(list(zip(curves.values(), COLOURS, strict=False))):
        points = " ".join(f"{x((at + 0.5) / len(curve))},{y(value)}" for at, value in enumerate(curve))
        rows.append(f'<polyline stroke="{colour}" points="{points}"/>')
    return rows
