"""Draw curves as a picture, which a saved notebook shows where no script runs.

The picture is SVG in an ``<img>``: it is small, needs no plotting library in the kernel, and looks the same on GitHub, in nbconvert and in
untrusted notebooks. It does not know the page's theme, so its colours are legible on white and on black.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from ..protocol import Points

WIDTH, HEIGHT = 340, 150  # of one chart, in pixels
MAX_CHARTS = 4
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 8, 22, 18
_GREY = "#808080"
_COLORS = {"train": "#1f77d0", "val": "#d9730d", "test": "#2e9e4f"}
_PART = r"(?P<part>train|training|val|valid|validation|eval|test)"
_BEFORE = re.compile(rf"{_PART}[\s/_.-]+(?P<stem>.+)", re.IGNORECASE)
_AFTER = re.compile(rf"(?P<stem>.+?)[\s/_.-]+{_PART}", re.IGNORECASE)


class _Line(NamedTuple):
    part: str
    points: Points


def picture(curves: Iterable[Points], *, limit: int = MAX_CHARTS) -> str:
    """Return an ``<img>`` of at most `limit` charts, one for each quantity; empty if there is nothing to draw."""
    charts: dict[str, list[_Line]] = {}
    for curve in curves:
        if sum(value is not None for value in curve.value) > 1:
            stem, part = _split(curve.name)
            charts.setdefault(stem, []).append(_Line(part, curve))
    shown = sorted(charts.items(), key=lambda chart: chart[0] != "loss")[:limit]  # the loss first, as in the sidebar
    if not shown:
        return ""
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    width, height = columns * WIDTH, rows * HEIGHT
    drawn = "".join(
        f'<g transform="translate({index % columns * WIDTH} {index // columns * HEIGHT})">{_chart(lines)}</g>'
        for index, (_, lines) in enumerate(shown)
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{_GREY}">{drawn}</svg>'
    )
    told = escape("Curves of " + ", ".join(stem for stem, _ in shown), quote=True)
    return f'<img alt="{told}" width="{width}" height="{height}" src="data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}">'


def _chart(lines: Sequence[_Line]) -> str:
    steps = [step for line in lines for step in line.points.step]
    values = [value for line in lines for value in line.points.value if value is not None]
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def x(step: int) -> float:
        return _LEFT + (right - _LEFT) * (step - first) / max(1, last - first)

    def y(value: float) -> float:
        # Halves, as the difference of two finite values may overflow.
        return bottom - (bottom - _TOP) * ((value / 2 - low / 2) / ((high / 2 - low / 2) or 1))

    parts, at = [], _LEFT
    lines = sorted(lines, key=lambda line: list(_COLORS).index(line.part))  # training first
    for line in lines:
        color = _COLORS[line.part] if len(lines) > 1 else _GREY
        parts.append(f'<text x="{at}" y="14" fill="{color}">{escape(line.points.name)}</text>')
        at += 7 * len(line.points.name) + 10
    frame = f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="{_GREY}" stroke-opacity="0.5"/>'
    parts += [
        frame,
        f'<text x="{_LEFT - 4}" y="{_TOP + 4}" text-anchor="end">{_number(high)}</text>',
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">{_number(low)}</text>' if high > low else "",
        f'<text x="{_LEFT}" y="{HEIGHT - 4}">step {first:,}</text>',
        f'<text x="{right}" y="{HEIGHT - 4}" text-anchor="end">{last:,}</text>',
    ]
    for line in lines:
        path, pen = [], "M"
        for step, value in zip(line.points.step, line.points.value, strict=True):
            if value is None:
                pen = "M"  # a gap
            else:
                path.append(f"{pen}{x(step):.1f} {y(value):.1f}")
                pen = "L"
        parts.append(f'<path d="{"".join(path)}" fill="none" stroke="{_COLORS[line.part]}" stroke-width="1.5"/>')
    return "".join(parts)


def _number(value: float) -> str:
    """Return `value` to three digits, short enough for the space beside the axis."""
    text = f"{value:.3g}"
    mantissa, _, exponent = (text if len(text) <= 7 else f"{value:.2e}").partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else text


def _split(name: str) -> tuple[str, str]:
    """Return the quantity and the data split in a curve's name, by the rules of the sidebar's charts."""
    found = _BEFORE.fullmatch(name) or _AFTER.fullmatch(name)
    if found is None:
        return name, "train"
    word = found["part"].lower()
    return found["stem"].lower(), "test" if word == "test" else "train" if word.startswith("train") else "val"
