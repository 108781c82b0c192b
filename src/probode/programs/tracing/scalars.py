"""Scalars in NumPy's arrays of objects: for code whose ``numpy`` cannot be replaced.

NumPy computes with such arrays entry by entry, through the operators of the entries and through
methods named like its functions (``sin``, ``exp``). Everything is unrolled, so this is for few
components only.
"""

import math
import operator
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.branches import COMPARISONS, compared, decide
from probode.programs.tracing.dispatch import traced_math
from probode.programs.tracing.facade import Module
from probode.programs.tracing.watching import watch

SIZE_LIMIT = 64
"""Components of ``y`` up to which functions are unrolled."""

_ENTRY_LIMIT = 1024

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_COMPARISONS = dict(zip(("eq", "ne", "lt", "le", "gt", "ge"), COMPARISONS, strict=True))
_METHODS = (
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "ceil", "cos"),
    *("cosh", "deg2rad", "degrees", "exp", "exp2", "expm1", "fabs", "floor", "log", "log10"),
    *("log1p", "log2", "rad2deg", "radians", "rint", "sign", "sin", "sinh", "sqrt", "square"),
    *("tan", "tanh", "trunc"),
)


class Scalar:
    """A traced number."""

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    shape = ()
    ndim = 0
    size = 1

    def __init__(self, value: Any) -> None:
        self.value = value

    def _refuse(self, *_: Any) -> Any:
        raise watch.refuse("something needs a number that is known while tracing", self.value)

    __float__ = __int__ = __index__ = __complex__ = __str__ = __format__ = _refuse

    def __bool__(self) -> bool:
        return decide(self.value)

    def __neg__(self) -> "Scalar":
        return Scalar(-self.value)

    def __pos__(self) -> "Scalar":
        return self

    def __abs__(self) -> "Scalar":
        return Scalar(jnp.abs(self.value))

    def conjugate(self) -> "Scalar":
        """The number itself: all are real."""
        return self

    @property
    def real(self) -> "Scalar":
        """The number itself."""
        return self

    def arctan2(self, other: Any) -> "Scalar":
        """The angle of ``(other, self)``."""
        return Scalar(jnp.arctan2(self.value, _number(other)))

    def hypot(self, other: Any) -> "Scalar":
        """``sqrt(self² + other²)``."""
        return Scalar(jnp.hypot(self.value, _number(other)))


def _number(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


def _binary(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    operation = getattr(operator, f"__{name}__")

    def apply(self: Scalar, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim == 0:
            other = other[()]
        if not isinstance(other, Scalar | int | float | np.generic | jax.Array):
            return NotImplemented
        pair = (_number(other), self.value) if reflected else (self.value, _number(other))
        if name in _COMPARISONS:
            return Scalar(compared(_COMPARISONS[name], *pair))
        return Scalar(watch.once((name, *pair), lambda: operation(*pair)))

    return apply


def _method(name: str) -> Callable[[Any], Any]:
    def apply(self: Scalar) -> Scalar:
        return Scalar(watch.once((name, self.value), lambda: getattr(jnp, name)(self.value)))

    return apply


for _name in _BINARY:
    setattr(Scalar, f"__{_name}__", _binary(_name))
    setattr(Scalar, f"__r{_name}__", _binary(_name, reflected=True))
for _name in _COMPARISONS:
    setattr(Scalar, f"__{_name}__", _binary(_name))
for _name in _METHODS:
    setattr(Scalar, _name, _method(_name))


def scatter(value: Any) -> Any:
    """An array as an array of scalars, a number as a scalar."""
    if not isinstance(value, jax.Array):
        return value
    if value.ndim == 0:
        return Scalar(value)
    if value.size > _ENTRY_LIMIT:
        raise watch.refuse("an array of many scalars", value)
    entries = np.empty(value.size, object)
    flat = value.reshape(-1)
    for i in range(value.size):
        entries[i] = Scalar(flat[i])
    return entries.reshape(value.shape)


def gather(value: Any) -> Any:
    """What a function of scalars returned, as one array."""
    entries = np.asarray(value)
    if entries.dtype != object:
        return jnp.asarray(entries)
    numbers = [jnp.asarray(_number(entry)) for entry in entries.reshape(-1)]
    return jnp.stack(numbers).reshape(entries.shape)


def _objects(make: Callable[..., Any]) -> Callable[..., Any]:
    """An array that scalars can be assigned to, unless integers are asked for."""

    def stand_in(shape: Any, *args: Any, **kwargs: Any) -> Any:
        array = make(shape, *args, **kwargs)
        return array.astype(object) if array.dtype.kind == "f" else array

    return stand_in


def _math_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(*args: Any) -> Any:
        if not any(isinstance(arg, Scalar) for arg in args):
            return function(*args)
        watch.count()
        return Scalar(traced_math(function, *map(_number, args)))

    return stand_in


_stand_ins: dict[int, Any] = {
    id(np.zeros): _objects(np.zeros),
    id(np.empty): _objects(np.zeros),
    id(np.ones): _objects(np.ones),
}
_stand_ins.update(
    (id(function), _math_function(function))
    for function in vars(math).values()
    if isinstance(function, BuiltinFunctionType)
)


def stand_in(value: Any) -> Any | None:
    """What replaces a module or function of NumPy or ``math``; ``None`` for others."""
    if isinstance(value, ModuleType) and value in (np, math):
        return _stand_ins.setdefault(
            id(value), Module(value, lambda item: _stand_ins.get(id(item), item))
        )
    return _stand_ins.get(id(value))
