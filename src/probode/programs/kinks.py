"""Whether a vector field has kinks or jumps in the state, read from its program.

``abs``, ``max``, ``sign``, ``where(y > 0, ...)``, ``sort``, ``floor`` of a value that depends on
``y`` make ``f`` a function that is smooth in parts only.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from probode.base.jax_inside import (
    Unreadable,
    called,
    equations,
    kind,
    operation,
    programs_in,
    reading,
    those,
    walk,
)
from probode.programs.field import Field
from probode.programs.program import Program, keeps_fractions

_BENDING = those("bends", "compares", "levels", "picks")


@lru_cache(maxsize=1024)
def has_kinks(program: Program) -> bool:
    """Whether something that depends on ``y`` is bent, compared, rounded, or picked by its size.

    The answer for a program that cannot be read is true.
    """
    found = False

    def apply(equation: Any, operands: list[bool]) -> list[bool]:
        nonlocal found
        stated = any(operands)
        inner = programs_in(equation.params) if called(equation) is None else []
        found |= stated and (
            _bends(equation, operands)
            # A loop or a branch: its condition, or anything inside.
            or (operation(equation) == "cond" and operands[0])
            or any(_bends(each, None) for one in inner for each in equations(one.jaxpr))
        )
        return [stated] * len(equation.outvars)

    try:
        with reading("programs with kinks", "error bars allow for them in no program"):
            jaxpr = program.jaxpr
            inputs = [False, True, *[False] * (len(jaxpr.invars) - 2)]
            walk(jaxpr, [None] * len(jaxpr.constvars), inputs, lambda *_: False, apply)
    except Unreadable:
        return True
    return found


def kinked(field: Any) -> bool:
    """Whether a vector field is a program with kinks in the state."""
    return isinstance(field, Field) and has_kinks(field.program)


def _bends(equation: Any, stated: list[bool] | None) -> bool:
    """Whether an operation bends a number of a continuous kind; ``None``: any may depend on y."""
    if operation(equation) not in _BENDING or keeps_fractions(equation):
        return False
    known = stated or [True] * len(equation.invars)
    return any(
        of_state and np.issubdtype(kind(variable)[1], np.inexact)
        for of_state, variable in zip(known, equation.invars, strict=True)
    )
