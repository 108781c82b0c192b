"""A batch of members that attempt their steps together: what is compiled of it.

What :mod:`probode.filter.saving` does for one solve is done here in the same order, hence to the
same result; but whether anything has to be done is asked for the whole batch, so that it can be
skipped.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.base.record import record, unchecked
from probode.base.status import Status
from probode.filter import loop, saving
from probode.filter.control import PControl
from probode.filter.crossing import Crossings, across_switches
from probode.filter.saving import Saving
from probode.filter.smooth import Marginals
from probode.filter.solvers import Solver
from probode.filter.step import Method
from probode.global_error.beside import Beside
from probode.model.implicit import Implicit
from probode.model.invariant import Constraint
from probode.model.parts import Part
from probode.posterior.finish import calibrated
from probode.posterior.paths import SavedPath
from probode.programs.field import Field
from probode.programs.switches import MOST_OF_A_TABLE, NONE
from probode.solve import build_posterior


@dataclass(frozen=True)
class Plan(Part):
    """What the compiled program is made for."""

    solver: Solver
    method: Method
    shape: tuple[int, ...]
    swept: tuple[int, ...]
    """Which parameters of the vector field the members have of their own."""
    smooth: bool
    covariance: bool
    calibration: str
    beside: Beside | None
    samples: int
    finest: int = MOST_OF_A_TABLE
    """Largest number of entries of a table at whose entries steps end."""
    places: tuple[int | None, ...] = ()
    """Of each parameter of the invariants, its place among those of the vector field."""


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
    """False: an empty place."""


@record
class Lane:
    """A member that is being solved."""

    start: Start
    kept: Saving
    stops: Array | None = None
    crossings: Crossings | None = None
    """Times at which its steps must end, and its steps across switches, if there are any."""


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
    if not isinstance(method.equation, Implicit):
        initialization, finest = plan.solver.initialization, plan.finest
        control = across_switches(control, field, NONE, start.t0, start.t1, initialization, finest)
    solve = loop.begin(
        method, plan.solver.initialization, field, control, start.t0, start.t1, start.y0
    )
    kept = saving.begin_saving(method, solve, start.save_at.shape[0], plan.smooth, plan.beside)
    # A vacant lane has reached its end and all its save points.
    solve = replace(solve, status=jnp.where(start.real, solve.status, Status.SUCCESS.value))
    count = jnp.where(start.real, kept.count, start.save_at.shape[0])
    kept = replace(kept, solve=solve, count=count)
    return Lane(start, kept, control.stops, control.crossings)


def _own_constraint(
    plan: Plan, field: Field, start: Start, held: Constraint | None
) -> Constraint | None:
    """What a member is held to; ``field`` is its own."""
    if held is None:
        return None
    g = held.invariants
    if g is not None:
        places = zip(plan.places, g.args, strict=True)
        g = replace(g, args=[own if k is None else field.args[k] for k, own in places])
    return Constraint(g, held.bounds, start.rtol, start.atol)


def _harvest(
    plan: Plan, field: Field, control: PControl, held: Constraint | None, lane: Lane
) -> dict[str, Array]:
    """What a finished member has to say."""
    field, control = _own(plan, field, control, lane.start)
    method, kept = plan.method, saving.close(plan.method, lane.kept)
    status = kept.solve.status
    status = jnp.where(status == Status.RUNNING.value, Status.MAX_STEPS.value, status)
    marginals = Marginals(kept.saved.mean, kept.saved.factor)
    if plan.smooth:
        marginals = saving.smooth_saved(method, kept)
    path = SavedPath(kept.saved, marginals, kept)
    path = path.held_to(method, _own_constraint(plan, field, lane.start, held))
    extra = loop.start_evaluations(plan.solver.initialization, control, plan.solver.order)
    posterior = build_posterior(
        plan.solver, method, (method.structure.d,), control, path, kept.solve, status, extra
    )
    posterior = calibrated(posterior, field, plan.calibration, Limits())
    at, stats, times = posterior.state(), posterior.stats, kept.saved.t.shape[0]
    counts = (
        *(stats.steps, stats.accepted, stats.rejected),
        *(stats.f_evaluations + stats.calibration_f_evaluations,),
        stats.jacobian_evaluations + stats.calibration_jacobian_evaluations,
    )
    mean, std = (x.reshape(times, -1) for x in (at.mean, at.std))
    outcome = {"mean": mean, "std": std, "status": status}
    outcome["counts"] = jnp.stack([jnp.asarray(count) for count in counts])
    if posterior.calibration is not None:
        made = posterior.calibration
        lost = ~jnp.isfinite(made.error) & jnp.isfinite(mean)
        outcome["signs"] = jnp.append(made.signs, jnp.any(lost).astype(float))
    if plan.covariance:
        outcome["cov"] = at.cov
    if plan.samples:
        seed = lane.start.seed
        key = jax.random.fold_in(jax.random.key(seed[0]), seed[1])
        drawn = [
            posterior.sample(plan.samples, seed=key, k=k) for k in range(method.equation.order)
        ]
        outcome["samples"] = jnp.concatenate(drawn, axis=-1)
    return outcome


def vacant_lanes(plan: Plan, field: Field, control: PControl, start: Start, width: int) -> Lane:
    """Lanes without members: zeros, which mean a success, with all save points dealt with.

    ``start`` is any member, for its shapes.
    """
    assert Status.SUCCESS.value == 0
    shapes = jax.eval_shape(lambda start: _begin(plan, field, control, start), start)
    lanes = jax.tree.map(lambda x: jnp.zeros((width, *x.shape), x.dtype), shapes)
    count = lanes.kept.count + start.save_at.shape[0]
    return replace(lanes, kept=replace(lanes.kept, count=count))


@compiled()
def exchange_lanes(
    plan: Plan,
    field: Field,
    control: PControl,
    held: Constraint | None,
    lanes: Lane,
    slots: Array,
    starts: Start,
) -> tuple[dict[str, Array], Lane]:
    """Take out what is in some lanes, and put others there; a slot beyond the last is none."""
    leaving = jax.tree.map(lambda x: x.at[slots].get(mode="clip"), lanes)
    outcome = jax.vmap(lambda lane: _harvest(plan, field, control, held, lane))(leaving)
    fresh = jax.vmap(lambda start: _begin(plan, field, control, start))(starts)
    lanes = jax.tree.map(lambda x, new: x.at[slots].set(new, mode="drop"), lanes, fresh)
    return outcome, lanes


@compiled()
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
        own = _own(plan, field, control, lane.start)[0]
        return replace(lane, kept=saving.save(method, own, lane.kept, lane.start.save_at))

    def catch_up(lane: Lane) -> Lane:
        return replace(lane, kept=saving.catch_up(method, lane.kept))

    def follow(lane: Lane) -> Lane:
        """Where no kernel has to follow, its end does."""
        kept = lane.kept
        return replace(lane, kept=replace(kept, point=kept.solve.state))

    def step(lane: Lane) -> Lane:
        own, steps = _own(plan, field, control, lane.start)
        ends = {"stops": lane.stops, "crossings": lane.crossings}
        steps = unchecked(type(steps), {**vars(steps), **ends})
        return replace(lane, kept=saving.step(method, own, steps, lane.kept, lane.start.t1))

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
