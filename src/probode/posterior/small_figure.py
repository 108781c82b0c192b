"""A small figure of a posterior as SVG: what a notebook shows, without Matplotlib."""

from html import escape
from typing import NamedTuple

import numpy as np

from probode.posterior.axes import PALETTE, named
from probode.posterior.curves import (
    BAND,
    STILL_SEEN,
    curves,
    few,
    steps_grow,
    usual_size,
    within_reach,
)
from probode.posterior.posterior import Posterior

_WIDTH, _HEIGHT = 460.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58.0, 44.0, 6.0, 20.0
_MOST_POINTS = 300


class _Axis(NamedTuple):
    """From numbers to places along an edge of the figure."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        extent = self.high - self.low
        share = (values - self.low) / extent if extent > 0.0 else 0.5 + 0.0 * values
        return self.start + share * (self.end - self.start)


def small_figure(pieces: list[Posterior], names: list[str]) -> str:
    """The solution with its band of 95 %; nothing for one time, or for many components.

    With several pieces curves have gaps between them, where the solution jumps.
    """
    every = [curves(piece, names) for piece in pieces]
    if max(drawn.t.size for drawn in every) < 2 or not named(every[0]):
        return ""
    nodes, t, mean, std = (
        np.concatenate([getattr(drawn, name) for drawn in every])
        for name in ("nodes", "t", "mean", "std")
    )
    piece = np.repeat(np.arange(len(every)), [drawn.t.size for drawn in every])
    log = steps_grow(nodes)
    usual = None if bool(pieces[-1].success) else usual_size(t, mean)
    some = few(np.flatnonzero(t > 0.0) if log else np.arange(t.size), _MOST_POINTS)
    t, mean, std, piece = t[some], mean[some], std[some], piece[some]
    low, high = mean - BAND * std, mean + BAND * std
    if usual is None:
        seen = np.append(within_reach(mean, np.stack([low, high])), mean)
    else:  # it grows out of sight, and with it the band
        seen = np.clip(mean, -STILL_SEEN * usual, STILL_SEEN * usual)
    seen = seen[np.isfinite(seen)]
    if not seen.size:
        return ""
    place = np.log(t) if log else t
    across = _Axis(place.min(), place.max(), _LEFT, _WIDTH - _RIGHT)
    upward = _Axis(seen.min(), seen.max(), _HEIGHT - _BOTTOM, _TOP)
    x = across(place)
    parts = []
    for i, (name, color) in enumerate(zip(every[0].names, PALETTE, strict=False)):
        for k in np.unique(piece):
            here = piece == k
            shade = np.append(low[here, i], high[here, i][::-1]).clip(upward.low, upward.high)
            parts.append(_polygon(np.append(x[here], x[here][::-1]), upward(shade), color))
            middle = mean[here, i].clip(upward.low, upward.high)
            parts.append(_line(x[here], upward(middle), color))
        parts.append(_text(_WIDTH - _RIGHT + 6, _TOP + 9 + 14 * i, name, "start", color))
    bottom = _HEIGHT - _BOTTOM
    for value, y in ((upward.high, _TOP + 8), (upward.low, bottom)):
        parts.append(_text(_LEFT - 5, y, f"{value:.4g}", "end"))
    for value, at, anchor in ((t[0], x[0], "start"), (t[-1], x[-1], "end")):
        parts.append(_text(at, bottom + 14, f"t = {value:.4g}", anchor))
    corner, right = f'x1="{_LEFT}" y1="{bottom}"', _WIDTH - _RIGHT
    for end in (f'x2="{_LEFT}" y2="{_TOP}"', f'x2="{right}" y2="{bottom}"'):
        parts.append(f'<line {corner} {end} stroke="currentColor" opacity="0.5"/>')
    size = f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}"'
    style = 'style="display: block; max-width: 100%"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'


def _points(x: np.ndarray, y: np.ndarray) -> str:
    good = np.isfinite(x) & np.isfinite(y)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x[good], y[good], strict=True))


def _polygon(x: np.ndarray, y: np.ndarray, color: str) -> str:
    return f'<polygon points="{_points(x, y)}" fill="{color}" opacity="0.25"/>'


def _line(x: np.ndarray, y: np.ndarray, color: str) -> str:
    points = _points(x, y)
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'


def _text(x: float, y: float, text: str, anchor: str, color: str = "currentColor") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="11" fill="{color}">{escape(text)}</text>'
