"""Whether a traced function does what the user's function does, at a few points."""

import math
import time
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np

from probode.programs.tracing.alone import printed, quiet
from probode.programs.tracing.evaluate import Evaluator

TOLERANCE = 1e-9
"""Relative difference between the two that is put down to rounding, if terms do not cancel."""

_SIZE = 0.1
_MORE_POINTS = 32
_GOLDEN = 0.6180339887498949


class Reference:
    """The user's function with NumPy arrays, evaluated around ``y0`` over the time span.

    Parameters
    ----------
    fun, args
        The user's function and its further arguments.
    t_span, y0
        Where it is evaluated. An exception at ``(t0, y0)`` is the user's; points around it may lie
        where the function is not defined, and are left out.
    extra_points
        Number of points away from ``y0``, every other one with other signs.

    Attributes
    ----------
    first, seconds, prints
        The value at ``(t0, y0)``, how long a call takes, whether the function prints (what it
        prints here is not shown).
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        t_span: tuple[float, float],
        y0: np.ndarray,
        extra_points: int,
    ) -> None:
        self._fun, self._args, self._y0 = fun, args, y0
        self._t_span, self._extra_points = t_span, extra_points
        self.seconds, self.prints = math.inf, False
        self.first = self.at(t_span[0], y0)
        self._known: list[tuple[float, np.ndarray, np.ndarray]] | None = None

    def at(self, t: float, y: np.ndarray) -> np.ndarray | None:
        """The value with NumPy input; ``None`` if it is not an array of real numbers."""
        with printed() as text:
            start = time.thread_time()  # not what other threads take in between
            result = self._fun(t, y.copy(), *self._args)
            # The shortest of all calls: a pause in one or two of them is not the function's.
            self.seconds = min(self.seconds, time.thread_time() - start)
        self.prints = self.prints or bool(text.getvalue())
        try:
            array = np.asarray(result)
            return None if array.dtype.kind not in "biuf" else np.array(array, float)
        except (TypeError, ValueError):
            return None

    def is_reproducible(self) -> bool:
        """Whether the same point gives the same value again."""
        again = self.at(self._t_span[0], self._y0)
        if self.first is None or again is None:
            return False
        return np.array_equal(self.first, again, equal_nan=True)

    def visit(self, k: int) -> None:
        """Call the function at the ``k``-th point of those where it is compared."""
        self._quietly(*next(islice(self._points(self._extra_points), k, None)))

    def agrees(self, other: Evaluator, data: list[Any], *, at_more_points: bool = False) -> bool:
        """Whether a program of ``t``, ``y`` and ``data`` gives the same values.

        Functions with branches are compared ``at_more_points``, on several of their paths.
        """
        if self._known is None:
            self._known = list(self._values(self._extra_points))
        further = self._values(_MORE_POINTS) if at_more_points else ()
        with np.errstate(all="ignore"):
            for t, y, value in chain(self._known, further):
                if not equals(other, value, np.float64(t), y, *data):
                    return False
        return True

    def _values(self, extra_points: int) -> Any:
        for t, y in self._points(extra_points):
            value = self._quietly(t, y)
            if value is not None:
                yield t, y, value

    def _quietly(self, t: float, y: np.ndarray) -> np.ndarray | None:
        with quiet(), np.errstate(all="ignore"):
            try:
                return self.at(t, y)
            except Exception:  # outside of where the user's function is defined
                return None

    def _points(self, extra_points: int) -> Any:
        t0, t1 = self._t_span
        length = t1 - t0 if np.isfinite(t1 - t0) else 1.0
        y0, d = self._y0, self._y0.size
        for fraction in (0.0, 0.37, 1.0):
            yield t0 + fraction * length, y0
        scale = float(np.max(np.abs(y0), initial=0.0, where=np.isfinite(y0))) or 1.0
        size = np.where(y0 == 0, scale, np.abs(y0))
        for k in range(extra_points):
            noise = np.modf(_GOLDEN * (np.arange(1, d + 1) + k * d))[0].reshape(y0.shape)
            y = y0 + _SIZE * size * (2 * noise - 1)
            if k % 4 == 1:
                y = -y
            elif k % 4 == 3:
                y = np.where(np.modf(7 * noise)[0] < 0.5, -y, y)
            yield t0 + (k + 1) / (extra_points + 1) * length, y


def equals(program: Evaluator, value: np.ndarray, *inputs: Any) -> bool:
    """Whether ``program`` gives ``value``, as far as rounding allows to say."""
    found = program(*inputs)
    if value.shape != found.shape:
        return False
    bound = TOLERANCE * np.abs(value)
    return _within(value, found, bound) or _within(
        value, found, np.fmax(bound, program.spread(*inputs))
    )


def _within(value: np.ndarray, other: np.ndarray, bound: np.ndarray) -> bool:
    same = (value == other) | (np.isnan(value) & np.isnan(other))
    return bool(np.all(same | (np.isfinite(value) & (np.abs(value - other) <= bound))))
