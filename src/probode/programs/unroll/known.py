"""Operations on numbers that are known while tracing."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside import bind, kind, operation


def run_on_arrays(equation: Any, operands: Sequence[Any], params: Any) -> list[np.ndarray]:
    """What an equation computes from arrays."""
    name = operation(equation)
    in_numpy = _IN_NUMPY.get(name)
    if in_numpy is not None:  # JAX would compile a program for each
        dtype = kind(equation.outvars[0])[1] if name in _COMPUTES else None
        result = in_numpy(params, *operands)
        if result is not None:
            return [np.asarray(result, dtype)]
    with jax.ensure_compile_time_eval():
        results = bind(equation.primitive, list(map(jnp.asarray, operands)), params)
        return [np.asarray(x) for x in results]


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


def _pad(p: Any, x: Any, value: Any) -> np.ndarray:
    """Numbers between the entries and at both ends; fewer than none take entries away."""
    for axis, (low, high, between) in enumerate(p["padding_config"]):
        before = np.moveaxis(x, axis, 0)
        spread = max(len(before) + (len(before) - 1) * between, 0)
        wide = np.full((max(low, 0) + spread + max(high, 0), *before.shape[1:]), value, x.dtype)
        wide[max(low, 0) : max(low, 0) + spread : between + 1] = before
        x = np.moveaxis(wide[max(-low, 0) : len(wide) - max(-high, 0)], 0, axis)
    return np.asarray(x)


def _gather(p: Any, x: Any, indices: Any) -> np.ndarray | None:
    """Slices that begin at the indices; ``None`` where one of them would not lie inside."""
    how, sizes = p["dimension_numbers"], p["slice_sizes"]
    if how.operand_batching_dims:
        return None
    axes = how.start_index_map
    kept = [i for i in range(x.ndim) if i not in how.collapsed_slice_dims]
    room = np.array([x.shape[axis] - sizes[axis] for axis in axes], int)
    rows = indices.reshape(-1, len(axes)).astype(int)
    if np.any(rows < 0) or np.any(rows > room):
        return None
    pieces = np.empty((len(rows), *(sizes[i] for i in kept)), x.dtype)
    for k, row in enumerate(rows.tolist()):
        begin = dict(zip(axes, row, strict=True))
        cuts = [slice(begin.get(i, 0), begin.get(i, 0) + n) for i, n in enumerate(sizes)]
        pieces[k] = x[tuple(cuts)].reshape(pieces.shape[1:])
    found = pieces.reshape(*indices.shape[:-1], *pieces.shape[1:])
    batch = indices.ndim - 1
    return np.moveaxis(found, range(batch, found.ndim), how.offset_dims)


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
    "pad": _pad,
    "gather": _gather,
    "copy": lambda p, x: x,
    "copy_p": lambda p, x: x,
}
"""What is done in NumPy: these, and those that only move entries."""
