"""Users' functions in a form that JAX can trace, or the line that prevents it.

The parameters of a fit are variables: a function of them is run once with placeholders, which have
no values, and becomes a program. A function that is written with NumPy becomes a copy with
stand-ins for NumPy, as in :func:`probode.solve_ivp`.
"""

import linecache
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import scipy

from probode.base.precision import double_precision
from probode.inference.objective import Statement, with_parameters
from probode.inference.space import Space
from probode.inference.stated import problem_at
from probode.model.equation import Equation, as_equation
from probode.model.observations import as_function_of_time
from probode.programs.program import NEEDS_VALUES
from probode.programs.tracing import make_traceable

_MODULES = (jax, jaxlib, np, scipy)
_LIBRARIES = (
    *(str(Path(str(one.__file__)).resolve().parent) for one in _MODULES),
    str(Path(__file__).resolve().parents[1]),
)
_PYTHON = str(Path(os.__file__).resolve().parent)

_LONGEST = 80


class Untraceable(TypeError):
    """A function that JAX cannot trace, nor a copy of it."""


def traceable(name: str, function: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """Return ``function(*given)`` in a form that JAX can trace; ``given`` are examples.

    It is the function itself if JAX traces it. Raise with the line where it stops if there is no
    such form.
    """
    with double_precision():
        try:
            jax.eval_shape(function, *jax.tree.map(jnp.asarray, given))
        except Exception as error:  # placeholders make NumPy and Python fail in any way
            found = _copied(function, given)
            if found is None:
                _refuse(name, error)
                raise
            return found
    return function


def _copied(function: Callable[..., Any], given: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Return a copy with stand-ins for NumPy, if one agrees with the function."""
    arrays = jax.tree.map(np.asarray, given)
    try:
        several = isinstance(function(*arrays), tuple)
        made = make_traceable(lambda t, y, *rest: function(*rest), (0.0, 1.0), np.zeros(1), arrays)
    except Exception:  # the error of the trace says more
        return None
    if made is None:
        return None
    program = made.function

    def copied(*rest: Any) -> Any:
        found = program(jnp.zeros(()), jnp.zeros(1), *rest)
        return tuple(found) if several else found

    return copied


def _refuse(name: str, error: Exception) -> None:
    """Raise an error that names the line, and what to write instead, if JAX has refused."""
    if not isinstance(error, NEEDS_VALUES):
        return
    raise Untraceable(
        f"{name} needs a number that depends on the parameters or on the "
        f"solution{_line(error.__traceback__)}. In a fit these are variables without a value: "
        "they cannot be the index of a list, a key, a text or the length of a loop. Write "
        "jnp.where, or functions of jax.numpy or NumPy, instead."
    ) from None


def _line(trace: TracebackType | None) -> str:
    """Name the innermost line of a traceback that is not part of a library."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = str(Path(code.co_filename).resolve())
        of_python = file.startswith(_PYTHON) and "site-packages" not in file
        if not (of_python or file.startswith(_LIBRARIES)):
            text = linecache.getline(code.co_filename, trace.tb_lineno).strip()
            text = f"{text[:_LONGEST]}..." if len(text) > _LONGEST else text
            shown = f", `{text}`" if text else ""
            found = f" (in {code.co_name}, line {trace.tb_lineno} of {code.co_filename}{shown})"
        trace = trace.tb_next
    return found


def for_jax(statement: Statement) -> Statement:
    """Return the statement with all functions of users in a form that JAX can trace.

    Raise :class:`Untraceable` if there is none.
    """
    p = statement.of_subject(statement.space.values(statement.space.start(), np), 0)
    problem = problem_at(statement, statement.space.values(statement.space.start(), np), 0)
    equation = as_equation(statement.f)
    t = np.asarray(float(problem["t_span"][0]))
    start = problem["y0"]
    start = start if equation.order > 1 else (start,)
    state = [np.asarray(part, float) for part in start]
    given = (t, *state[: equation.reads], p, *statement.args)
    changes: dict[str, Any] = {"f": statement.f}
    if equation.function is not None:
        f = traceable("f", equation.function, *given)
        changes["f"] = _with_function(statement.f, equation, f)
    for name in ("y0", "t0", "noise", "diffusion"):
        one = getattr(statement, name)
        if callable(one):
            changes[name] = traceable(name, one, p)
    if callable(statement.jac):
        changes["jac"] = traceable("jac", statement.jac, *given)
    eta = np.ravel(state[0])
    if statement.observe is not None:
        order, seen = equation.order, of_all(statement.observe, equation.order)
        found = traceable("observe", seen, t, *state, p)
        eta = np.ravel(np.asarray(seen(t, *state, p)))
        if found is not seen:
            changes["observe"] = _of_so_many(found, order)
    if statement.log_density is not None:
        density = statement.log_density

        def scored(u: Any, y: Any, p: Any) -> Any:
            return with_parameters(density, 2, p, "log_density")(u, y)

        u = statement.data[0].u
        row = u[np.argmin(np.sum(np.isnan(u), axis=1))]
        found = traceable("log_density", scored, np.where(np.isnan(row), 1.0, row), eta, p)
        changes["log_density"] = density if found is scored else lambda u, y, p: found(u, y, p)
    pieces = [
        piece._replace(prior=traceable(f"the prior of {piece.name!r}", piece.prior, piece.start))
        if callable(piece.prior) and not hasattr(piece.prior, "log_prob")
        else piece
        for piece in statement.space.pieces
    ]
    return statement._replace(space=Space(pieces), **changes)


def of_all(observe: Callable[..., Any], order: int) -> Callable[..., Any]:
    """Return ``observe`` as a function of the time, ``order`` derivatives and the parameters."""

    def seen(t: Any, *rest: Any) -> Any:
        bound = with_parameters(observe, order + 1, rest[-1], "observe")
        return as_function_of_time(bound, order)(t, *rest[:-1])

    return seen


def _with_function(given: Any, equation: Equation, f: Callable[..., Any]) -> Any:
    if f is equation.function:
        return given
    return replace(given, function=f) if isinstance(given, Equation) else f


def _of_so_many(function: Callable[..., Any], order: int) -> Callable[..., Any]:
    """Return ``function(t, y, ..., p)`` with as many arguments in its signature."""
    if order == 1:
        return lambda t, y, p: function(t, y, p)
    if order == 2:
        return lambda t, y, v, p: function(t, y, v, p)
    return function
