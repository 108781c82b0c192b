"""What users give to a fit, checked and in the form that it is used in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from probode.base.precision import double_precision
from probode.inference.objective import Statement
from probode.inference.parameters import read_parameters
from probode.inference.space import Space, Values
from probode.model.equation import as_equation
from probode.model.observations import Observations


def read_statement(
    f: Any,
    data: Any,
    parameters: Any,
    y0: Any,
    t_span: Any,
    noise: Any,
    observe: Any,
    log_density: Any,
    args: Any,
    jac: Any,
    diffusion: Any = None,
) -> tuple[Statement, list[str]]:
    """The model and its data, and a name for each data set (none for a single one)."""
    sets, names = _several(data)
    space = read_parameters(parameters, len(sets) if names else None)
    noise = _by_name("noise", noise, space)
    diffusion = _by_name("diffusion", diffusion, space)
    for what, one in (("observe", observe), ("log_density", log_density)):
        if one is not None and not callable(one):
            raise TypeError(f"{what} must be a function, got {one!r}.")
    if noise is not None and log_density is not None:
        raise ValueError("pass noise (Gaussian data) or log_density (any other), not both.")
    read = [_read_set(one, noise, observe, log_density) for one in sets]
    _check_alike(read)
    if all(np.all(np.isnan(one.u)) for one in read):
        raise ValueError(
            "there are no data to fit: all values u are nan, which stands for values that were not "
            "measured. Check how the data were read."
        )
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args must be a tuple of what f takes after the parameters, got {type(args).__name__}."
        )
    t0, t1 = _read_span(t_span, read)
    statement = Statement(
        f=f,
        space=space,
        data=_padded(read),
        several=bool(names),
        y0=_read_start(f, y0),
        t0=t0,
        t1=t1,
        noise=noise if callable(noise) else None,
        observe=observe,
        log_density=log_density,
        args=tuple(args),
        jac=jac,
        diffusion=diffusion if callable(diffusion) else None,
    )
    return statement, names


def _several(data: Any) -> tuple[list[Any], list[str]]:
    """The data sets one by one, with their names if there are several."""
    if isinstance(data, Mapping):
        if not data:
            raise ValueError("data is empty: pass at least one data set.")
        return list(data.values()), [str(name) for name in data]
    if isinstance(data, list) and data and all(_is_set(one) for one in data):
        return list(data), [str(i) for i in range(len(data))]
    if not _is_set(data):
        raise TypeError(
            "data must be Observations(t, u, noise), a pair (t, u) of times and values, or a list "
            f"or dict of several of them, got {type(data).__name__}."
        )
    return [data], []


def _is_set(one: Any) -> bool:
    return isinstance(one, Observations) or (isinstance(one, tuple) and len(one) == 2)


def _by_name(what: str, given: Any, space: Space) -> Any:
    """A value, or a function of the parameters: of a name, the parameter of that name."""
    if not isinstance(given, str):
        return given
    if given not in {piece.name for piece in space.pieces}:
        known = ", ".join(repr(piece.name) for piece in space.pieces)
        raise ValueError(f"{what}={given!r} names no parameter; there are {known}.")
    return lambda p: p[given]


def _read_set(one: Any, noise: Any, observe: Any, log_density: Any) -> Observations:
    depends = callable(noise)
    if isinstance(one, Observations):
        for name, given in (("observe", observe), ("log_density", log_density)):
            if given is not None and getattr(one, name) is not None:
                raise ValueError(f"{name} is given twice: in the observations and to fit.")
        if noise is not None or log_density is not None:
            raise ValueError(
                "noise is given twice: in the observations and to fit. Pass the data as a pair "
                "(t, u) if the noise is to be fitted."
            )
        return one
    t, u = one
    if noise is None and log_density is None:
        raise ValueError(
            "noise is missing: pass noise=, the standard deviation of the measurements (a number, "
            "an array, the name of a parameter, or a function of the parameters), or log_density=."
        )
    known = noise if not depends and log_density is None else 1.0
    return Observations(t, u, known)


def _check_alike(sets: list[Observations]) -> None:
    first = sets[0]
    for one in sets[1:]:
        if one.u.shape[1] != first.u.shape[1]:
            raise ValueError(
                f"all data sets must have as many values at a time, got {first.u.shape[1]} and "
                f"{one.u.shape[1]}; write nan for what was not measured."
            )
        same = one.observe is first.observe and one.log_density is first.log_density
        ranks = {None if x.noise is None else np.ndim(x.noise) for x in (first, one)}
        if not same or len(ranks) > 1:
            raise ValueError(
                "all data sets must have the same observe and log_density, and noise of one kind "
                "(standard deviations or covariances): pass observe= and noise= to fit."
            )


def _padded(sets: list[Observations]) -> list[Observations]:
    """All with as many times: the last one again, with nothing measured."""
    most = max(len(one) for one in sets)

    def padded(one: Observations) -> Observations:
        rest = most - len(one)
        if rest == 0:
            return one
        t = np.concatenate([one.t, np.full(rest, one.t[-1])])
        u = np.concatenate([one.u, np.full((rest, one.u.shape[1]), np.nan)])
        noise = one.noise
        if noise is not None:
            noise = np.concatenate([noise, np.repeat(noise[-1:], rest, axis=0)])
        return Observations.tree_unflatten((one.observe, one.log_density), (t, u, noise))

    return [padded(one) for one in sets]


def _read_span(t_span: Any, sets: list[Observations]) -> tuple[Any, float]:
    """``t0`` (a number, or a function of the parameters) and ``t1``."""
    first = min(float(one.t[0]) for one in sets)
    last = max(float(one.t[-1]) for one in sets)
    if t_span is None:
        if first != 0.0:
            raise ValueError(
                f"at which time is the solution y0? The first datum is at t = {first:g}: pass "
                f"t_span=(t0, {last:g}), for example t_span=({min(first, 0.0):g}, {last:g}). (Left "
                "out, it begins at 0, where there must be a datum.)"
            )
        return 0.0, last
    if isinstance(t_span, tuple | list | np.ndarray):
        if len(t_span) != 2:
            raise ValueError(f"t_span must be t0 or a pair (t0, t1), got {t_span!r}.")
        t0, t1 = t_span
    else:
        t0, t1 = t_span, last
    if not callable(t0):
        t0 = float(t0)
        if t0 > first:
            raise ValueError(
                f"data begin at t = {first:g}, before the solution does at t0 = {t0:g}: begin "
                "earlier, or leave these data out."
            )
    if float(t1) < last:
        raise ValueError(
            f"data end at t = {last:g}, after the solution does at t1 = {float(t1):g}: make t_span "
            "longer, or leave these data out."
        )
    return t0, float(t1)


def _read_start(f: Any, y0: Any) -> Any:
    if callable(y0):
        return y0
    if as_equation(f).order == 1:
        try:
            return np.asarray(y0, float)
        except (TypeError, ValueError):
            raise TypeError(
                f"y0 must be a number, an array or a function of the parameters, got {y0!r}."
            ) from None
    if not isinstance(y0, tuple | list):
        return y0
    return tuple(np.asarray(part, float) for part in y0)


def problem_at(statement: Statement, values: Values, s: int) -> dict[str, Any]:
    """Arguments of :func:`probode.log_likelihood` at these values, for one data set."""
    with double_precision():
        return statement.problem(values, statement.given(), s)
