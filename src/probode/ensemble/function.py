"""The user's function as an engine needs it: traceable by JAX."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.base.precision import double_precision
from probode.base.said import name_of
from probode.engines.lanes.records import Members
from probode.ensemble.problem import member, usable
from probode.ensemble.settings import Settings
from probode.programs.field import Field, bind, check_returned
from probode.programs.memory import KNOWN, key_for
from probode.programs.stored import StoredFunction, stored
from probode.programs.tracing import Reason, Traceable, traceable_or_why
from probode.programs.tracing.alone import quiet


def bind_member(
    vector_field: Callable[..., Any], members: Members, settings: Settings, i: int
) -> Field:
    """The vector field on flat vectors, with the parameters of member ``i``."""
    span, y0, args = member(members, i)
    t0: Any = np.asarray(span[0])
    start: Any = y0
    diagonal, box, jac = settings.solver.jacobian == "diagonal", settings.bounds, settings.jac
    if box is not None:
        vector_field = box.around(vector_field)
        jac = box.around(jac) if callable(jac) else jac
    with double_precision():
        return bind(
            *(vector_field, t0, start, args, jac),
            diagonal=diagonal,
            name="fun",
            reads=members.reads,
        )


def traceable(fun: Callable[..., Any], members: Members) -> Callable[..., Any]:
    """``fun``, or a NumPy function's stand-in; raises where only Python can evaluate it."""
    if not callable(fun):
        raise TypeError(f"fun must be a function f(t, y, *args), got {type(fun).__name__}.")
    if isinstance(fun, StoredFunction):
        return fun
    fits = usable(members)
    span, y0, args = member(members, int(np.argmax(fits)))
    if not fits.any():  # nothing will be solved: its values do not matter
        span, y0 = (0.0, 1.0), np.zeros_like(y0)
    reads = members.reads
    key = key_for("ensemble", (fun,), args, y0.shape, reads)
    found: Traceable | Reason = KNOWN.get(
        key and key.exact, lambda: traceable_or_why(of_state(fun, reads), span, y0, args)
    )
    if isinstance(found, Reason):
        _check_returned(of_state(fun, reads), span[0], y0, args, reads)
        raise TypeError(
            f"{name_of(fun)} cannot be traced by JAX, which an ensemble needs ({found}). "
            "probode.solve_ivp takes any function, one member at a time."
        )
    return of_parts(found.function, reads)


def _check_returned(fun: Any, t: Any, y0: Any, args: Any, reads: int) -> None:
    """Raise if what a function returns is the reason why it cannot be traced."""
    with quiet(), double_precision():
        value = fun(t, np.array(y0, float), *args)
        check_returned(value, "fun", y0.shape if reads == 1 else y0.shape[1:])


def of_state(fun: Callable[..., Any], reads: int) -> Callable[..., Any]:
    """A function of ``y, ..., y^(reads-1)`` as one of all of them in one array."""
    if reads == 1:
        return fun

    def of_state(t: Any, y: Any, *args: Any) -> Any:
        return fun(t, *(y[i] for i in range(reads)), *args)

    return of_state


def of_parts(function: Callable[..., Any], reads: int) -> Callable[..., Any]:
    """The way back."""
    if reads == 1:
        return function

    def of_parts(t: Any, *given: Any) -> Any:
        return function(t, jnp.stack(given[:reads]), *given[reads:])

    return of_parts


class Lost:
    """In place of a function that could not be pickled: says so when it is called."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, *_: Any) -> Any:
        raise ValueError(
            f"this ensemble was pickled without its function: {self.reason}. Means, standard "
            "deviations and moments are there; what solves again (member, rerun, sample) is not."
        )


def portable(
    fun: Callable[..., Any], members: Members, settings: Settings
) -> tuple[Callable[..., Any], Settings]:
    """``fun``, and the settings with ``jac``, as pickle can take them to another process.

    Functions of a module are known by their names there; of others, what was traced goes along.
    """
    if has_a_name(fun) and (not callable(settings.jac) or has_a_name(settings.jac)):
        return fun, settings
    try:
        field = stored(bind_member(traceable(fun, members), members, settings, 0))
    except Exception as error:  # user code, in all its forms
        lost = Lost(str(error))
        return lost, replace(settings, jac=lost if callable(settings.jac) else settings.jac)
    jac = StoredFunction(field, jacobian=True) if callable(settings.jac) else settings.jac
    return StoredFunction(field), replace(settings, jac=jac)


def has_a_name(function: Any) -> bool:
    """Whether pickle finds a function by its name, in this process and in another one."""
    if isinstance(function, StoredFunction | Lost):
        return True
    try:
        content = pickle.dumps(function)
    except Exception:  # pickle raises of all kinds
        return False
    return b"__main__" not in content
