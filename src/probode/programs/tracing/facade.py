"""Stand-ins for NumPy, ``math`` and parts of SciPy in the functions that are traced."""

import cmath
import math
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.arrays import TracedArray, is_traced, unwrap, wrap
from probode.programs.tracing.dispatch import call, call_math
from probode.programs.tracing.grids import grid_table
from probode.programs.tracing.sparse import SparseMatrix, is_sparse
from probode.programs.tracing.splines import spline
from probode.programs.tracing.watching import watch
from probode.programs.user_code import asked

_FUNCTION_TYPES = (FunctionType, BuiltinFunctionType, np.ufunc, type(np.sum))
_OF_JAX = ("jax.numpy", "jax.numpy.linalg", "jax.numpy.fft", "jax.scipy.special", "jax.nn")
_MODULES = (
    *("numpy", "numpy.linalg", "numpy.fft", "math", "cmath"),
    *("scipy", "scipy.special", "scipy.linalg"),
    *("jax", "jax.scipy", *_OF_JAX),
)


class Function:
    """A function of NumPy or SciPy that also takes traced arrays."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self.__name__ = getattr(original, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return call(self._original, "__call__", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._original, name)
        if isinstance(self._original, np.ufunc) and callable(attribute):
            return lambda *args, **kwargs: call(self._original, name, args, kwargs)
        return attribute


class Module:
    """A module whose attributes are replaced as they are asked for."""

    def __init__(self, original: ModuleType, replace: Callable[[Any], Any]) -> None:
        self._original = original
        self._replace = replace

    def __getattr__(self, name: str) -> Any:
        attribute = self._replace(getattr(self._original, name))
        setattr(self, name, attribute)
        return attribute


class _ArrayMeta(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, TracedArray | np.ndarray)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return wrap(np.ndarray(*args, **kwargs))


class Array(metaclass=_ArrayMeta):
    """``numpy.ndarray`` as the traced function knows it."""


class _Joiner:
    """``numpy.r_`` and ``numpy.c_``."""

    def __init__(self, original: Any, traced: Any) -> None:
        self._original, self._traced = original, traced

    def __getitem__(self, key: Any) -> Any:
        return wrap((self._traced if is_traced(key) else self._original)[unwrap(key)])


def _math_function(function: Callable[..., Any]) -> Callable[..., Any]:
    def stand_in(*args: Any) -> Any:
        return call_math(function, *args)

    return stand_in


def _function_of_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX in a form that accepts stand-ins, for functions that branch."""

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        watch.count()
        return wrap(function(*unwrap(args), **unwrap(kwargs)))

    return stand_in


_stand_ins: dict[int, Any] = {
    id(np.ndarray): Array,
    id(np.r_): _Joiner(np.r_, jnp.r_),
    id(np.c_): _Joiner(np.c_, jnp.c_),
}
_stand_ins.update(
    (id(function), _math_function(function))
    for module in (math, cmath)
    for function in vars(module).values()
    if isinstance(function, BuiltinFunctionType)
)


def stand_in(value: Any) -> Any | None:
    """What replaces a module or function of NumPy, ``math`` or SciPy; ``None`` for others."""
    found = _stand_ins.get(id(value))
    if found is not None:
        return found
    if isinstance(value, ModuleType):
        if value.__name__ not in _MODULES:
            return None
        found = Module(value, _replace_attribute)
    elif callable(value) and not isinstance(value, type) and _is_home(value, _OF_JAX):
        found = _function_of_jax(value)
    elif isinstance(value, _FUNCTION_TYPES) and _is_home(value, _MODULES):
        found = Function(value)
    elif is_sparse(value):
        return SparseMatrix(value)
    else:
        return spline(value) or grid_table(value)
    _stand_ins[id(value)] = found
    return found


def _replace_attribute(value: Any) -> Any:
    found = stand_in(value)
    return value if found is None else found


def _is_home(function: Any, modules: tuple[str, ...]) -> bool:
    """Whether this is a public function of one of these modules."""
    name = asked(function, "__name__")
    return isinstance(name, str) and any(
        getattr(sys.modules[module], name, None) is function
        for module in modules
        if module in sys.modules
    )
