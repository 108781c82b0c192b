"""Operators and methods of traced arrays: each is the NumPy function of that name."""

from collections.abc import Callable
from numbers import Number
from typing import Any

import jax
import numpy as np

from probode.programs.tracing.arrays import TracedArray, unwrap, wrap
from probode.programs.tracing.dispatch import call

_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "divmod": np.divmod,
    "pow": np.power,
    "matmul": np.matmul,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
}

_COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}

_METHODS = (
    *("all", "any", "argmax", "argmin", "argsort", "clip", "conj", "conjugate", "cumprod"),
    *("cumsum", "diagonal", "dot", "max", "mean", "min", "prod", "ptp", "repeat", "round"),
    *("searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "trace", "var"),
)

_OPERANDS = (TracedArray, Number, np.ndarray, np.generic, jax.Array, list, tuple)


def _binary(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return call(ufunc, "__call__", (self, other), {})

    return operator


def _reflected(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        if not isinstance(other, _OPERANDS):
            return NotImplemented
        return call(ufunc, "__call__", (other, self), {})

    return operator


def _in_place(ufunc: np.ufunc) -> Callable[[Any, Any], Any]:
    def operator(self: TracedArray, other: Any) -> Any:
        result = call(ufunc, "__call__", (self, other), {})
        if not self.ndim:
            return result  # scalars are immutable: the name moves on to the new one
        if result.shape != self.shape:
            raise ValueError(f"Shape {result.shape} does not go into {self.shape} in place.")
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            raise TypeError(f"{result.dtype} does not go into an array of {self.dtype} in place.")
        self.assign(result.value)
        return self

    return operator


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    return lambda self: call(ufunc, "__call__", (self,), {})


def _method(function: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: call(function, "__call__", (self, *args), kwargs)


def _array_ufunc(self: TracedArray, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    return call(ufunc, method, inputs, kwargs)


def _array_function(self: TracedArray, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    return call(func, "__call__", args, dict(kwargs))


def _astype(self: TracedArray, dtype: Any, *args: Any, **kwargs: Any) -> TracedArray:
    return TracedArray(self.value.astype(np.dtype(dtype)))


def _to_integer(function: Any) -> Callable[[Any], Any]:
    return lambda self: call(function, "__call__", (self,), {}).astype(int)


def _rounded(self: TracedArray, digits: int | None = None) -> Any:
    """Round as ``round`` does: to an integer, unless a number of digits is given."""
    found = call(np.round, "__call__", (self, digits or 0), {})
    return found.astype(int) if digits is None else found


def _fill(self: TracedArray, item: Any) -> None:
    self.assign(unwrap(item))


def _sort(self: TracedArray, axis: int = -1) -> None:
    self.assign(call(np.sort, "__call__", (self,), {"axis": axis}).value)


def _part(name: str) -> property:
    return property(lambda self: wrap(getattr(np if self.known else jax.numpy, name)(self.value)))


def attach() -> None:
    """Give ``TracedArray`` its operators and methods."""
    for name, ufunc in _BINARY.items():
        setattr(TracedArray, f"__{name}__", _binary(ufunc))
        setattr(TracedArray, f"__r{name}__", _reflected(ufunc))
        if name != "divmod":
            setattr(TracedArray, f"__i{name}__", _in_place(ufunc))
    for name, ufunc in _COMPARISONS.items():
        setattr(TracedArray, f"__{name}__", _binary(ufunc))
    for name, ufunc in _UNARY.items():
        setattr(TracedArray, f"__{name}__", _unary(ufunc))
    for name in _METHODS:
        setattr(TracedArray, name, _method(getattr(np, name)))
    others: dict[str, Any] = {
        "__array_ufunc__": _array_ufunc,
        "__array_function__": _array_function,
        "__round__": _rounded,
        "__floor__": _to_integer(np.floor),
        "__ceil__": _to_integer(np.ceil),
        "__trunc__": _to_integer(np.trunc),
        "astype": _astype,
        "fill": _fill,
        "flat": property(lambda self: self.ravel()),
        "flatten": lambda self, order="C": self.copy().ravel(order),
        "imag": _part("imag"),
        "real": _part("real"),
        "sort": _sort,
    }
    for name, attribute in others.items():
        setattr(TracedArray, name, attribute)
