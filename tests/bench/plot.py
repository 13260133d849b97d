"""Bar charts as SVG text, readable on light and on dark paper. No library: bars, whiskers, an axis and a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, Literal

import msgspec

WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 960, 14, 12, 380, 130, 78
LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1f2328",
    "faint": "#d1d9e0",
    "0": "#0969da",
    "1": "#bc6c25",
    "goal": "#1a7f37",
}
DARK: Final = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#3d444d",
    "0": "#4493f8",
    "1": "#e3a765",
    "goal": "#57ab5a",
}


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A median with its range. `series` is an index into the names of the chart, which are two at most."""

    median: float
    low: float
    high: float
    text: str
    series: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Bars side by side under one label; `goal` is marked across them."""

    label: str
    bars: list[Bar]
    goal: float | None = None


Scale = Literal["linear", "log"]


def chart(title: str, subtitle: str, series: Sequence[str], groups: Sequence[Group], scale: Scale = "linear") -> str:
    """The text of an SVG file. On a logarithmic scale bars begin at 1 and go both ways; values are above 0 there."""
    axis = _Axis(groups, scale)
    parts, y = [], float(TOP)
    for group in groups:
        tall = BAR * len(group.bars)
        parts.append(_text(LEFT - 8, y + tall / 2 + 4, group.label, anchor="end"))
        for bar in group.bars:
            parts += _bar(bar, y, axis)
            y += BAR
        if group.goal is not None:
            at = axis.x(group.goal)
            parts.append(f'<line class="goal" x1="{at:.1f}" y1="{y - tall - 4:.1f}" x2="{at:.1f}" y2="{y + 4:.1f}"/>')
        y += GAP
    height = y + 36
    ticks = [
        f'<line class="faint" x1="{axis.x(at):.1f}" y1="{TOP - 6}" x2="{axis.x(at):.1f}" y2="{y:.1f}"/>'
        + _text(axis.x(at), y + 16, f"{at:g}", anchor="middle")
        for at in axis.ticks
    ]
    legend = [
        f'<rect class="s{n}" x="{LEFT + 130 * n}" y="{TOP - 24}" width="12" height="10"/>'
        + _text(LEFT + 130 * n + 18, TOP - 15, name)
        for n, name in enumerate(series)
    ]
    if any(group.goal is not None for group in groups):
        at = LEFT + 130 * len(series)
        legend.append(f'<line class="goal" x1="{at + 6}" y1="{TOP - 26}" x2="{at + 6}" y2="{TOP - 12}"/>')
        legend.append(_text(at + 18, TOP - 15, "to reach"))
    body = "\n".join([_text(12, 20, title, kind="title"), _text(12, 36, subtitle), *legend, *ticks, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img">\n<title>{escape(title)}</title>\n<style>{_style(LIGHT)}'
        f"@media (prefers-color-scheme: dark) {{{_style(DARK)}}}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{body}\n</svg>\n'
    )


class _Axis:
    def __init__(self, groups: Sequence[Group], scale: Scale) -> None:
        found = [value for group in groups for bar in group.bars for value in (bar.low, bar.high)]
        found += [group.goal for group in groups if group.goal is not None]
        self._is_log = scale == "log"
        if self._is_log:
            low, high = math.floor(math.log10(min(1.0, *found))), math.ceil(math.log10(max(1.0, *found)))
            self.ticks = [10.0**n for n in range(low, high + 1)]
            self.base = 1.0
        else:
            step = 10 ** math.floor(math.log10(max(found)))
            step = next(s for s in (step / 5, step / 2, step, step * 2) if max(found) / s <= 8)
            self.ticks = [n * step for n in range(math.ceil(max(found) / step) + 1)]
            self.base = 0.0
        self._low, self._high = self._at(self.ticks[0]), self._at(self.ticks[-1])

    def x(self, value: float) -> float:
        width = WIDTH - LEFT - RIGHT
        return LEFT + (self._at(value) - self._low) / ((self._high - self._low) or 1.0) * width

    def _at(self, value: float) -> float:
        return math.log10(value) if self._is_log else value


def _bar(bar: Bar, y: float, axis: _Axis) -> list[str]:
    left, right = sorted((axis.x(axis.base), axis.x(bar.median)))
    low, high, middle = axis.x(bar.low), axis.x(bar.high), y + BAR / 2
    return [
        f'<rect class="s{bar.series}" x="{left:.1f}" y="{y + 1:.1f}" width="{right - left:.1f}" height="{BAR - 2}"/>',
        f'<line class="ink" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>',
        _text(max(right, high) + 6, middle + 4, bar.text),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "text") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _style(colour: dict[str, str]) -> str:
    return (
        f".paper{{fill:{colour['paper']}}}.s0{{fill:{colour['0']}}}.s1{{fill:{colour['1']}}}"
        f"text{{fill:{colour['ink']};font:12px system-ui,sans-serif}}.title{{font-weight:600;font-size:15px}}"
        f".ink{{stroke:{colour['ink']}}}.faint{{stroke:{colour['faint']}}}"
        f".goal{{stroke:{colour['goal']};stroke-width:3}}"
    )
