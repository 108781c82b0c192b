"""From the error that goes along with the two-pole filter to error bars.

With ``L_i`` the mean of ``e_i²`` over the nodes around::

    s_i² = (e_i² + L_i)/2 + (0.002 rms(e))²

What passes through zero is as uncertain as around there. No value is known better than its own
rounding; and where the estimate was lost, ``s`` is as wide as the solution varies.
"""

from typing import Any

import numpy as np

from probode.engines.two_pole import vectors
from probode.engines.two_pole.machine import Carried
from probode.engines.two_pole.vectors import over
from probode.global_error import scales
from probode.global_error.between import Evaluator
from probode.global_error.closer import in_bars, missing, no_smaller
from probode.global_error.result import Calibration
from probode.global_error.two_pole import Transport

KIND = "two-pole"
"""``Calibration.kind`` of what is known at the nodes alone."""
_FLOOR = 0.002
_WINDOW, _LEAST = 0.02, 2
"""Nodes on each side that count as around: this part of all, and at least so many."""
_BLOCK = 2**15
"""Numbers of an array that are dealt with at a time."""
_EPSILON = float(np.finfo(float).eps)


@np.errstate(all="ignore")  # what overflows is seen by its signs
def calibration(mode: str, done: Transport, values: np.ndarray, std: np.ndarray) -> Calibration:
    """Scales and signs, from the errors of all nodes.

    ``values`` are those of all nodes, ``(N, d)``, and ``std`` the model's, ``(N,)``: one for all
    components. Nodes that the transport did not reach have no estimate (NaN).
    """
    error = done.errors[: len(values)]
    error = np.pad(error, ((0, len(values) - len(error)), (0, 0)), constant_values=np.nan)
    n, d = error.shape
    half, scale, sizes = max(_LEAST, int(_WINDOW * (n - 1))), np.empty_like(error), []
    floor = _FLOOR * np.sqrt(np.mean(error**2, axis=1, keepdims=True))
    some = max(1, _BLOCK // n)
    for begin in range(0, d, some):  # in pieces that fit the cache
        part = slice(begin, min(begin + some, d))
        off, y = np.abs(error[:, part]), values[:, part]
        known = np.where(np.isfinite(off), off, 0.0)
        around = np.sqrt(scales.window_mean(np, known[1:] ** 2, half)) if n > 1 else known
        around = np.concatenate([around[:1], around]) if n > 1 else known
        extent = y.max(axis=0) - y.min(axis=0)
        scale[:, part] = _scale(off, around, floor, y, extent)
        sizes.append((np.sum(known.max(axis=0) ** 2), np.sum(extent**2)))
    size = _size(*np.sum(sizes, axis=0))
    return _made(mode, error, scale, std, done.judged.signs(size), done.f)


def crossed(made: Calibration, f: Evaluator, t: Any, means: Any, std: np.ndarray) -> float:
    """Return ``kinks`` (:mod:`probode.global_error.closer`), which this estimate does not see.

    ``means`` are values and slopes at all nodes, ``(N, 2, d)``, ``std`` the model's deviations.
    """
    total, (n, _, d) = 0.0, means.shape
    size = max(1, _BLOCK // d)
    for begin in range(0, n - 1, size):
        some = np.arange(begin, min(begin + size, n - 1))
        missed = missing(f, 1, t, means, some, 1)
        scale = np.hypot(std[some + 1, None] * made.ratio[some + 1], made.own[some + 1])
        values = means[begin : some[-1] + 2, 0]
        total = np.hypot(total, in_bars(missed, no_smaller(scale, values)))
    return float(total)


class AtTimes:
    """Errors at chosen times, of a solve that keeps nothing else.

    Between two nodes they are linear in time. What lies around is a running mean over as many steps
    as the window has nodes otherwise.
    """

    def __init__(self, times: np.ndarray, t: float, y: np.ndarray, xp: Any = np) -> None:
        self._times, self._steps, self._xp = times, 0, xp
        self._last: tuple[float, Any] = t, np.zeros(y.size)
        self._square: Any = np.zeros(y.size)
        self._largest: Any = np.zeros(y.size)
        self._low, self._high = y.copy(), y.copy()
        self.errors: list[np.ndarray] = []
        self.around: list[np.ndarray] = []
        self.unsure: np.ndarray | None = None
        """How far the curve itself may be off there, between two nodes."""
        self._save(t, np.zeros(y.size))

    @property
    def scheme(self) -> tuple[tuple[float, float], np.ndarray]:
        """What counts as around, and the times."""
        return (_WINDOW, _LEAST), self._times

    def take(self, carried: Carried) -> None:
        """What the kernels have found."""
        self.errors, self.around = carried.errors, carried.around
        self._largest, self._low, self._high = carried.extremes

    @np.errstate(all="ignore")
    def __call__(self, t: float, y: Any, error: Any) -> None:
        """The next node, in arrays of the filter's: where they are on a device, all of this is."""
        self._steps += 1
        length = 2.0 * max(_LEAST, _WINDOW * self._steps) + 1.0
        part = 1.0 / min(self._steps, length)
        before = self._square, self._low, self._high, self._largest
        found = over(self._xp, vectors.gathered)(*before, y, error, part)
        self._square, self._low, self._high, self._largest = found
        self._save(t, error)
        self._last = (t, error)

    def _save(self, t: float, error: Any) -> None:
        before, known = self._last
        while len(self.errors) < len(self._times):
            time = float(self._times[len(self.errors)])
            if not min(before, t) <= time <= max(before, t):
                break
            part = 1.0 if t == before else (time - before) / (t - before)
            self.errors.append(np.asarray((1.0 - part) * known + part * error))
            self.around.append(np.sqrt(np.asarray(self._square)))

    @np.errstate(all="ignore")
    def calibration(self, mode: str, done: Transport, values: Any, std: Any) -> Calibration:
        """Of the times that were reached."""
        count, extent = len(values), np.asarray(self._high) - np.asarray(self._low)
        if not count:
            none = np.zeros(values.shape)
            return _made(mode, none, none, std, done.judged.signs(0.0), done.f)
        error, local = (np.stack(rows)[:count] for rows in (self.errors, self.around))
        floor = _FLOOR * np.sqrt(np.mean(local**2, axis=1, keepdims=True))
        scale = _scale(np.abs(error), local, floor, values, extent)
        if self.unsure is not None:
            scale = np.hypot(scale, self.unsure[:count])
        scale[np.all(local == 0.0, axis=1)] = 0.0  # at the start, which is exact
        size = _size(np.sum(np.asarray(self._largest) ** 2), np.sum(extent**2))
        return _made(mode, error, scale, std, done.judged.signs(size), done.f)


def _scale(off: Any, around: Any, floor: Any, y: Any, extent: Any) -> np.ndarray:
    """``s``, as above."""
    scale = np.sqrt(0.5 * (off**2 + around**2) + floor**2)
    scale = np.maximum(scale, _EPSILON * np.abs(y))
    return np.where(np.isfinite(scale), scale, extent)


def _size(errors: Any, extents: Any) -> float:
    """The largest errors in units of how much the solution varies, from sums of their squares.

    Of all components together: among thousands there is always one that hardly varies.
    """
    return float(np.sqrt(errors / extents)) if extents > 0.0 else 0.0


def _made(
    mode: str, error: np.ndarray, scale: np.ndarray, std: np.ndarray, signs: Any, f: int
) -> Calibration:
    """Factors of the model's standard deviations, or where these are zero, one's own."""
    known = (std > 0.0)[:, None]
    ratio = np.where(known, scale / np.where(known, std[:, None], 1.0), 1.0)
    own = np.where(known, 0.0, scale)
    if len(scale) > 1 and not known[0]:
        ratio[0] = ratio[1]
        if not np.any(error[0]):  # an exact start
            own[0] = 0.0
    rest = signs, f, 0
    return Calibration(mode, 1, KIND, error, None, ratio, own, *rest)  # type: ignore[arg-type]
