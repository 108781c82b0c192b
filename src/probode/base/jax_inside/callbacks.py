"""Python functions that a program calls while it runs (``pure_callback``), in double precision."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside.programs import (
    Closed,
    Opaque,
    Unreadable,
    called,
    equations,
    reading,
    trace,
    walk,
)
from probode.base.jax_inside.running import apply
from probode.base.jax_inside.values import double_precision


class _InBits:
    """A function that a program calls back, on numbers of 64 bits given as pairs of 32.

    It is called when the program runs, outside of any scope of double precision, where JAX would
    round the numbers. Two are equal if their functions are.
    """

    def __init__(self, function: Callable[..., Any], types: tuple[Any, ...]) -> None:
        self._function, self._types = function, types

    def __call__(self, *args: Any) -> list[np.ndarray]:
        """Call the function in double precision."""
        pairs = zip(map(np.asarray, args), self._types, strict=True)
        given = [np.ascontiguousarray(x).view(t)[..., 0] if t else x for x, t in pairs]
        with double_precision():
            found = map(np.asarray, self._function(*given))
            return [x[..., None].view(np.uint32) if x.dtype.itemsize == 8 else x for x in found]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _InBits) and (self._function, self._types) == (
            other._function,
            other._types,
        )

    def __hash__(self) -> int:
        return hash((self._function, self._types))


def _calls_back(equation: Any, values: list[Any]) -> list[Any]:
    """Evaluate an equation; a ``pure_callback`` in double precision."""
    if equation.primitive.name != "pure_callback":
        return apply(equation, values)
    params = equation.params
    values = [jnp.asarray(value) for value in values]
    types = tuple(x.dtype if _is_wide(x) else None for x in values)
    function, wanted = _InBits(params["callback"], types), params["result_avals"]
    results = [
        jax.ShapeDtypeStruct((*x.shape, 2), jnp.uint32)
        if _is_wide(x)
        else jax.ShapeDtypeStruct(x.shape, x.dtype)
        for x in wanted
    ]

    @jax.custom_jvp  # bits have the derivative zero
    def call(*values: Any) -> list[Any]:
        bits = [jax.lax.bitcast_convert_type(x, jnp.uint32) if _is_wide(x) else x for x in values]
        found = jax.pure_callback(function, results, *bits, vmap_method=params["vmap_method"])
        return [
            jax.lax.bitcast_convert_type(x, one.dtype) if _is_wide(one) else x
            for x, one in zip(found, wanted, strict=True)
        ]

    call.defjvp(_refuse)
    found: list[Any] = call(*values)
    return found


def _refuse(primals: Any, tangents: Any) -> Any:
    raise ValueError(NO_DERIVATIVE)


NO_DERIVATIVE = (
    "JAX cannot differentiate a function that calls jax.pure_callback. Give the call a derivative "
    "of its own (jax.custom_jvp), or choose a solver and a start that need no derivative "
    "(EK0 instead of EK1, with initialization='runge-kutta')."
)


def _is_wide(x: Any) -> bool:
    return bool(x.dtype.itemsize == 8)


def with_callbacks(closed: Closed, inputs: Sequence[Any]) -> Closed:
    """Return the program with its calls of ``pure_callback`` in double precision."""
    if isinstance(closed.jaxpr, Opaque):
        return closed
    if not any(equation.primitive.name == "pure_callback" for equation in equations(closed.jaxpr)):
        return closed

    def again(*inputs: Any) -> list[Any]:
        return walk(closed.jaxpr, closed.consts, inputs, lambda x, _: x, _calls_back, _entered)

    try:
        with reading("pure_callback with parameters that are known", "it sees single precision"):
            return trace(again, *inputs)
    except Unreadable:
        return closed


def _entered(equation: Any) -> Closed | None:
    return None if equation.primitive.name.startswith("custom") else called(equation)
