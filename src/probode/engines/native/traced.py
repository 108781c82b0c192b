"""Native kernels inside a user's own ``jit``: used where nothing is batched."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.jax_inside import new_operation
from probode.base.precision import double_precision
from probode.engines.native.driver import step_until_stopped
from probode.engines.native.layout import begin, layout_of, pack, settings
from probode.engines.native.lists import lists_of
from probode.engines.protocol import Inputs
from probode.filter import loop
from probode.filter.loop import Solve
from probode.filter.start import Initialization
from probode.filter.step import Method

_UNLIMITED = 2.0**53


def solve_to_end(inputs: Inputs) -> Solve:
    """The solve when it has ended, by the native kernels.

    They have no batches: under ``vmap`` the same loop is run in JAX. The transformation decides,
    not the call: ``jit`` comes first and does not know of it. Derivatives are those of that loop
    (:func:`probode.solve.solve` sees to that).
    """
    method, initialization, *data = inputs
    leaves, tree = jax.tree.flatten(tuple(data))
    program = _Program(method, initialization, tree)
    if _end is None:
        return program.in_jax(*map(jnp.asarray, leaves))
    return layout_of(method).solve(_end(*map(jnp.asarray, leaves), program=program))


class _Program:
    """The loop over all steps as a function of arrays, in two ways; compared by its parts."""

    def __init__(self, method: Method, initialization: Initialization, tree: Any) -> None:
        self.method = method
        self.initialization = initialization
        self.tree = tree
        self._key = (method, initialization, tree)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Program) and self._key == other._key

    def natively(self, *leaves: Any) -> Array:
        """The solve at its end, as the vector of the kernels."""
        field, control, t0, t1, y0 = jax.tree.unflatten(self.tree, leaves)
        given = settings(self.method, control, t1, False, _UNLIMITED, _UNLIMITED, jnp.inf)

        def first() -> Array:
            return begin(self.method, self.initialization, field, control, t0, t1, y0)

        lists = lists_of(self.method, self.initialization, field, control, t1)
        if lists is not None:
            return lists.end(self.method, given, t0, y0, first)
        return step_until_stopped(self.method, 0, field, given, first())[0]

    def in_jax(self, *leaves: Any) -> Solve:
        """The solve at its end."""
        field, control, t0, t1, y0 = jax.tree.unflatten(self.tree, leaves)
        solve = loop.begin(self.method, self.initialization, field, control, t0, t1, y0)
        return loop.run_to_end(self.method, field, control, solve, t1)

    def packed_in_jax(self, *leaves: Any) -> Array:
        """The solve at its end, as the vector of the kernels, without them."""
        return pack(self.method, self.in_jax(*leaves))


def _evaluate(*leaves: Any, program: _Program) -> Array:
    return _compiled(program, *leaves)


def _shape(*leaves: Any, program: _Program) -> Any:
    return jax.ShapeDtypeStruct((layout_of(program.method).state,), jnp.float64)


def _batched(leaves: Any, axes: Any, *, program: _Program) -> Any:
    with double_precision():
        return jax.vmap(program.packed_in_jax, in_axes=tuple(axes))(*leaves), 0


def _natively(*leaves: Any, program: _Program) -> Array:
    with double_precision():  # lowering happens after solve has returned
        return program.natively(*leaves)


def _in_jax(*leaves: Any, program: _Program) -> Array:
    with double_precision():
        return program.packed_in_jax(*leaves)


_compiled = compiled(0)(lambda program, *leaves: program.natively(*leaves))

_end = new_operation(
    "probode_solve_to_end",
    shape=_shape,
    evaluate=_evaluate,
    batched=_batched,
    on_cpu=_natively,
    elsewhere=_in_jax,
)
"""From the arrays of a problem to the vector of its solve at the end."""
