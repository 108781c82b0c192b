"""Reference solutions of implicit equations ``F(t, y, y') = 0``, by a code of its own.

Radau IIA collocation with nine stages (order 17) in extended precision (80 bits): residuals in long
double, Newton's matrix in double precision. Step sizes follow the last Taylor-like coefficient of
the stage polynomial. Every reference is computed again with all steps halved. That makes errors at
the nodes ``2^17`` times smaller and those of the polynomials between them, of degree 9, ``2^10``
times: how far the two differ says how exact the second is, at any time. Nothing of probode is in
it, and no differentiation: Jacobians are differences, which only cost iterations.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import legendre

LONG = np.longdouble
STAGES = 9
TOLERANCE = 1e-11
"""Of the highest divided difference of a step, in parts of its largest value."""
HALVED = 100.0
"""Times by which halved steps are more exact, at least: a tenth of what their order says."""

Residual = Callable[[Any, np.ndarray, np.ndarray], np.ndarray]


@lru_cache(maxsize=4)
def collocation(stages: int = STAGES) -> tuple[np.ndarray, np.ndarray]:
    """Nodes ``c`` of Radau IIA, and ``D`` with ``h y'(c_i) = Σ_j D_ij (y_j - y_0)``."""
    series = np.zeros(stages + 1)
    series[stages], series[stages - 1] = 1.0, -1.0
    roots = np.sort(legendre.legroots(series).real).astype(LONG)
    for _ in range(4):

        def value(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
            before, now = np.ones_like(x), x
            for n in range(1, k):
                before, now = now, ((2 * n + 1) * x * now - n * before) / (n + 1)
            return now, k * (x * now - before) / (x * x - 1 + (abs(x - 1) < 1e-10))

        (p, dp), (r, dr) = value(roots, stages), value(roots, stages - 1)
        inner = np.abs(roots - 1) > 1e-10  # the last node is 1
        step = (p - r) / np.where(inner, dp - dr, LONG(1))
        roots = roots - np.where(inner, step, LONG(0))
    roots[-1] = LONG(1)
    nodes = (roots + 1) / 2
    points = np.concatenate([[LONG(0)], nodes])
    weights = np.array([1 / np.prod(x - np.delete(points, i)) for i, x in enumerate(points)])
    matrix = np.zeros((stages, stages), LONG)
    for i in range(1, stages + 1):
        for j in range(1, stages + 1):
            if i != j:
                matrix[i - 1, j - 1] = weights[j] / weights[i] / (points[i] - points[j])
        matrix[i - 1, i - 1] = sum(1 / (points[i] - points[k]) for k in range(stages + 1) if k != i)
    return nodes, matrix


def _jacobians(f: Residual, t: Any, y: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``∂F/∂y`` and ``∂F/∂y'`` by differences in long double."""
    base, found = f(t, y, v), []
    for at in (0, 1):
        columns = []
        for i in range(len(y)):
            moved = [y.copy(), v.copy()]
            step = LONG(1e-9) * max(abs(moved[at][i]), LONG(1e-6))
            moved[at][i] += step
            columns.append((f(t, *moved) - base) / step)
        found.append(np.array(columns, float).T)
    return found[0], found[1]


def _step(f: Residual, t: Any, y: np.ndarray, h: Any, guess: np.ndarray) -> tuple[np.ndarray, bool]:
    nodes, matrix = collocation()
    s, d = len(nodes), len(y)
    stages = guess.copy()
    scale = np.maximum(np.max(np.abs(stages), axis=0), LONG(1e-8))
    last = np.inf
    for _ in range(60):
        slopes = matrix @ (stages - y) / h
        left = np.concatenate(
            [f(t + c * h, u, v) for c, u, v in zip(nodes, stages, slopes, strict=True)]
        )
        if not np.all(np.isfinite(left.astype(float))):
            return stages, False
        if last > 1e-3:
            big = np.zeros((s, d, s, d))
            for i in range(s):
                by_value, by_slope = _jacobians(f, t + nodes[i] * h, stages[i], slopes[i])
                big[i, :, i, :] += by_value
                for j in range(s):
                    big[i, :, j, :] += float(matrix[i, j] / h) * by_slope
            big = big.reshape(s * d, s * d)
            rows = np.max(np.abs(big), axis=1)
            columns = np.max(np.abs(big / rows[:, None]), axis=0)
            try:
                inverse = np.linalg.inv(big / rows[:, None] / columns)
            except np.linalg.LinAlgError:
                return stages, False
        change = (inverse @ (left / rows).astype(float)) / columns
        change = change.reshape(s, d)
        stages = stages - change
        size = float(np.max(np.abs(change) / scale))
        if size < 1e-17 or (size < 1e-7 and size > 0.3 * last):  # rounding, of whatever size
            return stages, True
        last = size
    return stages, False


class Path(NamedTuple):
    """A solution on its interval: the polynomials of all steps."""

    t: np.ndarray
    """Ends of the steps, the start first."""
    values: np.ndarray
    """At the start of each step and at its stages, the last of which is its end."""

    @property
    def end(self) -> np.ndarray:
        """``y`` at the end of the interval."""
        return self.values[-1, -1]

    def __call__(self, t: Any) -> np.ndarray:
        """``y`` at times ``t``, in extended precision."""
        t = np.asarray(t, LONG)
        i = np.clip(np.searchsorted(self.t, t, side="left") - 1, 0, len(self.values) - 1)
        rows = _rows((t - self.t[i]) / (self.t[i + 1] - self.t[i]))
        return np.einsum("nw,nwd->nd", rows, self.values[i])


def _rows(at: np.ndarray) -> np.ndarray:
    """Weights of the values of a step at parts ``at`` of its length (barycentric)."""
    points = np.concatenate([[LONG(0)], collocation()[0]])
    weights = np.array([1 / np.prod(x - np.delete(points, i)) for i, x in enumerate(points)])
    away = at[:, None] - points
    hit = away == 0
    rows = weights / np.where(hit, LONG(1), away)
    rows = np.where(hit.any(axis=1, keepdims=True), hit.astype(LONG), rows)
    return rows / rows.sum(axis=1, keepdims=True)


def solve(
    f: Residual, t_span: tuple[float, float], y0: Any, tolerance: float, first: float = 1e-6
) -> Path:
    """``y`` on the interval."""
    nodes, _ = collocation()
    points = np.concatenate([[LONG(0)], nodes])
    weights = np.array([1 / np.prod(x - np.delete(points, i)) for i, x in enumerate(points)])
    t, end = LONG(t_span[0]), LONG(t_span[1])
    y, h = np.asarray(y0, LONG), LONG(first)
    times, taken = [t], []
    before: tuple[Any, np.ndarray] | None = None
    while t < end:
        h = min(h, end - t)
        guess = np.repeat(y[None], len(nodes), axis=0)
        if before is not None and h < 1.5 * before[0]:
            # Go on with the polynomial of the last step, if not too far.
            guess = _rows(1 + h / before[0] * nodes) @ before[1]
        stages, done = _step(f, t, y, h, guess)
        if not done:
            h, before = h / 3, None
            continue
        values = np.concatenate([y[None], stages])
        # The highest divided difference: what the polynomial of one degree less leaves out.
        scale = np.maximum(np.max(np.abs(values), axis=0), LONG(1e-7))
        last = np.abs(weights @ values) / np.max(np.abs(weights))
        error = float(np.max(last / scale)) / tolerance
        if error > 1.0:
            h, before = h * max(0.9 * error ** (-1 / STAGES), 0.3), None
            continue
        before = (h, values)
        t, y = (end if t + h >= end else t + h), stages[-1]
        times.append(t)
        taken.append(values)
        h = h * min(0.9 * max(error, 1e-12) ** (-1 / STAGES), 2.0)
    return Path(np.array(times), np.array(taken))


def halved(f: Residual, path: Path) -> Path:
    """The same with every step in two."""
    nodes, _ = collocation()
    y, times, taken = path.values[0, 0], [path.t[0]], []
    for begin, end, values in zip(path.t, path.t[1:], path.values, strict=False):
        middle = (begin + end) / 2
        for t, to, part in ((begin, middle, 0), (middle, end, 1)):
            stages, done = _step(f, t, y, to - t, _rows((part + nodes) / 2) @ values)
            if not done:
                raise RuntimeError(f"Newton's method did not converge in a step from {float(t)}.")
            taken.append(np.concatenate([y[None], stages]))
            times.append(to)
            y = stages[-1]
    return Path(np.array(times), np.array(taken))


class Reference(NamedTuple):
    """A solution, and how exact it is."""

    rough: Path
    fine: Path
    """With steps half as long."""

    def __call__(self, t: Any) -> tuple[np.ndarray, np.ndarray]:
        """Values at times ``t``, and by how much they may be wrong."""
        value = self.fine(t)
        return value, (np.abs(value - self.rough(t)) / HALVED).astype(float)

    @property
    def agreement(self) -> float:
        """How far the two differ at the end, relative to each value."""
        rough, fine = self.rough.end, self.fine.end
        return float(np.max(np.abs(rough - fine) / np.maximum(np.abs(fine), 1e-12)))


def checked(f: Residual, t_span: tuple[float, float], y0: Any, first: float = 1e-6) -> Reference:
    """A solution and the one with halved steps."""
    rough = solve(f, t_span, y0, TOLERANCE, first)
    return Reference(rough, halved(f, rough))
