"""Python's built-in functions for traced numbers: ``max``, ``sorted``, ``any``, ``float``, ...

Each returns the same as Python's, for NaN and ties too: ``max(a, b)`` is ``b`` if ``b > a``, else
``a``. Without traced numbers they are Python's own.
"""

import builtins
import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from probode.programs.tracing.arrays import TracedArray, is_traced
from probode.programs.tracing.dispatch import call
from probode.programs.tracing.watching import watch


def _extreme(original: Callable[..., Any], is_better: Callable[[Any, Any], Any]) -> Any:
    """Return ``max`` or ``min`` with a selection in the place of each comparison."""

    def stand_in(*args: Any, key: Any = None, **default: Any) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        measures = items if key is None else [key(item) for item in items]
        if not (is_traced(items) or is_traced(measures)) or not _are_numbers(items, measures):
            return original(items, key=key, **default)
        best, size = items[0], measures[0]
        for item, measure in zip(items[1:], measures[1:], strict=True):
            better = is_better(measure, size)
            best, size = np.where(better, item, best), np.where(better, measure, size)
        return best

    return stand_in


def _are_numbers(*lists: list[Any]) -> bool:
    return all(np.ndim(item) == 0 for items in lists for item in items)


def _sorted(items: Iterable[Any], /, *, key: Any = None, reverse: bool = False) -> list[Any]:
    items = list(items)
    if key is not None or not is_traced(items) or not _are_numbers(items):
        return sorted(items, key=key, reverse=reverse)
    found = call(np.sort, "__call__", (items,), {})
    return list(found[::-1] if reverse else found)


def _of_truths(original: Callable[..., Any], combine: np.ufunc) -> Any:
    """Return ``any`` or ``all`` with one value as the result, so that a branch is one decision."""

    def stand_in(items: Iterable[Any], /) -> Any:
        items = list(items)
        if not is_traced(items) or not _are_numbers(items):
            return original(items)
        found = np.not_equal(items[0], 0)
        for item in items[1:]:
            found = combine(found, np.not_equal(item, 0))
        return found

    return stand_in


class _NumberType(type):
    """The type of a number type that also takes traced numbers, and is Python's for all else."""

    original: type
    dtype: np.dtype
    kinds: str

    def __instancecheck__(cls, value: Any) -> bool:
        is_one = isinstance(value, TracedArray) and not value.ndim
        return isinstance(value, cls.original) or (is_one and value.dtype.kind in cls.kinds)

    def __call__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(value, TracedArray):
            return cls.original(value, *args, **kwargs)
        if value.size != 1 or value.dtype.kind == "c":
            raise TypeError(f"only real numbers can be converted to {cls.original.__name__}")
        return value.reshape(()).copy().astype(cls.dtype)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)

    def __eq__(cls, other: object) -> bool:
        return other is cls.original or other is cls

    def __hash__(cls) -> int:
        return hash(cls.original)


class TracedFloat(metaclass=_NumberType):
    """``float`` as a traced function knows it."""

    original, dtype, kinds = float, np.dtype(float), "f"


class TracedInteger(metaclass=_NumberType):
    """``int`` as a traced function knows it; it rounds towards zero."""

    original, dtype, kinds = int, np.dtype(int), "iu"


class _ComplexType(_NumberType):
    def __call__(cls, real: Any = 0, imag: Any = 0) -> Any:
        if not is_traced((real, imag)):
            return complex(real, imag) if imag else complex(real)
        return real + 1j * imag


class TracedComplex(metaclass=_ComplexType):
    """``complex`` as a traced function knows it."""

    original, dtype, kinds = complex, np.dtype(complex), "c"


def _range(*bounds: Any) -> range:
    if is_traced(bounds):
        raise watch.refuse(
            "a range needs a number that is known while tracing",
            None,
            "give it one, such as len(y) or a constant",
        )
    return range(*map(operator.index, bounds))


FUNCTIONS: dict[str, Any] = {
    "max": _extreme(builtins.max, operator.gt),
    "min": _extreme(builtins.min, operator.lt),
    "sorted": _sorted,
    "any": _of_truths(builtins.any, np.logical_or),
    "all": _of_truths(builtins.all, np.logical_and),
    "float": TracedFloat,
    "int": TracedInteger,
    "complex": TracedComplex,
    "range": _range,
}
"""Replacements of built-in functions, by name."""
