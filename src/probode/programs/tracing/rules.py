"""Functions of NumPy that have a rule of their own, for known and traced arguments alike.

They make arrays that can be written to, make views, ask for shapes, or write into an array; or the
function of JAX uses operations for which Taylor mode has no rule.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.arrays import TracedArray, is_traced, unwrap, wrap
from probode.programs.tracing.watching import watch

WRITING = ("writing into an array from outside", None, "make the array inside of the function")

_FEW = 500
"""Nodes of an interpolation up to which all are compared: Taylor mode knows no bisection."""


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    """``zeros_like`` and its kin: shapes are known, so the result is."""

    def rule(prototype: Any, *args: Any, dtype: Any = None, shape: Any = None, **_: Any) -> Any:
        array = _array(prototype)
        shape = array.shape if shape is None else unwrap(shape)
        if args and make is not np.full:
            dtype, args = args[0], args[1:]
        if is_traced(args):
            return wrap(jnp.full(shape, unwrap(args[0]), dtype or array.dtype))
        # Empty is zero: entries that are never set would be arbitrary anyway.
        return wrap(make(shape, *unwrap(args), dtype=dtype or array.dtype))

    return rule


def _empty(shape: Any, dtype: Any = float, **_: Any) -> Any:
    return wrap(np.zeros(unwrap(shape), dtype))


def _full(shape: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Any:
    make: Any = jnp.full if is_traced(fill_value) else np.full
    return wrap(make(unwrap(shape), unwrap(fill_value, as_array=True), dtype=dtype))


def _array(value: Any, dtype: Any = None, *, copy: Any = True, ndmin: int = 0, **_: Any) -> Any:
    if isinstance(value, TracedArray):
        array = value.copy() if copy else value
    elif is_traced(value):
        array = TracedArray(jnp.asarray(unwrap(value, as_array=True)))
    else:
        array = TracedArray(np.array(unwrap(value), dtype))
    if dtype is not None and array.dtype != np.dtype(dtype):
        array = TracedArray(array.value.astype(np.dtype(dtype)))
    if array.ndim < ndmin:
        array = array.reshape((1,) * (ndmin - array.ndim) + array.shape)
    return array


def as_array(value: Any, dtype: Any = None, **_: Any) -> Any:
    """``numpy.asarray``."""
    return _array(value, dtype, copy=False)


def _reshape(array: Any, *args: Any, **kwargs: Any) -> Any:
    shape = args[0] if args else kwargs.pop("shape", kwargs.pop("newshape", None))
    return as_array(array).reshape(unwrap(shape), **kwargs)


def _squeeze(array: Any, axis: Any = None) -> Any:
    array = as_array(array)
    return array.reshape(np.empty(array.shape, bool).squeeze(axis).shape)


def _expand_dims(array: Any, axis: Any) -> Any:
    array = as_array(array)
    return array.reshape(np.expand_dims(np.empty(array.shape, bool), axis).shape)


def _swapaxes(array: Any, axis1: int, axis2: int) -> Any:
    array = as_array(array)
    axes = list(range(array.ndim))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return array.transpose(axes)


def _atleast_1d(*arrays: Any) -> Any:
    results = [as_array(array) for array in arrays]
    results = [array if array.ndim else array.reshape((1,)) for array in results]
    return results[0] if len(results) == 1 else tuple(results)


def _copyto(dst: Any, src: Any, *, where: Any = True, **_: Any) -> None:
    if not isinstance(dst, TracedArray):
        raise watch.refuse(*WRITING)
    whole: Any = np.where(as_array(where), as_array(src), dst)
    dst.assign(whole.value)


def _clip(array: Any, *bounds: Any, **names: Any) -> Any:
    lower = bounds[0] if bounds else names.get("a_min", names.get("min"))
    upper = bounds[1] if len(bounds) > 1 else names.get("a_max", names.get("max"))
    result = as_array(array)
    if lower is not None:
        result = np.maximum(result, lower)
    if upper is not None:
        result = np.minimum(result, upper)
    return result


def _select(condlist: Any, choicelist: Any, default: Any = 0) -> Any:
    """The first choice whose condition holds."""
    result = as_array(default)
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        result = np.where(as_array(condition), as_array(choice), result)
    return result


def _piecewise(x: Any, condlist: Any, funclist: Any, *args: Any, **kwargs: Any) -> Any:
    """The last function whose condition holds, or the one without a condition, or zero."""
    x, functions = as_array(x), list(funclist)
    default = functions.pop() if len(functions) > len(condlist) else 0

    def value(function: Any) -> Any:
        return as_array(function(x.copy(), *args, **kwargs) if callable(function) else function)

    result = np.zeros_like(x) + value(default)
    for condition, function in zip(condlist, functions, strict=True):
        result = np.where(as_array(condition), value(function), result)
    return result.astype(x.dtype)


def _polyval(p: Any, x: Any) -> Any:
    """Horner's scheme."""
    x = as_array(x)
    result: Any = np.zeros_like(x)
    for coefficient in p:
        result = result * x + coefficient
    return result


