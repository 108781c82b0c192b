"""From the steps of a solve to its posterior: join, smooth, calibrate, as time allows."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from probode.base.limits import Limits, rehearsed
from probode.base.status import Status
from probode.base.waiting import doing
from probode.engines.kept import Kept, pack_rows
from probode.engines.monitor import Monitor
from probode.filter import loop
from probode.filter.smooth import Marginals
from probode.model.invariant import Constraint
from probode.posterior.chosen import ChosenPath, calibrate_chosen, chosen_path
from probode.posterior.paths import NodePath, Path, SavedPath
from probode.posterior.posterior import Posterior
from probode.programs.field import Field

Finish = Callable[[Path, loop.Solve, Any, Limits], Posterior]
"""What makes a posterior of a path, of the solve at its end, and of its status."""


def calibrated(posterior: Posterior, field: Field, mode: str, limits: Limits) -> Posterior:
    """The posterior with the error bars that were asked for."""
    path = posterior.path
    if mode == "model":
        return posterior
    if isinstance(path, NodePath):
        return posterior.calibrated_within(field, mode, limits)
    if isinstance(path, ChosenPath):
        made, whole = calibrate_chosen(posterior.method, field, path, mode, limits)
        posterior = posterior.with_calibration(made).with_looked()
        return posterior if whole else posterior.without("calibration")
    assert isinstance(path, SavedPath) and path.saving.tracker is not None
    std = posterior.state().std
    std = std.reshape(len(std), math.prod(std.shape[1:]))  # there may be none
    known = posterior.method.equation.controlled(path.marginals.mean)
    made = path.saving.tracker.calibration(mode, known, std)
    posterior = posterior.with_calibration(made)
    return posterior if posterior.problem.field is None else posterior.with_looked()


def run_and_finish(
    run: Callable[[Monitor], tuple[loop.Solve, Status, Kept]],
    smoothing: bool,
    monitor: Monitor,
    finish: Finish,
    output: Callable[[Posterior, Limits], None] = lambda posterior, limits: None,
    times: np.ndarray | None = None,
    budget: int | None = None,
    constraint: Constraint | None = None,
    derivatives_kept: int = 0,
) -> Posterior | None:
    """Outside a trace: chunk by chunk, every step kept, results as NumPy arrays.

    ``output`` is what the caller will do with the posterior: with a time limit it is done for a few
    steps, as all that follows them, to know how much time to leave for it. With ``times``, a
    monitor that is sparse has the solution kept there only. ``None`` is returned if ``budget``
    steps were taken and it is not done. The posterior is held to a ``constraint``. Where it
    is kept at ``times`` only, ``derivatives_kept`` of the steps are, for ``finish``.
    """
    limits = monitor.limits

    def finished(final: loop.Solve, status: Status, kept: Kept, limits: Limits) -> Posterior:
        code = np.asarray(status.value)
        if kept.spans:
            assert times is not None
            sparse, whole = chosen_path(
                final, kept, times, smoothing, limits, constraint, derivatives_kept
            )
            posterior = finish(sparse, final, code, limits)
            return posterior if whole else posterior.without("output")
        path = node_path(final, kept, smoothing, limits).held_to(kept.method, constraint)
        if status == Status.SUCCESS and path.t[-1] != final.state.t:
            code = np.asarray(
                Status.NOT_FINITE.value
            )  # steps beyond the largest numbers were left out
        posterior = finish(path, final, code, limits)
        return posterior.without("smoothing") if smoothing and path.smoothed is None else posterior

    def rehearse(solve: loop.Solve, kept: Kept) -> float:
        def again(limits: Limits) -> None:
            output(finished(solve, Status.RUNNING, kept.last(kept.steps), limits), limits)

        return rehearsed(again, kept.steps, limits)

    final, status, kept = run(monitor._replace(rehearse=rehearse))
    if status == Status.MAX_STEPS and int(final.counts.attempted) == budget:
        return None
    with doing(f"computing the solution and its error bars from {kept.steps} steps"):
        return finished(final, status, kept, limits)


def node_path(final: loop.Solve, kept: Kept, smoothing: bool, limits: Limits) -> NodePath:
    """All steps of a solve, joined and (if there is time) smoothed; they are taken out of it."""
    if not kept.chunks:
        rows = pack_rows(jax.tree.map(lambda x: np.asarray(x)[None], loop.Rows.of(final)))
        return NodePath(rows, Marginals(rows.mean, rows.factor) if smoothing else None)
    last = Marginals(final.state.mean, final.state.factor)
    return NodePath(*kept.joined(last, kept.chunks, smoothing, limits))
