"""The transport for a vector field that only Python can evaluate.

The same methods as in :mod:`probode.calibration.transport`, step by step in NumPy: each stage is
one call of the user's function.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.calibration.carry import empty
from probode.calibration.drive import block_steps
from probode.calibration.transport import Newton, Scheme, Sweeps, Transported, curve


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


def transport_on_host(scheme: Scheme, problem: HostProblem, t: Any, means: Any) -> Transported:
    """Carry the error along all nodes."""
    d, steps = means.shape[-1], t.shape[0] - 1
    means = means[:, : scheme.k + 1]
    out: Any = empty(scheme, steps, d)
    if isinstance(scheme, Newton):
        size = block_steps(scheme, d)
        for begin in range(0, steps, size):
            part = slice(begin, min(begin + size, steps))
            e = out.error[begin - 1] if begin else np.zeros(d)
            _newton(scheme, problem, t, means, e, part, out)
        return out
    e, slope = np.zeros(d), np.zeros(d)
    for n in range(steps):
        h = t[n + 1] - t[n]
        stages, end, first, second = _sweeps(scheme, problem, t[n], h, means[n : n + 2], e, slope)
        out.error[n], out.stages[n], out.first[n], out.second[n] = end, stages, first, second
        slope = (end - e) / h
        e = end
    return out


def _newton(
    scheme: Newton, problem: HostProblem, t: Any, means: Any, e: Any, part: slice, out: Any
) -> None:
    """``((h a)⁻¹ - J) (E - e_n) = δ + J e_n - r(E)``, first with ``r = 0``, then corrected.

    For the steps ``part``: what does not depend on ``e_n`` for all of them at once. In the
    eigenbasis of ``a⁻¹`` the systems fall apart into ``λ_k/h - J``.
    """
    c, d = scheme.collocation, e.size
    values, columns, rows = c.spectrum
    after = slice(part.start + 1, part.stop + 1)
    h = t[after] - t[part]
    path = curve(np, c, scheme.k, t[part], h, means[part], means[after])
    m = c.middle
    f, j = np.empty(path.value.shape), np.empty((h.size, d, d))
    for n in range(h.size):
        f[n] = problem.at_stages(path.t[n], path.value[n])
        j[n] = problem.jacobian_at(float(path.t[n, m]), path.value[n, m], f[n, m])
    shifted = (values / h[:, None])[..., None, None] * np.eye(d) - j[:, None]
    inverses = np.linalg.inv(shifted)
    defect = path.slope - f

    def solved(n: int, right: Any) -> Any:
        turned = inverses[n] @ (rows @ right)[..., None]
        return (columns @ turned[..., 0]).real

    for n in range(h.size):
        first = solved(n, defect[n] + j[n] @ e)
        stages, second = e + first, np.zeros_like(first)
        for _ in range(scheme.corrections):
            moved = problem.at_stages(path.t[n], path.value[n] - stages)
            second = solved(n, (f[n] - moved) - stages @ j[n].T)
            stages = stages + second
        at = part.start + n
        out.error[at], out.stages[at] = stages[-1], stages
        out.first[at], out.second[at] = first[-1], second[-1]
        e = stages[-1]


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
