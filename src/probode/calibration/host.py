"""The transport for a vector field that only Python can evaluate.

The same methods as in :mod:`probode.calibration.transport`, step by step in NumPy: each stage is
one call of the user's function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.calibration.carry import empty
from probode.calibration.transport import Newton, Scheme, Sweeps, Transported, curve
from probode.limits import Limits


class HostProblem(NamedTuple):
    """A vector field evaluated in Python: NumPy in, NumPy out."""

    function: Callable[[float, np.ndarray], np.ndarray]
    jacobian: Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None
    """``(t, y, f(t, y)) -> J``, the matrix or its diagonal; ``None`` for EK0."""

    def at_stages(self, t: Any, y: Any) -> np.ndarray:
        """``f`` at all stages of a step."""
        return np.stack([self.function(float(a), b) for a, b in zip(t, y, strict=True)])

    def jacobian_at(self, t: float, y: Any, f: Any) -> Any:
        """The Jacobian where ``f`` is known."""
        assert self.jacobian is not None
        return np.asarray(self.jacobian(t, y, f), float)


def transport_on_host(
    scheme: Scheme, problem: HostProblem, t: Any, means: Any, limits: Limits
) -> Transported:
    """Carry the error along all nodes, or as many as there is time for."""
    d, steps = means.shape[-1], t.shape[0] - 1
    means = means[:, : scheme.k + 1]
    out: Any = empty(scheme, steps, d)
    e, slope = np.zeros(d), np.zeros(d)
    for n in range(steps):
        if limits.expired():
            return Transported(*(rows[:n] for rows in out))
        h = t[n + 1] - t[n]
        if isinstance(scheme, Newton):
            stages, first, second = _newton(scheme, problem, t[n], h, means[n : n + 2], e)
            end = stages[-1]
        else:
            stages, end, first, second = _sweeps(
                scheme, problem, t[n], h, means[n : n + 2], e, slope
            )
        out.error[n], out.stages[n], out.first[n], out.second[n] = end, stages, first, second
        slope = (end - e) / h
        e = end
    return out


def _newton(
    scheme: Newton,
    problem: HostProblem,
    t: Any,
    h: Any,
    pair: Any,
    e: Any,
) -> tuple[Any, Any, Any]:
    """``((h a)⁻¹ - J) (E - e_n) = δ + J e_n - r(E)``, first with ``r = 0``, then corrected."""
    c, d = scheme.collocation, e.size
    path = curve(np, c, scheme.k, t, h, pair[0], pair[1])
    f = problem.at_stages(path.t, path.value)
    m = c.middle
    j = problem.jacobian_at(float(path.t[m]), path.value[m], f[m])
    defect = path.slope - f
    system = np.kron(np.linalg.inv(c.matrix) / h, np.eye(d)) - np.kron(np.eye(c.s), j)
    solve = np.linalg.inv(system)
    first = (solve @ (defect + j @ e).reshape(-1)).reshape(c.s, d)
    stages = e + first
    second = np.zeros_like(stages)
    for _ in range(scheme.corrections):
        shifted = problem.at_stages(path.t, path.value - stages)
        second = (solve @ ((f - shifted) - stages @ j.T).reshape(-1)).reshape(c.s, d)
        stages = stages + second
    return stages, first[-1], second[-1]


def _sweeps(
    scheme: Sweeps,
    problem: HostProblem,
    t: Any,
    h: Any,
    pair: Any,
    e: Any,
    slope: Any,
) -> tuple[Any, Any, Any, Any]:
    """``E <- E + ((h a)⁻¹ - D)⁻¹ ((h a)⁻¹ (e_n - E) + G)``, without ``D``: ``e_n + h a G``."""
    c = scheme.collocation
    path = curve(np, c, scheme.k, t, h, pair[0], pair[1])
    diagonal = None
    if scheme.diagonal:
        m = c.middle
        y: Any = path.value[m]
        j = problem.jacobian_at(float(path.t[m]), y, problem.function(float(path.t[m]), y))
        diagonal = np.diagonal(j) if j.ndim == 2 else j
    stages = e + c.nodes[:, None] * (h * slope)
    ends = []
    for _ in range(scheme.sweeps):
        slopes = path.slope - problem.at_stages(path.t, path.value - stages)
        stages = np.asarray(scheme.sweep(e, h, stages, slopes, diagonal))
        ends.append(stages[-1] if scheme.diagonal else e + h * (c.weights @ slopes))
    second = ends[-1] - ends[-2] if len(ends) > 1 else np.zeros_like(e)
    return stages, ends[-1], ends[0] - e, second
