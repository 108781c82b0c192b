"""Calibrating the nodes of a solve: transport, scales, signs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.calibration import drive, scales
from probode.calibration.diagnosis import Tally
from probode.calibration.host import HostProblem, transport_on_host
from probode.calibration.result import Calibration
from probode.calibration.schemes import scheme_for
from probode.calibration.transport import Scheme, Transported
from probode.precision import on_host
from probode.problem import Field
from probode.step import Method


def calibrate_nodes(
    method: Method,
    problem: Field | HostProblem,
    t: Any,
    means: Any,
    variance: Any,
    *,
    smoothed: bool,
    mode: str,
) -> Calibration:
    """Estimate the error of ``means`` ``(N, q+1, d)`` at times ``t``, and scale ``variance``."""
    scheme = scheme_for(method, smoothed, mode)
    if isinstance(problem, HostProblem):
        moved = transport_on_host(scheme, problem, t, means)
    elif on_host(t):
        nodes = np.asarray(t), np.asarray(means)
        moved = drive.transport(scheme, problem, *nodes)
        if not problem.guarded and not np.all(np.isfinite(moved.error)):
            # Perhaps for want of a derivative only.
            moved = drive.transport(scheme, problem.guard(), *nodes)
    else:
        moved = drive.transport_traced(scheme, problem, t, means)
    return assemble(scheme, mode, t, means, variance, moved)


@np.errstate(all="ignore")  # what overflows is seen by its signs
def assemble(
    scheme: Scheme, mode: str, t: Array, means: Array, variance: Array, moved: Transported
) -> Calibration:
    """Scales and signs of a finished transport."""
    xp: Any = np if on_host(t) else jnp
    error = xp.concatenate([xp.zeros_like(means[:1, 0]), moved.error])
    scaled = scales.of_nodes(xp, error, variance, means[:, 0], scheme.doubt)
    corrections, repeats = moved.corrections.sum(), moved.repeats.sum()
    steps = t.shape[0] - 1
    s = scheme.collocation.s
    return Calibration(
        mode=mode,
        contact=scheme.k,
        kind=scheme.collocation.kind,
        error=error,
        stages=moved.stages,
        ratio=scaled.ratio,
        own=scaled.own,
        signs=Tally.over(xp, means[:, 0], moved).signs(xp, scheme.harmless),
        f_evaluations=steps * scheme.f_per_step + s * (corrections + repeats),
        jacobian_evaluations=steps * scheme.jacobians_per_step + repeats,
    )
