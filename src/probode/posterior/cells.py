"""Cells: parts of steps, and how many zeros of a function may be in each.

A cell has five equidistant samples. The quartic through them tells by the signs of its Bernstein
coefficients how many zeros it has: none if all agree, one if they change once (Descartes' rule).
"""

from collections.abc import Callable
from math import comb
from typing import NamedTuple

import numpy as np

from probode.posterior.hermite import Curve

PARTS = 4
"""Parts of a cell: as many as the degree of the polynomial through its samples."""
COARSE = 6
"""A function that no quartic describes (a kink, a jump) is followed down to a 64th of a cell."""
_NOISE = 8.0
"""Values that are less than this times what quartics miss of them are rounding."""
_UNRESOLVED = 0.05
"""Part of a curve's movement in a cell that may come from degrees beyond that of the samples."""
_ITERATIONS = 200
_EPSILON = float(np.finfo(float).eps)


def _powers(x: np.ndarray) -> np.ndarray:
    return x[:, None] ** np.arange(PARTS + 1)


_GRID = np.arange(PARTS + 1) / PARTS
_BINOMIALS = np.array([comb(PARTS, k) for k in range(PARTS + 1)])
_TO_BERNSTEIN = np.linalg.inv(_BINOMIALS * _powers(_GRID) * _powers(1.0 - _GRID)[:, ::-1])
"""From the values of a quartic on the grid to its Bernstein coefficients."""
_TO_MIDDLES = _powers(_GRID[:-1] + 0.5 / PARTS) @ np.linalg.inv(_powers(_GRID))
"""From the values of a quartic on the grid to those in the middle between them."""
_FOURTH_DIFFERENCE = np.array([1.0, -4.0, 6.0, -4.0, 1.0])


class Cells(NamedTuple):
    """Parts of steps: from ``a`` on, ``width`` long."""

    step: np.ndarray
    a: np.ndarray
    width: np.ndarray

    @staticmethod
    def of(step: np.ndarray, levels: np.ndarray) -> "Cells":
        """Steps cut into ``2^level`` equal parts each."""
        count = 2**levels
        number = np.arange(np.sum(count)) - np.repeat(np.cumsum(count) - count, count)
        width = np.repeat(1.0 / count, count)
        return Cells(np.repeat(step, count), number * width, width)

    def at(self, parts: np.ndarray) -> np.ndarray:
        """Parts of the steps at parts of the cells, ``(cells, parts)``."""
        return self.a[:, None] + self.width[:, None] * parts


class Bracket(NamedTuple):
    """A part of a step from ``a`` to ``b``, with the values of a function there."""

    step: int
    a: float
    b: float
    left: float
    right: float


class Samples(NamedTuple):
    """Values of a function at parts ``s`` of steps, in the order of the curve."""

    step: np.ndarray
    s: np.ndarray
    value: np.ndarray

    @staticmethod
    def of(cells: Cells, values: np.ndarray) -> "Samples":
        """From values at equal parts of all cells, and at the end."""
        s = cells.at(np.arange(PARTS) / PARTS)
        step = np.append(np.repeat(cells.step, PARTS), cells.step[-1])
        return Samples(step, np.append(s, 1.0), values)

    def joined(self, more: "list[Samples]") -> "Samples":
        """With further samples, in order."""
        step, s, value = (np.concatenate(x) for x in zip(self, *more, strict=True))
        order = np.lexsort((s, step))
        return Samples(step[order], s[order], value[order])

    def around(self, j: int) -> Bracket:
        """From sample ``j`` to the next; a node is the first sample of the step that it begins."""
        step = int(self.step[j])
        end = float(self.s[j + 1]) if self.step[j + 1] == step else 1.0
        return Bracket(step, float(self.s[j]), end, *self.value[j : j + 2].tolist())


def levels_of_length(curve: Curve, step: np.ndarray) -> np.ndarray:
    """How often to cut the steps so that no part is longer than a 64th of the curve."""
    share = np.abs(curve.h[step] / (curve.t[-1] - curve.t[0]))
    return np.clip(np.ceil(np.log2(2.0**COARSE * share) - 1e-9), 0, COARSE).astype(int)