def _interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """Linear interpolation; by comparing with all nodes where they are few."""
    x, xp, fp, left, right = (unwrap(item, as_array=True) for item in (x, xp, fp, left, right))
    if not is_traced([x, xp, fp, left, right]):
        return wrap(np.interp(x, xp, fp, left, right, period))
    if period is not None or np.size(xp) < 2:
        return wrap(jnp.interp(x, xp, fp, left, right, period))
    x, xp, fp = (jnp.asarray(item, float) for item in (x, xp, fp))
    inner = xp[1:-1]
    if xp.size <= _FEW:
        i = jnp.sum(x[..., None] >= inner, -1)
    else:
        i = jnp.searchsorted(inner, x, side="right")
    width = xp[i + 1] - xp[i]
    slope = (fp[i + 1] - fp[i]) / jnp.where(width > 0, width, 1.0)
    inside = fp[i] + slope * (x - xp[i])
    result = jnp.where(x < xp[0], fp[0], jnp.where(x >= xp[-1], fp[-1], inside))
    if left is not None:
        result = jnp.where(x < xp[0], left, result)
    return wrap(result if right is None else jnp.where(x > xp[-1], right, result))


def _add_at(ufunc: np.ufunc, sign: int) -> Callable[..., None]:
    def rule(array: Any, key: Any, item: Any) -> None:
        if not isinstance(array, TracedArray):
            raise watch.refuse(*WRITING)
        key, part = unwrap(key), unwrap(item, as_array=True)
        value = array.value
        if isinstance(value, np.ndarray) and not is_traced([key, part]):
            ufunc.at(value, key, part)
            return
        array.assign(jnp.asarray(value).at[key].add(sign * jnp.asarray(part)))

    return rule


def _in_shape(name: str) -> Callable[[Any], Any]:
    return lambda array, *args: getattr(np, name)(np.empty(as_array(array).shape, bool), *args)


RULES: dict[Any, Callable[..., Any]] = {
    np.zeros_like: _like(np.zeros),
    np.empty_like: _like(np.zeros),
    np.ones_like: _like(np.ones),
    np.full_like: _like(np.full),
    np.empty: _empty,
    np.full: _full,
    np.array: _array,
    np.asarray: as_array,
    np.asanyarray: as_array,
    np.ascontiguousarray: as_array,
    np.copy: lambda array, **_: _array(array),
    np.shape: lambda array: as_array(array).shape,
    np.ndim: lambda array: as_array(array).ndim,
    np.size: _in_shape("size"),
    np.reshape: _reshape,
    np.ravel: lambda array, *args, **kwargs: as_array(array).ravel(*args, **kwargs),
    np.transpose: lambda array, axes=None: as_array(array).transpose(axes),
    np.swapaxes: _swapaxes,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.atleast_1d: _atleast_1d,
    np.copyto: _copyto,
    np.clip: _clip,
    np.select: _select,
    np.piecewise: _piecewise,
    np.polyval: _polyval,
    np.interp: _interp,
    np.isscalar: lambda x: x.ndim == 0 if isinstance(x, TracedArray) else np.isscalar(x),
}

METHOD_RULES: dict[Any, Callable[..., Any]] = {
    (np.add, "at"): _add_at(np.add, 1),
    (np.subtract, "at"): _add_at(np.subtract, -1),
}
