"""What users give to a solve, checked and in the form that it is used in.

Times, values at the start, step size control, limits: an error says what was expected, what came,
and what to do.
"""

import dataclasses
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.in_double import in_double
from probode.base.precision import is_traced, on_host
from probode.filter.control import ConstantStep, Control, GridSteps, PControl
from probode.model.equation import Equation
from probode.model.implicit import Implicit
from probode.model.mass_matrix import MassMatrix
from probode.programs.inputs import Input, inputs_in
from probode.programs.switches import NONE


def step_control(
    control: Any,
    grid: Array | None,
    step: Any,
    t0: Array,
    shape: tuple[int, ...],
    equation: Equation,
    longest: Any,
) -> Control:
    """Given times, a constant step, or adaptive steps with tolerances for all that is given."""
    if grid is not None:
        if step is not None:
            raise ValueError("pass grid or step, not both.")
        return GridSteps(grid)
    if step is not None:
        size = _number(step, "step")
        if size.ndim != 0:
            raise ValueError(
                f"step must be a number, got shape {size.shape}; for given times use grid."
            )
        if not is_traced(size) and not (np.isfinite(size) and size > 0):
            raise ValueError(f"step must be positive and finite, got {step!r}.")
        return ConstantStep(size, t0)
    if not isinstance(control, PControl):
        raise TypeError(
            f"control must be PIControl(rtol, atol) or PControl(rtol, atol), got {control!r}."
        )
    if equation.order > 1:
        control = for_each_derivative(control, equation, shape[1:])
    return control.flat(shape).within(longest)


def check_limits(max_steps: Any, callback: Any) -> int | None:
    """Check what else may stop a solve early; return ``max_steps`` as an integer."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function of the progress, got {callback!r}.")
    if max_steps is None:
        return None
    whole = isinstance(max_steps, int | np.integer) and not isinstance(max_steps, bool)
    if not whole or max_steps < 1:
        raise ValueError(f"max_steps must be a positive integer, got {max_steps!r}.")
    return int(max_steps)


def _number(value: Any, what: str) -> Any:
    """Convert to float64 (NumPy's, if nothing is traced), refusing what is not made of numbers."""
    if type(value) is float and isfinite(value):  # most often; the rest takes ten times as long
        return np.asarray(value)
    try:
        array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
        if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == bool):
            raise TypeError(f"an array of {array.dtype}")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of real numbers, got {value!r}: {error}") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(f"{what} must be real, got {value!r}: embed complex ones as (Re, Im).")
    array = array.astype(float)
    if not is_traced(array) and not np.all(np.isfinite(array)):
        raise ValueError(f"{what} must be finite, got {value!r}.")
    return array


def span(t_span: Any) -> tuple[Array, Array]:
    """``t0`` and ``t1``."""
    if not isinstance(t_span, jax.Array | np.ndarray | tuple | list) or len(t_span) != 2:
        raise ValueError(f"t_span must be a pair (t0, t1), got {t_span!r}.")
    t0, t1 = (_number(t, "t_span") for t in t_span)
    if t0.ndim or t1.ndim:
        raise ValueError(f"t_span must be a pair of numbers, got shapes {t0.shape}, {t1.shape}.")
    return t0, t1


def initial_values(y0: Any, equation: Equation) -> tuple[Array, tuple[int, ...]]:
    """What is given at the start, and the shape of ``y``.

    For an equation of order ``k > 1`` the values are stacked: ``(k, *shape)``.
    """
    k = equation.order
    if isinstance(equation, Implicit):
        values, k = _with_slope(y0, equation), 2
    elif k == 1:
        values = _number(y0, "y0")
    else:
        if not isinstance(y0, tuple | list) or len(y0) != k:
            given = ", ".join("y" + "'" * i for i in range(k))
            raise TypeError(
                f"{type(equation).__name__} needs {k} values at t0: pass a tuple of ({given}), got "
                f"{y0!r}."
            )
        parts = [_number(part, f"y0[{i}]") for i, part in enumerate(y0)]
        if len({part.shape for part in parts}) > 1:
            shapes = ", ".join(str(part.shape) for part in parts)
            raise ValueError(f"the values in y0 must have one shape, got {shapes}.")
        values = jnp.stack(parts) if is_traced(parts) else np.stack(parts)
    shape = values.shape if k == 1 else values.shape[1:]
    if values.size == 0:
        raise ValueError(f"y0 must have at least one component, got shape {shape}.")
    return values, shape


