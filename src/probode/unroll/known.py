"""Operations on numbers that are known while tracing."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def run_on_arrays(equation: Any, operands: Sequence[Any], params: Any) -> list[np.ndarray]:
    """What an equation computes from arrays."""
    in_numpy = _IN_NUMPY.get(equation.primitive.name)
    if in_numpy is not None:  # JAX would compile a program for each
        kind = equation.outvars[0].aval.dtype if equation.primitive.name in _COMPUTES else None
        return [np.asarray(in_numpy(params, *operands), kind)]
    with jax.ensure_compile_time_eval():
        results = equation.primitive.bind(*map(jnp.asarray, operands), **params)
    several = equation.primitive.multiple_results
    return [np.asarray(x) for x in (results if several else [results])]


def _iota(p: Any) -> np.ndarray:
    along = np.arange(p["shape"][p["dimension"]], dtype=p["dtype"])
    shape = [-1 if i == p["dimension"] else 1 for i in range(len(p["shape"]))]
    return np.broadcast_to(along.reshape(shape), p["shape"])


def _slice(p: Any, x: Any) -> np.ndarray:
    strides = p["strides"] or [1] * x.ndim
    cuts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    result: np.ndarray = x[tuple(slice(*cut) for cut in cuts)]
    return result


def _broadcast(p: Any, x: Any) -> np.ndarray:
    shape = [1] * len(p["shape"])
    for size, axis in zip(x.shape, p["broadcast_dimensions"], strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), p["shape"])


_COMPUTES: dict[str, Callable[..., Any]] = {
    "iota": _iota,
    "add": lambda p, a, b: a + b,
    "sub": lambda p, a, b: a - b,
    "mul": lambda p, a, b: a * b,
    "neg": lambda p, a: -a,
    "eq": lambda p, a, b: a == b,
    "ne": lambda p, a, b: a != b,
    "lt": lambda p, a, b: a < b,
    "le": lambda p, a, b: a <= b,
    "gt": lambda p, a, b: a > b,
    "ge": lambda p, a, b: a >= b,
    "convert_element_type": lambda p, a: a.astype(p["new_dtype"]),
    "select_n": lambda p, which, *cases: np.choose(which.astype(int), cases),
}
"""Operations on known numbers, as NumPy does them."""

_IN_NUMPY: dict[str, Callable[..., Any]] = {
    **_COMPUTES,
    "slice": _slice,
    "squeeze": lambda p, x: x.squeeze(p["dimensions"]),
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "transpose": lambda p, x: x.transpose(p["permutation"]),
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "stack": lambda p, *xs: np.stack(xs, p["axis"]),
}
"""What is done in NumPy: these, and those that only move entries."""
