"""One HTML page without other files: tables, plots as inline SVG, and texts that may be hostile.

Main names: `escape`, `build_page`, `build_table`, `build_line_plot`, `build_interval_plot`, `build_bar_plot`. Text
becomes `Markup` only by `escape`, so no text of a model becomes an element. The page has no script, and its content
security policy forbids scripts and requests. Colors follow the reader's light or dark theme.
"""

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

Markup = NewType("Markup", str)
"""HTML that is safe to show. Only this module makes it from text."""

WIDTH, HEIGHT = 720, 300
"""Size of a plot's coordinates. A page scales plots to its width."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 44
_COLORS = 6
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --soft: #5a6470; --line: #d5dae0; --fill: #f3f5f7;
  --c0: #2563c9; --c1: #c2410c; --c2: #15803d; --c3: #9333ea; --c4: #b45309; --c5: #0e7490; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --back: #14181d; --soft: #9aa5b1; --line: #343c46;
  --fill: #1d232b; --c0: #7ab0ff; --c1: #ff9d66; --c2: #6fd58f; --c3: #cf9bff; --c4: #f0b45c; --c5: #5fd0e6; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p.note, figcaption { color: var(--soft); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--fill); padding: 0.8rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 40rem; }
details { border: 1px solid var(--line); border-radius: 4px; margin: 0.5rem 0; padding: 0.3rem 0.8rem; }
details details { border: 0; padding-left: 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
.mark { stroke: var(--c1); stroke-width: 1; stroke-dasharray: 4 4; }
.axis { stroke: var(--line); stroke-width: 1; fill: none; }
.series { fill: none; stroke-width: 2; } .whisker { stroke-width: 2; } .band { opacity: 0.15; stroke: none; }
@media (max-width: 40rem) { body { margin: 1rem auto; } .curve { overflow: visible; } .curve text { font-size: 20px; }
  .side { display: none; } }
""" + "\n".join(
    f".s{i} {{ stroke: var(--c{i}); }} .f{i} {{ fill: var(--c{i}); }}" for i in range(_COLORS)
)  # fmt: skip
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotPoint:
    """One point of a plot. Example: PlotPoint(x=8, y=0.41, low=0.35, high=0.47)."""

    x: float
    y: float
    low: float | None = None
    """Lower end of the interval around `y`. None if there is none."""
    high: float | None = None
    """Upper end of the interval. None together with `low`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotSeries:
    """A named line of a plot. Its points have ascending x."""

    name: str
    points: Sequence[PlotPoint]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotMark:
    """A vertical line at an event. Example: PlotMark(x=40, label="alarm: policy/entropy")."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotRow:
    """A value with its interval, on a line of its own. Example: PlotRow(label="level 5", value=0.2)."""

    label: str
    value: float
    low: float | None = None
    """Lower end of the interval. None if there is none."""
    high: float | None = None
    """Upper end of the interval. None together with `low`."""


def escape(text: object) -> Markup:
    """Return any text as markup that shows it. Control characters and lone surrogates become U+FFFD."""
    return Markup(html.escape(clean(str(text)), quote=True))


def clean(text: str) -> str:
    """Return a text with U+FFFD instead of control characters, changes of direction and lone surrogates."""
    return text.translate(_CLEANED)


