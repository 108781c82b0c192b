"""Likelihoods by filters that see the data: DALTON, and plain filtering.

Two filters go forward side by side, with the same steps and the same noise: one sees the equation
``Z`` only (and chooses the steps), the other the data ``Y`` too, and is linearised at its own
prediction: it follows the data where the equation alone is lost. With it ::

    dalton      log p(Y | Z) = log p(Y, Z) - log p(Z)
    filter      Σ_k log p(u_k | Z up to t_k, u_1, ..., u_(k-1))

The first is the likelihood under the model, the second leaves out what the equation says after each
datum. With a fixed diffusion both filters run in its units, where the data have noise ``R/σ²``.
(Wu, Lysy: DALTON, 2024.)
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from probode.filter import loop
from probode.filter.dense import dense, known_columns, widened
from probode.filter.loop import Solve
from probode.filter.step import State, attempt, drift_at, update
from probode.inference.task import Plan, Task, solved, spread_of
from probode.model import gaussian
from probode.model.diffusion import Innovation
from probode.model.observations import log_whitened


class Filters(NamedTuple):
    """Both filters at the same time, and what they have found."""

    alone: Solve
    joint: State
    """Dense; the one that sees the data."""
    equation: Array
    """``log p(Z | Y so far) - log p(Z)``."""
    data: Array
    """``Σ log p(u_k | Z so far, earlier data)``."""


def forward(plan: Plan, task: Task) -> tuple[Array, Array]:
    """The log likelihood, and whether the solve succeeded."""
    method, data = task.method, task.data
    if method.diffusion.fixed and method.diffusion.multivariate:
        raise ValueError(
            f"method={plan.kind!r} takes one diffusion for all components, got "
            f"{method.diffusion.name!r}: use 'fixed' or 'dynamic', or method='fenrir'."
        )
    thick, end = dense(method), task.end
    sigma = jnp.ones(())
    if method.diffusion.fixed:
        alone = solved(plan, task, False).solve if task.diffusion is None else None
        start = begun(plan, task) if alone is None else alone
        sigma = spread_of(task, start)

    def step(now: Filters) -> Filters:
        alone, accepted = loop.advance(method, task.field, task.control, now.alone, end)
        joint, gained = jax.lax.cond(
            accepted,
            lambda: follow(now, alone),
            lambda: (now.joint, jnp.zeros(())),
        )
        return now._replace(alone=alone, joint=joint, equation=now.equation + gained)

    def follow(now: Filters, alone: Solve) -> tuple[State, Array]:
        """The other filter over the same step with the same noise."""
        if task.control.crossings is None:
            return over_step(now, alone)
        return jax.lax.cond(
            task.control.crossings.begins_at(now.alone.state.t), over_switch, over_step, now, alone
        )

    def over_switch(now: Filters, alone: Solve) -> tuple[State, Array]:
        """Step across a switch, where nothing is observed."""
        state = loop.across_from(thick, task.field, task.control, now.joint, end)[0]
        return state, jnp.zeros(())

    def over_step(now: Filters, alone: Solve) -> tuple[State, Array]:
        known = loop.forgetting(task.control, now.alone)
        proposal = attempt(
            thick,
            task.field,
            now.joint,
            alone.state.t,
            alone.reference,
            now.alone.evidence,
            known.scale,
        )
        proposal = proposal._replace(scale=alone.scale)
        joint, innovation = update(thick, now.joint, proposal, task.field)
        if method.prior.per_step:
            drift = drift_at(method, task.field, joint.t, joint.mean)
            joint = replace(joint, drift=drift)
        own = _log_density(innovation, sigma) - _difference(now.alone, alone, sigma)
        return joint, own

    def to_datum(now: Filters, k: Array) -> tuple[Filters, None]:
        def going(now: Filters) -> Array:
            ahead = now.alone.state.t != task.times[k]
            few = now.alone.counts.attempted < plan.max_steps
            return ahead & few & loop.running(now.alone)

        now = jax.lax.while_loop(going, step, now)
        joint, gained = observe(now.joint, k)
        reached = now.alone.state.t == task.times[k]
        joint = jax.tree.map(lambda a, b: jnp.where(reached, a, b), joint, now.joint)
        total = jnp.where(reached, now.data + gained, jnp.nan)
        return now._replace(joint=joint, data=total), None

    def observe(state: State, k: Array) -> tuple[State, Array]:
        """The state given datum ``k``, and the density of that."""
        columns = known_columns(thick, state.factor, state.h)
        std = sigma * gaussian.std_of(columns)
        site = data.site(k, method.equation.controlled(state.mean), std)
        seen = columns @ site.matrix.T
        found = gaussian.condition(state.factor, seen, site.z[:, None], site.noise / sigma)
        coords = method.prior.coordinates(state.h)[:, None]
        mean = state.mean - coords * thick.structure.join(found.correction)
        density = log_whitened(found.whitened[:, 0] / sigma, sigma * found.pivots)
        return replace(state, mean=mean, factor=found.factor), site.offset + density

    alone = begun(plan, task)
    joint = replace(alone.state, factor=widened(method, alone.state.factor))
    zero = jnp.zeros(())
    filters = Filters(alone, joint, zero, zero)
    filters, _ = jax.lax.scan(to_datum, filters, jnp.arange(data.t.shape[0]))
    total = filters.data + (filters.equation if plan.kind == "dalton" else 0.0)
    return total, task.inside & (filters.alone.state.t == end)


def begun(plan: Plan, task: Task) -> Solve:
    """The filter of the equation alone before its first step."""
    return loop.begin(
        task.method, plan.initialization, task.field, task.control, task.t0, task.end, task.y0
    )


def _log_density(innovation: Innovation, sigma: Array) -> Array:
    """``log N(z; 0, σ² S)`` but for constants, which are those of the other filter."""
    return -0.5 * jnp.sum(innovation.whitened**2 / sigma**2 + innovation.log_det)


def _difference(before: Solve, after: Solve, sigma: Array) -> Any:
    """The same of the filter without data, from its sums over all steps."""
    squares = jnp.sum(after.evidence.squares - before.evidence.squares)
    log_det = jnp.sum(after.evidence.log_det - before.evidence.log_det)
    return -0.5 * (squares / sigma**2 + log_det)
