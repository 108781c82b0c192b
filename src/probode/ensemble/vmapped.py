"""The reference engine: the library's own saving loop on a batch of members at a time.

A batch has ``W`` lanes, each with a member. All lanes attempt a step at once, until enough of them
have finished; those are harvested and their places filled with members that wait (compact and
refill). So a batch costs the mean number of steps of its members, not the largest. What
:mod:`probode.saving` does for one solve is done here in the same order, hence to the same result;
but whether anything has to be done is asked for the whole batch, so that it can be skipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode import loop, saving
from probode.calibration.schemes import scheme_for
from probode.calibration.transport import Scheme
from probode.compile import compiled
from probode.control import PControl
from probode.engine import one_blas_thread
from probode.ensemble.function import bind_member
from probode.ensemble.problem import member, usable
from probode.ensemble.settings import Settings
from probode.lanes.records import LaneResults, Members
from probode.paths import SavedPath
from probode.precision import double_precision
from probode.problem import Field
from probode.record import record, unchecked
from probode.saving import Saving
from probode.smooth import Marginals
from probode.solve import build_posterior, calibrate_posterior
from probode.solvers import Solver
from probode.status import Status
from probode.step import Method

_LANES = {"cpu": 64}
_LANES_ELSEWHERE = 4096
_REFILLED = 4
"""A batch stops for refilling when this part of its lanes has finished."""
_ROUND = 256
"""Attempted steps after which Python gets its turn."""
_LANE_BYTES = 2**28
"""Memory that the lanes may take."""


@dataclass(frozen=True)
class Plan:
    """What is part of the compiled program."""

    solver: Solver
    method: Method
    shape: tuple[int, ...]
    swept: tuple[int, ...]
    """Which parameters of the vector field the members have of their own."""
    smooth: bool
    covariance: bool
    calibration: str
    scheme: Scheme | None
    samples: int


@record
class Start:
    """A member that waits."""

    t0: Array
    t1: Array
    y0: Array
    rtol: Array
    atol: Array
    save_at: Array
    own: list[Array]
    """Its parameters of the vector field."""
    seed: Array
    """Two numbers that its samples depend on."""
    real: Array
    """False: nothing, to fill a place."""


@record
class Lane:
    """A member that is being solved."""

    start: Start
    kept: Saving


def solve_vmapped(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
    samples: int = 0,
    seed: int = 0,
    numbers: np.ndarray | None = None,
    lanes: int | None = None,
) -> tuple[LaneResults, np.ndarray | None]:
    """Solve all members on one device; return results and joint samples ``(B, n, T, d)``.

    ``on_progress`` is told how many members have finished since it was told last. Members that
    have not when ``stop`` is set are marked as interrupted. Samples depend on ``seed`` and on the
    ``numbers`` of the members. ``lanes`` is the size of a batch, a power of two.
    """
    # BLAS threads: of use for no matrix met here.
    with double_precision(), one_blas_thread(), jax.default_device(device):
        fits = usable(members)
        platform = (device or jax.devices()[0]).platform
        plan, field = _plan(vector_field, members, settings, int(np.argmax(fits)), samples)
        if lanes is None:
            lanes = _lanes(plan, platform, members.times.shape[1])
        queue = _starts(members, field, plan.swept, seed, numbers)
        found = _run(plan, field, settings, queue, fits, lanes, on_progress, stop)
    return _gather(members, settings, plan, fits, found)


def _plan(
    vector_field: Callable[..., Any], members: Members, settings: Settings, i: int, samples: int
) -> tuple[Plan, Field]:
    """The compiled part, and the vector field with the parameters of member ``i``."""
    solver = settings.solver
    _, y0, args = member(members, i)
    field = bind_member(vector_field, members, settings, i)
    method = solver.method(field.d)
    scheme = None
    if settings.calibration != "model":
        scheme = scheme_for(method, False, settings.calibration)
    plan = Plan(
        *(solver, method, y0.shape, _swept(members, field, args)),
        *(settings.smooth or samples > 0, settings.covariance, settings.calibration),
        *(scheme, samples),
    )
    return plan, field


def _swept(members: Members, field: Field, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Parameters that each member has for itself: those that vary, and numbers.

    So the program does not depend on which of the numbers vary.
    """
    axes = [members.axes[k] for k in field.data_leaves(args)]
    return tuple(
        k for k, axis in enumerate(axes) if axis is not None or np.ndim(field.args[k]) == 0
    )


