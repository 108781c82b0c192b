"""Zeros of functions of time and state along a curve that is a polynomial on each step.

Every function is sampled in *cells* (:mod:`probode.posterior.cells`): a step each, or less where
the step is long in comparison to the interval or the curve bends too much. A cell is cut in two as
long as it may hold more than one zero, or as long as the quartic through its samples does not
describe the function. This separates crossings within one long step, however close to each other,
where the function is smooth on the scale of the samples: for functions that are affine in
the state always, since the cells follow the curve; for others, where they do not oscillate between
samples.

A function that stays at zero crosses where it arrives there and where it leaves, in the direction
in which it moves: once if it goes on to the other side. At the start it only leaves. What touches
zero and turns back does not cross it.

Rounding moves a function that stays at zero to either side of it. Its values in a cell therefore
count as zero where they are tiny, and change by much less than the terms of which they are made::

    |g|  <= 1e-9 (sum_i |y_i dg/dy_i| + |t dg/dt|)
    |Δg| <= 1e-3 (sum_i |Δy_i dg/dy_i| + |Δt dg/dt|)

or where ``|g|`` is less than ``8 eps`` times the first sum.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from probode.posterior.cells import (
    COARSE,
    PARTS,
    Bracket,
    Cells,
    Samples,
    bracketed_zeros,
    is_noise,
    is_open,
    levels_of_curve,
    levels_of_length,
)
from probode.posterior.hermite import Curve, horner

Function = Callable[[float, np.ndarray], float]

_DEEPEST = 52
_CROWD = 16
"""More unsettled small cells than this within a step: noise rather than a function."""
_BLOCK = 2**17
"""Numbers that are held at once when states are sampled."""
_BESIDE = 1e-9
"""So far (in parts of the distance between samples) from a zero a function is probed."""
_ROUNDING, _CANCELLED = 1e-9, 1e-3
"""Largest function values and changes that count as rounding, as parts of their terms."""
_LAST_DIGITS = 8.0 * float(np.finfo(float).eps)
_MOVED, _PROBES = 1e-6, 3
"""Relative change of a state that shows how large the terms are, and the number of changes."""


class Crossing(NamedTuple):
    """A zero of one of the functions."""

    t: float
    event: int
    step: int
    s: float
    """The part of the step after which it lies."""


class Search:
    """The functions whose crossings are wanted, and what is known of them from earlier curves.

    ``convert`` turns the curve's states (several, along the first axis) into the functions' own.
    ``leaves`` are the signs that functions have soon after the curve begins, of those that begin
    with a zero which is not to be counted: they are taken to have them from the start.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        directions: Sequence[float],
        leaves: Sequence[float] | None = None,
        convert: Callable[[np.ndarray], np.ndarray] = lambda y: y,
    ) -> None:
        self.functions, self.directions, self.convert = functions, directions, convert
        self._leaves = [0.0] * len(functions) if leaves is None else list(leaves)
        self._before = [0.0] * len(functions)
        """The sign that each function had before the curve begins; zero: it begins there."""

    def __call__(self, curve: Curve) -> list[Crossing]:
        """All crossings along the curve, which goes on where the last one ended, in its order."""
        if len(curve.t) < 2:
            return []
        found: list[tuple[int, int, float]] = []
        brackets: list[tuple[int, Bracket]] = []
        cells, values = self._sample(curve)
        for k, value in enumerate(values):
            self._settle(k, curve, cells, value)
            samples = self._refine(k, curve, cells, value)
            for j in self._changes(k, samples):
                bracket = samples.around(j)
                if bracket.left == 0.0 or bracket.right == 0.0:
                    found.append((k, bracket.step, self._edge(k, curve, bracket)))
                else:
                    brackets.append((k, bracket))
        found += self._solve(curve, brackets)
        if not found:
            return []
        event, step, s = (np.array(x) for x in zip(*found, strict=True))
        order = np.lexsort((event, s, step))
        rows = (x[order].tolist() for x in (curve.time(step, s), event, step, s))
        return [Crossing(*row) for row in zip(*rows, strict=True)]

    def evaluate(self, k: int, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Values of function ``k`` at several times, with their states in the curve's form."""
        return _call(self.functions[k], t, self.convert(y))

    def _at(self, k: int, curve: Curve, step: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Values at parts ``s`` of the steps, ``(len(step), parts)``."""
        t, y = _along(curve, step, s, curve.pieces(step))
        return self.evaluate(k, t, y).reshape(s.shape)

    def _sample(self, curve: Curve) -> tuple[Cells, np.ndarray]:
        """Cells that cover the curve, and the functions' values at the samples in their order."""
        steps, d = len(curve.h), curve.derivatives.shape[-1]
        parts = np.arange(PARTS) / PARTS
        cells, values = [], []
        size = max(1, _BLOCK // (2 * d * curve.derivatives.shape[1]))
        for begin in range(0, steps, size):
            step = np.arange(begin, min(begin + size, steps))
            pieces = curve.pieces(step)
            some = Cells.of(
                step, np.maximum(levels_of_curve(pieces), levels_of_length(curve, step))
            )
            cells.append(some)
            t, y = _along(curve, some.step, some.at(parts), pieces[:, some.step - begin])
            if begin + size >= steps:
                t, y = np.append(t, curve.t[-1]), np.append(y, curve.derivatives[-1:, 0], axis=0)
            values.append([self.evaluate(k, t, y) for k in range(len(self.functions))])
        joined = Cells(*(np.concatenate(x) for x in zip(*cells, strict=True)))
        return joined, np.concatenate(values, axis=1)

    def _settle(self, k: int, curve: Curve, cells: Cells, values: np.ndarray) -> None:
        """Set values to zero in cells where they are rounding: their sign means nothing.

        The terms are estimated at the first cell and at all cells that may hold a zero; other
        cells take the estimate of the last one before them.
        """
        if not np.any(values):
            return
        v = np.lib.stride_tricks.sliding_window_view(values, PARTS + 1)[::PARTS]
        low, high = np.min(v, axis=1), np.max(v, axis=1)
        largest = np.maximum(-low, high)
        near = (low <= 0.0) & (high >= 0.0) & (largest > 0.0)
        near[0] = True
        t, y, _, _ = _moves(curve, Cells(*(x[near] for x in cells)))
        terms = self._terms(k, t, y, v[near, 0], _MOVED * t, _MOVED * y) / _MOVED
        terms = terms[np.cumsum(near) - 1]
        small = np.flatnonzero(largest <= _ROUNDING * terms)
        if len(small) == 0:
            return
        t, y, ahead, change = _moves(curve, Cells(*(x[small] for x in cells)))
        moved = self._terms(k, t, y, v[small, 0], ahead, change)
        digits = _LAST_DIGITS * terms[small]
        # Nothing is seen to move in a cell that is too short: it is like the next one.
        short = digits > _CANCELLED * moved
        stays = ~short & ((high - low)[small] <= _CANCELLED * moved)
        stays |= largest[small] <= digits
        for i in np.flatnonzero(short)[::-1].tolist():
            follows = i + 1 < len(small) and small[i + 1] == small[i] + 1
            stays[i] |= stays[i + 1] if follows else small[i] == len(v) - 1
        small = small[stays]
        values[(small * PARTS)[:, None] + np.arange(PARTS + 1)] = 0.0

    def _terms(
        self, k: int, t: np.ndarray, y: np.ndarray, g: np.ndarray, dt: np.ndarray, dy: np.ndarray
    ) -> np.ndarray:
        """``sum_i |dy_i dg/dy_i| + |dt dg/dt|`` to an order of magnitude, ``g`` being ``g(t, y)``.

        The components move together by pseudo-random parts of ``dy``, several times; the largest
        change of ``g`` counts. Zero where ``g`` cannot be evaluated at such states.
        """
        parts = np.random.default_rng(0).uniform(-1.0, 1.0, (_PROBES, y.shape[1]))
        try:
            moved = [self.evaluate(k, t, y + part * dy) for part in parts]
            later = self.evaluate(k, t + dt, y)
        except (ArithmeticError, ValueError):
            return np.zeros(len(t))
        found: np.ndarray = np.max(np.abs(np.array(moved) - g), axis=0) + np.abs(later - g)
        return np.nan_to_num(found, posinf=0.0)

    def _refine(self, k: int, curve: Curve, cells: Cells, values: np.ndarray) -> Samples:
        """Cut cells until each holds one zero at most."""
        samples = Samples.of(cells, values)
        step, a, width = cells
        v = np.lib.stride_tricks.sliding_window_view(values, PARTS + 1)[::PARTS]
        more: list[Samples] = []
        for depth in range(_DEEPEST):
            cut = is_open(v, depth)
            if depth > COARSE:
                cut &= np.bincount(step[cut], minlength=len(curve.h))[step] <= _CROWD
            if not np.any(cut):
                break
            step, a, width, v = step[cut], a[cut], width[cut], v[cut]
            s = Cells(step, a, width).at((np.arange(PARTS) + 0.5) / PARTS)
            new = self._at(k, curve, step, s)
            if depth > COARSE:
                told = ~is_noise(v, new)
                step, a, width, v, s, new = (x[told] for x in (step, a, width, v, s, new))
            more.append(Samples(np.repeat(step, PARTS), s.reshape(-1), new.reshape(-1)))
            both = np.empty((len(v), 2 * PARTS + 1))
            both[:, ::2], both[:, 1::2] = v, new
            v = np.concatenate([both[:, : PARTS + 1], both[:, PARTS:]])
            width = np.tile(width / 2, 2)
            step, a = np.tile(step, 2), np.tile(a, 2) + np.repeat([0.0, 1.0], len(a)) * width
        return samples.joined(more) if more else samples

    def _changes(self, k: int, samples: Samples) -> list[int]:
        """The samples after which the sign changes, in the wanted direction."""
        sign = np.sign(samples.value)
        if self._leaves[k] != 0.0:
            there = np.flatnonzero(sign == self._leaves[k])
            sign[: there[0] if len(there) else len(sign)] = self._leaves[k]
            if len(there):
                self._leaves[k] = 0.0
        wanted = self.directions[k]
        last = self._before[k]  # the sign before zero was reached
        arrived = 0  # where that was
        found = []
        for j in np.flatnonzero(sign[1:] != sign[:-1]).tolist():
            old, new = sign[j], sign[j + 1]
            if np.isnan(old) or np.isnan(new):
                last = np.nan
                continue
            if new == 0.0:
                last, arrived = old, j + 1
                touches = bool(np.any(sign[j + 2 : j + 3] == old))
                counts, direction = not touches, -old
            elif old == 0.0:  # going on to the other side was counted when it arrived at zero
                touches = last == new and arrived == j
                counts, direction = last in (0.0, new) and not touches, new
            else:
                counts, direction = True, new
            if counts and wanted * direction >= 0.0:
                found.append(j)
        self._before[k] = float(sign[-1]) if sign[-1] != 0.0 else float(last)
        return found

    def _edge(self, k: int, curve: Curve, bracket: Bracket) -> float:
        """The end of an interval of zeros, between a sample in it and one outside."""
        zero, other = bracket.a, bracket.b
        if bracket.left != 0.0:
            zero, other = other, zero

        def is_zero(s: float) -> bool:
            return bool(self._at(k, curve, np.array([bracket.step]), np.array([[s]])) == 0.0)

        if not is_zero(zero + _BESIDE * (other - zero)):
            return zero
        while (middle := 0.5 * (zero + other)) not in (zero, other):
            if is_zero(middle):
                zero = middle
            else:
                other = middle
        return zero

    def _solve(
        self, curve: Curve, brackets: list[tuple[int, Bracket]]
    ) -> list[tuple[int, int, float]]:
        """Zeros of all functions between samples of different signs."""
        if not brackets:
            return []
        event = np.array([k for k, _ in brackets])
        step, a, b, va, vb = (np.array(x) for x in zip(*(x for _, x in brackets), strict=True))
        pieces, t, h = curve.pieces(step), curve.t[step], curve.h[step]
        resolution = 0.5 * np.spacing(np.abs(t)) / np.abs(h)

        def values(i: np.ndarray, s: np.ndarray) -> np.ndarray:
            y, result = horner(pieces[:, i], s), np.empty(len(i))
            for k in np.unique(event[i]):
                mine = event[i] == k
                result[mine] = self.evaluate(k, (t[i] + s * h[i])[mine], y[mine])
            return result

        roots = bracketed_zeros(values, a, b, va, vb, resolution)
        return [(int(k), int(i), float(s)) for k, i, s in zip(event, step, roots, strict=True)]


def _moves(curve: Curve, cells: Cells) -> tuple[np.ndarray, ...]:
    """Times and states at the beginning of cells, and their changes until the end."""
    ends = cells.at(np.array([0.0, 1.0]))
    t, y = _along(curve, cells.step, ends, curve.pieces(cells.step))
    return t[::2], y[::2], t[1::2] - t[::2], y[1::2] - y[::2]


def _along(
    curve: Curve, step: np.ndarray, s: np.ndarray, pieces: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Times and states at parts ``s``, ``(len(step), parts)``, of steps with these polynomials."""
    t = curve.t[step, None] + s * curve.h[step, None]
    return t.reshape(-1), horner(pieces[:, :, None], s).reshape(t.size, -1)


def _call(function: Function, t: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = np.array(y)  # its own, whatever it does with it
    values = [function(*point) for point in zip(t, y, strict=True)]
    try:
        array = np.array(values)
        if array.dtype.kind not in "biuf":
            array = np.array([float(value) for value in values])
        return array.astype(float, copy=False).reshape(len(t))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"an event must return one real number for a time and a state, got {values[0]!r}."
        ) from error
