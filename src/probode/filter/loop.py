"""The loop: accept or reject, count, stop. No probability in it.

Three drivers share one iteration, :func:`advance`:

- :func:`fill_chunk` runs until a buffer of accepted steps is full and returns to Python, which
  collects it and calls again: no number of steps to guess, memory follows the steps taken;
- :func:`run_grid` scans over a grid of known length, inside a trace;
- :mod:`probode.filter.saving` keeps the solution at given times only.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.record import record
from probode.base.status import Status
from probode.filter import crossing
from probode.filter.control import Control, ControlState, PControl, Tried
from probode.filter.first_step import Known, Outset, highest_known, part_of_settled
from probode.filter.frozen import crossed_at, moved, moving, started_at
from probode.filter.start import Initialization, Start, TaylorStart
from probode.filter.step import Measure, Method, Slope, State, attempt, drift_at, of_step, update
from probode.model.diffusion import Evidence
from probode.model.gaussian import norm
from probode.programs.field import Field
from probode.programs.switches import margin_of

_WIDE = 100.0
"""Distance from a breakpoint at which ``f`` is evaluated on both sides, in margins of steps."""


class Counts(NamedTuple):
    """How often things happened."""

    attempted: Array
    accepted: Array
    f: Array | None = None
    """Evaluations of ``f``, where a step takes as many as it needs; else they follow from these."""
    jacobians: Array | None = None
    factorisations: Array | None = None
    again: Array | None = None
    """Second linearisations, where a step has one if it needs it."""


@record
class Solve:
    """A solve in progress."""

    state: State
    scale: Array
    """``s`` of the step that led here."""
    control: ControlState
    evidence: Evidence
    counts: Counts
    status: Array
    reference: Array
    """Length of the first step: the unit of a fixed diffusion."""


def begin(
    method: Method,
    initialization: Initialization,
    field: Field,
    control: Control,
    t0: Array,
    t1: Array,
    y0: Array,
) -> Solve:
    """State of a solve before its first step."""
    structure, diffusion, equation = method.structure, method.diffusion, method.equation
    if method.frozen:
        y0 = started_at(equation, field, t0, y0)
        t0, t1, control = jax.lax.stop_gradient((t0, t1, control))
    q, controlled = method.prior.order, equation.lowered(method.prior.order)
    known, t1 = None, control.next_stop(t0, t1)
    if isinstance(initialization, TaylorStart):
        # It needs no step, and one derivative more says how long the first may be.
        highest = highest_known(controlled) + q - controlled
        beyond = equation.start(initialization, field, t0, t1, y0, t1 - t0, highest).mean
        part = part_of_settled(q, diffusion.fixed)
        known = Known(equation.stacked(beyond), controlled, part)
    h = control.initial_step(Outset(equation.first_order(field), t0, t1, y0, controlled, known))
    # An interval of length zero needs no step, but coordinates all the same.
    unit = jnp.where(h == 0.0, 1.0, h)
    if known is None:
        start = equation.start(initialization, field, t0, t1, y0, unit, q)
    else:
        start = Start(beyond[: q + 1], None)
    finite = jnp.all(jnp.isfinite(start.mean))
    # The initial value is known, whatever its derivatives are.
    mean = jnp.where(jnp.isfinite(start.mean), start.mean, 0.0)
    h, unit = method.constant((h, unit))
    factor = jnp.zeros(structure.factor_shape)
    if start.std is not None:
        start = start._replace(std=method.constant(start.std))
        factor = structure.diagonal_factor(_start_std(method, start, unit))
        finite = finite & jnp.all(jnp.isfinite(factor))
        factor = jnp.where(jnp.isfinite(factor), factor, 0.0)
    status = jnp.where(
        finite,
        jnp.where(t0 == t1, Status.SUCCESS.value, Status.RUNNING.value),
        Status.START_NOT_FINITE.value,
    )
    zero = jnp.zeros((), int)
    return Solve(
        state=State(t0, unit, mean, factor, method.constant(drift_at(method, field, t0, mean))),
        scale=jnp.zeros((structure.d,) if diffusion.varies_by_component else ()),
        control=control.begin(h),
        evidence=Evidence.empty(structure.d, diffusion.multivariate),
        counts=Counts(zero, zero, again=zero if method.error == "correction" else None),
        status=status,
        reference=unit,
    )


def start_evaluations(initialization: Initialization, control: Control, order: int) -> int:
    """Evaluations of ``f`` that :func:`begin` makes (a derivative counts as one)."""
    exact = isinstance(initialization, TaylorStart)
    return initialization.evaluations(order) + control.start_evaluations(order, exact)


def _start_std(method: Method, start: Start, h: Array) -> Array:
    """Standard deviations of the start, in the coordinates and the units that the filter runs in.

    A fixed diffusion is estimated at the end and rescales *all* covariances, that of the start
    included: ``Σ_0 = σ² Σ_0'``. Where the start is given in absolute terms, ``Σ_0'`` is scaled such
    that the start knows the highest derivative as well as one step of the prior predicts it.
    """
    assert start.std is not None
    relative = start.std / jnp.abs(method.prior.coordinates(h))[:, None]
    if not method.diffusion.fixed:
        return relative
    top = norm(relative[-1]) / np.sqrt(relative.shape[-1])
    top = jnp.where(top > 0.0, top, 1.0)
    return relative / jnp.where(start.absolute, top, method.prior.unit_noise(h))


def advance(
    method: Method,
    field: Field,
    control: Control,
    solve: Solve,
    t1: Array,
    again: Slope | None = None,
) -> tuple[Solve, Array]:
    """Attempt one step; return the solve after it and whether it was accepted.

    Right before a switch this is a step across. ``again`` is the vector field for a second
    evaluation in the step, if the method makes one (by default ``field``).
    """
    crossings = control.crossings
    if crossings is None:
        return _step(method, field, control, solve, t1, again)
    return jax.lax.cond(
        crossings.begins_at(solve.state.t),
        lambda: _step_across(method, field, control, solve, t1),
        lambda: _step(method, field, control, forgetting(control, solve), t1, again),
    )


def forgetting(control: Control, solve: Solve) -> Solve:
    """Return the solve without the noise of a step across, which predicts nothing about others."""
    if control.crossings is None:
        return solve
    ended = control.crossings.has_ended_at(solve.state.t)
    return replace(solve, scale=jnp.where(ended, 0.0, solve.scale))


def _step_across(
    method: Method, field: Field, control: Control, solve: Solve, t1: Array
) -> tuple[Solve, Array]:
    """Take a step across a switch (:mod:`probode.filter.crossing`), in the form of :func:`advance`.

    The solve ends if ``f`` is not finite on the other side.
    """
    following, scale, begun = across_from(method, field, control, solve.state, t1)
    fine = begun.status != Status.START_NOT_FINITE.value
    before, steps = solve.counts, solve.control
    counts = before._replace(attempted=before.attempted + 1, accepted=before.accepted + fine)
    after = replace(
        begun,
        state=following,
        scale=scale,
        evidence=solve.evidence,
        counts=counts,
        control=begun.control._replace(accepted=steps.accepted + 1),  # points of a grid
        reference=solve.reference,
    )
    after = jax.tree.map(lambda new, old: jnp.where(fine, new, old), after, solve)
    status = jnp.where(fine, begun.status, Status.NOT_FINITE.value)
    return replace(after, counts=counts, status=status), fine


def across_from(
    method: Method, field: Field, control: Control, state: State, t1: Array
) -> tuple[State, Array, Solve]:
    """Return the state after the step across from ``state``, its noise, and the new start."""
    crossings, k = control.crossings, method.equation.order
    t, share = method.constant(crossings.beyond(state.t))
    u, jacobian = state.mean[:k].reshape(-1), None
    if method.jacobian == "none":
        f = field(t, u)
    else:
        f, jacobian = (
            field.jacobian(t, u) if method.jacobian == "full" else field.jacobian_diagonal(t, u)
        )
    y = crossing.landing(state, k, t, share, f)
    begun = begin(method, crossings.initialization, field, control, t, t1, y)
    h = t - state.t
    predicted = of_step(method, state, h).prior.predict_mean(state.mean, h)
    return *crossing.across(method, state, begun.state, jacobian, predicted, h), begun


def _step(
    method: Method,
    field: Field,
    control: Control,
    solve: Solve,
    t1: Array,
    again: Slope | None = None,
) -> tuple[Solve, Array]:
    """Attempt one step of the filter.

    A rejected step pays for the residual and the error estimate only.
    """
    state, stops = solve.state, control.stops if isinstance(control, PControl) else None
    control, t1 = method.constant((control, t1))
    t_next = control.next_time(solve.control, state.t, t1)
    measure = measure_of(method, control, state, t_next)
    known = solve.reference, solve.evidence, solve.scale
    step = attempt(method, field, state, t_next, *known, measure)
    tried = _tried(method, state, t_next, step.mean, step.error)
    verdict = control.judge(solve.control, tried, method.equation.lowered(method.prior.order))

    def accept() -> tuple[State, Array, Evidence]:
        following, innovation = update(method, state, step, again or field)
        if method.frozen and stops is not None:
            moves = jnp.where((stops == t_next) & (t_next != t1), moving(t_next, stops), t_next)
            by = moves[jnp.argmax(stops == t_next)]
            width = _WIDE * jnp.sign(t_next - state.t) * margin_of(method.constant(stops), t1)
            sides = t_next + width * jnp.array([-1.0, 1.0])
            mean = crossed_at(method.equation, field, sides, by, following.mean)
            following = replace(following, mean=mean)
        if method.prior.per_step:
            drift = drift_at(method, field, following.t, following.mean)
            following = replace(following, drift=method.constant(drift))
        return following, step.scale, solve.evidence.add(innovation)

    def reject() -> tuple[State, Array, Evidence]:
        return state, solve.scale, solve.evidence

    following, scale, evidence = jax.lax.cond(verdict.accepted, accept, reject)
    before = solve.counts
    again_too = None if before.again is None else before.again + step.again
    counts = Counts(before.attempted + 1, before.accepted + verdict.accepted, again=again_too)
    resolved = jnp.all(jnp.isfinite(step.error)) | (t_next == state.t)
    status = jnp.where(
        verdict.failed,
        jnp.where(resolved, Status.STEP_TOO_SMALL.value, Status.NOT_FINITE.value),
        jnp.where(verdict.accepted & (t_next == t1), Status.SUCCESS.value, Status.RUNNING.value),
    )
    after = Solve(following, scale, verdict.state, evidence, counts, status, solve.reference)
    return after, verdict.accepted


def measure_of(method: Method, control: Control, state: State, t_next: Array) -> Measure:
    """How large errors of a step from ``state`` are for a control."""

    def measure(error: Array, mean: Array) -> Array:
        return control.measure(_tried(method, state, t_next, mean, error))

    return measure


def _tried(method: Method, state: State, t_next: Array, mean: Array, error: Array) -> Tried:
    equation = method.equation
    ends = equation.controlled(state.mean), equation.controlled(mean)
    return Tried(state.t, t_next, *ends, error.reshape(-1))


def running(solve: Solve) -> Array:
    """Whether there is anything left to do."""
    return solve.status == Status.RUNNING.value


@record
class Rows:
    """Filtering states in the order of time, stacked: row ``i`` is where step ``i`` ended.

    The first row is where the first step began. ``scale`` is the ``s`` of the step that ended
    there.
    """

    t: Array
    h: Array
    scale: Array
    mean: Array
    factor: Array
    drift: Array | None = None
    """Of the prior in the step that begins there, where each has its own."""
    whole: Array | None = None
    """Lengths of the steps that were taken, where times were put between: of those that end there
    the ones they are a part of."""

    @staticmethod
    def of(solve: Solve) -> "Rows":
        """One row (without the leading axis)."""
        state = solve.state
        return Rows(state.t, state.h, solve.scale, state.mean, state.factor, state.drift)

    def at(self, i: Any) -> State:
        """The state in row ``i``."""
        return State(self.t[i], self.h[i], self.mean[i], self.factor[i], self.drift_at(i))

    def drift_at(self, i: Any) -> Any:
        """The drift of the steps from the rows ``i``, where each has its own."""
        return None if self.drift is None else self.drift[i]

    def whole_at(self, i: Any) -> Any:
        """The length of the step that the one to row ``i`` is a part of, if it is not all."""
        return None if self.whole is None else self.whole[i]

    def moving_with(self, times: Array) -> "Rows":
        """Return the rows with derivatives by their times; the lengths of steps are constants."""
        t = moving(self.t, times)
        return replace(self, t=t, mean=moved(self.mean, t))

    def standing(self) -> "Rows":
        """Return the rows without derivatives by their times: inverse of :meth:`moving_with`."""
        return replace(self, t=jax.lax.stop_gradient(self.t), mean=moved(self.mean, -self.t))

    @property
    def steps(self) -> int:
        """How many steps: one less than rows."""
        return len(self.t) - 1


class Chunk(NamedTuple):
    """A buffer of ``steps`` steps, in rows ``0..steps`` (row 0: where they began)."""

    rows: Rows
    steps: Array | int


def fill_chunk(
    method: Method,
    capacity: int,
    field: Field,
    control: Control,
    solve: Solve,
    t1: Array,
    attempts: Array,
    wanted: Array,
) -> tuple[Solve, Chunk]:
    """Take steps until ``wanted`` are accepted, ``attempts`` are made, or the solve ends.

    ``capacity`` is the size of the buffer, part of the program; ``wanted`` is at most that.
    """
    first = Rows.of(solve)
    buffer = jax.tree.map(
        lambda x: jnp.zeros((capacity + 1, *x.shape), x.dtype).at[0].set(x), first
    )
    last = solve.counts.attempted + attempts

    def proceed(carry: tuple[Solve, Rows, Array]) -> Array:
        solve, _, count = carry
        return running(solve) & (count < wanted) & (solve.counts.attempted < last)

    def body(carry: tuple[Solve, Rows, Array]) -> tuple[Solve, Rows, Array]:
        solve, rows, count = carry
        solve, accepted = advance(method, field, control, solve, t1)
        # Written whether accepted or not: what was rejected is overwritten by the next attempt.
        rows = jax.tree.map(lambda buffer, x: buffer.at[count + 1].set(x), rows, Rows.of(solve))
        return solve, rows, count + accepted

    solve, rows, count = jax.lax.while_loop(proceed, body, (solve, buffer, jnp.zeros((), int)))
    return solve, Chunk(rows, count)


def run_to_end(method: Method, field: Field, control: Control, solve: Solve, t1: Array) -> Solve:
    """Take all steps and keep none."""
    found: Solve = jax.lax.while_loop(
        running, lambda solve: advance(method, field, control, solve, t1)[0], solve
    )
    return found


def run_grid(
    method: Method,
    steps: int,
    most: int,
    field: Field,
    control: Control,
    solve: Solve,
    t1: Array,
) -> tuple[Solve, Rows]:
    """Take exactly ``steps`` steps; after a failure the last good state is repeated.

    ``most`` is the largest number of steps that are attempted.
    """
    control, t1 = method.constant((control, t1))

    def body(solve: Solve, _: None) -> tuple[Solve, Rows]:
        following, _accepted = advance(method, field, control, solve, t1)
        active = running(solve) & (solve.counts.attempted < most)
        solve = jax.tree.map(lambda new, old: jnp.where(active, new, old), following, solve)
        return solve, Rows.of(solve)

    first = Rows.of(solve)
    solve, rest = jax.lax.scan(body, solve, None, length=steps)
    rows = jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), first, rest)
    return solve, rows