def _lanes(plan: Plan, platform: str, times: int) -> int:
    """Lanes of a batch: as many as suit the device, if there is memory for them.

    The number of members plays no part: one program for all ensembles, and the same member gives
    the same result in each of them.
    """
    structure = plan.method.structure
    state = 8 * (structure.n * structure.d + int(np.prod(structure.factor_shape)))
    # A saved state and its kernel at each save point, and what one step works on.
    one = state * (3 * times + 16)
    lanes = _LANES.get(platform, _LANES_ELSEWHERE)
    while lanes > 1 and lanes * one > _LANE_BYTES:
        lanes //= 2
    return lanes


def _starts(
    members: Members, field: Field, swept: tuple[int, ...], seed: int, numbers: Any
) -> Start:
    """All members as a queue, NumPy arrays."""
    numbers = np.arange(members.count) if numbers is None else numbers
    leaves = jax.tree.leaves(members.args)
    _, _, args = member(members, 0)
    data = [leaves[k] for k in field.data_leaves(args)]
    own: list[Any] = [
        data[k] if np.ndim(data[k]) else np.full(members.count, data[k]) for k in swept
    ]
    seeds: Any = np.stack([np.full(members.count, seed), numbers], axis=1).astype(np.uint32)
    real: Any = np.ones(members.count, bool)
    given: Any = members
    return Start(
        t0=given.t0,
        t1=given.t1,
        y0=given.y0,
        rtol=given.rtol,
        atol=given.atol,
        save_at=given.times,
        own=own,
        seed=seeds,
        real=real,
    )


