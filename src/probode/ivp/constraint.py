"""Invariants and bounds of ``solve_ivp``: functions as they are written for SciPy."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from probode.base.said import code_of, first_time, logger, name_of
from probode.filter.control import Control
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.model.equation import FIRST_ORDER
from probode.model.invariant import (
    Bounds,
    Constraint,
    HostInvariants,
    arranged,
    check_count,
    check_start,
    listed,
    read_bounds,
)
from probode.posterior.held import constraint_for
from probode.programs.memory import KNOWN, key_for
from probode.programs.tracing import make_traceable


def box_of(options: Options, start: np.ndarray, embedding: Embedding) -> Bounds | None:
    """The bounds that were asked for, of all that a state holds: velocities have none."""
    if options.bounds is None:
        return None
    if np.iscomplexobj(start):
        raise ValueError("bounds are for real states: a complex `y0` has no order.")
    box = read_bounds(options.bounds, start[: embedding.d], "`y0`")
    free = np.full(start.size - embedding.d, np.inf)
    both: Any = np.concatenate([box.low, -free]), np.concatenate([box.high, free])
    return Bounds(*both)


def constraint_of(
    options: Options,
    box: Bounds | None,
    control: Control,
    span: tuple[float, float],
    y0: np.ndarray,
    args: tuple[Any, ...],
    embedding: Embedding,
    slope: Callable[[], np.ndarray],
) -> Constraint | None:
    """What the posterior is held to, checked at the start; ``y0`` is in real form.

    Invariants are compiled where they can be traced, else evaluated by Python.
    """
    if options.invariants is None:
        return constraint_for(None, box, FIRST_ORDER, span[0], y0, args, control)
    functions = tuple(listed(options.invariants))
    singles = [_single(one, args, embedding) for one in functions]
    key = key_for("invariants of solve_ivp", functions, args, y0.shape, embedding)
    found = KNOWN.get(key and key.exact, lambda: _traced(singles, span, y0, args))
    if found is None:
        _say_untraceable(functions)
        found = HostInvariants(partial(_values, singles, args))
        check_count(len(found.function(span[0], y0)), y0.size)
    made = constraint_for(found, box, FIRST_ORDER, np.asarray(span[0]), y0, args, control)
    assert made is not None
    check_start(made, span[0], y0, slope())
    return made


def _single(
    function: Callable[..., Any], args: tuple[Any, ...], embedding: Embedding
) -> Callable[..., Any]:
    """An invariant ``(t, y, *args)`` for a state in real form, all that it holds in one vector."""
    own = arranged(function, embedding.order, len(args))
    if not embedding.is_complex and embedding.order == 1:
        return own
    return lambda t, y, *rest: own(t, *embedding.parts(y), *rest)


def _traced(
    singles: list[Callable[..., Any]],
    span: tuple[float, float],
    y0: np.ndarray,
    args: tuple[Any, ...],
) -> list[Callable[..., Any]] | None:
    found = [make_traceable(one, span, y0, args) for one in singles]
    known = [one.function for one in found if one is not None]
    return known if len(known) == len(singles) else None


def _values(
    singles: list[Callable[..., Any]], args: tuple[Any, ...], t: float, y: np.ndarray
) -> np.ndarray:
    found = [one(t, y.copy(), *args) for one in singles]
    if any(value is None for value in found):
        raise TypeError("invariants returned None: does each end with a return statement?")
    return np.concatenate([np.asarray(value, float).reshape(-1) for value in found])


def _say_untraceable(functions: tuple[Any, ...]) -> None:
    if first_time("invariants", *map(code_of, functions)):
        names = ", ".join(map(name_of, functions))
        logger.warning("%s cannot be traced: evaluated by Python at each step.", names)
