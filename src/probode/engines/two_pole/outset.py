"""How the two-pole filter begins: the value, its slope, and how far a first step may go."""

from typing import Any

import numpy as np

from probode.engines.two_pole.step import Standing, System, Weights
from probode.filter.control import ConstantStep, GridSteps, PControl

_LEAST_STEPS = 6
"""A first step is at most this part of the way. The estimate of the error compares the slope of a
polynomial through neighbouring values with ``f``: of one or two steps, whose polynomial is what
they have been made with, it would find nothing."""


def begin(system: System, control: Any, t0: float, t1: float, y0: np.ndarray) -> Standing:
    """Before the first step: the value, its slope, and how far a step of order one may go.

    Steps go on to ``t1``, without a switch on the way.
    """
    xp, y0 = system.xp, system.xp.array(y0, float)
    slope, evaluations = system.slope(t0, y0), 1
    h = _given_step(control, t0)
    if h is None and xp.all(xp.isfinite(slope)):
        h = _first_step(system, weights_of(control)(xp.abs(y0)), t0, t1, y0, slope)
        evaluations += 1
        h = float(np.clip(h, control.min_step, control.max_step))
        h = min(abs(h), abs(t1 - t0) / _LEAST_STEPS)
    h = float(np.copysign(min(abs(h or 1.0), abs(t1 - t0)) or 1.0, t1 - t0))
    begun = Standing(t0, h, xp.stack([y0, h * slope]), h)
    return begun.counted(f=evaluations)


def _given_step(control: Any, t0: float) -> float | None:
    if isinstance(control, PControl):
        return None if control.first_step is None else float(control.first_step)
    if isinstance(control, GridSteps):
        return float(control.grid[1] - control.grid[0])
    if isinstance(control, ConstantStep):
        return float(control.size)
    raise TypeError(
        f"SparseEK1 holds its steps, by rules of its own: control must be PControl or PIControl "
        f"(of which it reads tolerances and bounds), or pass grid or step; got {control!r}."
    )


def _first_step(
    system: System, weight: np.ndarray, t0: float, t1: float, y0: np.ndarray, slope: np.ndarray
) -> float:
    """Where ``h² y''/2`` is half of the tolerance, with ``y''`` from one more evaluation."""

    def norm(u: np.ndarray) -> float:
        return float(np.sqrt(((u * weight) ** 2).mean()))

    value, speed = norm(y0), norm(slope)
    near = min(0.01 * value / speed if value > 0.0 < speed else 1e-6, abs(t1 - t0))
    if not near:  # at a switch in the very end
        return 0.0
    step = float(np.copysign(near, t1 - t0))
    bent = norm(system.slope(t0 + step, y0 + step * slope) - slope) / near
    if not np.isfinite(bent):
        return near
    return min(100.0 * near, 1.0 / np.sqrt(bent) if bent > 0.0 else abs(t1 - t0))


def weights_of(control: Any) -> Weights:
    """``1 / (atol + rtol |y|)``; where steps are given, those of Newton's method alone."""
    atol: Any = 1e-9
    rtol: Any = 1e-6
    if isinstance(control, PControl):
        atol, rtol = np.asarray(control.atol), np.asarray(control.rtol)
    return Weights(atol, rtol)