def _run(
    plan: Plan,
    field: Field,
    settings: Settings,
    queue: Start,
    fits: np.ndarray,
    width: int,
    on_progress: Callable[[int], Any] | None,
    stop: Event | None,
) -> list[tuple[np.ndarray, Any]]:
    """Solve the members that fit; return their numbers and outcomes, as they finished."""
    control = settings.control.flat(plan.shape)
    waiting = list(np.flatnonzero(fits)[::-1])
    # What is handed out is no part of the steps: these are compiled once.
    steps = replace(plan, covariance=False, samples=0)
    places = max(1, width // _REFILLED)
    lanes = _vacant_lanes(plan, field, control, queue, width)
    inside = np.full(width, -1)  # which member is in which lane
    going = np.zeros(width, bool)
    found: list[tuple[np.ndarray, Any]] = []
    while waiting or (inside >= 0).any():
        if stop is not None and stop.is_set():
            break
        free = np.flatnonzero(~going)
        if not waiting:
            free = free[inside[free] >= 0]
        for start in range(0, len(free), places):
            slots = free[start : start + places]
            arriving = [waiting.pop() for _ in slots[: len(waiting)]]
            filler = [*arriving, *[0] * (places - len(arriving))]
            starts = jax.tree.map(lambda x, rows=filler: x[rows], queue)
            real = np.arange(places) < len(arriving)
            padded = np.concatenate([slots, np.full(places - len(slots), width)])
            outcome, lanes = exchange_lanes(
                plan, field, control, lanes, padded, replace(starts, real=real)
            )
            leaving, done = inside[slots], np.flatnonzero(inside[slots] >= 0)
            if len(done):
                found.append(
                    (leaving[done], jax.tree.map(lambda x, i=done: np.asarray(x)[i], outcome))
                )
                if on_progress is not None:
                    on_progress(len(done))
            inside[slots] = [*arriving, *[-1] * (len(slots) - len(arriving))]
        busy = int((inside >= 0).sum())
        wanted = width - busy + (places if waiting else busy)
        lanes, going = advance_lanes(
            steps, field, control, lanes, settings.max_steps, _ROUND, min(wanted, width)
        )
        going = np.asarray(going)
    return found


def _vacant_lanes(plan: Plan, field: Field, control: PControl, queue: Start, width: int) -> Lane:
    """Lanes without members: zeros, which mean a success, with all save points dealt with."""
    one = jax.tree.map(lambda x: x[0], queue)
    shapes = jax.eval_shape(lambda start: _begin(plan, field, control, start), one)
    lanes = jax.tree.map(lambda x: jnp.zeros((width, *x.shape), x.dtype), shapes)
    assert Status.SUCCESS.value == 0
    return replace(lanes, kept=replace(lanes.kept, count=lanes.kept.count + queue.save_at.shape[1]))


def _gather(
    members: Members,
    settings: Settings,
    plan: Plan,
    fits: np.ndarray,
    found: list[tuple[np.ndarray, Any]],
) -> tuple[LaneResults, np.ndarray | None]:
    """Outcomes in the order of the members; NaN for those that have none."""
    count, times, d = members.count, members.times.shape[1], members.d
    status = np.where(fits, Status.INTERRUPTED.value, Status.START_NOT_FINITE.value)
    counts = np.zeros((5, count), int)
    mean, std = (np.full((count, times, d), np.nan) for _ in range(2))
    cov = np.full((count, times, d, d), np.nan) if settings.covariance else None
    samples = np.full((count, plan.samples, times, d), np.nan) if plan.samples else None
    for which, outcome in found:
        mean[which], std[which] = outcome["mean"], outcome["std"]
        status[which], counts[:, which] = outcome["status"], outcome["counts"].T
        if cov is not None:
            cov[which] = outcome["cov"]
        if samples is not None:
            samples[which] = outcome["samples"]
    return LaneResults(mean, std, cov, status, *counts), samples


# Compiled -----------------------------------------------------------------------------------------


def _own(plan: Plan, field: Field, control: PControl, start: Start) -> tuple[Field, PControl]:
    """The vector field and the control with a member's own numbers."""
    args = list(field.args)
    for k, value in zip(plan.swept, start.own, strict=True):
        args[k] = value
    values = {**vars(control), "rtol": start.rtol, "atol": start.atol}
    return replace(field, args=args), unchecked(type(control), values)


def _begin(plan: Plan, field: Field, control: PControl, start: Start) -> Lane:
    field, control = _own(plan, field, control, start)
    method = plan.method
    solve = loop.begin(
        method, plan.solver.initialization, field, control, start.t0, start.t1, start.y0
    )
    kept = saving.begin_saving(method, solve, start.save_at.shape[0], plan.smooth, plan.scheme)
    # A vacant lane has reached its end and all its save points.
    solve = replace(solve, status=jnp.where(start.real, solve.status, Status.SUCCESS.value))
    count = jnp.where(start.real, kept.count, start.save_at.shape[0])
    return Lane(start, replace(kept, solve=solve, count=count))


def _harvest(plan: Plan, field: Field, control: PControl, lane: Lane) -> dict[str, Array]:
    """What a finished member has to say."""
    field, control = _own(plan, field, control, lane.start)
    method, kept = plan.method, saving.close(plan.method, lane.kept)
    status = kept.solve.status
    status = jnp.where(status == Status.RUNNING.value, Status.MAX_STEPS.value, status)
    marginals = Marginals(kept.saved.mean, kept.saved.factor)
    if plan.smooth:
        marginals = saving.smooth_saved(method, kept)
    path = SavedPath(kept.saved, marginals, kept)
    extra = plan.solver.initialization.evaluations(plan.solver.order) + control.start_evaluations()
    posterior = build_posterior(
        plan.solver, method, (method.structure.d,), control, path, kept.solve, status, extra
    )
    if plan.calibration != "model":
        posterior = posterior.with_calibration(
            calibrate_posterior(posterior, field, plan.calibration)
        )
    at, stats = posterior.marginals, posterior.stats
    counts = (
        *(stats.steps, stats.accepted, stats.rejected),
        *(stats.f_evaluations + stats.calibration_f_evaluations,),
        stats.jacobian_evaluations + stats.calibration_jacobian_evaluations,
    )
    outcome = {"mean": at.mean, "std": at.std, "status": status}
    outcome["counts"] = jnp.stack([jnp.asarray(count) for count in counts])
    if plan.covariance:
        outcome["cov"] = at.cov
    if plan.samples:
        seed = lane.start.seed
        key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
        outcome["samples"] = posterior.sample(plan.samples, seed=key)
    return outcome


@compiled(0)
def exchange_lanes(
    plan: Plan, field: Field, control: PControl, lanes: Lane, slots: Array, starts: Start
) -> tuple[dict[str, Array], Lane]:
    """Take out what is in some lanes, and put others there; a slot beyond the last is none."""
    leaving = jax.tree.map(lambda x: x.at[slots].get(mode="clip"), lanes)
    outcome = jax.vmap(lambda lane: _harvest(plan, field, control, lane))(leaving)
    fresh = jax.vmap(lambda start: _begin(plan, field, control, start))(starts)
    lanes = jax.tree.map(lambda x, new: x.at[slots].set(new, mode="drop"), lanes, fresh)
    return outcome, lanes


@compiled(0)
def advance_lanes(
    plan: Plan,
    field: Field,
    control: PControl,
    lanes: Lane,
    limit: Array,
    attempts: Array,
    wanted: Array,
) -> tuple[Lane, Array]:
    """Step on until ``wanted`` lanes are at rest, or ``attempts`` more steps were tried.

    ``limit`` bounds the steps that a member may attempt. Returned: the lanes, and which of them
    have not finished.
    """
    method = plan.method

    def is_going(lane: Lane) -> Array:
        solve = lane.kept.solve
        return loop.running(solve) & (solve.counts.attempted < limit)

    def has_passed(lane: Lane) -> Array:
        return saving.passed(lane.kept, lane.start.t1, lane.start.save_at)

    def is_behind(lane: Lane) -> Array:
        return saving.is_behind(lane.kept, lane.kept.solve.state.t)

    def save(lane: Lane) -> Lane:
        return replace(lane, kept=saving.save(method, lane.kept, lane.start.save_at))

    def catch_up(lane: Lane) -> Lane:
        return replace(lane, kept=saving.catch_up(method, lane.kept))

    def follow(lane: Lane) -> Lane:
        """Where no kernel has to follow, its end does."""
        kept = lane.kept
        return replace(lane, kept=replace(kept, point=kept.solve.state))

    def step(lane: Lane) -> Lane:
        own = _own(plan, field, control, lane.start)
        return replace(lane, kept=saving.step(method, *own, lane.kept, lane.start.t1))

    def where(chosen: Array, function: Callable[[Lane], Lane], lanes: Lane) -> Lane:
        after = jax.vmap(function)(lanes)
        return jax.tree.map(
            lambda new, old: jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            after,
            lanes,
        )

    def save_all(lanes: Lane) -> Lane:
        return jax.lax.while_loop(
            lambda lanes: jax.vmap(has_passed)(lanes).any(),
            lambda lanes: where(jax.vmap(has_passed)(lanes), save, lanes),
            lanes,
        )

    def proceed(carry: tuple[Lane, Array]) -> Array:
        lanes, made = carry
        going = jax.vmap(is_going)(lanes)
        return (jnp.sum(~going) < wanted) & (made < attempts)

    def body(carry: tuple[Lane, Array]) -> tuple[Lane, Array]:
        lanes, made = carry
        going = jax.vmap(is_going)(lanes)
        if plan.smooth:
            behind = jax.vmap(is_behind)(lanes) & going
            lanes = jax.lax.cond(
                behind.any(),
                lambda lanes: where(going, catch_up, lanes),
                lambda lanes: where(going, follow, lanes),
                lanes,
            )
        else:
            lanes = where(going, follow, lanes)
        return save_all(where(going, step, lanes)), made + 1

    lanes, _ = jax.lax.while_loop(proceed, body, (save_all(lanes), jnp.zeros((), int)))
    return lanes, jax.vmap(is_going)(lanes)
