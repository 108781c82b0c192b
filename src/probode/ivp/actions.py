"""What acts on a solution: maps of its state, and how errors go through them.

A map ``g`` at a time that is known takes an error ``e`` along by its Jacobian. At an event, a zero
of ``h(t, y)``, the time depends on the state: one that is off by ``e`` gets there later by
``δ = -∇h·e / (∇h·f⁻ + h_t)``, moves on with ``f⁻`` until then, and with ``f⁺`` from then on. At one
and the same time after both have passed, the two differ by ``S e`` with the saltation matrix ::

    S = D_y g + (f⁺ - D_y g f⁻ - D_t g) ∇hᵀ / (∇h·f⁻ + h_t)
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from probode.ivp.result import Embedding

__all__ = ["Mode", "Restart"]

_STEP = float(np.finfo(float).eps) ** (1 / 3)
"""Of central differences, as part of a component."""
_NO_RATE = 1e-9
"""Part of its terms that the rate of an event function may be to be zero: central differences have
errors of this order."""


class Restart(NamedTuple):
    """What a reset, or the map of a jump, may return in the place of a state.

    Parameters
    ----------
    y
        The state to go on with.
    args
        The arguments of ``fun`` and of the events from then on; by default, those so far.
    fun
        What is solved from then on, with the same number of components; by default, as before.

    Examples
    --------
    >>> import probode
    >>> def too_warm(t, y, heating):
    ...     return y[0] - 22.0
    >>> def switch_off(t, y, heating):
    ...     return probode.Restart(y, args=(0.0,))
    >>> too_warm.reset = switch_off
    """

    y: Any
    args: tuple[Any, ...] | None = None
    fun: Callable[..., Any] | None = None


class Mode(NamedTuple):
    """What is solved between two actions."""

    fun: Any
    args: tuple[Any, ...]


def after(
    what: str, function: Callable[..., Any], t: float, y: np.ndarray, mode: Mode
) -> tuple[np.ndarray, Mode]:
    """The state after a map, and what is solved from then on; ``what`` it is called in errors."""
    found = function(t, y.copy(), *mode.args[: _takes(function)])
    if isinstance(found, Restart):
        mode = Mode(
            mode.fun if found.fun is None else found.fun,
            mode.args if found.args is None else _arguments(what, found.args, t),
        )
        if not callable(mode.fun) and not hasattr(mode.fun, "function"):
            raise TypeError(f"fun of a Restart must be a function, got {mode.fun!r} at t = {t:g}.")
        found = found.y
    try:
        found = np.asarray(found)
        numeric = found.dtype == bool or np.issubdtype(found.dtype, np.number)
    except ValueError:  # rows of different lengths
        numeric = False
    if not numeric:
        raise TypeError(f"{what} must return a state (or Restart), got {found!r} at t = {t:g}.")
    if found.shape != y.shape:
        raise ValueError(
            f"{what} must return a state like the one it is given, shape {y.shape}, got "
            f"shape {found.shape} at t = {t:g}."
        )
    if np.iscomplexobj(found) and not np.iscomplexobj(y):
        raise ValueError(f"{what} made a real state complex at t = {t:g}.")
    if not np.all(np.isfinite(found)):
        raise ValueError(f"{what} returned NaN or Inf at t = {t:g}, from y = {y}.")
    return found.astype(y.dtype), mode


def _arguments(what: str, args: Any, t: float) -> tuple[Any, ...]:
    if isinstance(args, tuple | list):
        return tuple(args)
    raise TypeError(f"args of a Restart must be a tuple, got {args!r} ({what}, t = {t:g}).")


def _takes(function: Any) -> int | None:
    """How many arguments a map takes after ``(t, y)``; ``None``: all."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return max(sum(one.kind in kinds for one in parameters) - 2, 0)


