"""Solving with the solution kept at given times only: memory for these, not for the steps.

Fixed-point smoothing: between two save points the backward kernels of the steps are composed to
one, so the smoother needs one kernel per save point. The steps themselves are not changed: the
result is what dense output of a full solve would give at these times.
"""

from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import on_host
from probode.base.record import record
from probode.base.status import Status
from probode.filter.control import Control
from probode.filter.frozen import if_reached, moved, moving_as
from probode.filter.loop import Rows, Solve, advance, running
from probode.filter.smooth import (
    Kernel,
    Marginals,
    backward_kernel,
    compose,
    identity_kernel,
    rescaled,
    spread_noise,
    unless_grown,
)
from probode.filter.step import Method, State, extrapolate
from probode.programs.field import Field


@record
class Saving:
    """A solve that keeps what it passes at the save points."""

    solve: Solve
    point: State
    """Where the running kernel ends: the latest save point or node that was dealt with."""
    kernel: Kernel | None
    """``p(x(last save point) | x(point))``; ``None`` when filtering only."""
    saved: Rows
    kernels: Kernel | None
    """Row ``k``: from save point ``k`` to the next (the last one: to the end of the solve)."""
    count: Array
    """Save points dealt with so far."""
    tracker: Any = None
    """What goes along beside the filter, if it is wanted: made by a :class:`Beside`."""
    lengths: Array | None = None
    """Lengths of the steps into which the save points fall; NaN at the start, before any step."""


class Beside(Protocol):
    """What can go along beside the filter, forward and in bounded memory: hashable, as a setting.

    ``start`` makes a tracker, whose ``advance(field, t, h, left, right, std)`` is called for every
    accepted step, with the filter's means at its ends, and ``save(field, k, t)`` at save point
    ``k``; both return the tracker that follows. :class:`probode.global_error.beside.Beside`
    transports the error.
    """

    def start(self, equation: Any, t: Array, mean: Float[Array, "n d"], size: int) -> Any:
        """The tracker before the first step, with room for ``size`` save points."""


def begin_saving(
    method: Method, solve: Solve, size: int, smooth: bool, beside: Beside | None = None
) -> Saving:
    """Before the first step, with room for ``size`` save points.

    ``beside`` goes along with the filter.
    """

    def room(x: Array) -> Array:
        return jnp.full((size, *x.shape), jnp.nan, x.dtype)

    kernel = identity_kernel(method, solve.state) if smooth else None
    at = solve.state.t, solve.state.mean
    return Saving(
        solve=solve,
        point=solve.state,
        kernel=kernel,
        saved=jax.tree.map(room, Rows.of(solve)),
        kernels=jax.tree.map(room, kernel),
        count=jnp.zeros((), int),
        tracker=None if beside is None else beside.start(method.equation, *at, size),
        lengths=room(solve.state.h),
    )


def saving_of_end(method: Method, solve: Solve, smooth: bool) -> Saving:
    """A finished solve with its end, if that was reached, as the only save point."""
    xp: Any = np if on_host(solve.status) else jnp
    state, kernel = solve.state, None
    if smooth:
        shape = method.structure.factor_shape
        gain = xp.broadcast_to(xp.eye(shape[-1]), shape)
        kernel = Kernel(state.mean, state.mean, gain, xp.zeros(shape), state.h, state.h)
    reached = solve.status == Status.SUCCESS.value
    saved = jax.tree.map(lambda x: _or_nan(reached, xp.asarray(x))[None], Rows.of(solve))
    kernels = jax.tree.map(lambda x: xp.asarray(x)[None], kernel)
    lengths = xp.where(solve.counts.accepted > 0, state.h, np.nan)[None]
    count = xp.asarray(reached, int)
    return Saving(solve, state, kernel, saved, kernels, count, lengths=lengths)


def run_saving(
    method: Method,
    field: Field,
    control: Control,
    saving: Saving,
    t1: Array,
    save_at: Float[Array, " K"],
    attempts: Any,
) -> Saving:
    """Step on until the end, or until ``attempts`` more steps were tried.

    Each iteration deals with one save point if one was passed, else attempts a step.

    With frozen gains steps and save points are constants; ``saved`` then has the derivatives.
    """
    times = save_at
    t1, save_at = method.constant((t1, save_at))
    last = saving.solve.counts.attempted + attempts

    def proceed(saving: Saving) -> Array:
        solve = saving.solve
        return (running(solve) & (solve.counts.attempted < last)) | passed(saving, t1, save_at)

    def body(saving: Saving) -> Saving:
        return jax.lax.cond(
            passed(saving, t1, save_at),
            lambda saving: save(method, field, saving, save_at),
            lambda saving: step(method, field, control, catch_up(method, saving), t1),
            saving,
        )

    saving = close(method, jax.lax.while_loop(proceed, body, saving))
    reached = (jnp.arange(save_at.shape[0]) < saving.count)[:, None, None]
    mean = if_reached(reached, saving.saved.mean, saving.solve.state.mean)
    saving = replace(saving, saved=replace(saving.saved, mean=mean))
    if not method.frozen:
        return saving
    return replace(saving, saved=saving.saved.moving_with(times))


