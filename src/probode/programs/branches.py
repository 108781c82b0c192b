"""Whether a function that only Python can evaluate may switch in time, by its code.

A function can switch by comparisons, ``%``, ``//`` and calls such as ``int`` or ``bisect``. One
without any of them is smooth in time, and needs few evaluations between the steps.
"""

import dis
import types
from functools import lru_cache, partial
from typing import Any

import numpy as np

from probode.programs.user_code import closure

_MOST_NUMBERS = 64
"""In one array or list: longer ones are data."""

_SWITCHING_NAMES = frozenset(
    (
        *("int", "round", "floor", "ceil", "trunc", "fmod", "bisect", "max", "min", "sign"),
        *("bisect_left", "bisect_right", "searchsorted", "interp", "digitize", "where", "clip"),
    )
)


def may_switch(function: Any) -> bool:
    """Whether ``function(t, y)`` reads ``t`` and compares something, or has no code to tell."""
    return _reads_its_first(function) and _branches(function)


def numbers_in(function: Any, arguments: tuple[Any, ...] = ()) -> np.ndarray:
    """Return the numbers in the code of a function and in what it reads, sorted.

    They are the constants, numbers in variables from outside (also in small arrays), and those of
    the functions that it calls. Among them are the times with which ``t`` is compared.
    """
    found = {x for value in arguments for x in _numbers(value)}
    _collect(function, found, 3)
    return np.sort(np.array([*found], float))


def _collect(function: Any, found: set[float], depth: int) -> None:
    function = _plain(function)
    code = getattr(function, "__code__", None)
    if code is None or depth < 0:
        return
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    constants = [one for each in (code, *inner) for one in each.co_consts]
    read = _read(function)
    found.update(x for value in constants + read for x in _numbers(value))
    for value in read:
        if isinstance(value, types.FunctionType):
            _collect(value, found, depth - 1)


def _numbers(value: Any) -> list[float]:
    """Return the finite real numbers of a number, or of a few of them."""
    if not isinstance(value, int | float | np.number | np.ndarray | tuple | list):
        return []
    try:
        some = np.ravel(np.asarray(value, float))
    except (TypeError, ValueError):
        return []
    few = some.size <= _MOST_NUMBERS
    return [float(x) for x in some if np.isfinite(x)] if few else []


def _plain(function: Any) -> Any:
    function = function.func if isinstance(function, partial) else function
    return getattr(function, "__func__", function)


def _read(function: Any) -> list[Any]:
    """Return the values of the variables that a function reads from outside."""
    outside = function.__globals__
    inside = [value for _, _, value in closure(function)]
    return [outside.get(name) for name in function.__code__.co_names] + inside


def _branches(function: Any, depth: int = 3) -> bool:
    """Whether a function, or one that it calls, compares something, or has no code to tell."""
    function = _plain(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if _switching(code):
        return True
    some = [value for value in _read(function) if isinstance(value, types.FunctionType)]
    return any(_branches(value, depth - 1) for value in some if depth > 0)


def _reads_its_first(function: Any) -> bool:
    """Whether the code of a function reads its first argument, or there is no code to tell."""
    if not isinstance(function, types.FunctionType) or function.__code__.co_argcount == 0:
        return True
    name = function.__code__.co_varnames[0]
    code = dis.get_instructions(function.__code__)
    return any(x.opname.startswith("LOAD") and x.argval == name for x in code)


@lru_cache(maxsize=1024)
def _switching(code: types.CodeType) -> bool:
    if not _SWITCHING_NAMES.isdisjoint(code.co_names):
        return True
    for instruction in dis.get_instructions(code):
        if instruction.opname == "COMPARE_OP":
            return True
        if instruction.opname == "BINARY_OP" and instruction.argrepr.strip("=") in ("%", "//"):
            return True
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return any(map(_switching, inner))
