"""States held to invariants and bounds: what a posterior hands out, instead of what it keeps.

What the steps and the smoother computed stays as it is; means, covariances and samples are moved
onto the manifold on their way out, at the steps as between them. So they agree with each other, and
what is continuous in time stays so.
"""

import pickle
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.precision import double_precision, on_host
from probode.base.record import record
from probode.base.said import first_time, logger
from probode.engines.dense_output import in_blocks
from probode.filter.control import Control, PControl, PIControl
from probode.filter.step import Method
from probode.model.equation import Equation
from probode.model.invariant import (
    Bounds,
    Constraint,
    HostInvariants,
    Landed,
    arranged,
    check_count,
    listed,
)
from probode.model.structure import Dense
from probode.programs.field import Field, bind_values
from probode.programs.stored import StoredField, stored


def constraint_for(
    invariants: Any,
    bounds: Bounds | None,
    equation: Equation,
    t0: Any,
    y0: Any,
    args: Any,
    control: Control,
) -> Constraint | None:
    """What the posterior is held to, in units of the tolerances."""
    if invariants is None and bounds is None:
        return None
    unit: Any = control if isinstance(control, PControl) else PIControl()
    if invariants is None or isinstance(invariants, HostInvariants):
        return Constraint(invariants, bounds, unit.rtol, unit.atol)
    order, functions = equation.order, listed(invariants)
    arrange = partial(arranged, order=order, args=len(args))
    for one in functions:
        arrange(one)  # or refused
    g = bind_values(functions, arrange, t0, y0, args, name="invariants", reads=order)
    check_count(g.d, y0.size)
    return Constraint(g, bounds, unit.rtol, unit.atol)


def type_of(y0: Any) -> Any:
    """The type of numbers that an initial value was given in."""
    parts = y0 if isinstance(y0, tuple | list) else [y0]
    single = any(getattr(part, "dtype", None) == np.float32 for part in parts)
    return np.float32 if single else np.float64


One = Callable[[int], tuple[Any, Any]]
"""Mean and factor columns of the ``k``-th derivative, in plain units."""


@record
class Held:
    """What a path is held to, and its own states there."""

    constraint: Constraint | None
    """``None``: lost, in a file."""
    landed: Landed
    weight: Array
    """The units in which it was nearest."""

    def put_into(self, means: Any) -> Any:
        """States ``(..., q+1, d)`` with ``y, ...`` as they are held."""
        xp: Any = np if on_host(means) else jax.numpy
        d = means.shape[-1]
        own = self.landed.state.reshape((*means.shape[:-2], -1, d))
        return xp.concatenate([own, means[..., own.shape[-2] :, :]], axis=-2)

    def first(self, count: int) -> "Held":
        """The first so many of the times."""
        landed, weight = jax.tree.map(lambda x: x[:count], (self.landed, self.weight))
        return Held(self.constraint, landed, weight)

    def elsewhere(self, method: Method, t: Any, one: One) -> "Held | None":
        """The same at other times, see :func:`hold`."""
        if self.constraint is not None:
            return hold(self.constraint, method, t, one)
        if first_time("held", id(self)):
            logger.warning(
                "this posterior was loaded from a file, which does not have the functions of its "
                "invariants: between its own times they are not exactly fulfilled."
            )
        return None

    def __reduce__(self) -> Any:
        content = None
        with suppress(Exception):  # pickle raises of all kinds
            content = pickle.dumps(_stored(self.constraint))
        return _restored, (content, *jax.tree.map(np.asarray, (self.landed, self.weight)))

    def samples(self, t: Any, drawn: Any) -> Any:
        """Draws of ``y, ..., y^(k-1)``, ``(n, N, k, d)``, moved one by one."""
        if self.constraint is None:
            return drawn
        xp: Any = np if on_host(drawn) else jax.numpy
        shape = (*drawn.shape[:2], drawn.shape[2] * drawn.shape[3])
        weights = xp.broadcast_to(self.weight, shape)
        given = xp.broadcast_to(t, shape[:2]), drawn.reshape(shape), weights
        times, states, weight = (x.reshape((-1, *x.shape[2:])) for x in given)
        return _land(self.constraint, times, states, weight).state.reshape(drawn.shape)


