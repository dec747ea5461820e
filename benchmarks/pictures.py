"""Pictures as SVG, without a library: the lanes of a timeline, and lines over logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, TOP, LANE = 960, 250, 56, 24
FILLS = {"way": "#1f5fa8", "beside": "#b9cfe6", "wait": "#e0653a"}
LINES = ("#1f5fa8", "#e0653a", "#3a8f5c", "#8a5fb0", "#777777")
LEGEND = (("way", "runs, and the caller waits for it"), ("wait", "woken, waits for a processor"), ("beside", "runs beside"))


def _svg(height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def draw_timeline(
    title: str, bars: Sequence[tuple[str, float, float, str]], links: Sequence[tuple[float, str, str]], total: float
) -> str:
    """Draw bars (lane, from, until, kind) and links (when, lane, lane) on a scale of µs; lanes are in the order of their bars."""
    lanes = list(dict.fromkeys(lane for lane, *_ in sorted(bars, key=lambda bar: bar[1])))
    height, scale = TOP + LANE * len(lanes) + 30, (WIDTH - LEFT - 20) / total
    parts = [_text(10, 20, f"{title}, {total:.0f} µs", size=14)]
    for index, (kind, meaning) in enumerate(LEGEND):
        x = float(LEFT + index * 230)
        parts += [f'<rect x="{x}" y="28" width="12" height="12" fill="{FILLS[kind]}"/>', _text(x + 18, 39, meaning)]
    step = next(step for step in (50, 100, 200, 500, 1000, 2000, 5000, 10**5) if total / step <= 12)
    for tick in range(0, int(total) + 1, step):
        x = LEFT + tick * scale
        parts += [_rule(x, TOP - 6, x, height - 24), _text(x, height - 8, f"{tick}", "middle")]
    parts += [_text(LEFT - 8, TOP + LANE * row + 14, lane, "end") for row, lane in enumerate(lanes)]
    order = {kind: number for number, kind in enumerate(("beside", "wait", "way"))}
    for lane, began, ended, kind in sorted(bars, key=lambda bar: order[bar[3]]):
        x, y = LEFT + began * scale, TOP + LANE * lanes.index(lane)
        width = max(0.6, (ended - began) * scale)
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="18" fill="{FILLS[kind]}"/>')
    for at, *pair in links:
        x, ends = LEFT + at * scale, sorted(TOP + 9 + LANE * lanes.index(lane) for lane in pair)
        parts.append(f'<line x1="{x:.1f}" y1="{ends[0]}" x2="{x:.1f}" y2="{ends[1]}" stroke="#222222" stroke-width="0.8"/>')
    return _svg(height, parts)


def draw_lines(title: str, x_label: str, y_label: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw lines of points over logarithmic axes; an x of 0 stands half a step left of the least other one."""
    height, bottom, right = 420, 370, WIDTH - 230
    points = [point for line in lines.values() for point in line]
    least = min((x for x, _ in points if x > 0), default=1.0)

    def place(x: float) -> float:
        return math.log10(x if x > 0 else least / 2)

    xs, ys = [place(x) for x, _ in points], [math.log10(max(y, 1e-6)) for _, y in points]
    low_x, high_x, low_y, high_y = min(xs), max(xs) + 1e-9, math.floor(min(ys)), math.ceil(max(ys) + 1e-9)

    def at(x: float, y: float) -> tuple[float, float]:
        across = 70 + (place(x) - low_x) / (high_x - low_x) * (right - 70)
        return across, bottom - (math.log10(max(y, 1e-6)) - low_y) / (high_y - low_y) * (bottom - 60)

    parts = [_text(10, 20, title, size=14), _text(10, 42, y_label), _text(right, height - 10, x_label, "end")]
    for power in range(low_y, high_y + 1):
        y = at(least, 10.0**power)[1]
        parts += [_rule(70, y, right, y), _text(64, y + 4, f"{10.0**power:g}", "end")]
    for x in sorted({x for x, _ in points}):
        parts += [_rule(at(x, 1)[0], 60, at(x, 1)[0], bottom), _text(at(x, 1)[0], bottom + 18, f"{x:,g}", "middle")]
    for index, (name, line) in enumerate(lines.items()):
        color, places = LINES[index % len(LINES)], [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        parts.append(f'<text x="{right + 12}" y="{72 + 18 * index}" fill="{color}">{escape(name)}</text>')
    return _svg(height, parts)
