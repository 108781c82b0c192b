"""Inputs of a model from data: functions of time through given values.

``u = probode.inputs.linear(times, values)`` is called as ``u(t)`` inside of ``f``, whether that is
written with NumPy or JAX, and may be among its ``args``: it is a pytree of its times and values.
Solvers know the times at which it, or its slope, jumps (``u.breakpoints``) and end their steps
there::

    constant   u(t) = v_i                          t_i <= t < t_(i+1)
    linear     u(t) = v_i + τ (v_(i+1) - v_i)      τ = (t - t_i) / (t_(i+1) - t_i)
    cubic      the spline through all values: twice continuously differentiable
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.errors import check_choice
from probode.base.jax_inside import is_tracer
from probode.base.record import unchecked

__all__ = ["Constant", "Cubic", "Input", "Linear", "constant", "cubic", "linear"]

_COMPARED = 64
"""Up to so many times are all compared at once, which is faster than a search."""
_OUTSIDE = ("hold", "refuse")

Pick = Callable[..., Any]
"""``(x, k=0)``: row ``i + k`` of an array with a row for each time, ``i`` the interval."""
_BOUNDARIES = ("not-a-knot", "natural")


class Input:
    """A function of time through given values: made by ``constant``, ``linear``, ``cubic``.

    Before its first and after its last time it holds the value there. With ``outside="refuse"`` it
    is NaN there, and solves over more than its range are refused.
    """

    _data: ClassVar[tuple[str, ...]] = ("times", "values")
    _fewest: ClassVar[int] = 2
    times: Any
    values: Any
    outside: str

    def __init__(self, times: Any, values: Any, outside: str = "hold") -> None:
        check_choice("outside", outside, _OUTSIDE)
        name = f"inputs.{type(self).__name__.lower()}"
        self.times, self.values = _numbers(f"times of {name}", times), _numbers("values", values)
        self.outside = outside
        _check_times(name, self.times, self._fewest)
        if self.values.ndim == 0 or len(self.values) != len(self.times):
            raise ValueError(
                f"{name} needs one value (a number or an array) for each of its {len(self.times)} "
                f"times, along the first axis of values; got values of shape {self.values.shape}."
            )
        if _known(self.values) and not np.all(np.isfinite(self.values)):
            raise ValueError(
                f"values of {name} must be finite, got {int(np.sum(~np.isfinite(self.values)))} "
                "that are not: leave these times out, or fill them in."
            )

    @property
    def breakpoints(self) -> Any:
        """Times at which it jumps, or has a kink."""
        return self.times

    def __call__(self, t: Any) -> Any:
        """The value at a time, of the shape of one value; at an array of times, a row for each."""
        data = [getattr(self, name) for name in self._data]
        from probode.programs.tracing.arrays import TracedArray, unwrap  # no part of a user's code

        if any(isinstance(x, TracedArray) for x in (t, *data)):
            plain = jax.tree.map(unwrap, self, is_leaf=lambda x: isinstance(x, TracedArray))
            return TracedArray(jnp.asarray(plain(jnp.asarray(unwrap(t, as_array=True), float))))
        xp: Any = jnp if any(isinstance(x, jax.Array) for x in (t, *data)) else np
        value = self._value(xp, t, self._interval(xp, t))
        if self.outside == "hold":
            return value
        inside = (t >= self.times[0]) & (t <= self.times[-1])
        return xp.where(_beside(xp, inside, self.values), value, np.nan)

    def _interval(self, xp: Any, t: Any) -> Pick:
        """The interval that a time is in: ``pick(x, k)`` is ``x[i + k]`` of interval ``i``."""
        last = len(self.times) - self._fewest
        if xp is jnp and last < _COMPARED:  # no index that depends on t: kernels can evaluate that
            begun = self.times[1 : last + 1] <= jnp.asarray(t)[..., None]
            always = jnp.ones((*begun.shape[:-1], 1), bool)
            inside = jnp.concatenate([always, begun], -1) & jnp.concatenate([~begun, always], -1)

            def pick(x: Any, k: int = 0) -> Any:
                rest = x.ndim - 1
                mask = inside.reshape(*inside.shape, *[1] * rest)
                return jnp.sum(jnp.where(mask, x[k : last + 1 + k], 0.0), axis=-1 - rest)

            return pick
        options = {"method": "scan"} if xp is jnp else {}
        i = xp.clip(xp.searchsorted(self.times, t, side="right", **options) - 1, 0, last)
        return lambda x, k=0: xp.take(x, i + k, axis=0)

    def _value(self, xp: Any, t: Any, pick: Pick) -> Any:
        """The value at ``t``, from what ``pick`` takes for its interval."""
        raise NotImplementedError

    def _at(self, xp: Any, t: Any, pick: Pick) -> tuple[Any, Any]:
        """Return the part of the interval that has passed, and its length, shaped like values."""
        left, right = pick(self.times), pick(self.times, 1)
        length = right - left
        # At an end the derivative is the one on its right: a solve may begin there.
        first, last = self.times[0], self.times[-1]
        passed = (xp.where(t < first, first, xp.where(t < last, t, last)) - left) / length
        return _beside(xp, passed, self.values), _beside(xp, length, self.values)

    def __repr__(self) -> str:
        kind = type(self).__name__.lower()
        if not _known(self.times):
            return f"<{kind} input of {len(self.times)} times>"
        ends = f"from {self.times[0]:g} to {self.times[-1]:g}"
        return f"<{kind} input of {len(self.times)} times {ends}>"


class Constant(Input):
    """Constant from each time to the next, and the new value at the time itself."""

    _fewest = 1

    @property
    def breakpoints(self) -> Any:
        """All times but the first: the first value holds before it, too."""
        return self.times[1:]

    def _value(self, xp: Any, t: Any, pick: Pick) -> Any:
        return pick(self.values)


class Linear(Input):
    """A straight line from each value to the next."""

    def _value(self, xp: Any, t: Any, pick: Pick) -> Any:
        passed, _ = self._at(xp, t, pick)
        left, right = pick(self.values), pick(self.values, 1)
        return left + passed * (right - left)


class Cubic(Input):
    """The cubic spline through all values, kept by values and slopes at its times."""

    _data = ("times", "values", "slopes")
    slopes: Any

    def __init__(
        self, times: Any, values: Any, outside: str = "hold", boundary: str = "not-a-knot"
    ) -> None:
        super().__init__(times, values, outside)
        check_choice("boundary", boundary, _BOUNDARIES)
        if not _known(self.times):
            raise TypeError(
                "inputs.cubic needs times that are known: make it outside of jit, or pass times "
                "that are not arguments of the traced function."
            )
        self.slopes = _slopes(self.times, self.values, boundary)

    @property
    def breakpoints(self) -> Any:
        """Its ends: in between it is twice continuously differentiable."""
        return self.times[np.array([0, -1])]

    def _value(self, xp: Any, t: Any, pick: Pick) -> Any:
        passed, h = self._at(xp, t, pick)
        left, right = pick(self.values), pick(self.values, 1)
        first, last = h * pick(self.slopes), h * pick(self.slopes, 1)
        # Hermite's form, of what goes beyond the value on the left: rounding is that of values.
        rise = right - left
        bend, twist = 3.0 * rise - 2.0 * first - last, first + last - 2.0 * rise
        return left + passed * (first + passed * (bend + passed * twist))


def constant(times: Any, values: Any, *, outside: str = "hold") -> Constant:
    """A piecewise constant input: ``values[i]`` from ``times[i]`` on, until the next time.

    Parameters
    ----------
    times
        Increasing, shape ``(n,)``.
    values
        A number or an array for each time, shape ``(n, ...)``.
    outside
        ``"hold"`` the value at an end beyond it, or ``"refuse"`` solves that go there.

    Examples
    --------
    >>> import probode
    >>> u = probode.inputs.constant([0.0, 1.0, 3.0], [2.0, 5.0, 0.0])
    >>> float(u(0.5)), float(u(1.0)), float(u(10.0))
    (2.0, 5.0, 0.0)
    """
    return Constant(times, values, outside)


def linear(times: Any, values: Any, *, outside: str = "hold") -> Linear:
    """Straight lines between values at given times; parameters as for :func:`constant`.

    Examples
    --------
    >>> import probode
    >>> u = probode.inputs.linear([0.0, 1.0, 3.0], [0.0, 2.0, 0.0])
    >>> float(u(0.5)), float(u(2.0))
    (1.0, 1.0)
    """
    return Linear(times, values, outside)


def cubic(times: Any, values: Any, *, outside: str = "hold", boundary: str = "not-a-knot") -> Cubic:
    """The cubic spline through values at given times; parameters as for :func:`constant`.

    ``boundary``: the first two and the last two pieces are one polynomial each (``"not-a-knot"``),
    or the second derivative is zero at the ends (``"natural"``). Derivatives by the values go
    through here: make it from the values inside of what is differentiated.

    Examples
    --------
    >>> import probode
    >>> u = probode.inputs.cubic([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 8.0, 27.0])
    >>> bool(abs(u(1.5) - 1.5**3) < 1e-12)
    True
    """
    return Cubic(times, values, outside, boundary)


def inputs_in(tree: Any) -> list[Input]:
    """The inputs among arguments, however deep they are inside of these."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Input))
    return [leaf for leaf in leaves if isinstance(leaf, Input)]


