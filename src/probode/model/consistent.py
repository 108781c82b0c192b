"""Consistent starts of implicit equations: values and derivatives with ``F(t, y(t), y'(t)) = 0``.

With ``A = ∂F/∂y'`` and ``B = ∂F/∂y`` at the start, ``Q`` the orthogonal projector onto the kernel
of ``A`` (the directions in which ``y'`` does not appear: there ``y`` is *algebraic*) and
``P = 1 - Q``, an equation of index 1 is one with a regular ``A + B Q``. Then ``P y`` may be chosen
freely, and::

    A y' + B y = r        is        (A + B Q) (P y' + Q y) = r - B P y

says what ``Q y`` and ``P y'`` are. For the Taylor coefficients ``y_k`` of the solution the same
holds level by level: coefficient ``k`` of ``F(t, y(t), y'(t))`` determines ``Q y_k`` and
``P y_(k+1)``, with the matrix ``(k + 1) A + (B + k A_1) Q`` (``A_1``: the slope of ``A`` along the
solution).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.model.linearize import VectorField
from probode.programs.taylor import along_curve

NEWTON_STEPS = 20
_RANK = 1e-12
"""Singular values of ``A`` below this part of the largest are taken as zero."""


class Consistent(NamedTuple):
    """A start that fulfils the equation."""

    y: Float[Array, " d"]
    slope: Float[Array, " d"]
    """``y'``; along the kernel of ``A`` as it was given."""
    by_slope: Float[Array, "d d"]
    """``A``."""
    by_value: Float[Array, "d d"]
    """``B``."""
    kernel: Float[Array, "d d"]
    """``Q``."""
    residual: Float[Array, " d"]
    """What is left of ``F``."""


def split(jacobian: Array) -> tuple[Array, Array]:
    """``(∂F/∂y, ∂F/∂y')`` from both of them side by side."""
    d = jacobian.shape[-2]
    return jacobian[..., :d], jacobian[..., d:]


def consistent(field: VectorField, t0: Array, y0: Array, slope: Array) -> Consistent:
    """Newton's method for ``Q y`` and ``P y'``; nothing else of ``y0`` is changed."""

    def step(y: Array, v: Array, differentiable: bool) -> tuple[Array, Array]:
        value, by_value, by_slope, kernel = _linearised(field, t0, y, v)
        matrix = jax.lax.stop_gradient(by_slope + by_value @ kernel)
        value = value if differentiable else jax.lax.stop_gradient(value)
        change = jnp.linalg.solve(matrix, value)
        # Where the matrix is singular the index is not 1: that is said elsewhere.
        change = jnp.where(jnp.isfinite(change), change, 0.0)
        algebraic = kernel @ change
        return y - algebraic, v - (change - algebraic)

    def body(_: Any, point: tuple[Array, Array]) -> tuple[Array, Array]:
        return step(*point, differentiable=False)

    still = jax.lax.stop_gradient((y0, slope))
    y, v = jax.lax.fori_loop(0, NEWTON_STEPS, body, still)
    # Of what was given and of parameters it is a function by one more step, at which it stands.
    y, v = step(y0 + (y - still[0]), v, differentiable=True)
    value, by_value, by_slope, kernel = _linearised(field, t0, y, v)
    return Consistent(y, v, by_slope, by_value, kernel, value)


def _linearised(
    field: VectorField, t: Array, y: Array, v: Array
) -> tuple[Array, Array, Array, Array]:
    """``F``, ``B``, ``A``, ``Q``; the projector as a constant, exact where it is zero."""
    value, jacobian = field.jacobian(t, jnp.concatenate([y, v]))
    by_value, by_slope = split(jacobian)
    _, sizes, rows = jnp.linalg.svd(jax.lax.stop_gradient(by_slope))
    algebraic = sizes <= _RANK * sizes[0]
    kernel = (rows.T * algebraic) @ rows
    return value, by_value, by_slope, jnp.where(jnp.abs(kernel) < _RANK, 0.0, kernel)


def derivatives(
    field: VectorField, t0: Array, known: Consistent, order: int
) -> Float[Array, "n d"]:
    """``y, y', ..., y^(order)`` at the start.

    In sweep ``j`` levels ``0..j`` are corrected, all with their own matrix: level ``k`` is right
    once those below it are. One level more than asked for, which determines the last ``Q y_k``.
    """
    d, levels = known.y.shape[0], order + 1
    numbers = jnp.arange(levels, dtype=float)
    complement = jnp.eye(d) - known.kernel

    def slope_of_matrix(rows: Array) -> Array:
        """``A_1``."""

        def matrix(t: Array, u: Array) -> Array:
            return split(field.jacobian(t, u)[1])[1]

        at, moving = jnp.concatenate([rows[0], rows[1]]), jnp.concatenate([rows[1], 2.0 * rows[2]])
        return jax.jvp(matrix, (t0, at), (jnp.ones_like(t0), moving))[1]

    def sweep(j: Array, rows: Array) -> Array:
        left = along_curve(field, t0, rows)
        if order > 0:
            turning = known.by_value + numbers[:, None, None] * slope_of_matrix(rows)
        else:
            turning = known.by_value[None]
        matrices = (numbers + 1.0)[:, None, None] * known.by_slope + turning @ known.kernel
        changes = jnp.linalg.solve(jax.lax.stop_gradient(matrices), left[..., None])[..., 0]
        changes = jnp.where((numbers <= j)[:, None], changes, 0.0)
        rows = rows.at[:-1].add(-changes @ known.kernel)
        return rows.at[1:].add(-changes @ complement)

    rows = jnp.zeros((levels + 1, d)).at[0].set(known.y).at[1].set(known.slope)
    rows = jax.lax.fori_loop(0, levels + 2, sweep, rows)
    factorials = np.cumprod([1.0, *range(1, order + 1)])
    return factorials[:, None] * rows[: order + 1]


def reciprocal_condition(known: Consistent) -> Array:
    """Of ``A + B Q``, in units of its rows and columns; zero: the index is above 1."""
    matrix = known.by_slope + known.by_value @ known.kernel
    for axis in (1, 0):
        size = jnp.max(jnp.abs(matrix), axis=axis, keepdims=True)
        matrix = matrix / jnp.where(size > 0.0, size, 1.0)
    sizes = jnp.linalg.svd(matrix, compute_uv=False)
    return sizes[-1] / jnp.where(sizes[0] > 0.0, sizes[0], 1.0)
