"""The transport in JAX: one step after the other, all of them at once, in compiled blocks."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme, block_steps
from probode.global_error.transport import (
    COUNTS,
    CREDIT,
    ROUNDING,
    Carry,
    Transported,
    allowed,
    empty,
    from_rows,
    is_settled,
    measured,
)
from probode.model.linearize import VectorField

_SMALL_CHANGE = 0.1
"""Part of the error by which corrections may change it when done for all steps at once."""


@dataclass(frozen=True)
class InJax:
    """A vector field that JAX evaluates, as the schemes want it."""

    field: VectorField
    xp: ClassVar[Any] = jnp
    cond = staticmethod(jax.lax.cond)
    while_loop = staticmethod(jax.lax.while_loop)

    def at_stages(self, t: Array, y: Array) -> Array:
        """``f`` at all stages of a step."""
        return jax.vmap(self.field)(t, y)

    def jacobian_at(self, t: Array, y: Array, f: Array) -> Array:
        """``J``."""
        return self.field.jacobian(t, y)[1]

    def diagonal_at(self, t: Array, y: Array) -> Array:
        """The diagonal of ``J``."""
        return self.field.jacobian_diagonal(t, y)[1]


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
        after, moved = scheme.advance(InJax(field), step, carry)
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


def _packed(
    scheme: Scheme, field: VectorField, t: Array, h: Array, means: Array
) -> tuple[Array, Any]:
    """What ``prepare`` makes of all steps, each raveled into a row, and how to unravel one."""

    def prepare(*step: Array) -> Any:
        return scheme.prepare(InJax(field), *step)

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
    steps = jax.vmap(lambda *step: scheme.prepare(InJax(field), *step))(
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

    def correct(step: Any, e: Array, stages: Array) -> Array:
        shifted = scheme.evaluate(InJax(field), step.curve, e, stages)
        return scheme.apply(step.solve, scheme.beyond(step, stages, shifted))

    second = jax.vmap(correct)(steps, e[:-1], stages)
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


@compiled(0)
def _block(
    scheme: Scheme, field: Any, t: Array, means: Array, carry: Carry, count: Array
) -> tuple[Carry, Transported]:
    return carry_over(scheme, field, t, means, carry, count)


@compiled(0)
def _block_at_once(
    scheme: Newton, field: Any, t: Array, means: Array, carry: Carry
) -> tuple[Carry, Transported, Array]:
    return carry_at_once(scheme, field, t, means, carry)


def transport(
    scheme: Scheme, field: Any, t: np.ndarray, means: np.ndarray, limits: Limits
) -> Transported:
    """Carry the error along all nodes, block by block; NumPy arrays, a row a step.

    There are fewer rows if there was no time for all of them.
    """
    d, steps = means.shape[-1], t.shape[0] - 1
    size = block_steps(scheme, d)
    means = means[:, : scheme.k + 1]
    carry = Carry.start(np, d)
    parts = []
    at_once = isinstance(scheme, Newton) and scheme.corrections > 0
    for begin in range(0, steps, size):
        if limits.expired():
            break
        count = min(size, steps - begin)
        cut = partial(_cut, begin=begin, rows=size + 1)
        nodes, values = cut(t), cut(means)
        if at_once and isinstance(scheme, Newton):
            after, moved, at_once = _block_at_once(scheme, field, nodes, values, carry)
        if not at_once:  # here and from here on: later steps may leave even less unsettled
            after, moved = _block(scheme, field, nodes, values, carry, count)
        carry = after
        parts.append(jax.tree.map(partial(_first, count=count), moved))
    if not parts:
        return empty(0, scheme.collocation.s, d)
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _cut(x: np.ndarray, begin: int, rows: int) -> np.ndarray:
    """``rows`` rows from ``begin`` on, the last one repeated where there are not enough."""
    part = x[begin : begin + rows]
    missing = rows - len(part)
    return np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) if missing else part


def _first(x: Any, count: int) -> np.ndarray:
    return np.asarray(x)[:count]


def transport_traced(scheme: Scheme, field: Any, t: Array, means: Array) -> Transported:
    """Carry the error along all nodes inside a trace."""
    carry = Carry.start(jnp, means.shape[-1])
    return carry_over(scheme, field, t, means[:, : scheme.k + 1], carry)[1]