def cross_saving(
    method: Method,
    field: Field,
    control: Control,
    saving: Saving,
    rows: Rows,
    following: Solve,
    t1: Array,
    save_at: Float[Array, " K"],
) -> Saving:
    """Take a step across that was made elsewhere: its two rows, and the solve after it."""
    saving = run_saving(method, field, control, saving, t1, save_at, 0)
    ended = replace(following, scale=rows.scale[1])
    tracker = _track(method, field, saving, ended, jnp.asarray(True))
    saving = replace(saving, solve=ended, tracker=tracker)
    # The save points on it, and the kernel to its end; with its noise, which is then forgotten.
    saving = run_saving(method, field, control, saving, t1, save_at, 0)
    return replace(saving, solve=following)


def passed(saving: Saving, t1: Array, save_at: Float[Array, " K"]) -> Array:
    """Whether the last step went past a save point that was not dealt with yet."""
    time = save_at[jnp.minimum(saving.count, save_at.shape[0] - 1)]
    reached = saving.solve.state.t
    # At the end the direction is that of the last step.
    backwards = (t1 < reached) | ((t1 == reached) & (saving.solve.control.h < 0.0))
    behind = jnp.where(backwards, time >= reached, time <= reached)
    return behind & (saving.count < save_at.shape[0])


def close(method: Method, saving: Saving) -> Saving:
    """Write down the kernel from the latest save point to where the solve has come."""
    saving = catch_up(method, saving)
    return replace(saving, kernels=_store_kernel(saving, saving.kernel))


def step(method: Method, field: Field, control: Control, saving: Saving, t1: Array) -> Saving:
    """Attempt one step; the running kernel must have been brought up to the latest node."""
    solve, accepted = advance(method, field, control, saving.solve, t1)
    tracker = _track(method, field, saving, solve, accepted)
    return replace(saving, solve=solve, tracker=tracker)


def _track(method: Method, field: Field, saving: Saving, solve: Solve, accepted: Array) -> Any:
    """Take what goes along over the step, if it was accepted."""
    tracker, before, after = saving.tracker, saving.solve.state, solve.state
    if tracker is None:
        return None
    structure, coords = method.structure, method.prior.coordinates(after.h)
    std = jnp.concatenate(
        [
            structure.std(structure.select(after.factor, j) * coords[j])
            for j in range(method.equation.order)
        ]
    )

    given = field, before.t, after.t - before.t, before.mean, after.mean, std

    def move() -> Any:
        return tracker.advance(*method.constant(given))

    return jax.lax.cond(accepted, move, lambda: tracker)


def _transition(method: Method, saving: Saving, t: Array) -> tuple[Array, Array]:
    """Length and process noise of the transition from ``point`` to ``t`` inside the last step."""
    h = t - saving.point.t
    h = jnp.where(h == 0.0, 1.0, h)
    return h, saving.solve.scale * method.prior.noise_scale(h / saving.solve.state.h)


def _kernel_to(method: Method, saving: Saving, t: Array, after: State) -> Kernel | None:
    """The running kernel, extended to time ``t``, at which the filter's state is ``after``.

    Before the first save point none is needed.
    """
    so_far = saving.kernel
    if so_far is None:
        return None

    def extend() -> Kernel:
        h, scale = _transition(method, saving, t)
        kernel = backward_kernel(method, saving.point, h, scale, after)
        return method.constant(compose(method, so_far, kernel))

    return jax.lax.cond(is_behind(saving, t), extend, lambda: so_far)


def is_behind(saving: Saving, t: Array) -> Array:
    """Whether the running kernel has to be extended to reach time ``t``."""
    return (saving.point.t != t) & (saving.count > 0)


def catch_up(method: Method, saving: Saving) -> Saving:
    """Bring the running kernel up to the latest node."""
    state = saving.solve.state
    kernel = _kernel_to(method, saving, state.t, state)
    return replace(saving, point=state, kernel=kernel)


def _store_kernel(saving: Saving, kernel: Kernel | None) -> Kernel | None:
    """The kernels with the one that starts at the latest save point written down."""
    if kernel is None:
        return None
    return _write(saving.kernels, jnp.maximum(saving.count - 1, 0), kernel)


def pass_point(method: Method, saving: Saving, t: Array) -> tuple[State, Kernel | None]:
    """The state at a time inside the last step (or its end), and the running kernel up to there."""
    h, scale = _transition(method, saving, t)
    inside = extrapolate(method, saving.point, h, scale)
    at_node = t == saving.solve.state.t
    inside = jax.tree.map(lambda a, b: jnp.where(at_node, a, b), saving.solve.state, inside)
    return inside, _kernel_to(method, saving, t, inside)