def hold(constraint: Constraint, method: Method, t: Any, one: One) -> Held:
    """States at times ``(N,)`` held, from the means and factor columns of all that ``g`` reads."""
    found = [one(k) for k in range(method.equation.order)]
    xp: Any = np if on_host(found[0][0]) else jax.numpy
    with double_precision():
        u = xp.concatenate([mean for mean, _ in found], axis=-1)
        std = xp.concatenate([method.structure.std(columns) for _, columns in found], axis=-1)
        weight = constraint.weight(u, std)
        return Held(constraint, _land(constraint, t, u, weight), weight)


def _stored(constraint: Constraint | None) -> Any:
    """A constraint as pickle takes it: traced invariants by value, others by their names."""
    if constraint is None:
        return None
    g, *rest = (getattr(constraint, name) for name in ("invariants", "bounds", "rtol", "atol"))
    return stored(g) if isinstance(g, Field) else g, jax.tree.map(np.asarray, rest)


def _restored(content: bytes | None, landed: Landed, weight: Array) -> Held:
    constraint = None
    with suppress(Exception):  # another version of JAX, or a function that is not there
        known = None if content is None else pickle.loads(content)
        if known is not None:
            g, rest = known
            constraint = Constraint(g.field() if isinstance(g, StoredField) else g, *rest)
    return Held(constraint, landed, weight)


def _land(constraint: Constraint, t: Any, u: Any, weight: Any) -> Landed:
    """States ``(N, m)`` at times ``(N,)`` on the manifold."""
    if constraint.on_host:
        rows = zip(np.asarray(t), np.asarray(u), np.asarray(weight), strict=True)
        stacked: Landed = jax.tree.map(
            lambda *xs: np.stack(xs), *[constraint.land(*row) for row in rows]
        )
        return stacked
    if not (on_host(u) and on_host(t)):
        return jax.vmap(constraint.land)(t, u, weight)
    block = partial(_land_block, constraint)
    made: Landed = in_blocks(block, (t, u, weight), 8 * 4 * u.shape[1])
    return made


@compiled(alone=False)
def _land_block(constraint: Constraint, t: Array, u: Array, weight: Array) -> Landed:
    return jax.vmap(constraint.land)(t, u, weight)


def held_to(method: Method, held: Held | None, k: int, one: One) -> tuple[Any, Any]:
    """Mean and factor columns of derivative ``k``, from those of all (``one(k)``), held.

    A covariance that is the same in all directions, or has none but those of the components, stays
    as it is: the standard deviations are then a little too large.
    """
    order = method.equation.order
    mean, columns = one(k)
    if held is None or k >= order:
        return mean, columns
    landed, d = held.landed, method.structure.d
    own = slice(k * d, (k + 1) * d)
    if isinstance(method.structure, Dense) and landed.inward.shape[-2]:
        xp: Any = np if on_host(columns) and on_host(landed.state) else jax.numpy
        parts = [columns if j == k else one(j)[1] for j in range(order)]
        rows = max(part.shape[-2] for part in parts)
        across = 0.0
        for j, part in enumerate(parts):
            inward = xp.swapaxes(landed.inward[..., j * d : (j + 1) * d], -1, -2)
            across = across + _with_rows(xp, part, rows) @ inward
        columns = _with_rows(xp, columns, rows) - across @ landed.outward[..., own]
    return landed.state[..., own], columns


def _with_rows(xp: Any, columns: Any, rows: int) -> Any:
    missing = rows - columns.shape[-2]
    edges = [(0, 0)] * (columns.ndim - 2) + [(0, missing), (0, 0)]
    return xp.pad(columns, edges) if missing else columns
