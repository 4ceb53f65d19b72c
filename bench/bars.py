"""Draws bars as SVG, on a logarithmic scale: ten times as fast is as far to the right anywhere."""

import math
from collections.abc import Mapping
from xml.sax.saxutils import escape

WIDTH, LABEL, VALUE = 720, 170, 90
BAR, GAP, TITLE = 20, 10, 36
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.ours{fill:#1f6feb}.other{fill:#8c959f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


def bars(title: str, values: Mapping[str, float], ours: str) -> str:
    """One bar a value, the longest first; the one that is ours stands out."""
    ordered = sorted(values.items(), key=lambda pair: -pair[1])
    lowest = 10 ** math.floor(math.log10(min(values.values())))
    decades = math.log10(max(values.values()) / lowest)
    height = TITLE + len(ordered) * (BAR + GAP)
    rows = [
        _bar(name, value, TITLE + at * (BAR + GAP), math.log10(value / lowest) / decades, kind=_kind(name, ours))
        for at, (name, value) in enumerate(ordered)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    named = f'<title>{escape(title)}</title><style>{STYLE}</style><text x="0" y="18">{escape(title)}</text>'
    return "\n".join([head, named, *rows, "</svg>\n"])


def _kind(name: str, ours: str) -> str:
    return "ours" if name.startswith(ours) else "other"


def _bar(name: str, value: float, top: int, share: float, kind: str) -> str:
    length = max(2, round(share * (WIDTH - LABEL - VALUE)))
    middle = top + BAR - 6
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(name)}</text>'
        f'<rect class="{kind}" x="{LABEL}" y="{top}" width="{length}" height="{BAR}" rx="2"/>'
        f'<text x="{LABEL + length + 6}" y="{middle}">{value:,.0f}</text>'
    )
