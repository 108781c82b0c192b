"""The error along all steps: one after the other, or all of them at once."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from probode.calibration.transport import (
    CREDIT,
    ROUNDING,
    Carry,
    Newton,
    Scheme,
    Transported,
    is_settled,
)
from probode.linearize import VectorField

_SMALL_CHANGE = 0.1
"""Part of the error by which corrections may change it when done for all steps at once."""


def empty(scheme: Scheme, steps: int, d: int) -> Transported:
    """NumPy arrays for so many steps, all zero."""
    rows: list[Any] = [np.zeros((steps, d)) for _ in range(3)]
    stages: Any = np.zeros((steps, scheme.collocation.s, d))
    repeats: Any = np.zeros(steps, int)
    return Transported(rows[0], stages, rows[1], rows[2], repeats)


def carry_over(
    scheme: Scheme, field: VectorField, t: Array, means: Array, carry: Carry, count: Any = None
) -> tuple[Carry, Transported]:
    """Carry the error along nodes ``t`` with means ``(N, >k, d)``: ``N - 1`` steps.

    With ``count``, only so many steps are taken; the rows after them mean nothing. A step of length
    zero (a repeated node) changes nothing.
    """
    h = t[1:] - t[:-1]
    still = h == 0.0
    # A step in one row, its result in another: a loop pays for every array that it reads or writes.
    steps, unpack = _packed(scheme, field, t[:-1], jnp.where(still, 1.0, h), means)

    def advance(carry: Carry, i: Array) -> tuple[Carry, Array]:
        step = unpack(jax.lax.dynamic_index_in_dim(steps, i, keepdims=False))
        stays = jax.lax.dynamic_index_in_dim(still, i, keepdims=False)
        after, moved = scheme.advance(field, step, carry)
        e, nothing = carry.error, jnp.zeros_like(carry.error)
        ends = jnp.where(stays, jnp.stack([e, nothing, nothing]), jnp.stack(moved.ends))
        repeats = jnp.where(stays, 0.0, nothing + moved.repeats)
        rows = jnp.concatenate([ends, repeats[None], jnp.where(stays, e, moved.stages)])
        return jax.tree.map(lambda a, b: jnp.where(stays, a, b), carry, after), rows

    if count is None:
        carry, rows = jax.lax.scan(advance, carry, jnp.arange(h.shape[0]))
    else:

        def body(i: Array, state: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, rows = advance(state[0], i)
            return carry, jax.lax.dynamic_update_index_in_dim(state[1], rows, i, 0)

        buffer = jnp.zeros((h.shape[0], scheme.collocation.s + 4, means.shape[-1]))
        carry, rows = jax.lax.fori_loop(0, count, body, (carry, buffer))
    error, first, second, repeats = (rows[:, i] for i in range(4))
    return carry, Transported(error, rows[:, 4:], first, second, repeats[:, 0].astype(int))


def _packed(
    scheme: Scheme, field: VectorField, t: Array, h: Array, means: Array
) -> tuple[Array, Any]:
    """What ``prepare`` makes of all steps, each raveled into a row, and how to unravel one."""

    def prepare(*step: Array) -> Any:
        return scheme.prepare(field, *step)

    one = jax.eval_shape(prepare, t[0], h[0], means[0], means[1])
    unpack = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), one))[1]
    rows = jax.vmap(lambda *step: ravel_pytree(prepare(*step))[0])(t, h, means[:-1], means[1:])
    return rows, unpack


def carry_at_once(
    scheme: Newton, field: VectorField, t: Array, means: Array, carry: Carry
) -> tuple[Carry, Transported, Array]:
    """What :func:`carry_over` does for a :class:`Newton` scheme, with f for all steps at once.

    The linearised stages make ``e_(n+1)`` an affine function of ``e_n``: a recurrence without any
    evaluation. Corrections at its result, for all steps at once, change the offsets, and the
    recurrence is run once more. The last value says whether that is enough: whether no step would
    repeat its iteration, and the corrections changed no error by more than its tenth (the next ones
    would change it by a tenth of that).
    """
    h = t[1:] - t[:-1]
    still = (h == 0.0)[:, None]
    steps = jax.vmap(lambda *step: scheme.prepare(field, *step))(
        t[:-1], jnp.where(h == 0.0, 1.0, h), means[:-1], means[1:]
    )
    nothing = jnp.zeros_like(steps.offset)

    def errors(offset: Array) -> Array:
        """``e_n`` at all nodes."""

        def move(e: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
            shift, response, stays = step
            after = jnp.where(stays, e, e + shift + response @ e)
            return after, after

        path = (offset[:, -1], steps.response[:, -1], still)
        _, after = jax.lax.scan(move, carry.error, path)
        return jnp.concatenate([carry.error[None], after])

    def stages_of(e: Array, offset: Array) -> Array:
        moved = offset + jnp.einsum("nsab,nb->nsa", steps.response, e)
        return e[:, None] + jnp.where(still[..., None], 0.0, moved)

    e = errors(steps.offset)
    stages = stages_of(e[:-1], steps.offset)
    first, second, settled = stages - e[:-1, None], nothing, jnp.ones((), bool)
    if scheme.corrections:
        values = steps.curve.value
        shifted = jax.vmap(jax.vmap(field))(steps.curve.t, values - stages)
        beyond = (steps.f - shifted) - jnp.einsum("nsb,nab->nsa", stages, steps.j)
        second = jax.vmap(scheme.apply)(steps.solve, beyond)
        second = jnp.where(still[..., None], 0.0, second)
        settled = jnp.all(jax.vmap(is_settled)(values, stages, first, second))
        before, e = e, errors(steps.offset + second)
        stages = stages_of(e[:-1], steps.offset + second)
        noise = ROUNDING * jnp.max(jnp.abs(values), axis=(0, 1))
        size = jax.lax.cummax(jnp.abs(e)) + noise
        settled = settled & jnp.all(jnp.abs(e - before) <= _SMALL_CHANGE * size)
    slope = (e[-1] - e[-2]) / jnp.where(h[-1] == 0.0, 1.0, h[-1])
    credit = carry.credit + CREDIT * jnp.sum(h != 0.0)
    repeats = jnp.zeros(h.shape, int)
    moved = Transported(e[1:], stages, first[:, -1], second[:, -1], repeats)
    return Carry(e[-1], slope, credit), moved, settled & jnp.all(jnp.isfinite(e))
