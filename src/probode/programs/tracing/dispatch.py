"""NumPy's functions on traced arrays: the function of the same name in JAX, or a rule of our own.

Arguments that are all known go to NumPy itself, so that shapes, index arrays, grids and masks
built inside a function stay known.
"""

import cmath
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import FunctionType
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.arrays import (
    TABULATE,
    TracedArray,
    is_traced,
    join,
    unwrap,
    wrap,
)
from probode.programs.tracing.branches import COMPARISONS, compared
from probode.programs.tracing.rules import METHOD_RULES, RULES, WRITING, as_array
from probode.programs.tracing.watching import watch

_JAX_MODULES = {
    "numpy": "jax.numpy",
    "numpy.linalg": "jax.numpy.linalg",
    "numpy.fft": "jax.numpy.fft",
    "scipy.special": "jax.scipy.special",
    "scipy.linalg": "jax.scipy.linalg",
}

_MATH_NAMES = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "fabs": "abs",
    "pow": "power",
    "lgamma": "gammaln",
    "phase": "angle",
}

_NEVER_RAISE = {
    *("asinh", "atan", "atan2", "cbrt", "copysign", "cos", "degrees", "erf", "erfc", "fabs"),
    *("radians", "sin", "tan", "tanh"),
}
"""Functions of ``math`` that raise no error for any finite number, as ``math.sqrt(-1.0)`` does."""

_SEQUENCES = {
    *("concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "block", "select"),
    *("piecewise", "multi_dot", "meshgrid", "broadcast_arrays", "einsum"),
}
"""Functions that take a list of arrays; elsewhere a list is an array."""

_COMPARISONS = tuple(getattr(np, name) for name in COMPARISONS)

_IGNORED = ("casting", "order", "subok", "like")


def call(func: Any, method: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """``func(*args, **kwargs)``, or a method of the ufunc ``func``."""
    out = kwargs.pop("out", None) if kwargs else None
    if isinstance(out, tuple):
        (out,) = out
    if out is not None and not isinstance(out, TracedArray):
        raise watch.refuse(*WRITING)
    result = _compute(func, method, args, kwargs, out)
    if out is None:
        return result
    out.assign(unwrap(result))
    return out


def _compute(func: Any, method: str, args: Any, kwargs: dict[str, Any], out: Any) -> Any:
    rule = RULES.get(func) if method == "__call__" else METHOD_RULES.get((func, method))
    if rule is not None:
        watch.count()
        with _noticing():
            return rule(*args, **kwargs)
    if not (is_traced(args) or is_traced(kwargs) or is_traced(out)):
        target = func if method == "__call__" else getattr(func, method)
        if out is not None and "where" in kwargs:
            kwargs = {**kwargs, "out": out.value.copy()}
        return wrap(target(*unwrap(tuple(args)), **unwrap(kwargs)))
    target = equivalent(func)
    if target is None:
        raise watch.refuse(f"{_full_name(func)} is not known here", None, TABULATE)
    if method != "__call__":
        target = getattr(target, method)
    keep = getattr(func, "__name__", "") in _SEQUENCES
    with _noticing():
        values = [_argument(arg, keep) for arg in args]
        options = {key: _option(item) for key, item in kwargs.items() if key not in _IGNORED}
        if isinstance(func, np.ufunc) and "where" in options:
            watch.count()
            return _where_ufunc(target, values, options, out)
        if options:
            watch.count()
            return wrap(target(*values, **options))
        if func in _COMPARISONS and method == "__call__":
            return wrap(compared(func.__name__, *values))
        if func is np.power and all(np.result_type(x).kind in "iub" for x in values):
            raise watch.refuse("a power of two integers", None, "make one of them a float")
        return wrap(watch.once((target, *values), lambda: target(*values)))


def _full_name(function: Any) -> str:
    name = str(getattr(function, "__name__", function))
    homes = [x for x in _JAX_MODULES if getattr(sys.modules.get(x), name, None) is function]
    return f"{homes[0]}.{name}" if homes else name


@contextmanager
def _noticing() -> Iterator[None]:
    """Remember errors: JAX can do less than NumPy, and user code may swallow what it says."""
    try:
        yield
    except Exception as error:
        watch.notice(error)
        raise


def _where_ufunc(target: Any, values: list[Any], options: dict[str, Any], out: Any) -> Any:
    """``ufunc(..., where=mask)``; ones where the mask is false keep derivatives finite there."""
    mask = options.pop("where")
    if out is None:
        raise watch.refuse("a ufunc with where= and without out=", None, "write numpy.where")
    safe = [jnp.where(mask, value, 1) for value in values]
    return wrap(jnp.where(mask, target(*safe, **options), out.value))


def _argument(value: Any, keep: bool) -> Any:
    if isinstance(value, list | tuple):
        if keep:
            return [_argument(item, False) for item in value]
        is_array = isinstance(value, list) or is_traced(value)
        if is_array or any(isinstance(item, float) for item in value):
            return join(value)
    if isinstance(value, FunctionType):
        return lambda *args, **kwargs: unwrap(value(*wrap(args), **kwargs), as_array=True)
    return unwrap(value)


def _option(value: Any) -> Any:
    return join(value) if isinstance(value, list | tuple) and is_traced(value) else unwrap(value)


@lru_cache(maxsize=1024)
def equivalent(func: Any) -> Any | None:
    """The function of the same name in JAX."""
    name = getattr(func, "__name__", "")
    for module, jax_module in _JAX_MODULES.items():
        # A module that the user has not imported is not the home of the user's function.
        if module in sys.modules and getattr(sys.modules[module], name, None) is func:
            if module == "scipy.special":
                return import_module("probode.programs.tracing.special").special(name)
            return getattr(import_module(jax_module), name, None)
    return None


def call_math(func: Callable[..., Any], *args: Any) -> Any:
    """A function of the module ``math``."""
    if not is_traced(args):
        return func(*unwrap(args))
    take = as_array if func.__name__ in ("fsum", "prod", "dist") else _scalar
    values = [unwrap(take(arg)) for arg in args]
    result = watch.once((func, *values), lambda: traced_math(func, *values))
    return wrap(result.astype(int) if func.__name__ in ("floor", "ceil", "trunc") else result)


def traced_math(func: Callable[..., Any], *args: Any) -> Any:
    """A function of the module ``math`` on scalars of JAX."""
    name = func.__name__
    if func in vars(cmath).values():
        args = tuple(jnp.asarray(arg, complex) for arg in args)
    if watch.careful and name not in _NEVER_RAISE:
        raise watch.refuse(
            f"math.{name} raises errors that the function catches",
            args[0],
            "write numpy.where instead of try and except",
        )
    if name == "log" and len(args) == 2:
        return jnp.log(args[0]) / jnp.log(args[1])
    if name in ("fsum", "prod"):
        return {"fsum": jnp.sum, "prod": jnp.prod}[name](*args)
    if name == "dist":
        return jnp.linalg.norm(jnp.subtract(*args))
    name = _MATH_NAMES.get(name, name)
    target = getattr(jnp, name, None) or getattr(import_module("jax.scipy.special"), name, None)
    if target is None:
        raise watch.refuse(f"math.{name} is not known here", args[0], TABULATE)
    return target(*args)


def _scalar(value: Any) -> Any:
    value = unwrap(value)
    if jnp.ndim(value) == 0:
        return value
    if jnp.size(value) == 1:
        return value.reshape(())
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