def _flatten(value: Input) -> tuple[tuple[Any, ...], str]:
    return tuple(getattr(value, name) for name in value._data), value.outside


def _unflatten(cls: type[Input], outside: str, data: Any) -> Input:
    made: Input = unchecked(cls, {**dict(zip(cls._data, data, strict=True)), "outside": outside})
    return made


def _known(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def _numbers(what: str, value: Any) -> Any:
    if is_tracer(value):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype}")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be real numbers, got {value!r}: {error}.") from None
    except jax.errors.TracerArrayConversionError:  # a list with traced entries
        return jnp.asarray(value)
    return array.astype(float)


def _check_times(name: str, times: Any, fewest: int) -> None:
    if times.ndim != 1 or len(times) < fewest:
        least = "one time" if fewest == 1 else f"{fewest} times"
        raise ValueError(
            f"{name} needs times of shape (n,), at least {least}, got shape {times.shape}."
        )
    if not _known(times):
        return
    if not np.all(np.isfinite(times)):
        raise ValueError(f"times of {name} must be finite, got {times}.")
    if np.any(np.diff(times) <= 0.0):
        i = int(np.argmax(np.diff(times) <= 0.0))
        raise ValueError(
            f"times of {name} must be strictly increasing, but times[{i}] = {times[i]:g} is "
            f"followed by {times[i + 1]:g}: sort them, and leave out repeated ones."
        )


def _slopes(times: np.ndarray, values: Any, boundary: str) -> Any:
    from scipy.interpolate import CubicSpline

    if _known(values):
        return CubicSpline(times, values, bc_type=boundary)(times, 1)
    # They are linear in the values.
    weights = CubicSpline(times, np.eye(len(times)), bc_type=boundary)(times, 1)
    return jnp.tensordot(weights, values, 1)


def _beside(xp: Any, x: Any, values: Any) -> Any:
    """Numbers, one for each time, beside values of these times."""
    rest = len(values.shape) - 1
    return xp.reshape(x, (*xp.shape(x), *[1] * rest)) if rest else x


for _kind in (Constant, Linear, Cubic):
    jax.tree_util.register_pytree_node(_kind, _flatten, partial(_unflatten, _kind))
