"""What JAX's operations compute, in NumPy: functions of an equation's parameters and of arrays."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rule without parameters."""
    return lambda params, *operands: function(*operands)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x: function(x, axis=params["axes"])


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(params: Any, x: Any) -> Any:
        axis = params["axis"]
        if not params["reverse"]:
            return function(x, axis=axis)
        return np.flip(function(np.flip(x, axis), axis=axis), axis)

    return run


def _div(params: Any, x: Any, y: Any) -> Any:
    return np.trunc(x / y) if x.dtype.kind in "iu" else x / y


def _slice(params: Any, x: Any) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*bound) for bound in bounds)]


def _dynamic_slice(params: Any, x: Any, *starts: Any) -> Any:
    key = []
    for start, size, n in zip(starts, params["slice_sizes"], x.shape, strict=True):
        first = min(max(int(start), 0), n - size)
        key.append(slice(first, first + size))
    return x[tuple(key)]


def _broadcast(params: Any, x: Any) -> Any:
    shape = [1] * len(params["shape"])
    for axis, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = n
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _complex(params: Any, x: Any, y: Any) -> Any:
    result = np.empty(np.broadcast_shapes(x.shape, y.shape), np.result_type(x, np.complex64))
    result.real, result.imag = x, y
    return result


def _fft(params: Any, x: Any) -> Any:
    function = (np.fft.fftn, np.fft.ifftn, np.fft.rfftn, np.fft.irfftn)[int(params["fft_type"])]
    lengths = params["fft_lengths"]
    return function(x, lengths, range(-len(lengths), 0))


def _select(params: Any, which: Any, *cases: Any) -> Any:
    return np.choose(which.astype(int), np.broadcast_arrays(*cases))


def _pad(params: Any, x: Any, value: Any) -> Any:
    """Numbers between the entries and at both ends; fewer than none take entries away."""
    for axis, (low, high, between) in enumerate(params["padding_config"]):
        before = np.moveaxis(x, axis, 0)
        spread = max(len(before) + (len(before) - 1) * between, 0)
        wide = np.full((max(low, 0) + spread + max(high, 0), *before.shape[1:]), value, x.dtype)
        wide[max(low, 0) : max(low, 0) + spread : between + 1] = before
        x = np.moveaxis(wide[max(-low, 0) : len(wide) - max(-high, 0)], 0, axis)
    return x


def _dot(params: Any, x: Any, y: Any) -> Any:
    (x_sum, y_sum), (x_batch, y_batch) = params["dimension_numbers"]
    x_axes, y_axes = list(range(x.ndim)), list(range(x.ndim, x.ndim + y.ndim))
    for i, j in zip((*x_sum, *x_batch), (*y_sum, *y_batch), strict=True):
        y_axes[j] = x_axes[i]
    kept = [axis for i, axis in enumerate(x_axes) if i not in (*x_sum, *x_batch)]
    kept += [axis for j, axis in enumerate(y_axes) if j not in (*y_sum, *y_batch)]
    return np.einsum(x, x_axes, y, y_axes, [x_axes[i] for i in x_batch] + kept)


def _gather(params: Any, x: Any, indices: Any) -> Any:
    """``out[batch, offset] = x[start(batch) + offset]``, starts kept inside the array."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch = indices.shape[:-1]
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    offsets = [axis for axis in range(x.ndim) if axis not in hidden]
    ndim = len(batch) + len(offsets)
    key: list[Any] = []
    for axis in range(x.ndim):
        start = np.zeros(batch, int)
        if axis in numbers.start_index_map:
            start = indices[..., numbers.start_index_map.index(axis)].astype(int)
            start = np.clip(start, 0, x.shape[axis] - sizes[axis])
        elif axis in numbers.operand_batching_dims:
            at = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
            shape = [1] * len(batch)
            shape[at] = -1
            start = np.broadcast_to(np.arange(batch[at]).reshape(shape), batch)
        start = start.reshape(batch + (1,) * len(offsets))
        if axis in offsets:
            shape = [1] * ndim
            shape[len(batch) + offsets.index(axis)] = -1
            start = start + np.arange(sizes[axis]).reshape(shape)
        key.append(start)
    result = np.broadcast_arrays(*key)[0].shape if key else batch
    found = np.broadcast_to(x[tuple(key)], result)
    return np.moveaxis(found, range(len(batch), ndim), numbers.offset_dims)


def _iota(params: Any) -> Any:
    shape = [1] * len(params["shape"])
    shape[params["dimension"]] = -1
    n = params["shape"][params["dimension"]]
    return np.broadcast_to(np.arange(n).reshape(shape), params["shape"])


def _reshape(params: Any, x: Any) -> Any:
    order = params["dimensions"]
    return (x if order is None else x.transpose(order)).reshape(params["new_sizes"])


def _round(params: Any, x: Any) -> Any:
    if params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN:
        return np.rint(x)
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


def _split(params: Any, x: Any) -> list[Any]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], params["axis"])


def _unstack(params: Any, x: Any) -> list[Any]:
    axis = params["axis"]
    return [np.take(x, i, axis) for i in range(x.shape[axis])]


RULES: dict[str, Callable[..., Any]] = {
    "argmax": lambda params, x: np.argmax(x, params["axes"][0]),
    "argmin": lambda params, x: np.argmin(x, params["axes"][0]),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda params, low, x, high: np.minimum(np.maximum(x, low), high),
    "complex": _complex,
    "concatenate": lambda params, *xs: np.concatenate(xs, params["dimension"]),
    "convert_element_type": lambda params, x: x.astype(params["new_dtype"]),
    "cummax": _cumulative(np.maximum.accumulate),
    "cummin": _cumulative(np.minimum.accumulate),
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
    "div": _div,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "erf": plain(np.vectorize(math.erf, otypes=[float])),
    "erfc": plain(np.vectorize(math.erfc, otypes=[float])),
    "expand_dims": lambda params, x: np.expand_dims(x, params["dimensions"]),
    "fft": _fft,
    "gather": _gather,
    "integer_pow": lambda params, x: x ** float(params["y"]),
    "iota": _iota,
    "logistic": lambda params, x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))),
    "one_minus_square": lambda params, x: (1 + x) * (1 - x),
    "pad": _pad,
    "polynomial": lambda params, x, *terms: functools.reduce(lambda a, b: a * x + b, terms[::-1]),
    "reduce_and": _reduction(np.all),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_or": _reduction(np.any),
    "reduce_prod": _reduction(np.prod),
    "reduce_sum": _reduction(np.sum),
    "reshape": _reshape,
    "rev": lambda params, x: np.flip(x, params["dimensions"]),
    "round": _round,
    "rsqrt": lambda params, x: 1 / np.sqrt(x),
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": lambda params, x: x.squeeze(params["dimensions"]),
    "stack": lambda params, *xs: np.stack(xs, params["axis"]),
    "tile": lambda params, x: np.tile(x, params["reps"]),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "unstack": _unstack,
}
"""Those that are more than a function of NumPy's."""
