"""The error along all steps: one after the other, or all of them at once."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme
from probode.global_error.transport import (
    CREDIT,
    ROUNDING,
    Carry,
    Transported,
    allowed,
    is_settled,
    measured,
)
from probode.model.linearize import VectorField

_SMALL_CHANGE = 0.1
"""Part of the error by which corrections may change it when done for all steps at once."""
COUNTS = 2
"""Numbers in a step's row that count: corrections, repeats."""


def empty(scheme: Scheme, steps: int, d: int) -> Transported:
    """NumPy arrays for so many steps, all zero."""
    rows: list[Any] = [np.zeros((steps, d)) for _ in range(3)]
    stages: Any = np.zeros((steps, scheme.collocation.s, d))
    counts: list[Any] = [np.zeros(steps, int) for _ in range(COUNTS)]
    return Transported(rows[0], stages, rows[1], rows[2], *counts)


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
        counts = jnp.stack([nothing + moved.corrections, nothing + moved.repeats])
        counts = jnp.where(stays, 0.0, counts)
        rows = jnp.concatenate([ends, counts, jnp.where(stays, e, moved.stages)])
        return jax.tree.map(lambda a, b: jnp.where(stays, a, b), carry, after), rows

    if count is None:
        carry, rows = jax.lax.scan(advance, carry, jnp.arange(h.shape[0]))
    else:

        def body(i: Array, state: tuple[Carry, Array]) -> tuple[Carry, Array]:
            carry, rows = advance(state[0], i)
            return carry, jax.lax.dynamic_update_index_in_dim(state[1], rows, i, 0)

        buffer = jnp.zeros((h.shape[0], scheme.collocation.s + 3 + COUNTS, means.shape[-1]))
        carry, rows = jax.lax.fori_loop(0, count, body, (carry, buffer))
    return carry, from_rows(rows)


def from_rows(rows: Any) -> Transported:
    """The parts of rows ``(N, s+5, d)``: error, first, second, two counts, stages."""
    error, first, second, *counts = (rows[:, i] for i in range(3 + COUNTS))
    counts = [count[:, 0].astype(int) for count in counts]
    return Transported(error, rows[:, 3 + COUNTS :], first, second, *counts)


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
    go on with its iteration, and the corrections changed the error by so small a part ``c`` that
    the next ones, which would change it by ``c²/2``, can be left out.
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
    first, second = stages - e[:-1, None], nothing
    n = carry.steps + jnp.cumsum(h != 0.0) - 1.0
    values = steps.curve.value
    shifted = jax.vmap(jax.vmap(field))(steps.curve.t, values - stages)
    beyond = (steps.f - shifted) - jnp.einsum("nsb,nab->nsa", stages, steps.j)
    second = jax.vmap(scheme.apply)(steps.solve, beyond)
    second = jnp.where(still[..., None], 0.0, second)
    changed, moved = jax.vmap(partial(measured, jnp))(values, stages, first, second)
    settled = jnp.all(is_settled(jnp, changed, jnp.ones(()), moved, n) | still[:, 0])
    before, e = e, errors(steps.offset + second)
    stages = stages_of(e[:-1], steps.offset + second)
    noise = ROUNDING * jnp.max(jnp.abs(values), axis=(0, 1))
    size = jax.lax.cummax(jnp.abs(e)) + noise
    small = jnp.sqrt(jnp.sum(jnp.where(still[:, 0], 0.0, 2.0 * allowed(n))))
    small = jnp.minimum(small, _SMALL_CHANGE)
    settled = settled & jnp.all(jnp.abs(e - before) <= small * size)
    slope = (e[-1] - e[-2]) / jnp.where(h[-1] == 0.0, 1.0, h[-1])
    count = jnp.sum(h != 0.0)
    none = jnp.zeros(h.shape, int)
    done = Transported(e[1:], stages, first[:, -1], second[:, -1], none, none)
    after = Carry(
        e[-1], slope, carry.credit + CREDIT * count, carry.steps + count, carry.due, h[-1]
    )
    return after, done, settled & jnp.all(jnp.isfinite(e))