def build_page(title: str, blocks: Iterable[Markup]) -> str:
    """Return the whole page, in UTF-8."""
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    )
    body = "\n".join(blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def build_heading(text: str) -> Markup:
    """Return the heading of a section."""
    return Markup(f"<h2>{escape(text)}</h2>")


def build_note(text: str) -> Markup:
    """Return a paragraph in small letters."""
    return Markup(f'<p class="note">{escape(text)}</p>')


def build_text(text: str) -> Markup:
    """Return a text with its line ends and spaces, for example a completion."""
    return Markup(f"<pre>{escape(text)}</pre>")


def build_details(summary: str, blocks: Iterable[Markup], *, is_open: bool = False) -> Markup:
    """Return a section that a reader unfolds."""
    opened = " open" if is_open else ""
    return Markup(f"<details{opened}><summary>{escape(summary)}</summary>{''.join(blocks)}</details>")


def build_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> Markup:
    """Return a table. All columns but the first `texts` hold numbers and are aligned to the right."""
    kinds = ["" if i < texts else ' class="number"' for i in range(len(heads))]
    head = "".join(f"<th{kind}>{escape(cell)}</th>" for kind, cell in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return Markup(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')


def build_line_plot(
    series: Sequence[PlotSeries],
    *,
    title: str,
    x_label: str,
    y_label: str,
    is_log: bool = False,
    marks: Sequence[PlotMark] = (),
) -> Markup:
    """Return lines over numbers, with intervals as bands. `is_log` draws x in powers of two. Empty without points.

    Points that are not finite, and marks outside the axis, are left out.
    """
    kept = [
        PlotSeries(name=one.name, points=[p for p in one.points if math.isfinite(p.x) and math.isfinite(p.y)])
        for one in series
    ]
    points = [point for one in kept for point in one.points]
    if not points:
        return Markup("")
    place: Callable[[float], float] = math.log2 if is_log else float
    x_axis = _Axis.build([place(p.x) for p in points], _LEFT, WIDTH - _RIGHT)
    ends = [end for p in points for end in (p.y, p.low, p.high) if end is not None and math.isfinite(end)]
    y_axis = _Axis.build(ends, HEIGHT - _BOTTOM, _TOP)
    ticks = sorted({p.x for p in points}) if is_log else x_axis.list_ticks()
    drawn = [_draw_frame(y_axis, [(x_axis.place(place(x)), _format(x)) for x in ticks], x_label, y_label)]
    drawn += [
        f'<line class="mark" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{HEIGHT - _BOTTOM}">'
        f"<title>{escape(mark.label)}</title></line>"
        for mark in marks
        if _LEFT <= (x := x_axis.place(place(mark.x))) <= WIDTH - _RIGHT
    ]
    for number, one in enumerate(kept):
        color = number % _COLORS
        at = [(x_axis.place(place(p.x)), p) for p in one.points]
        bounds = [(x, p.low, p.high) for x, p in at if p.low is not None and p.high is not None]
        if len(bounds) > 1:
            upper = [f"{x:.1f},{y_axis.place(high):.1f}" for x, _, high in bounds]
            lower = [f"{x:.1f},{y_axis.place(low):.1f}" for x, low, _ in reversed(bounds)]
            drawn.append(f'<polygon class="band f{color}" points="{" ".join(upper + lower)}"/>')
        path = " ".join(f"{x:.1f},{y_axis.place(p.y):.1f}" for x, p in at)
        drawn.append(f'<polyline class="series s{color}" points="{path}"/>')
        if len(at) <= 64:
            drawn += [
                f'<circle class="f{color}" cx="{x:.1f}" cy="{y_axis.place(p.y):.1f}" r="3"><title>'
                f"{escape(f'{one.name}: {_format(p.x)}, {_format(p.y)}')}</title></circle>"
                for x, p in at
            ]
    return _build_figure(title, drawn, HEIGHT, [one.name for one in kept], "curve")


def build_interval_plot(rows: Sequence[PlotRow], *, title: str, x_label: str) -> Markup:
    """Return one line per row, with a dot for its value and a whisker for its interval. Empty without rows."""
    if not rows:
        return Markup("")
    left, step = 220, 26
    height = _TOP + step * len(rows) + _BOTTOM
    ends = [end for row in rows for end in (row.value, row.low, row.high) if end is not None]
    axis = _Axis.build(ends, left, WIDTH - _RIGHT)
    bottom = height - _BOTTOM
    drawn = [f'<line class="axis" x1="{left}" y1="{bottom}" x2="{WIDTH - _RIGHT}" y2="{bottom}"/>']
    drawn += [
        f'<line class="axis" x1="{axis.place(x):.1f}" y1="{_TOP}" x2="{axis.place(x):.1f}" y2="{bottom}"/>'
        f'<text x="{axis.place(x):.1f}" y="{bottom + 16}" text-anchor="middle">{_format(x)}</text>'
        for x in axis.list_ticks()
    ]
    for number, row in enumerate(rows):
        y, color = _TOP + step * (number + 0.5), 0
        drawn.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(_shorten(row.label))}</text>')
        if row.low is not None and row.high is not None:
            drawn.append(
                f'<line class="whisker s{color}" x1="{axis.place(row.low):.1f}" y1="{y:.1f}" '
                f'x2="{axis.place(row.high):.1f}" y2="{y:.1f}"/>'
            )
        drawn.append(f'<circle class="f{color}" cx="{axis.place(row.value):.1f}" cy="{y:.1f}" r="4"/>')
    drawn.append(_draw_label(x_label, height))
    return _build_figure(title, drawn, height, [])


def build_bar_plot(bars: Sequence[tuple[str, float]], *, title: str, x_label: str, y_label: str) -> Markup:
    """Return one bar per label, for example a histogram. Empty without bars."""
    if not bars:
        return Markup("")
    axis = _Axis.build([0.0, *(value for _, value in bars)], HEIGHT - _BOTTOM, _TOP)
    step = (WIDTH - _LEFT - _RIGHT) / len(bars)
    every = max(1, len(bars) // 12)
    ticks = [(_LEFT + step * (i + 0.5), label) for i, (label, _) in enumerate(bars) if i % every == 0]
    drawn = [_draw_frame(axis, ticks, x_label, y_label)]
    for i, (label, value) in enumerate(bars):
        top = axis.place(value)
        drawn.append(
            f'<rect class="f0" x="{_LEFT + step * i + step * 0.1:.1f}" y="{top:.1f}" width="{step * 0.8:.1f}" '
            f'height="{HEIGHT - _BOTTOM - top:.1f}"><title>{escape(f"{label}: {_format(value)}")}</title></rect>'
        )
    return _build_figure(title, drawn, HEIGHT, [])


@dataclass(frozen=True, slots=True)
class _Axis:
    """A linear scale from values to coordinates."""

    low: float
    high: float
    step: float
    start: float
    """Coordinate of `low`."""
    end: float
    """Coordinate of `high`."""

    @classmethod
    def build(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        """Build a scale that contains all values and begins and ends at round numbers."""
        low, high = min(values), max(values)
        if low == high:
            low, high = (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        return cls(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step, start, end)

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def list_ticks(self) -> list[float]:
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]


def _draw_frame(y_axis: _Axis, x_ticks: Sequence[tuple[float, str]], x_label: str, y_label: str) -> str:
    bottom = HEIGHT - _BOTTOM
    drawn = [
        f'<line class="axis" x1="{_LEFT}" y1="{y_axis.place(y):.1f}" x2="{WIDTH - _RIGHT}" y2="{y_axis.place(y):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y_axis.place(y) + 4:.1f}" text-anchor="end">{_format(y)}</text>'
        for y in y_axis.list_ticks()
    ]
    drawn += [
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>' for x, label in x_ticks
    ]
    middle = (bottom + _TOP) / 2
    drawn.append(
        f'<text class="side" x="14" y="{middle:.1f}" text-anchor="middle" transform="rotate(-90 14 {middle:.1f})">'
        f"{escape(y_label)}</text>"
    )
    return "".join(drawn) + _draw_label(x_label, HEIGHT)


def _draw_label(text: str, height: float) -> str:
    return f'<text x="{WIDTH / 2}" y="{height - 8}" text-anchor="middle">{escape(text)}</text>'


def _build_figure(title: str, drawn: Iterable[str], height: float, names: Sequence[str], kind: str = "plot") -> Markup:
    legend = "".join(
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} 18"><line class="series s{i % _COLORS}" x1="{_LEFT}" y1="9" '
        f'x2="{_LEFT + 24}" y2="9"/><text x="{_LEFT + 32}" y="13">{escape(name)}</text></svg>'
        for i, name in enumerate(names)
        if len(names) > 1
    )
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
    return Markup(f"<figure>{head}{''.join(drawn)}</svg>{legend}<figcaption>{escape(title)}</figcaption></figure>")


def _format(value: float) -> str:
    return f"{value + 0.0:.4g}" if abs(value) > 1e-12 else "0"


def _shorten(text: str) -> str:
    return text if len(text) <= 32 else f"{text[:31]}\u2026"


class _Cleaned(dict[int, int]):
    """Replacement of each character by its code, computed at its first use. Texts of peers have millions of them."""

    def __missing__(self, code: int) -> int:
        self[code] = code if chr(code).isprintable() or chr(code) in "\n\t" or _is_plain(code) else 0xFFFD
        return self[code]


def _is_plain(code: int) -> bool:
    """Return whether a character that Python does not call printable is a space or an invisible mark, not a control."""
    is_control = code < 0x20 or 0x7F <= code < 0xA0
    is_direction = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return not (is_control or is_direction or 0xD800 <= code <= 0xDFFF or code & 0xFFFE == 0xFFFE)


_CLEANED = _Cleaned()
