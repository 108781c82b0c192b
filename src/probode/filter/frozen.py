"""Derivatives of means with steps and gains held fixed: the meaning of :attr:`Method.frozen`.

A step of the filter is ``m⁺ = m⁻ - K z(m⁻)``. For the sensitivities ``S = dm/dθ`` that becomes ::

    S⁻ = A S        S⁺ = S⁻ - K (r'(m⁺) S⁻ + ∂r/∂θ)

with the residual ``r`` linearised at ``m⁺``, where the solution is: ``m⁻`` is a prediction, whose
sensitivities are 10 to 50 times less accurate. The gains of a smoother are made for the errors of
``m``: they would carry a late error of ``S`` far back along a stiff solution. Therefore a smoothed
mean has the filter's derivatives at the end of a step; within a step, one backward kernel computes
them from both ends.

Steps are held fixed, so times need derivatives of their own: if a time changes, the mean moves
along the solution.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from probode.base.precision import double_precision
from probode.model.equation import Equation
from probode.model.linearize import VectorField


def differentiated_at(
    equation: Equation,
    kind: str,
    field: VectorField,
    t: Array,
    predicted: Float[Array, "n d"],
    corrected: Float[Array, "n d"],
    z: Float[Array, " d"],
) -> Float[Array, " d"]:
    """Return ``z``, with the derivatives ``r'(m⁺) dm⁻ + ∂r/∂θ dθ`` of the residual.

    ``m⁻`` is ``predicted``, ``m⁺`` is ``corrected``; ``kind`` is that of the method's Jacobian.
    """
    leaves, tree = jax.tree.flatten((equation, field, predicted))

    @jax.custom_jvp
    def value(t: Array, corrected: Array, z: Array, *leaves: Any) -> Array:
        return z

    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        t, corrected, z, *given = primals
        with double_precision():  # derivatives may be formed after solve has returned
            given[-1] = _once(corrected, given[-1])

            def residual(*leaves: Any) -> Array:
                equation, field, mean = jax.tree.unflatten(tree, leaves)
                return equation.linearize(field, t, mean, kind).z

            return z, _along(residual, given, tangents[3:])

    value.defjvp(rule, symbolic_zeros=True)
    return value(t, corrected, z, *leaves)


def started_at(
    equation: Equation, field: VectorField, t0: Array, y0: Float[Array, " m"]
) -> Float[Array, " m"]:
    """Return ``y0``, with the derivative ``-y'(t0)`` by ``t0``.

    The solution through ``(t0 + dt, y0)`` is at ``t0`` where ``y0 - y' dt`` is.
    """
    leaves, tree = jax.tree.flatten((t0, y0, field, equation))

    @jax.custom_jvp
    def value(*leaves: Any) -> Array:
        return leaves[1]

    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        y0, dt, dy = primals[1], tangents[0], tangents[1]
        if isinstance(dt, SymbolicZero):
            return value(*primals), jnp.zeros_like(y0) if isinstance(dy, SymbolicZero) else dy

        def begins(*leaves: Any) -> tuple[Array, Array]:
            t0, y0, field, equation = jax.tree.unflatten(tree, leaves)
            return equation.outset(field, t0, y0)

        with double_precision():
            change = _along(lambda *leaves: begins(*leaves)[0], primals, tangents)
            return value(*primals), change - begins(*primals)[1] * dt

    value.defjvp(rule, symbolic_zeros=True)
    return value(*leaves)


@jax.custom_jvp
def moving_as(value: Array, source: Array) -> Array:
    """Return ``value``, with the derivatives of ``source``."""
    return value


@moving_as.defjvp
def _moving_as_rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return moving_as(*primals), tangents[1]


@jax.custom_jvp
def moved(mean: Float[Array, "*b n d"], t: Float[Array, "*b"]) -> Array:
    """Return means of states ``(y, y', ...)``, with the derivatives ``(y', y'', ...)`` by ``t``."""
    return mean


@moved.defjvp
def _moved_rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Differentiate by time; the next derivative after the highest one is noise of mean zero."""
    (mean, t), (dmean, dt) = primals, tangents
    with double_precision():
        slope = jnp.concatenate([mean[..., 1:, :], jnp.zeros_like(mean[..., :1, :])], axis=-2)
        return moved(mean, t), dmean + slope * dt[..., None, None]


def crossed_at(
    equation: Equation,
    field: VectorField,
    sides: Float[Array, "2"],
    by: Array,
    mean: Float[Array, "n d"],
) -> Float[Array, "n d"]:
    """Return ``mean`` at a breakpoint, where ``f`` may jump, with its derivatives by its time.

    ``by`` is the time, ``sides`` are times on both sides of it. If the breakpoint is ``dt`` later,
    ``u = (y, ...)`` keeps the slope from before it for ``dt`` longer:
    ``du = (u'(t-) - u'(t+)) dt``.
    """
    leaves, tree = jax.tree.flatten((equation, field, sides))
    order = equation.order

    @jax.custom_jvp
    def value(by: Array, mean: Array, *leaves: Any) -> Array:
        return mean

    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        mean, leaves = primals[1], primals[2:]
        dt, dm = tangents[0], tangents[1]
        with double_precision():
            change = jnp.zeros_like(mean) if isinstance(dm, SymbolicZero) else dm
            if isinstance(dt, SymbolicZero):
                return value(*primals), change
            equation, field, sides = jax.tree.unflatten(tree, leaves)

            def slope(t: Array, mean: Array) -> Array:
                found = equation.outset(field, t, equation.read(mean))[1]
                return found[: order * mean.shape[-1]].reshape(order, -1)

            before, after = slope(sides[0], mean), slope(sides[1], mean)
            jump = jnp.zeros_like(mean).at[:order].set((before - after) * dt)
            along = jax.jvp(lambda mean: slope(sides[1], mean), (mean,), (jump,))[1]
            return value(*primals), change + jump.at[order].set(along[-1])

    value.defjvp(rule, symbolic_zeros=True)
    return value(by, mean, *leaves)


def if_reached(reached: Array, value: Array, source: Array) -> Array:
    """Return ``value`` where it was reached, else NaN with the derivatives of ``source`` times NaN.

    A zero stays a zero there: a loss that leaves such a value out has the derivatives of the rest.
    """
    # Squares of these are infinite, and their difference is NaN; a zero stays zero times each.
    huge, larger = jnp.where(reached, 0.0, 1e200), jnp.where(reached, 0.0, 2e200)
    lost = (source * huge) * huge - (source * larger) * larger
    return jnp.where(reached, value, jnp.nan + lost)


def moving(known: Array, t: Array) -> Array:
    """Return times that are ``known``, with the derivatives of ``t`` where they are equal."""
    return known + jnp.where(known == t, t - jax.lax.stop_gradient(t), 0.0)


def _along(function: Any, primals: Any, tangents: Any) -> Array:
    """Differentiate ``function`` in the direction of the ``tangents`` that are not zero."""
    places = [i for i, x in enumerate(tangents) if not isinstance(x, SymbolicZero)]

    def of_these(*values: Any) -> Array:
        full = list(primals)
        for i, one in zip(places, values, strict=True):
            full[i] = one
        return function(*full)

    chosen = tuple(primals[i] for i in places), tuple(tangents[i] for i in places)
    return jax.jvp(of_these, *chosen)[1]


@jax.custom_jvp
def _once(x: Array, source: Array) -> Array:
    return x


@_once.defjvp
def _no_second_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "second derivatives of a solve by EK1 are not defined, because the first ones hold its "
        "gains fixed. Differentiate once, and use finite differences of the gradient."
    )