class Place(NamedTuple):
    """Where something acts: in real form, with what is known of how wrong it may be there."""

    t: float
    u: np.ndarray
    std: np.ndarray
    mode: Mode
    embedding: Embedding
    slope: Callable[[float, np.ndarray, Mode], np.ndarray]
    """``f`` of a mode, in real form."""

    def of_state(self, function: Callable[[np.ndarray], Any]) -> np.ndarray:
        """Derivatives by the state of what ``function(y)`` returns, by central differences."""
        size = np.maximum(np.abs(self.u), 1e-3 * np.max(np.abs(self.u), initial=0.0))
        size = np.where(size > 0.0, size, 1.0)
        columns = []
        for i, h in enumerate(np.maximum(_STEP * size, self.std)):
            up, down = self.u.copy(), self.u.copy()
            up[i] += h
            down[i] -= h
            high, low = (np.asarray(function(self.embedding.values(x))) for x in (up, down))
            columns.append((high - low) / (up[i] - down[i]))
        return np.stack(columns, axis=-1)

    def along(self, function: Callable[[np.ndarray], Any], v: np.ndarray) -> np.ndarray:
        """The derivative by the state in the direction ``v``, in the same way."""
        size = np.maximum(np.abs(self.u), 1e-3 * np.max(np.abs(self.u), initial=0.0))
        part = np.max(np.abs(v) / np.where(size > 0.0, size, 1.0), initial=0.0)
        if part == 0.0:
            return np.zeros_like(v)
        h = max(_STEP / part, 1.0)
        ends = (function(self.embedding.values(self.u + sign * h * v)) for sign in (1.0, -1.0))
        high, low = map(np.asarray, ends)
        return np.asarray((high - low) / (2.0 * h))

    def of_time(self, function: Callable[[float], Any]) -> np.ndarray:
        """The derivative by time, in the same way."""
        h = _STEP * (abs(self.t) or 1.0)
        high, low = self.t + h, self.t - h
        change = np.asarray(function(high)) - np.asarray(function(low))
        return np.asarray(change / (high - low))

    def moved(self, u: np.ndarray, mode: Mode) -> "Place":
        """After something has acted."""
        return self._replace(u=u, mode=mode)


class Linear(NamedTuple):
    """A matrix that is too large to be written down: what becomes of a vector."""

    maps: tuple[Callable[[np.ndarray], np.ndarray], ...]
    """One after the other."""

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, Linear):
            return Linear((*other.maps, *self.maps))
        for one in self.maps:
            other = one(other)
        return other


def jumped(place: Place, function: Callable[..., Any], large: bool = False) -> tuple[Place, Any]:
    """After a jump, and its Jacobian (of ``large`` states as :class:`Linear`)."""
    y, flatten = place.embedding.values(place.u), place.embedding.flatten
    state, mode = after("a jump", function, place.t, y, place.mode)

    def value(y: np.ndarray) -> np.ndarray:
        return flatten(after("a jump", function, place.t, y, place.mode)[0])

    change = Linear((partial(place.along, value),)) if large else place.of_state(value)
    return place.moved(flatten(state), mode), change


class Surface(NamedTuple):
    """A zero of an event function, to first order."""

    value: float
    gradient: np.ndarray
    rate: float
    """``∇h·f + h_t``, the rate of change along the solution; zero if it is rounding."""

    @staticmethod
    def at(place: Place, event: Callable[[float, np.ndarray], Any]) -> "Surface":
        """The function ``event(t, y)`` near a place."""
        y = place.embedding.values(place.u)
        gradient = place.of_state(lambda y: float(event(place.t, y)))
        in_time = float(place.of_time(lambda t: float(event(t, y.copy()))))
        slope = place.slope(place.t, y, place.mode)
        rate = float(gradient @ slope) + in_time
        terms = float(np.abs(gradient) @ np.abs(slope)) + abs(in_time)
        rate = 0.0 if abs(rate) <= _NO_RATE * terms else rate
        return Surface(float(event(place.t, y.copy())), gradient, rate)


def reset(place: Place, function: Callable[..., Any], surface: Surface) -> tuple[Place, np.ndarray]:
    """After the reset of an event, and its saltation matrix.

    Of an event that is touched (``∇h·f⁻ + h_t`` is zero) that has no limit: the Jacobian is what
    is left of it.
    """
    (t, u, _, mode, embedding, slope), name = place, "a reset"
    y, flatten = embedding.values(u), embedding.flatten
    state, then = after(name, function, t, y, mode)
    jacobian = place.of_state(lambda y: flatten(after(name, function, t, y, mode)[0]))
    if surface.rate == 0.0:
        return place.moved(flatten(state), then), jacobian
    in_time = place.of_time(lambda t: flatten(after(name, function, t, y, mode)[0]))
    before, behind = slope(t, y, mode), slope(t, state, then)
    change = behind - jacobian @ before - in_time
    saltation = jacobian + np.outer(change, surface.gradient) / surface.rate
    return place.moved(flatten(state), then), saltation
