"""What users of ``solve_ivp`` give, checked: equation, start, times, the control of the steps."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.base.errors import check_choice
from probode.base.precision import double_precision
from probode.filter.control import Control, GridSteps, PControl, PIControl
from probode.filter.solvers import EK1
from probode.ivp.options import Options, read_tolerances
from probode.ivp.result import Embedding
from probode.model.equation import Equation, as_equation
from probode.model.implicit import Implicit
from probode.model.mass_matrix import MassMatrix
from probode.model.second_order import SecondOrder
from probode.posterior.large import read as read_large

CONTROLS: dict[str, type[PControl]] = {"PI": PIControl, "P": PControl}


def read_equation(
    fun: Any, options: Options, arguments: tuple[Any, ...], large: bool = False
) -> Equation:
    """What is to be solved; a function of second order if that is what was said of it.

    With a ``large`` method a mass matrix is not part of the equation, but of its linear algebra.
    """
    if options.mass_matrix is not None and not large:
        if options.second_order or isinstance(fun, Equation):
            raise ValueError(
                "mass_matrix is for functions fun(t, y) of first order: write the equation as a "
                "system of first order, or pass probode.MassMatrix(fun, M) alone."
            )
        fun = MassMatrix(fun, options.mass_matrix)
    if options.second_order and not isinstance(fun, Equation):
        fun = SecondOrder(fun)
    equation = as_equation(fun)
    if large:
        return read_large(equation, None, ())[0]
    if options.second_order and equation.order != 2:
        raise ValueError(
            f"second_order=True is for functions fun(t, y, v), got {type(equation).__name__}, an "
            f"equation of order {equation.order}: leave it out."
        )
    if equation.order > 1:
        equation.check_arguments(arguments)
    if equation.order > 1 or _is_residual(equation):
        for name in ("jac_sparsity", "lband", "uband"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"`{name}` is for functions fun(t, y) of first order, got "
                    f"{type(equation).__name__}: pass jac, or leave it out (functions that can be "
                    "traced need neither)."
                )
    return equation


def read_implicit(equation: Implicit, kind: Any, options: Options) -> tuple[Equation, Any, Options]:
    """What is solved with a mass matrix, and by whom: by EK1 unless EK0 was asked for."""
    if kind is None:
        kind = EK1
    if kind.jacobian == "full" and isinstance(options.order, str):  # without a slope to look at
        options = options._replace(order=Options().order)
    start = options.initialization or getattr(kind, "initialization", None) or "taylor"
    return equation.suited(kind.jacobian, getattr(start, "name", start)), kind, options


def initial_state(y0: Any, equation: Equation) -> np.ndarray:
    """``y0``; of an equation of order ``k`` all of ``y, ..., y^(k-1)``, one after the other."""
    k = equation.order
    if k > 1 and isinstance(y0, list | tuple) and len(y0) == k:
        shapes = {np.shape(part) for part in y0}
        if len(shapes) > 1:
            raise ValueError(
                f"the {k} parts of `y0` must have one shape, got {', '.join(map(str, shapes))}."
            )
        y0 = np.ravel(y0) if len(shapes.pop()) < 2 else y0
    y = np.asarray(y0)
    if k > 1 and y.shape[:1] == (k,) and y.ndim == 2:
        y = y.reshape(-1)
    if k > 1 and (y.ndim == 0 or y.size % k):
        names = ", ".join("y" + "'" * i for i in range(k))
        raise ValueError(
            f"{type(equation).__name__} needs ({names}) at t0: `y0` is a list of these {k}, or one "
            f"array of {k} times as many numbers as y has; got one of shape {y.shape}."
        )
    if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
        raise ValueError(f"`y0` must be made of numbers, got an array of {y.dtype}.")
    y = y.astype(complex if np.iscomplexobj(y) else float)
    if y.ndim != 1:
        raise ValueError(f"`y0` must be 1-dimensional, got shape {y.shape}.")
    if not np.all(np.isfinite(y)):
        raise ValueError("All components of the initial state `y0` must be finite.")
    if isinstance(equation, MassMatrix):
        equation.check_size(y.size)
    if isinstance(equation, Implicit) and np.iscomplexobj(y):
        kind = "for Implicit" if _is_residual(equation) else "with a mass matrix"
        raise TypeError(f"{kind} `y0` must be real: embed it as (Re, Im).")
    return y


def _is_residual(equation: Equation) -> bool:
    """Whether its function is ``F(t, y, y')``."""
    return isinstance(equation, Implicit) and not isinstance(equation, MassMatrix)


def with_guess(y0: Any, equation: Equation) -> tuple[Any, Any]:
    """``y0`` and a guess of the slope: a tuple of two vectors, for a residual."""
    pair = _is_residual(equation) and isinstance(y0, tuple) and len(y0) == 2
    return y0 if pair and all(np.ndim(part) == 1 for part in y0) else (y0, None)


def arguments_of(args: Any) -> tuple[Any, ...]:
    """``args`` as a tuple."""
    if args is None:
        return ()
    try:
        return tuple(args)
    except TypeError:
        raise TypeError(
            f"Supplied 'args' cannot be unpacked. Pass a tuple, e.g. `args=({args},)`."
        ) from None


def evaluation_times(t_eval: Any, t0: float, tf: float) -> np.ndarray:
    """``t_eval``, checked."""
    times = np.asarray(t_eval)
    if times.ndim != 1:
        raise ValueError(f"`t_eval` must be 1-dimensional, got shape {times.shape}.")
    if np.any(times < min(t0, tf)) or np.any(times > max(t0, tf)):
        raise ValueError(f"Values in `t_eval` are not within `t_span` [{t0:g}, {tf:g}].")
    steps = np.diff(times)
    if (tf > t0 and np.any(steps <= 0)) or (tf < t0 and np.any(steps >= 0)):
        raise ValueError("Values in `t_eval` are not sorted in the direction of integration.")
    return times


def control_of(options: Options, t0: float, tf: float, embedding: Embedding) -> Control:
    """Step size control on the real form of the state."""
    if options.max_step <= 0:
        raise ValueError(f"`max_step` must be positive, got {options.max_step!r}.")
    if options.first_step is not None:
        if options.first_step <= 0:
            raise ValueError(f"`first_step` must be positive, got {options.first_step!r}.")
        if options.first_step > abs(tf - t0):
            raise ValueError(f"`first_step` exceeds bounds: {options.first_step!r} > |tf - t0|.")
    if options.grid is not None:
        with double_precision():
            return GridSteps(jnp.asarray(_grid(options.grid, t0, tf)))
    rtol, atol = read_tolerances(options.rtol, options.atol, embedding)
    kind = options.control
    if isinstance(kind, PControl):
        return kind
    if isinstance(kind, str):
        check_choice("control", kind, tuple(CONTROLS))
        kind = CONTROLS[kind]
    return kind(
        rtol,
        atol,
        first_step=options.first_step,
        min_step=options.min_step,
        max_step=options.max_step,
    )


def _grid(grid: Any, t0: float, tf: float) -> np.ndarray:
    times = np.asarray(grid, float)
    steps = np.diff(times)
    if times.ndim != 1 or times.size < 2 or times[0] != t0 or times[-1] != tf:
        raise ValueError(f"`grid` must be a vector of times from {t0:g} to {tf:g}.")
    if np.any(steps * np.sign(tf - t0) <= 0):
        raise ValueError("`grid` must be strictly monotone from t0 to tf.")
    return times
