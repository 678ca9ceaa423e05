"""Numbers to small SVG pictures that take their colours from the page. Each is made for a width of 340 pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 12, 26  # margins of what is drawn
STRIP = 9  # pixels of a worker's strip
MAX_STRIPS = 12
BINS = 68  # of time


@dataclass(frozen=True, slots=True)
class Span:
    """Some audio encoded by a worker in a span of time, seconds since 1970."""

    worker: str
    start: float
    stop: float
    audio_seconds: float


def short(number: float) -> str:
    """A number in few characters: 950, 2,048, 12.3k, 3.4M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def span_text(seconds: float) -> str:
    """Seconds in few characters: 0.4 s, 12 s, 3.2 min, 1.4 h."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"


def histogram(bars: Sequence[tuple[float, float, int]]) -> Markup:
    """bars: (from, to, clips) in seconds, evenly spaced."""
    top = nice_top(max(clips for *_, clips in bars))
    step = (WIDTH - LEFT - RIGHT) / len(bars)
    parts = [_grid(top)]
    for place, (start, stop, clips) in enumerate(bars):
        title = f"{span_text(start)} to {span_text(stop)}: {clips:,} clips"
        parts.append(_bar(LEFT + place * step, step, clips / top, title))
    parts += [_label(LEFT, span_text(bars[0][0]), "start"), _label(WIDTH - RIGHT, span_text(bars[-1][1]), "end")]
    if len(bars) > 3:
        middle = len(bars) // 2
        parts.append(_label(LEFT + middle * step, span_text(bars[middle][0]), "middle"))
    return _svg("How long the clips are", parts)


def per_codebook(values: Sequence[float], top: float, unit: str, title: str) -> Markup:
    """A column a codebook, on a scale to `top`."""
    step = (WIDTH - LEFT - RIGHT) / len(values)
    parts = [_grid(top)]
    for codebook, value in enumerate(values):
        words = f"codebook {codebook}: {value:,.4g} {unit}"
        parts.append(_bar(LEFT + codebook * step, step, value / top, words))
    each = max(1, -(-len(values) // 8))
    for codebook in range(0, len(values), each):
        parts.append(_label(LEFT + (codebook + 0.5) * step, str(codebook), "middle"))
    return _svg(title, parts)


def rows_by_kind(kinds: Sequence[tuple[str, int]]) -> Markup:
    """A bar a kind, longest first, with its number."""
    shown = list(kinds[:7])
    if len(kinds) > 7:
        shown = [*kinds[:6], (f"{len(kinds) - 6} more kinds", sum(rows for _, rows in kinds[6:]))]
    most = max(rows for _, rows in shown)
    parts = []
    for place, (kind, rows) in enumerate(shown):
        y = 8 + place * 25
        width = max(2.0, (WIDTH - 150) * rows / most)
        parts.append(Markup('<text class="kind" x="92" y="{}" text-anchor="end">{}</text>').format(y + 14, kind[:16]))
        parts.append(
            Markup(
                '<rect class="bar warn" x="100" y="{}" width="{:.1f}" height="18" rx="3"><title>{}</title></rect>'
            ).format(y, width, f"{kind}: {rows:,} rows")
        )
        parts.append(Markup('<text class="kind" x="{:.1f}" y="{}">{}</text>').format(106 + width, y + 14, short(rows)))
    return _svg("Rows without codes, by kind", parts, 16 + 25 * len(shown))


def throughput(spans: Sequence[Span]) -> Markup:
    """Times real time over time: all workers together as an area, each one's share as a strip beneath."""
    start, stop = min(span.start for span in spans), max(span.stop for span in spans)
    width = max(stop - start, 1e-3) / BINS
    workers = sorted({span.worker for span in spans})
    rates = {worker: _rates([s for s in spans if s.worker == worker], start, width) for worker in workers}
    total = sum(rates.values(), np.zeros(BINS))
    top = nice_top(float(total.max()))
    step = (WIDTH - LEFT - RIGHT) / BINS
    points = [f"{LEFT + (i + 0.5) * step:.1f},{_y(rate / top):.1f}" for i, rate in enumerate(total)]
    outline = " ".join([f"{LEFT + step / 2:.1f},{_y(0):.1f}", *points, f"{WIDTH - RIGHT - step / 2:.1f},{_y(0):.1f}"])
    parts = [_grid(top, "x")]
    parts.append(
        Markup('<polygon class="area" points="{}"/><polyline class="line" points="{}"/>').format(
            outline, " ".join(points)
        )
    )
    parts += [_label(LEFT, "0", "start"), _label(WIDTH - RIGHT, span_text(stop - start), "end")]
    busiest = max(float(each.max()) for each in rates.values())
    shown = workers[:MAX_STRIPS] if len(workers) > 1 else []
    for place, worker in enumerate(shown):
        parts.append(_strip(HEIGHT + 2 + place * (STRIP + 2), rates[worker] / max(busiest, 1e-9), worker or "worker"))
    return _svg("Speed over time", parts, HEIGHT + (4 + len(shown) * (STRIP + 2) if shown else 0))


def _rates(spans: list[Span], start: float, width: float) -> np.ndarray:
    """float64 [BINS]: seconds of audio a second of time; what a span did is spread evenly over it."""
    begin = np.array([span.start for span in spans])
    end = np.maximum(np.array([span.stop for span in spans]), begin + 1e-3)
    rate = np.array([span.audio_seconds for span in spans]) / (end - begin)
    edges = start + width * np.arange(BINS)
    return (
        np.array([(rate * np.clip(np.minimum(end, e + width) - np.maximum(begin, e), 0, None)).sum() for e in edges])
        / width
    )


def _strip(y: float, shares: np.ndarray, worker: str) -> Markup:
    step = (WIDTH - LEFT - RIGHT) / BINS
    cells = [
        Markup('<rect class="cell" x="{:.1f}" y="{}" width="{:.2f}" height="{}" opacity="{:.2f}"/>').format(
            LEFT + i * step, y, step, STRIP, 0.08 + 0.92 * share
        )
        for i, share in enumerate(shares)
    ]
    title = Markup("<title>{}</title>").format(worker)
    return Markup('<g shape-rendering="crispEdges">{}{}</g>').format(title, Markup("").join(cells))


def nice_top(value: float) -> float:
    """The end of an axis: the value rounded up to a number that halves well."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return next(float(step * power) for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _grid(top: float, unit: str = "") -> Markup:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _y(share)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, short(top * share) + unit)
        )
    return Markup("").join(parts)


def _bar(x: float, step: float, share: float, title: str) -> Markup:
    gap = min(4.0, step * 0.2)
    height = max(share * (HEIGHT - TOP - BOTTOM), 1.0 if share > 0 else 0.0)
    return Markup(
        '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"><title>{}</title></rect>'
    ).format(x + gap / 2, _y(0) - height, step - gap, height, title)


def _label(x: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(x, HEIGHT - 8, anchor, text)


def _svg(title: str, parts: Sequence[Markup], height: float = HEIGHT) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, height, escape(title), Markup("").join(parts)
    )
