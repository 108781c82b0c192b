"""A solve inside a user's ``jit``, ``vmap`` or ``grad``, where all arrays have known sizes."""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.status import Status
from probode.engines.protocol import Engine, Inputs
from probode.filter import loop, saving, smooth
from probode.filter.saving import Beside
from probode.filter.smooth import Marginals
from probode.filter.start import Initialization
from probode.filter.step import Method
from probode.model.invariant import Constraint
from probode.posterior.paths import NodePath, Path, SavedPath


@dataclass(frozen=True)
class TraceOptions:
    """Options of a solve that its compiled program is made for."""

    engine: Engine
    initialization: Initialization
    wanted: str
    """"end", "times" or "grid": what is kept."""
    smoothing: bool
    bound: int | None
    """Largest number of steps that are attempted."""
    beside: Beside | None


def solve_in_trace(
    options: TraceOptions,
    method: Method,
    data: tuple[Any, ...],
    times: Array | None,
    grid: Array | None,
    held: Constraint | None,
) -> tuple[Path, loop.Solve, Array]:
    """Return the states that are kept, the solve at its end, and its status.

    ``data`` are the inputs of an engine, from the vector field on.
    """
    inputs = Inputs(method, options.initialization, *data)
    path, final, status = _solved(options, inputs, times, grid)
    return path.held_to(method, held), final, status


def _solved(
    options: TraceOptions, inputs: Inputs, times: Array | None, grid: Array | None
) -> tuple[Path, loop.Solve, Array]:
    method, _, field, control, _, t1, _ = inputs
    if options.wanted == "end":
        kept = saving.saving_of_end(method, options.engine.end(inputs), options.smoothing)
        if method.frozen:
            kept = replace(kept, saved=kept.saved.moving_with(t1[None]))
        marginals = Marginals(kept.saved.mean, kept.saved.factor)
        return SavedPath(kept.saved, marginals, kept), kept.solve, kept.solve.status
    state = loop.begin(*inputs)
    attempts = np.iinfo(np.int64).max if options.bound is None else options.bound
    if times is None:
        assert grid is not None
        steps = grid.shape[0] - 1
        final, rows = loop.run_grid(method, steps, attempts, field, control, state, t1)
        smoothed = smooth.smooth_rows(method, rows) if options.smoothing else None
        return NodePath.of(rows, smoothed).moving_with(grid), final, _ended(final)
    kept = saving.begin_saving(method, state, times.shape[0], options.smoothing, options.beside)
    kept = saving.run_saving(method, field, control, kept, t1, times, attempts)
    marginals = (
        saving.smooth_saved(method, kept)
        if options.smoothing
        else Marginals(kept.saved.mean, kept.saved.factor)
    )
    return SavedPath(kept.saved, marginals, kept), kept.solve, _ended(kept.solve)


def _ended(solve: loop.Solve) -> Array:
    """The status of a solve that takes no more steps."""
    running = solve.status == Status.RUNNING.value
    return jnp.where(running, Status.MAX_STEPS.value, solve.status)
