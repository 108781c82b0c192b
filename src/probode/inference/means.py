"""The filter's means at the data, with their derivatives: in one call of the kernels, or in JAX.

Derivatives are those of :attr:`Method.frozen` gains, all of them in one pass forward in time. The
result does not depend on who computes it (but for rounding).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from probode.base.compile import compiled
from probode.base.jax_inside import new_operation
from probode.base.precision import double_precision
from probode.engines.native.library import available
from probode.engines.native.to_times import (
    Asked,
    Given,
    Parts,
    can_be_listed,
    parts,
    size_of,
    supports,
    to_times,
)
from probode.filter.loop import begin
from probode.filter.saving import begin_saving, run_saving
from probode.inference.task import Plan, Task


def filtered_means(plan: Plan, task: Task) -> tuple[Float[Array, "K m"], Array]:
    """``(y, ..., y^(k-1))`` at the data, and whether all of them were reached."""
    given, asked = _read(plan, task)
    count = task.data.t.shape[0]
    if _times is None or not supports(task.method, task.control):
        reached, means = _in_jax(asked, given)
        return means, task.inside & (reached == count)
    found = _with_derivatives(asked, given)
    return found.means, task.inside & (found.reached == count)


def posterior_at_data(plan: Plan, task: Task, transport: Any) -> Parts | None:
    """The posterior at the data from the kernels; ``None``: not by these kernels."""
    given, asked = _read(plan, task)
    asked = asked._replace(transport=transport)
    if _times is None or not supports(task.method, task.control):
        return None
    return _with_derivatives(asked, given) if can_be_listed(asked, given) else None


def _read(plan: Plan, task: Task) -> tuple[Given, Asked]:
    given = Given(task.field, task.control, task.t0, task.y0, task.times)
    return given, Asked(task.method, plan.initialization, plan.max_steps)


def _with_derivatives(asked: Asked, given: Given) -> Parts:
    """What the kernels give, with the derivatives of the means; all else is held fixed."""
    leaves, tree = jax.tree.flatten(given)
    count = given.times.shape[0]
    fields, steps = (len(jax.tree.leaves(x)) for x in (given.field, given.control))
    assert _times is not None
    bind, start = _times, fields + steps + 1

    @jax.custom_jvp
    def found(*leaves: Array) -> Parts:
        return parts(asked, bind(*leaves, asked=asked, tree=tree), count)

    def rule(primals: Any, tangents: Any) -> tuple[Parts, Parts]:
        moving = [i for i, x in enumerate(tangents) if not isinstance(x, SymbolicZero)]
        # Steps are held fixed: tolerances have no derivatives.
        known = [i for i in moving if i < fields or i == start]
        wanted = asked._replace(moving=tuple(min(i, fields) for i in known))
        with double_precision():
            # Times of switches that are parameters move the steps, as those of the data do.
            places = jax.tree.unflatten(tree, range(len(leaves))).control.crossings
            timed = {fields + steps, *jax.tree.leaves(places), *range(start + 1, len(leaves))}
            by_times = not timed.isdisjoint(moving)
            if by_times or not can_be_listed(wanted, jax.tree.unflatten(tree, primals)):
                value = found(*primals)
                slope = _slope_in_jax(asked, tree, primals, tangents)
            else:
                value = parts(wanted, bind(*primals, asked=wanted, tree=tree), count)
                along = [jnp.ravel(tangents[i]).astype(float) for i in known]
                direction = jnp.concatenate([jnp.zeros(0), *along])
                slope = jnp.einsum("kpm,p->km", value.slopes, direction)
                value = value._replace(slopes=value.slopes[:, :0])
            nothing = jax.tree.map(jnp.zeros_like, value)
            return value, nothing._replace(means=slope)

    found.defjvp(rule, symbolic_zeros=True)
    return found(*(jnp.asarray(leaf) for leaf in leaves))


def _slope_in_jax(asked: Asked, tree: Any, primals: Any, tangents: Any) -> Array:
    """The derivative of the means in one direction."""

    def means(*leaves: Array) -> Array:
        return _in_jax(asked, jax.tree.unflatten(tree, leaves))[1]

    dense = [
        jnp.zeros(x.shape, x.dtype) if isinstance(t, SymbolicZero) else t
        for x, t in zip(primals, tangents, strict=True)
    ]
    return jax.jvp(means, tuple(primals), tuple(dense))[1]


def _in_jax(asked: Asked, given: Given) -> tuple[Array, Array]:
    """How many times were reached, and the means."""
    method, times = asked.method, given.times
    solve = begin(
        method, asked.initialization, given.field, given.control, given.t0, times[-1], given.y0
    )
    kept = begin_saving(method, solve, times.shape[0], False)
    kept = run_saving(method, given.field, given.control, kept, times[-1], times, asked.max_steps)
    return kept.count, method.equation.controlled(kept.saved.mean)


def _packed(asked: Asked, tree: Any, *leaves: Array) -> Array:
    """The same as one vector, with the derivatives that are asked for."""
    if asked.transport is not None:
        raise NotImplementedError(
            "this likelihood was traced for the CPU, and is run somewhere else: choose the device "
            "before the first call, by jax.default_device or JAX_PLATFORMS."
        )

    def at(given: Given) -> Array:
        reached, means = _in_jax(asked, given)
        return jnp.concatenate([reached[None].astype(float), means.reshape(-1)])

    given: Given = jax.tree.unflatten(tree, leaves)
    if not asked.moving:
        return at(given)
    own, shape = jax.tree.flatten(given.field)
    every = [*own, given.y0]
    sizes = [every[i].size for i in asked.moving]

    def along(direction: Array) -> tuple[Array, Array]:
        tangents = [jnp.zeros(x.shape) for x in every]
        for i, part in zip(asked.moving, jnp.split(direction, np.cumsum(sizes)[:-1]), strict=True):
            tangents[i] = part.reshape(every[i].shape)

        def moved(*values: Array) -> Array:
            full = list(every)
            for i, value in zip(asked.moving, values, strict=True):
                full[i] = value
            field = jax.tree.unflatten(shape, full[:-1])
            return at(given._replace(field=field, y0=full[-1]))

        chosen = [every[i] for i in asked.moving]
        return jax.jvp(moved, tuple(chosen), tuple(tangents[i] for i in asked.moving))

    value, slopes = jax.vmap(along, out_axes=(None, 0))(jnp.eye(sum(sizes)))
    count = given.times.shape[0]
    rows = jnp.concatenate(
        [
            value[1:].reshape(count, 1, -1),
            jnp.moveaxis(slopes[:, 1:].reshape(sum(sizes), count, -1), 0, 1),
        ],
        axis=1,
    )
    return jnp.concatenate([value[:1], rows.reshape(-1)])


def _shape(*leaves: Any, asked: Asked, tree: Any) -> Any:
    return jax.ShapeDtypeStruct((size_of(asked, jax.tree.unflatten(tree, leaves)),), jnp.float64)


def _natively(*leaves: Any, asked: Asked, tree: Any) -> Array:
    with double_precision():  # lowering happens after everything else has returned
        found = to_times(asked, jax.tree.unflatten(tree, leaves)) if available() else None
        return _packed(asked, tree, *leaves) if found is None else found


def _elsewhere(*leaves: Any, asked: Asked, tree: Any) -> Array:
    with double_precision():
        return _packed(asked, tree, *leaves)


def _batched(leaves: Any, axes: Any, *, asked: Asked, tree: Any) -> Any:
    """By the kernels one after the other, which is faster than side by side in JAX."""
    with double_precision():
        if not available():
            return jax.vmap(lambda *x: _packed(asked, tree, *x), in_axes=tuple(axes))(*leaves), 0
        assert _times is not None
        bind, mapped = _times, [i for i, axis in enumerate(axes) if axis is not None]

        def one(parts: tuple[Array, ...]) -> Array:
            full = list(leaves)
            for i, part in zip(mapped, parts, strict=True):
                full[i] = part
            return bind(*full, asked=asked, tree=tree)

        rows = tuple(jnp.moveaxis(leaves[i], axes[i], 0) for i in mapped)
        return jax.lax.map(one, rows), 0


_compiled = compiled(0, 1)(lambda asked, tree, *leaves: _natively(*leaves, asked=asked, tree=tree))

_times = new_operation(
    "probode_solve_to_times",
    shape=_shape,
    evaluate=lambda *leaves, asked, tree: _compiled(asked, tree, *leaves),
    batched=_batched,
    on_cpu=_natively,
    elsewhere=_elsewhere,
)
"""From the arrays of a problem to its means at the data, as one vector."""
