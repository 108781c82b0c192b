"""Dense output in JAX: one derivative of the posterior at any times, from the steps around them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.precision import on_host
from probode.engines.kept import padded, state_bytes
from probode.filter.loop import Rows
from probode.filter.smooth import Marginals, interpolate
from probode.filter.step import Method, State, extrapolate
from probode.model.gaussian import unpack
from probode.model.prior import IWP

_BLOCK_BYTES = 64 * 2**20
_LARGEST_BLOCK = 1024


def evaluate_rows(
    method: Method, rows: Rows, smoothed: Marginals | None, right: Any, t: Any, k: int
) -> tuple[Any, Any]:
    """Means ``(N, d)`` and factor columns of the ``k``-th derivative at the times ``t``.

    ``right`` says at which node the step ends that a time is in. In NumPy arrays, or traced.
    """
    inputs, smooth = (*around(rows, smoothed, right), t), smoothed is not None
    if not on_host(t):
        return jax.vmap(partial(_evaluate, method, smooth, k))(*inputs)
    with one_blas_thread():
        block = partial(_evaluate_block, method, smooth, k)
        return in_blocks(block, inputs, state_bytes(method))


def around(rows: Rows, smoothed: Marginals | None, right: Any) -> tuple[Any, ...]:
    """The steps that end at the nodes ``right``, as (filtered left, left, right, s)."""
    marginals = Marginals(rows.mean, rows.factor) if smoothed is None else smoothed
    i, j = right - (right > 0), right

    def at(i: Any, states: Any) -> State:
        factor = unpack(states.factor[i])
        return State(rows.t[i], rows.h[i], states.mean[i], factor, rows.drift_at(i))

    return at(i, rows), at(i, marginals), at(j, marginals), rows.scale[j]


def select(method: Method, h: Array, mean: Array, factor: Array, k: Any) -> tuple[Array, Array]:
    """Mean and factor columns of one derivative, in plain units; leading axes are a batch."""
    columns = method.structure.select(factor, k)
    return mean[..., k, :], in_plain_units(method, h, columns, k)


def in_plain_units(method: Method, h: Array, columns: Array, k: Any) -> Array:
    """Columns of the ``k``-th derivative, which are in coordinates ``T(h)``."""
    weight = abs(method.prior.coordinate(h, k))
    extra = columns.ndim - weight.ndim
    return columns * weight.reshape((*weight.shape, *[1] * extra))


def _evaluate(
    method: Method,
    smooth: bool,
    k: Any,
    filtered: State,
    left: State,
    right: State,
    scale: Array,
    t: Array,
) -> tuple[Array, Array]:
    """Mean and factor columns at ``t``, in the step from ``left`` to ``right`` or outside of it."""
    step = right.t - left.t
    step = jnp.where(step == 0.0, 1.0, step)
    before = (left.t - t) * step > 0.0
    after = (t - right.t) * step > 0.0
    inside = ~(before | after)

    # Off the grid one prediction, from the state that speaks for this time; the length zero is
    # replaced, its result is not used.
    base = _choose(before, left, _choose(after, right, filtered))
    h = t - base.t
    h = jnp.where(h == 0.0, step, h)
    predicted = extrapolate(method, base, h, scale * method.prior.noise_scale(h / step))
    if smooth:
        # The time itself, not what is left of it after a difference: it may be next to a node.
        within = jnp.where((t == left.t) | (t == right.t), left.t + 0.5 * step, t)
        smoothed = interpolate(method, filtered, right, within, step, scale)
        predicted = _choose(inside, smoothed, predicted)
    state = _choose(t == left.t, left, _choose(t == right.t, right, predicted))
    return select(method, state.h, state.mean, state.factor, k)


def _choose(condition: Array, a: State, b: State) -> State:
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), a, b)


@compiled(1)
def _evaluate_block(method: Method, smooth: bool, k: Any, *inputs: Any) -> Any:
    return for_each(method, partial(_evaluate, method, smooth, k), inputs)


def for_each(method: Method, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """A function of each row: of all at once, or of one after the other.

    The latter with priors whose matrices are computed anew for each length of a step. They call
    libraries, and batches of such calls may wait for one another for ever
    (:mod:`probode.base.unbatched`).
    """
    if isinstance(method.prior, IWP):
        return jax.vmap(function)(*inputs)
    return jax.lax.map(lambda row: function(*row), inputs)


def block_size(wanted: int, row_bytes: int) -> int:
    """A power of two: few sizes, so that few programs are compiled."""
    largest = max(1, min(_LARGEST_BLOCK, _BLOCK_BYTES // row_bytes))
    size = 1
    while size < wanted and 2 * size <= largest:
        size *= 2
    return size


def in_blocks(function: Callable[..., Any], inputs: tuple[Any, ...], row_bytes: int) -> Any:
    """Apply a vectorised function to rows of NumPy arrays in blocks of few different sizes."""
    rows = jax.tree.leaves(inputs)[0].shape[0]
    if rows == 0:  # the program for one row knows the shapes
        inputs = jax.tree.map(lambda x: np.zeros((1, *x.shape[1:]), x.dtype), inputs)
    size = block_size(rows, 8 * row_bytes)

    def block(start: int) -> Any:
        inside = function(*jax.tree.map(lambda x: padded(x[start : start + size], size), inputs))
        return jax.tree.map(lambda x: np.asarray(x)[: rows - start], inside)

    parts = [block(start) for start in range(0, max(rows, 1), size)]
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
