"""Calibrating the nodes of a solve: transport, scales, signs."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.limits import Limits
from probode.base.precision import on_host
from probode.filter.step import Method
from probode.global_error import drive, scales
from probode.global_error.diagnosis import Tally
from probode.global_error.host import HostProblem, transport_on_host
from probode.global_error.result import Calibration
from probode.global_error.schemes import Scheme, scheme_for
from probode.global_error.transport import Transported
from probode.programs.field import Field


def calibrate_nodes(
    method: Method,
    problem: Field | HostProblem,
    t: Any,
    means: Any,
    std: Any,
    *,
    smoothed: bool,
    mode: str,
    limits: Limits,
) -> tuple[Calibration, bool]:
    """Estimate the error of ``means`` ``(N, q+1, d)`` at times ``t``, and scale ``std``.

    Also whether that was done in time for all steps.
    """
    scheme = scheme_for(method, smoothed, mode)
    if isinstance(problem, HostProblem):
        moved = transport_on_host(scheme, problem, t, means, limits)
    elif on_host(t):
        nodes = np.asarray(t), np.asarray(means)
        moved = drive.transport(scheme, problem, *nodes, limits)
        if not problem.guarded and not np.all(np.isfinite(moved.error)):
            # Perhaps only because a derivative is missing.
            moved = drive.transport(scheme, problem.guard(), *nodes, limits)
    else:
        moved = drive.transport_traced(scheme, problem, t, means)
    whole = moved.error.shape[0] == t.shape[0] - 1
    return assemble(scheme, mode, t, means, std, moved), whole


@np.errstate(all="ignore")  # what overflows is seen by its signs
def assemble(
    scheme: Scheme, mode: str, t: Array, means: Array, std: Array, moved: Transported
) -> Calibration:
    """Scales and signs of a transport; steps that it did not reach have no estimate (NaN)."""
    xp: Any = np if on_host(t) else jnp
    steps = moved.error.shape[0]
    signs = Tally.over(xp, means[: steps + 1, 0], moved).signs(xp, scheme.harmless)
    if steps < t.shape[0] - 1:
        rest = ((0, t.shape[0] - 1 - steps), (0, 0))
        padded: Any = [
            np.pad(rows, (*rest, *[(0, 0)] * (rows.ndim - 2)), constant_values=np.nan)
            for rows in (moved.error, moved.stages)
        ]
        moved = moved._replace(error=padded[0], stages=padded[1])
    error = xp.concatenate([xp.zeros_like(means[:1, 0]), moved.error])
    scaled = scales.of_nodes(xp, error, std, means[:, 0], scheme.doubt)
    corrections, repeats = moved.corrections.sum(), moved.repeats.sum()
    s = scheme.collocation.s
    return Calibration(
        mode=mode,
        contact=scheme.k,
        kind=scheme.collocation.kind,
        error=error,
        stages=moved.stages,
        ratio=scaled.ratio,
        own=scaled.own,
        signs=signs,
        f_evaluations=steps * scheme.f_per_step + s * (corrections + repeats),
        jacobian_evaluations=steps * scheme.jacobians_per_step + repeats,
    )
