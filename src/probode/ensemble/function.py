"""The user's function as an engine needs it: traceable by JAX."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import jax
import numpy as np

from probode.ensemble.problem import member, usable
from probode.ensemble.settings import Settings
from probode.identity import Memory, key_of, key_of_arguments
from probode.lanes.records import Members
from probode.precision import double_precision
from probode.problem import Field, bind
from probode.tracing import Traceable, make_traceable

_KNOWN = Memory(256)
"""Functions that were made traceable before."""
_TURN = Lock()
"""A worker of a cluster may have several threads; what a function touches is watched."""


def bind_member(
    vector_field: Callable[..., Any], members: Members, settings: Settings, i: int
) -> Field:
    """The vector field on flat vectors, with the parameters of member ``i``."""
    span, y0, args = member(members, i)
    t0: Any = np.asarray(span[0])
    start: Any = y0
    diagonal = settings.solver.jacobian == "diagonal"
    with double_precision():
        return bind(vector_field, t0, start, args, settings.jac, diagonal=diagonal, name="fun")


def traceable(fun: Callable[..., Any], members: Members) -> Callable[..., Any]:
    """``fun``, or a NumPy function's stand-in; raises where only Python can evaluate it."""
    if not callable(fun):
        raise TypeError(f"fun must be a function f(t, y, *args), got {type(fun).__name__}.")
    fits = usable(members)
    span, y0, args = member(members, int(np.argmax(fits)))
    if not fits.any():  # nothing will be solved: its values do not matter
        span, y0 = (0.0, 1.0), np.zeros_like(y0)
    leaves, tree = jax.tree.flatten(args)
    with _TURN:
        found: Traceable | None = _KNOWN.get(
            lambda: (key_of(fun), key_of_arguments(leaves), tree, y0.shape),
            lambda: make_traceable(fun, span, y0, args),
        )
    if found is None:
        raise TypeError(
            f"{getattr(fun, '__name__', 'the function')} cannot be traced by JAX, which an "
            "ensemble needs: replace branches on values (if, max, min, float) by numpy.where, "
            "numpy.maximum and the like. probode.solve_ivp takes any function, one member at a "
            "time."
        )
    return found.function
