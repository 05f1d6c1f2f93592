"""Charts as HTML and SVG text, without a script: they print, they scale to a phone, and they follow a dark theme.

Colours are classes (`s0` ... of style.css in this folder), given by place in a list of names, so that a target keeps
its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 300  # of the coordinates; a phone shows text of size 11 readably at this width
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 10, 36


@dataclass
class Bar:
    """`share` (0 to 1) is its length, `text` stands beside it, `series` gives the colour, None a baseline's."""

    label: str
    share: float | None
    text: str
    series: int | None


@dataclass
class Point:
    x: float
    y: float
    series: int | None
    label: str
    named: bool = False  # the label is written beside it


@dataclass
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    series: int | None
    dashed: bool = False


def colour(series: int | None) -> str:
    return "baseline" if series is None else f"s{series % 6}"


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars of a common scale, 0 to 1."""
    made = []
    for row in rows:
        width = 0.0 if row.share is None else max(0.0, min(row.share, 1.0))
        fill = f'<span class="fill {colour(row.series)}" style="width:{100 * width:.1f}%"></span>'
        made.append(
            f'<div class="bar"><span class="label">{escape(row.label)}</span><span class="track">{fill}</span>'
            f'<span class="value">{escape(row.text)}</span></div>'
        )
    return f'<div class="bars">{"".join(made)}</div>'


def legend(names: Sequence[tuple[str, int | None]]) -> str:
    items = "".join(f'<span><i class="{colour(series)}"></i>{escape(name)}</span>' for name, series in names)
    return f'<div class="legend">{items}</div>'


class Axis:
    """A logarithmic axis over `values`, in the coordinates from `start` to `end`, with its ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, base: float = 10.0):
        low, high = math.log(min(values), base), math.log(max(values), base)
        room = 0.06 * max(high - low, 0.5)
        self.low, self.high, self.start, self.end, self.base = low - room, high + room, start, end, base

    def at(self, value: float) -> float:
        share = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        whole = [self.base**n for n in range(math.ceil(self.low), math.floor(self.high) + 1)]
        if len(whole) >= 3 or self.base != 10:
            return whole
        powers = [10.0**n for n in range(math.floor(self.low), math.ceil(self.high) + 1)]
        for parts in ((1, 2, 5), range(1, 10)):
            steps = [part * power for power in powers for part in parts]
            steps = [value for value in steps if self.low <= math.log10(value) <= self.high]
            if len(steps) >= 3:
                break
        return steps


class Linear:
    """An axis from 0 to a little above the largest of `values`."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        self.top, self.start, self.end = 1.08 * max(values), start, end

    def at(self, value: float) -> float:
        return self.start + value / self.top * (self.end - self.start)

    def ticks(self) -> list[float]:
        step = 10.0 ** math.floor(math.log10(self.top))
        step = next(step * m for m in (0.1, 0.2, 0.5, 1.0, 2.0) if self.top / (step * m) <= 6)
        return [i * step for i in range(int(self.top / step) + 1)]


def number(value: float) -> str:
    """Three figures, no exponent below ten million."""
    if value == 0:
        return "0"
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def chart(
    title: str,
    x_label: str,
    y_label: str,
    x: Axis,
    y: Axis | Linear,
    lines: Sequence[Line] = (),
    points: Sequence[Point] = (),
) -> str:
    """An SVG of lines and points. Each point has its label as a tooltip."""
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{number(value)}</text>')
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{number(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    along = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text transform="translate(11 {along}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    for line in lines:
        places = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b in line.points)
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        name = f"<title>{escape(line.label)}</title>"
        parts.append(f'<polyline class="line {colour(line.series)}"{dash} points="{places}">{name}</polyline>')
    written: list[tuple[float, float]] = []
    for point in points:
        a, b = x.at(point.x), y.at(point.y)
        name = f"<title>{escape(point.label)}</title>"
        parts.append(f'<circle class="dot {colour(point.series)}" cx="{a:.1f}" cy="{b:.1f}" r="4">{name}</circle>')
        clear = all(abs(b - other) > 11 or abs(a - at) > 90 for at, other in written)
        if point.named and clear:
            written.append((a, b))
            right = a < 0.66 * WIDTH
            anchor = "start" if right else "end"
            parts.append(
                f'<text x="{a + (7 if right else -7):.1f}" y="{b + 4:.1f}" '
                f'text-anchor="{anchor}">{escape(point.label.split(":")[0])}</text>'
            )
    return "".join([*parts, "</svg>"])


def axes(
    x_values: Sequence[float], y_values: Sequence[float], x_base: float = 10.0, y_linear: bool = False
) -> tuple[Axis, Axis | Linear]:
    """Axes of a chart over these values: x logarithmic, y logarithmic or linear from 0."""
    x = Axis(x_values, LEFT, WIDTH - RIGHT, x_base)
    low, high = HEIGHT - BOTTOM, TOP
    return x, Linear(y_values, low, high) if y_linear else Axis(y_values, low, high)