def _led_to(method: Method, saving: Saving, inside: State) -> Array:
    """The mean ``inside`` the last step, given its end."""
    end = saving.solve.state
    left, at_node = replace(saving, point=inside), inside.t == end.t
    kernel = backward_kernel(method, inside, *_transition(method, left, end.t), end)
    return jnp.where(at_node, end.mean, kernel.pull(method, end.mean))


def save(method: Method, field: Field, saving: Saving, save_at: Array) -> Saving:
    """Record the save point that the last step passed; the running kernel starts again there."""
    solve, t = saving.solve, save_at[saving.count]
    inside, reaching = pass_point(method, saving, t)
    mean = moving_as(inside.mean, _led_to(method, saving, inside)) if method.frozen else inside.mean
    row = Rows(t, inside.h, solve.scale, mean, inside.factor, inside.drift)
    kernels = _store_kernel(saving, reaching)
    kernel = None if saving.kernel is None else identity_kernel(method, inside)
    tracker = saving.tracker
    if tracker is not None:
        tracker = tracker.save(*method.constant((field, saving.count, t)))
    h = jnp.where(solve.counts.accepted > 0, solve.state.h, jnp.nan)
    return Saving(
        solve,
        inside,
        kernel,
        _write(saving.saved, saving.count, row),
        kernels,
        saving.count + 1,
        tracker,
        _write(saving.lengths, saving.count, h),
    )


def _moving(method: Method, saved: Rows, i: Array, state: Array) -> Array:
    """Return a state at save point ``i``; frozen gains: with derivatives of the filter's mean."""
    if not method.frozen:
        return state
    return moved(moving_as(state, saved.standing().mean[i]), saved.t[i])


def _or_nan(reached: Any, x: Any) -> Any:
    """Return ``x`` if it was reached; else NaN, and so are its derivatives."""
    return np.where(reached, x, np.nan) if on_host(x) else if_reached(reached, x, x)


def _write(buffer: Any, i: Array, row: Any) -> Any:
    return jax.tree.map(lambda xs, x: xs.at[i].set(x), buffer, row)


def smooth_saved(method: Method, saving: Saving) -> Marginals:
    """Marginals at the save points given all steps; rows that were not reached stay NaN."""
    saved, kernels, count = saving.saved, saving.kernels, saving.count
    assert kernels is not None

    def body(right: State, i: Array) -> tuple[State, Marginals]:
        kernel = jax.tree.map(lambda x: x[i], kernels)
        reached = i < count
        # NaN rows must not touch the rows before them: give the kernel something harmless.
        given = kernel, saved.at(i)
        kernel, filtered = jax.tree.map(lambda x: jnp.where(reached, x, 1.0), given)
        kernel = unless_grown(method, kernel, filtered, right)
        left = kernel.marginalize(method, right, saved.t[i])
        factor = rescaled(method, left.factor, left.h, jnp.where(reached, saved.h[i], 1.0))
        left = State(left.t, saved.h[i], left.mean, factor, right.drift)
        right = jax.tree.map(lambda a, b: jnp.where(reached, a, b), left, right)
        row = Marginals(_moving(method, saved, i, right.mean), right.factor)
        return right, jax.tree.map(lambda x: _or_nan(reached, x), row)

    indices = jnp.arange(saved.t.shape[0])
    return jax.lax.scan(body, saving.solve.state, indices, reverse=True)[1]


def sample_saved(
    method: Method, saving: Saving, noise: Float[Array, "K1 n d"], spread: Array
) -> Float[Array, "K k d"]:
    """One joint draw of ``y, ..., y^(k-1)`` at the save points.

    ``noise`` is standard normal, one row more.
    """
    kernels, end = saving.kernels, saving.solve.state
    assert kernels is not None
    last = end.mean + spread * spread_noise(method, end.factor, end.h, noise[-1])

    def body(
        carry: tuple[Array, State], row: tuple[Array, Array]
    ) -> tuple[tuple[Array, State], Array]:
        (right, after), (i, noise) = carry, row
        reached = i < saving.count
        given = jax.tree.map(lambda x: x[i], kernels), saving.saved.at(i)
        kernel, filtered = jax.tree.map(lambda x: jnp.where(reached, x, 1.0), given)
        kernel = unless_grown(method, kernel, filtered, after)
        left = kernel.draw(method, right, noise, spread)
        right = jnp.where(reached, left, right)
        before = kernel.marginalize(method, after, filtered.t)
        before = replace(before, drift=after.drift)
        after = jax.tree.map(lambda a, b: jnp.where(reached, a, b), before, after)
        drawn = _moving(method, saving.saved, i, right)[: method.equation.order]
        return (right, after), _or_nan(reached, drawn)

    rows = (jnp.arange(saving.saved.t.shape[0]), noise[:-1])
    return jax.lax.scan(body, (last, end), rows, reverse=True)[1]