def _with_slope(y0: Any, equation: Implicit) -> Any:
    """``y0``, or the pair ``(y0, yp0)``, stacked with a guess of the slope: zero by default."""
    pair = isinstance(y0, tuple) and len(y0) == 2 and not isinstance(equation, MassMatrix)
    value, slope = (_number(part, "y0") for part in (y0 if pair else (y0, np.zeros(np.shape(y0)))))
    if value.shape != slope.shape:
        raise ValueError(
            f"{type(equation).__name__} takes y0, or a tuple (y0, yp0) with a guess of y' of the "
            f"same shape, got shapes {value.shape} and {slope.shape}. Values of one start are a "
            "list or an array."
        )
    if isinstance(equation, MassMatrix):
        equation.check_size(value.size)
    return jnp.stack([value, slope]) if is_traced(value, slope) else np.stack([value, slope])


def for_each_derivative(control: PControl, equation: Equation, shape: tuple[int, ...]) -> PControl:
    """Tolerances of the shape of ``y`` hold for each of the derivatives that are given with it."""
    k = equation.order

    def wide(tolerance: Any) -> Any:
        same = k > 1 and shape and np.shape(tolerance) == shape
        return jnp.broadcast_to(jnp.asarray(tolerance), (k, *shape)) if same else tolerance

    return dataclasses.replace(control, rtol=wide(control.rtol), atol=wide(control.atol))


def snap(times: Array, given: Any, t0: Array, t1: Array) -> Array:
    """Times that mean an end of the interval, but miss it by their rounding, are put there.

    Single precision is JAX's default: the last of ``jnp.linspace(0, 0.1)`` is not Python's 0.1.
    """
    dtype = getattr(given, "dtype", np.dtype(float))
    rounding = 4 * float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
    if is_traced(times, t0, t1):
        snapped: Array = in_double(_snapped, rounding, times, t0, t1)
        return snapped
    return _snapped(rounding, times, t0, t1)


def _snapped(rounding: float, times: Array, t0: Array, t1: Array) -> Array:
    xp: Any = np if on_host(times) and on_host(t0) and on_host(t1) else jnp
    for end in (t0, t1):
        times = xp.where(abs(times - end) <= rounding * abs(end), end, times)
    return times


def grid_times(grid: Any, t0: Array, t1: Array) -> Array:
    """Times of all steps, from ``t0`` to ``t1``."""
    times = snap(_number(grid, "grid"), grid, t0, t1)
    if times.ndim != 1 or times.shape[0] < 2:
        raise ValueError(f"grid must be a vector of at least two times, got shape {times.shape}.")
    if not is_traced(times, t0, t1):
        if times[0] != t0 or times[-1] != t1:
            raise ValueError(
                f"grid must go from t0 = {float(t0):g} to t1 = {float(t1):g}, got one from "
                f"{float(times[0]):g} to {float(times[-1]):g}."
            )
        _check_order("grid", times, t0, t1)
    return times


def _at_least_1d(times: Any) -> Any:
    return times.reshape(1) if times.ndim == 0 else times


def save_times(save_at: Any, t0: Array, t1: Array) -> Array:
    """Times between ``t0`` and ``t1``, in the order of integration."""
    times = _at_least_1d(snap(_number(save_at, "save_at"), save_at, t0, t1))
    if times.ndim != 1 or times.shape[0] == 0:
        raise ValueError(f"save_at must be a time or a vector of times, got shape {times.shape}.")
    if not is_traced(times, t0, t1):
        _check_order("save_at", times, t0, t1)
        low, high = sorted((float(t0), float(t1)))
        if np.any((np.asarray(times) < low) | (np.asarray(times) > high)):
            raise ValueError(
                f"save_at must lie between t0 = {float(t0):g} and t1 = {float(t1):g}, got times "
                f"from {float(times.min()):g} to {float(times.max()):g}."
            )
    return times


