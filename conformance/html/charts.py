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
FORMS = (  # of points, each about nine wide
    "M-4-4H4V4H-4Z",
    "M0-5L5 4H-5Z",
    "M0-5.5L5.5 0L0 5.5L-5.5 0Z",
    "M0 5L-5-4H5Z",
    "M-5-1.5H-1.5V-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5Z",
    "M-5 0A5 5 0 1 1 5 0A5 5 0 1 1-5 0Z",
)


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


def marker(series: int | None, x: float, y: float, label: str = "") -> str:
    """A point at (x, y): a form for each colour, for eyes and printers that see no colours; a ring for a baseline."""
    name = f"<title>{escape(label)}</title>" if label else ""
    if series is None:
        return f'<circle class="dot ring" cx="{x:.1f}" cy="{y:.1f}" r="3.5">{name}</circle>'
    form = FORMS[series % len(FORMS)]
    return f'<path class="dot {colour(series)}" transform="translate({x:.1f} {y:.1f})" d="{form}">{name}</path>'


def legend(names: Sequence[tuple[str, int | None]]) -> str:
    key = '<svg class="key" viewBox="-6 -6 12 12" aria-hidden="true">'
    items = "".join(f"<span>{key}{marker(series, 0, 0)}</svg>{escape(name)}</span>" for name, series in names)
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
    spots = [(x.at(point.x), y.at(point.y)) for point in points]
    parts += [marker(point.series, *at, point.label) for point, at in zip(points, spots, strict=True)]
    taken: list[Box] = [(a - 5, b - 5, a + 5, b + 5) for a, b in dict.fromkeys(spots)]
    written: list[tuple[str, float, float]] = []
    for point, (a, b) in zip(points, spots, strict=True):
        text = point.label.split(":")[0]
        again = any(text == other and abs(a - c) < 60 and abs(b - d) < 20 for other, c, d in written)
        if not point.named or again:
            continue
        written.append((text, a, b))
        box = _room((a, b), 6.2 * len(text), taken)
        taken.append(box)
        parts.append(f'<text x="{box[0]:.1f}" y="{box[3] - 3:.1f}">{escape(text)}</text>')
    return "".join([*parts, "</svg>"])


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _room(at: tuple[float, float], width: float, taken: Sequence[Box]) -> Box:
    """Where beside a point a text of this width covers least of what is there, within the chart."""
    (a, b), height = at, 13.0
    lefts = (a + 8, a - 8 - width, a - width / 2)
    tops = (b - height / 2, b - 8 - height, b + 8, b - 22 - height, b + 22)
    boxes = [(left, top, left + width, top + height) for top in tops for left in lefts]

    def covered(box: Box) -> float:
        shared = sum(
            max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
            * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
            for other in taken
        )
        outside = (
            max(0.0, LEFT - box[0]) + max(0.0, box[2] - WIDTH) + max(0.0, -box[1]) + max(0.0, box[3] - HEIGHT + BOTTOM)
        )
        return shared + 1e3 * outside

    return min(boxes, key=covered)


def axes(
    x_values: Sequence[float], y_values: Sequence[float], x_base: float = 10.0, y_linear: bool = False
) -> tuple[Axis, Axis | Linear]:
    """Axes of a chart over these values: x logarithmic, y logarithmic or linear from 0."""
    x = Axis(x_values, LEFT, WIDTH - RIGHT, x_base)
    low, high = HEIGHT - BOTTOM, TOP
    return x, Linear(y_values, low, high) if y_linear else Axis(y_values, low, high)
