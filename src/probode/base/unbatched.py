"""Functions that are not batched: where JAX would run them for many inputs at once, one by one.

Batches of triangular solves wait for threads of the pool that they occupy (jaxlib 0.10 on the CPU):
a few large ones in one program, as in ``vmap(expm)``, wait for one another for ever.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array

from probode.base.jax_inside import Unreadable, equations, library_calls, operation, reading


def unbatched(function: Callable[..., Array]) -> Callable[..., Array]:
    """The same function of arrays, called for one member of a batch after the other.

    All that depends on a batch or is differentiated has to come in through the arguments. Its
    derivative is that of the function as it is, batched or not.
    """

    @jax.custom_batching.custom_vmap
    def call(*operands: Any) -> Array:
        return function(*operands)

    @call.def_vmap
    def one_by_one(size: int, batched: Any, *operands: Any) -> tuple[Array, bool]:
        def one(members: list[Array]) -> Array:
            rest = iter(members)
            return call(
                *(
                    next(rest) if own else operand
                    for own, operand in zip(batched, operands, strict=True)
                )
            )

        members = [operand for own, operand in zip(batched, operands, strict=True) if own]
        return jax.lax.map(one, members), True

    @jax.custom_jvp
    def differentiable(*operands: Any) -> Array:
        return call(*operands)

    @differentiable.defjvp
    def _derivative(primals: Any, tangents: Any) -> tuple[Array, Array]:
        made: tuple[Array, Array] = jax.jvp(function, primals, tangents)
        return made

    return differentiable


def calls_libraries(function: Callable[..., Any], *operands: Any) -> bool:
    """Whether a function has decompositions or triangular solves in it; if in doubt, yes."""
    program = jax.make_jaxpr(function)(*operands)
    try:
        with reading("programs with operations", "any of them may be there"):
            found = set(map(operation, equations(program.jaxpr)))
    except Unreadable:
        return True
    return not library_calls().isdisjoint(found)
