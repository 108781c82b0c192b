"""Whether a function that only Python can evaluate may switch in time, by its code.

A function can switch by comparisons, ``%``, ``//`` and calls such as ``int`` or ``bisect``. One
without any of them is smooth in time, and needs few evaluations between the steps.
"""

import dis
import types
from functools import lru_cache, partial
from typing import Any

from probode.programs.user_code import closure

_SWITCHING_NAMES = frozenset(
    (
        *("int", "round", "floor", "ceil", "trunc", "fmod", "bisect", "max", "min", "sign"),
        *("bisect_left", "bisect_right", "searchsorted", "interp", "digitize", "where", "clip"),
    )
)


def may_switch(function: Any) -> bool:
    """Whether ``function(t, y)`` reads ``t`` and compares something, or has no code to tell."""
    return _reads_its_first(function) and _branches(function)


def _branches(function: Any, depth: int = 3) -> bool:
    """Whether a function, or one that it calls, compares something, or has no code to tell."""
    function = function.func if isinstance(function, partial) else function
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return True
    if _switching(code):
        return True
    outside = function.__globals__
    inside = [value for _, _, value in closure(function)]
    called = [outside.get(name) for name in code.co_names] + inside
    some = [value for value in called if isinstance(value, types.FunctionType)]
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
