"""Invariants and bounds of an ensemble: what each member is held to."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.precision import double_precision
from probode.base.said import name_of
from probode.engines.fallback import value_at
from probode.engines.lanes.records import Members
from probode.ensemble.function import Lost, has_a_name, of_parts, of_state
from probode.ensemble.problem import Family, member, usable
from probode.ensemble.settings import Settings
from probode.model.equation import Equation
from probode.model.implicit import Implicit
from probode.model.invariant import (
    Bounds,
    Constraint,
    arranged,
    check_start,
    deviates,
    linearised,
    listed,
    read_bounds,
)
from probode.posterior.held import constraint_for
from probode.programs.field import Field
from probode.programs.memory import KNOWN, key_for
from probode.programs.stored import StoredFunction, StoredValues, stored
from probode.programs.tracing import make_traceable

_FEW, _MANY = 64, 1024
"""Members that are looked at together: two sizes, so that little is compiled."""


def read_box(bounds: Any, family: Family, equation: Equation) -> Bounds | None:
    """``bounds``, the same for all members, which have to begin inside of them."""
    if bounds is None:
        return None
    shape = family.shape if equation.order == 1 else family.shape[1:]
    box = read_bounds(bounds, jax.ShapeDtypeStruct(shape, float))
    d = box.low.shape[0]
    for start in range(0, family.count, _MANY):
        y0 = family.members(np.arange(start, min(start + _MANY, family.count))).y0[:, :d]
        outside = (y0 < box.low) | (y0 > box.high)
        if outside.any():
            i, k = (int(x) for x in np.argwhere(outside)[0])
            raise ValueError(
                f"y0 is outside of bounds: component {k} of member {start + i} is {y0[i, k]:g}, "
                f"its bounds are {box.low[k]:g} and {box.high[k]:g}."
            )
    return box


def read_invariants(invariants: Any) -> tuple[Any, ...] | None:
    """All that were given, as functions that they have to be."""
    if invariants is None:
        return None
    functions = tuple(listed(invariants))
    for one in functions:
        arranged(one, 1, 0)  # or refused
    return functions


def traced_invariants(settings: Settings, members: Members) -> tuple[Any, ...] | None:
    """Functions of ``t``, ``y, ..., y^(k-1)`` and all parameters that JAX can trace."""
    if settings.invariants is None:
        return None
    i, order = int(np.argmax(usable(members))), members.order
    span, y0, args = member(members, i)
    y0 = y0 if members.slope is None else y0[0]
    key = key_for("invariants of ensembles", settings.invariants, args, y0.shape, order)
    trace = partial(_traced, settings.invariants, span, y0, args, order)
    found: tuple[Any, ...] = KNOWN.get(key and key.exact, trace)
    return found


def _traced(
    functions: tuple[Any, ...], span: Any, y0: np.ndarray, args: tuple[Any, ...], order: int
) -> tuple[Any, ...]:
    def traceable(one: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(one, StoredFunction):
            return one
        own = arranged(one, order, len(args))
        found = make_traceable(of_state(own, order), span, y0, args)
        if found is None:
            raise TypeError(
                f"invariants: {name_of(one)} cannot be traced by JAX, which an ensemble needs: "
                "replace branches on values by numpy.where and the like."
            )
        return of_parts(found.function, order)

    return tuple(map(traceable, functions))


def constraint_of(members: Members, settings: Settings, i: int) -> Constraint | None:
    """What member ``i`` is held to, in units of its tolerances."""
    if settings.invariants is None and settings.bounds is None:
        return None
    span, y0, args = member(members, i)
    own = {"rtol": members.rtol[i], "atol": members.atol[i]}
    control: Any = replace(settings.control, rtol=1.0, atol=1.0)
    functions = traced_invariants(settings, members)
    given: Any = y0 if members.slope is None else y0[0]
    t0: Any = np.asarray(span[0])
    with double_precision():
        made = constraint_for(
            *(None if functions is None else list(functions), settings.bounds),
            *(settings.equation, t0, given, args, control),
        )
    assert made is not None
    if made.invariants is not None:
        _check_parameters(made.invariants, members, args)
    return replace(made, **own)


def _check_parameters(g: Field, members: Members, args: tuple[Any, ...]) -> None:
    known = set(g.data_leaves(args))
    if any(axis is not None and k not in known for k, axis in enumerate(members.axes)):
        raise TypeError(
            "invariants need the values of whole numbers among args while they are traced, and "
            "these vary from member to member: pass them as real numbers."
        )


def portable_invariants(settings: Settings, members: Members) -> Settings:
    """The settings with invariants as pickle can take them to another process."""
    functions = settings.invariants
    if functions is None or all(map(has_a_name, functions)):
        return settings
    try:
        held = constraint_of(members, settings, 0)
        assert held is not None
        kept: Any = (StoredValues(stored(held.invariants)),)
    except Exception as error:  # user code, in all its forms
        kept = (Lost(str(error)),)
    return replace(settings, invariants=kept)


def check_starts(family: Family, settings: Settings, field: Field) -> None:
    """Refuse what is no invariant: not zero at the start of each member, not conserved in one.

    Starts of implicit equations may be changed, and are not looked at.
    """
    if settings.invariants is not None and not isinstance(settings.equation, Implicit):
        with double_precision():
            _check_starts(family, settings, field)


def _check_starts(family: Family, settings: Settings, field: Field) -> None:
    size = _FEW if family.count <= _FEW else _MANY
    single = family.y0.values.dtype == np.float32
    dtype, held = np.float32 if single else np.float64, None
    for start in range(0, family.count, size):
        which = np.minimum(np.arange(start, start + size), family.count - 1)
        members = family.members(which)
        fits = usable(members)
        first = int(np.argmax(fits))
        held = constraint_of(members, settings, first) if held is None else held
        assert held is not None
        if start == 0 and fits.any():
            t0, u0 = float(members.t0[first]), members.y0[first]
            highest: Any = value_at(field, u0, t0)
            slope = np.concatenate([u0[field.d :], settings.equation.explicit(highest)])
            check_start(held, t0, u0, slope, dtype)
        values, gradients = _at_starts(held.invariants, members)
        wrong = deviates(values, gradients, members.y0, dtype) & fits[:, None]
        if wrong.any():
            i, k = (int(x) for x in np.argwhere(wrong)[0])
            raise ValueError(
                "invariants must be zero along the solution of each member, and at the start of "
                f"member {which[i]} one is {values[i, k]:.6g}: subtract its value there, which can "
                "be one of args."
            )


def _at_starts(g: Field, members: Members) -> tuple[np.ndarray, np.ndarray]:
    leaves = jax.tree.leaves(members.args)
    places = g.data_leaves(member(members, 0)[2])
    axes = tuple(members.axes[k] for k in places)
    own = [np.asarray(leaves[k]) for k in places]
    found = _values(axes, replace(g, args=own), members.t0, members.y0)
    return np.asarray(found[0]), np.asarray(found[1])


@compiled(0)
def _values(axes: tuple[int | None, ...], g: Field, t: Array, u: Array) -> tuple[Array, Array]:
    def one(args: list[Array], t: Array, u: Array) -> tuple[Array, Array]:
        return linearised(replace(g, args=args), t, u)

    return jax.vmap(one, in_axes=(list(axes), 0, 0))(g.args, t, u)