def levels_of_curve(pieces: np.ndarray) -> np.ndarray:
    """How often to cut each step so that the curve is close to a quartic on each part.

    A part of relative length ``w`` has coefficients ``c_p w^p``.
    """
    size = np.abs(pieces[1:])
    rounding = 1e-10 * np.abs(pieces[0])
    levels = np.zeros(pieces.shape[1], int)
    for level in range(COARSE):
        beyond, within = np.sum(size[PARTS:], axis=0), np.sum(size[:PARTS], axis=0)
        bent = np.any(beyond > _UNRESOLVED * within + rounding, axis=-1)
        if not np.any(bent):
            break
        levels[bent] = level + 1
        size = size * 0.5 ** np.arange(1.0, len(size) + 1)[:, None, None]
    return levels


def is_open(v: np.ndarray, depth: int) -> np.ndarray:
    """Whether more than one zero may be in each cell, given its five values."""
    ends = v[:, [0, -1]]
    with np.errstate(all="ignore"):
        bernstein = v @ _TO_BERNSTEIN.T
        bernstein[:, [0, -1]] = ends
        largest = np.max(np.abs(v), axis=1)
        # What the quartic misses: fifth differences are at most four times the fourth, say, and
        # the error of interpolation is a thirtieth of them.
        missed = 0.125 * np.abs(v @ _FOURTH_DIFFERENCE)
    size = np.abs(bernstein)
    size[:, [0, -1]] = np.where(ends == 0.0, np.inf, size[:, [0, -1]])
    zeros = _sign_changes(bernstein) + np.sum(ends == 0.0, axis=1)
    opened = zeros > 1
    if depth < COARSE:
        opened |= np.where(zeros == 0, np.min(size, axis=1) <= missed, missed > largest / 8)
    return opened & np.isfinite(largest) & (np.sum(v == 0.0, axis=1) < 2)


def is_noise(v: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Whether values are no larger than what the quartics miss of new ones: rounding."""
    with np.errstate(all="ignore"):
        missed = np.max(np.abs(new - v @ _TO_MIDDLES.T), axis=1)
        return ~(np.max(np.abs(v), axis=1) > _NOISE * missed)


def _sign_changes(rows: np.ndarray) -> np.ndarray:
    """Changes of sign along each row, zeros left out."""
    positive = rows > 0.0
    changes = np.zeros(len(rows), int)
    known = rows[:, 0] != 0.0
    last = positive[:, 0]
    for j in range(1, rows.shape[1]):
        here = rows[:, j] != 0.0
        changes += known & here & (positive[:, j] != last)
        last = np.where(here, positive[:, j], last)
        known |= here
    return changes


def bracketed_zeros(
    function: Callable[[np.ndarray, np.ndarray], np.ndarray],
    a: np.ndarray,
    b: np.ndarray,
    fa: np.ndarray,
    fb: np.ndarray,
    resolution: np.ndarray,
) -> np.ndarray:
    """Zeros of many functions at once: Chandrupatla's method (1997).

    ``function(i, x)`` evaluates the functions number ``i`` at ``x``; ``fa`` and ``fb`` differ in
    sign. Zeros are exact up to rounding and to ``resolution``.
    """
    root = np.empty(len(a))
    i, part = np.arange(len(a)), np.full(len(a), 0.5)
    for _ in range(_ITERATIONS):
        x = a + part * (b - a)
        fx = function(i, x)
        same = (fx > 0.0) == (fa > 0.0)
        c, fc = np.where(same, a, b), np.where(same, fa, fb)
        b, fb = np.where(same, b, a), np.where(same, fb, fa)
        a, fa = x, fx
        best = np.where(np.abs(fa) < np.abs(fb), a, b)
        tolerance = 2 * _EPSILON * np.abs(best) + resolution[i]
        limit = tolerance / np.maximum(np.abs(b - a), tolerance)
        done = (limit > 0.5) | (fa == 0.0) | np.isnan(fa)
        root[i] = np.where(np.isnan(fa), b, best)
        if np.all(done):
            break
        i, a, b, c, fa, fb, fc, limit = (x[~done] for x in (i, a, b, c, fa, fb, fc, limit))
        with np.errstate(all="ignore"):
            where, height = (a - b) / (c - b), (fa - fb) / (fc - fb)
            curved = (height**2 < where) & ((1 - height) ** 2 < 1 - where)
            quadratic = fa / (fb - fa) * fc / (fb - fc)
            quadratic += (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        part = np.clip(np.where(curved, quadratic, 0.5), limit, 1 - limit)
    return root
