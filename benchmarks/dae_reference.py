"""Reference solutions of implicit equations ``F(t, y, y') = 0``, by a code of its own.

Radau IIA collocation with nine stages (order 17) in extended precision (80 bits): residuals in long
double, Newton's matrix in double precision. Step sizes follow the last Taylor-like coefficient of
the stage polynomial; every reference is computed twice, with steps of half the length, and the two
must agree to what is printed. Nothing of probode is in it, and no differentiation: Jacobians are
differences, which only cost iterations.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import legendre

LONG = np.longdouble
STAGES = 9

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
        step = np.where(np.abs(roots - 1) < 1e-10, LONG(0), (p - r) / (dp - dr))
        roots = roots - step
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


def solve(
    f: Residual, t_span: tuple[float, float], y0: Any, tolerance: float, first: float = 1e-6
) -> np.ndarray:
    """``y`` at the end of the interval."""
    nodes, _ = collocation()
    points = np.concatenate([[LONG(0)], nodes])
    weights = np.array([1 / np.prod(x - np.delete(points, i)) for i, x in enumerate(points)])
    t, end = LONG(t_span[0]), LONG(t_span[1])
    y, h = np.asarray(y0, LONG), LONG(first)
    before: tuple[Any, np.ndarray] | None = None
    while t < end:
        h = min(h, end - t)
        guess = np.repeat(y[None], len(nodes), axis=0)
        if before is not None:  # go on with the polynomial of the last step, if not too far
            ratio = h / before[0]
            at = 1 + ratio * nodes
            rows = weights / (at[:, None] - points)
            extended = (rows / rows.sum(axis=1, keepdims=True)) @ before[1]
            if ratio < 1.5:
                guess = extended
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
        h = h * min(0.9 * max(error, 1e-12) ** (-1 / STAGES), 2.0)
    return y


def checked(f: Residual, t_span: tuple[float, float], y0: Any, first: float = 1e-6) -> np.ndarray:
    """The same with two tolerances: the better one, and what they differ by is printed."""
    rough, fine = (solve(f, t_span, y0, tolerance, first) for tolerance in (1e-10, 1e-11))
    difference = np.max(np.abs(rough - fine) / np.maximum(np.abs(fine), 1e-12))
    print(f"  agree to {float(difference):.1e} relative")
    return fine
