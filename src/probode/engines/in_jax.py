"""The reference engine: the algorithm of :mod:`probode.filter` as it is, in compiled pieces.

It runs every model, a user's own equation, prior, diffusion or control included.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.base.spacious import spacious
from probode.base.status import Status
from probode.engines.dense_output import evaluate_rows
from probode.engines.fallback import Fallback, revived
from probode.engines.in_python import Driven, steps_in_jax
from probode.engines.kept import Kept, capacity, compact, pack_rows, padded
from probode.engines.monitor import Monitor, collect, drive
from probode.engines.protocol import FIRST_ATTEMPTS, Carry, Engine, Given, Inputs, Steps
from probode.filter import loop, saving, smooth
from probode.filter.control import Control
from probode.filter.loop import Rows, Solve
from probode.filter.saving import Beside, Saving
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.gaussian import pack, unpack

_LARGE_STATE = 400
"""A step with a larger one may take seconds: then the clock is looked at after the first."""
_SMOOTHED_POINT = 0.4
"""Smoothing a save point, in steps to get there: one decomposition instead of three."""

begin = compiled(1)(loop.begin)
fill_chunk = compiled(1)(loop.fill_chunk)
smooth_chunk = compiled()(smooth.smooth_chunk)
begin_saving = compiled(2, 3, 4)(saving.begin_saving)
run_saving = compiled()(saving.run_saving)
cross_saving = compiled()(saving.cross_saving)
smooth_saved = compiled()(saving.smooth_saved)


class InJax:
    """See :class:`probode.engines.protocol.Engine`."""

    name = "jax"

    def supports(self, method: Method, control: Control, wanted: str = "steps") -> bool:
        """Everything."""
        return True

    def interpolates(self, method: Method) -> bool:
        """Everything."""
        return True

    def traced(self, given: Fallback, rows: int, limits: Limits) -> Steps:
        """One compiled program for all chunks."""
        method, _, _, control, _, t1, _ = given.inputs
        anew = partial(_begun_anew, given)

        def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
            crossed = given.across(carry.solve, anew)
            if crossed is not None:
                return Carry(crossed[1]), pack_rows(crossed[0])
            wanted, field = min(wanted, rows) if rows else wanted, given.inputs.field
            until = given.until(carry.solve.state.t)
            following, chunk = jax.block_until_ready(
                fill_chunk(method, rows, field, control, carry.solve, until, attempts, wanted)
            )
            return Carry(_reviving(given, following, until != t1)), compact(*chunk)

        return Steps(Carry(_begun(given)), fill, _first_attempts(method))

    def driven(self, given: Driven, rows: int, limits: Limits) -> Steps:
        """One compiled call per step, between two evaluations."""
        return steps_in_jax(given, rows)

    def run(self, given: Given, monitor: Monitor, keep: bool = True) -> tuple[Solve, Status, Kept]:
        """Solve and keep every step, or none."""
        return collect(self, given, monitor, keep)

    def end(self, inputs: Inputs) -> Solve:
        """The solve when it has ended, inside a trace."""
        method, _, field, control, _, t1, _ = inputs
        return loop.run_to_end(method, field, control, loop.begin(*inputs), t1)

    def join(self, method: Method, chunks: list[Rows]) -> Rows:
        """Rows of all chunks."""
        taken, chunks[:] = chunks[:], []
        if len(taken) == 1:
            return taken[0]
        return jax.tree.map(
            lambda first, *rest: np.concatenate([first, *(part[1:] for part in rest)]), *taken
        )

    def smooth(
        self, method: Method, rows: Rows, last: Marginals, limits: Limits
    ) -> Marginals | None:
        """All rows smoothed, chunk by chunk from the end backwards; ``None``: not in time."""
        most, end = capacity(method), rows.steps
        last = jax.tree.map(np.asarray, last)
        mean, factor = spacious(*rows.mean.shape), spacious(*rows.factor.shape)
        mean[end], factor[end] = last.mean, pack(last.factor)
        while end > 0:
            if limits.expired():
                return None
            count = min(most, end)
            begin = end - count
            part = jax.tree.map(lambda x: padded(x[begin : end + 1], most + 1), rows)  # noqa: B023
            part = replace(part, factor=unpack(part.factor))
            buffer, last = smooth_chunk(method, part, count, last)
            mean[begin:end] = np.asarray(buffer.mean)[:count]
            factor[begin:end] = pack(np.asarray(buffer.factor)[:count])
            end = begin
        return Marginals(mean, factor)  # type: ignore[arg-type]

    interpolate = staticmethod(evaluate_rows)


JAX: Engine = InJax()


def solve_saving(
    given: Fallback,
    times: Any,
    keep_kernels: bool,
    monitor: Monitor,
    beside: Beside | None,
) -> tuple[Saving, Status]:
    """Solve and keep the state at given times only."""
    method, _, _, control, _, t1, _ = given.inputs
    anew = partial(_begun_anew, given)
    begun = begin_saving(method, _begun(given), times.shape[0], keep_kernels, beside)

    def chunk(carry: Saving, attempts: int) -> Saving:
        field = given.inputs.field
        crossed = given.across(jax.tree.map(np.asarray, carry.solve), anew)
        if crossed is not None and crossed[0].steps == 0:
            return replace(carry, solve=crossed[1])
        if crossed is not None:
            return cross_saving(method, field, control, carry, *crossed, t1, times)
        until = given.until(carry.solve.state.t)
        carry = jax.block_until_ready(
            run_saving(method, field, control, carry, until, times, attempts)
        )
        return replace(carry, solve=_reviving(given, carry.solve, until != t1))

    def reserve(carry: Saving, pace: float) -> float:
        return _SMOOTHED_POINT * pace * int(carry.count) if keep_kernels else 0.0

    carry, status = drive(monitor, begun, chunk, _first_attempts(method), reserve=reserve)
    if int(carry.count) == 0 and int(carry.solve.counts.attempted) == 0:
        carry = run_saving(method, given.inputs.field, control, carry, t1, times, 0)
    return carry, status


def _begun(given: Fallback) -> Solve:
    solve = begin(*given.outset)
    return begin(*given.outset) if given.starts_again(solve) else solve


def _begun_anew(given: Fallback, t: float, y0: np.ndarray) -> Solve:
    return _begun(given.after(t, y0))


def _first_attempts(method: Method) -> int:
    return 1 if method.structure.factor_shape[-1] > _LARGE_STATE else FIRST_ATTEMPTS


def _reviving(given: Fallback, solve: Solve, at_a_stop: bool) -> Solve:
    """A solve that goes on, where it has ended only for a while."""
    arrived = at_a_stop and int(solve.status) == Status.SUCCESS
    return revived(solve) if arrived or given.goes_on(solve) else solve