def break_times(given: Any, args: Any, t0: Any, t1: Any, adaptive: bool) -> Any:
    """Times at which the function switches, as users know of them, in increasing order.

    ``given`` are times between ``t0`` and ``t1``, or an input, or a list of both kinds; inputs
    among the arguments count too. Of an input, times outside are left out. They may be traced if
    those of an input are, or inside a trace: then they come in any order.
    """
    known = inputs_in(args)
    if given is not None and not adaptive:
        raise ValueError(
            "breakpoints are for adaptive steps: with grid or step, put them into the times of the "
            "grid instead."
        )
    parts: list[Any] = []
    if isinstance(given, Input):
        known.append(given)
    elif given is not None:
        some = list(given) if isinstance(given, list | tuple) else [given]
        listed = [one for one in some if isinstance(one, Input)]
        plain = [one for one in some if not isinstance(one, Input)]
        known += listed
        if plain:
            parts.append(_checked_breaks(plain if listed else given, t0, t1))
    for one in known:
        check_range(one, t0, t1)
        parts.append(one.breakpoints)
    if not parts or not adaptive:
        return NONE
    if is_traced(parts, t0, t1):
        return jnp.concatenate(list(map(jnp.asarray, parts)))
    low, high = sorted((float(t0), float(t1)))
    times = np.unique(np.concatenate([np.asarray(part, float) for part in parts]))
    return times[(times >= low) & (times <= high)]


def _checked_breaks(given: Any, t0: Any, t1: Any) -> Any:
    times = _at_least_1d(_number(given, "breakpoints"))
    if times.ndim != 1:
        raise ValueError(f"breakpoints must be times, shape (n,), got shape {times.shape}.")
    if is_traced(times, t0, t1):
        return times
    low, high = sorted((float(t0), float(t1)))
    steps, downwards = np.diff(times), float(t1) < float(t0)
    wrong = (steps <= 0.0) if not downwards or np.any(steps > 0.0) else (steps >= 0.0)
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ValueError(
            f"breakpoints must be strictly increasing, but breakpoints[{i}] = {times[i]:g} is "
            f"followed by {times[i + 1]:g}: sort them, and leave out repeated ones "
            "(numpy.unique does both)."
        )
    outside = times[(times < low) | (times > high)]
    if len(outside):
        raise ValueError(
            f"breakpoints must lie between t0 = {float(t0):g} and t1 = {float(t1):g}, got "
            f"{', '.join(f'{t:g}' for t in outside[:5])}{', ...' if len(outside) > 5 else ''}: "
            "leave these out. (Of an input of probode.inputs pass the input itself, "
            "breakpoints=u, to have that done.)"
        )
    return times


def check_range(u: Input, t0: Any, t1: Any) -> None:
    """Raise if a solve needs an input outside of its times and it has ``outside="refuse"``."""
    if u.outside != "refuse" or is_traced(u.times, t0, t1):
        return
    low, high = sorted((float(t0), float(t1)))
    if low < u.times[0] or high > u.times[-1]:
        raise ValueError(
            f"the solve goes from {float(t0):g} to {float(t1):g}, and {u!r} says that it is not "
            "known outside of its times: give it more of them, or make it with outside='hold'."
        )


def _check_order(what: str, times: Array, t0: Array, t1: Array) -> None:
    forward = bool(t1 >= t0)
    steps = np.diff(np.asarray(times)) * (1.0 if forward else -1.0)
    if np.any(steps <= 0):
        i = int(np.argmax(steps <= 0))
        raise ValueError(
            f"{what} must be strictly {'increasing' if forward else 'decreasing'} (the direction "
            f"from t0 to t1), but {what}[{i}] = {float(times[i]):g} is followed by "
            f"{float(times[i + 1]):g}."
        )
