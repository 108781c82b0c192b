"""The engine without compilation: one member after the other, by the native kernels.

Where a vector field and its start are lists of operations (:mod:`probode.engines.native.lists`), a
member is one call of the kernels, and nothing is compiled for the ensemble.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any

import numpy as np

from probode.base.precision import double_precision
from probode.base.status import Status
from probode.engines.lanes.records import LaneResults, Members
from probode.engines.native.engine import NATIVE
from probode.engines.native.lists import lists_of
from probode.ensemble.problem import member, usable
from probode.ensemble.settings import Settings
from probode.programs.field import Field
from probode.solve import solve

_TOLD = 64
"""Members after which progress is told."""


def supports(members: Members, settings: Settings, field: Field) -> bool:
    """Whether the kernels solve such members without anything compiled.

    ``field`` is the vector field of one of them; at the end only, with the model's error bars.
    """
    method = settings.solver.method(field.d)
    if settings.calibration != "model" or not members.only_end:
        return False
    with double_precision():
        tolerances = {"rtol": members.rtol[0], "atol": members.atol[0]}
        control = replace(settings.control, **tolerances).flat((members.d,))
        if not NATIVE.supports(method, control, "end"):
            return False
        lists = lists_of(method, settings.solver.initialization, field, control, np.asarray(1.0))
    return lists is not None and lists.start is not None


def solve_one_by_one(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
) -> LaneResults:
    """Solve all members; those that have not been begun when ``stop`` is set are interrupted."""
    fits = usable(members)
    d = members.d
    mean, std = (np.full((members.count, 1, d), np.nan) for _ in range(2))
    cov = np.full((members.count, 1, d, d), np.nan) if settings.covariance else None
    status = np.where(fits, Status.INTERRUPTED.value, Status.START_NOT_FINITE.value)
    counts = np.zeros((5, members.count), int)
    told = 0
    chosen = np.flatnonzero(fits).tolist()
    for done, i in enumerate(chosen, 1):
        if stop is not None and stop.is_set():
            break
        span, y0, args = member(members, i)
        tolerances = {
            "rtol": _shaped(members.rtol[i], y0.shape),
            "atol": _shaped(members.atol[i], y0.shape),
        }
        found = solve(
            *(vector_field, span, y0, args),
            solver=settings.solver,
            control=replace(settings.control, **tolerances),
            smooth=settings.smooth,
            save_at=span[1],
            max_steps=settings.max_steps,
            jac=settings.jac,
        )
        stats = found.stats
        status[i] = found.status.value
        counts[:3, i] = stats.steps, stats.accepted, stats.rejected
        counts[3:, i] = stats.f_evaluations, stats.jacobian_evaluations
        if len(found.t):
            mean[i], std[i] = found.mean.reshape(1, d), found.std.reshape(1, d)
            if cov is not None:
                cov[i] = found.marginals.cov.reshape(1, d, d)
        if on_progress is not None and (done % _TOLD == 0 or done == len(chosen)):
            on_progress(done - told)
            told = done
    return LaneResults(mean, std, cov, status, *counts)


def _shaped(tolerance: Any, shape: tuple[int, ...]) -> Any:
    """A tolerance as a member of this shape takes it; for components one by one it is flat."""
    return np.reshape(tolerance, shape) if np.ndim(tolerance) else tolerance
