"""Running the transport: in compiled blocks from Python, as part of a trace, or on the host."""

from functools import partial
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.limits import GRACE, Limits
from probode.global_error.carry import carry_at_once, carry_over, empty
from probode.global_error.kernels import transport_natively
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme
from probode.global_error.transport import Carry, Transported
from probode.programs.field import Field

_BLOCK_STEPS = 256
_LIGHT_BLOCK_STEPS = 1024
"""Without Jacobians preparing a step costs next to nothing, and so does padding."""
_BLOCK_BYTES = 32 * 2**20
_SAMPLE_STEPS = 1000
"""Steps to learn the pace of the kernels from, which do not look at the clock themselves."""


@compiled(0)
def _block(
    scheme: Scheme, field: Field, t: Array, means: Array, carry: Carry, count: Array
) -> tuple[Carry, Transported]:
    return carry_over(scheme, field, t, means, carry, count)


@compiled(0)
def _block_at_once(
    scheme: Newton, field: Field, t: Array, means: Array, carry: Carry
) -> tuple[Carry, Transported, Array]:
    return carry_at_once(scheme, field, t, means, carry)


def block_steps(scheme: Scheme, d: int) -> int:
    """Steps per compiled block: one size for a scheme and a dimension, whatever the number."""
    s = scheme.collocation.s
    row = 8 * (6 * s * d + (scheme.jacobians_per_step and (2 * s + 2) * d * d))
    most = _BLOCK_STEPS if scheme.jacobians_per_step else _LIGHT_BLOCK_STEPS
    return int(max(4, min(most, _BLOCK_BYTES // row)))


def transport(
    scheme: Scheme, field: Field, t: np.ndarray, means: np.ndarray, limits: Limits
) -> Transported:
    """Carry the error along all nodes, by kernels or block by block; NumPy arrays, a row a step.

    There are fewer rows if there was no time for all of them.
    """
    natively = _natively(scheme, field, t, means, limits)
    if natively is not None:
        return natively
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
        return empty(scheme, 0, d)
    return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def _natively(
    scheme: Scheme, field: Field, t: np.ndarray, means: np.ndarray, limits: Limits
) -> Transported | None:
    """By kernels; with a time limit, as many steps as by a sample of them there is time for."""
    steps = t.shape[0] - 1
    if steps > _SAMPLE_STEPS and isfinite(limits.left):
        before = limits.elapsed
        if transport_natively(scheme, field, t[: _SAMPLE_STEPS + 1], means) is None:
            return None
        pace = max(limits.elapsed - before, 1e-6) / _SAMPLE_STEPS
        steps = min(steps, max(_SAMPLE_STEPS, int((limits.left + GRACE / 2) / pace)))
    return transport_natively(scheme, field, t[: steps + 1], means)


def _cut(x: np.ndarray, begin: int, rows: int) -> np.ndarray:
    """``rows`` rows from ``begin`` on, the last one repeated where there are not enough."""
    part = x[begin : begin + rows]
    missing = rows - len(part)
    return np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) if missing else part


def _first(x: Any, count: int) -> np.ndarray:
    return np.asarray(x)[:count]


def transport_traced(scheme: Scheme, field: Field, t: Array, means: Array) -> Transported:
    """Carry the error along all nodes inside a trace."""
    carry = Carry.start(jnp, means.shape[-1])
    return carry_over(scheme, field, t, means[:, : scheme.k + 1], carry)[1]
