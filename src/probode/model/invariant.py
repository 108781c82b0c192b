"""Invariants and bounds: what a solution keeps to besides its equation.

An invariant is one more residual that has to vanish, ``g(t, u) = 0`` for ``u = (y, ..., y^(k-1))``:
energy, mass, a sphere. It is used on the posterior, not inside of the steps: a state is moved to
the nearest one that fulfils it by Newton's method ::

    u ← u - W Aᵀ (A Aᵀ)⁻¹ g(t, u),      A = g'(u) W

until only rounding is left. Distances are in units ``W`` between standard deviations, which tell
how sure each component is, and tolerances, which tell how much it matters. To first order that
takes away the part of the error across the manifold and leaves the part along it: in these units it
does not grow. (Fed back
into the steps it may grow a hundredfold: the value of a filter at a node has an error that the next
steps would take back, and that a projection makes permanent.) A covariance goes along:
``(I - K g') P (I - K g')ᵀ`` with the gain ``K`` above.

Bounds ``low <= y <= high`` are the same for a box: values are put to its border.
"""

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.compile import compiled
from probode.base.record import record
from probode.model.gaussian import norm, safe_sqrt

_TRACE = 1e-9
"""Of the tolerances in the units: all that is left where a state is known exactly."""
_ITERATIONS = 5
"""Newton's method doubles the digits: a hundredth becomes rounding in four."""
_WITH_BOUNDS = 12
"""Each component that meets its bound on the way takes one more."""
_DEPENDENT = 1e-8
"""A gradient of which this part is left when others are taken off says what they say."""
_ROUNDING = 1e3
"""How many roundings of its terms an invariant may be away from zero at the start."""
_CHANGES = 1e-6
"""The part of its terms by which an invariant may change, for rounding."""


@record
class Landed:
    """States on the manifold, and what takes the variance across it out of a covariance.

    A factor's columns of ``u`` become ``C - (C Nᵀ) M``, with ``N`` ``inward`` and ``M``
    ``outward``: ``Q W⁻¹`` and ``Q W`` for orthonormal rows ``Q`` that span those of ``A``.
    """

    state: Float[Array, "*t m"]
    inward: Float[Array, "*t k m"]
    outward: Float[Array, "*t k m"]


@record
class Bounds:
    """``low <= y <= high``, flat vectors."""

    low: Float[Array, " d"]
    high: Float[Array, " d"]

    def inside(self, y: Any) -> Any:
        """The nearest value inside; derivatives are those of ``y``, on the border too."""
        xp: Any = np if isinstance(y, np.ndarray) else jnp
        low, high = (xp.reshape(x, xp.shape(y)) for x in self.wide(xp, xp.size(y)))
        return xp.where(y < low, low, xp.where(y > high, high, y))

    def wide(self, xp: Any, size: int) -> tuple[Any, Any]:
        """For a state of so many numbers, with derivatives after ``y``: these have no bounds."""
        free = np.full(size - self.low.shape[0], np.inf)
        return xp.concatenate([self.low, -free]), xp.concatenate([self.high, free])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``f(t, y, ...)`` asked inside of the bounds only: beyond them it is as on the border."""
        return lambda t, y, *rest: function(t, self.inside(y), *rest)


@record
class Constraint:
    """Invariants, bounds or both; ``u`` is flat, with what the function of the equation reads."""

    invariants: Any
    """``g``: a :class:`probode.programs.field.Field`, a :class:`HostInvariants`, or ``None``."""
    bounds: Bounds | None
    rtol: Array
    atol: Array

    @property
    def on_host(self) -> bool:
        """Whether only Python can evaluate the invariants."""
        return isinstance(self.invariants, HostInvariants)

    def weight(self, u: Float[Array, "*t m"], std: Float[Array, "*t m"]) -> Any:
        """``W``: the geometric mean of standard deviations and tolerances, and never zero."""
        tolerance = self.atol + self.rtol * abs(u)
        return safe_sqrt(std * tolerance) + _TRACE * tolerance

    def land(self, t: Array, u: Float[Array, " m"], weight: Float[Array, " m"]) -> Landed:
        """The nearest state that fulfils all; where there is no finite one, the state as it is."""
        xp: Any = np if self.on_host else jnp
        u = self._inside(xp, u)
        if self.invariants is None:
            nothing = xp.zeros((0, u.shape[0]))
            return Landed(u, nothing, nothing)

        def newton(_: Any, u: Any) -> Any:
            value, gradients = linearised(self.invariants, t, u)
            move = weight * _nearest(xp, gradients * weight, value)
            if self.bounds is not None:
                low, high = self.bounds.wide(xp, u.shape[0])
                free = ~(((u <= low) & (move > 0.0)) | ((u >= high) & (move < 0.0)))
                move = weight * _nearest(xp, gradients * weight * free, value)
            moved = self._inside(xp, u - move)
            return xp.where(xp.all(xp.isfinite(moved)), moved, u)

        times = _ITERATIONS if self.bounds is None else _WITH_BOUNDS
        u = _repeat(newton, u, times) if xp is np else jax.lax.fori_loop(0, times, newton, u)
        rows = _orthonormal(xp, linearised(self.invariants, t, u)[1] * weight)[0]
        rows = xp.where(xp.isfinite(rows), rows, 0.0)
        return Landed(u, rows / weight, rows * weight)

    def _inside(self, xp: Any, u: Any) -> Any:
        if self.bounds is None:
            return u
        low, high = self.bounds.wide(xp, u.shape[0])
        return xp.where(u < low, low, xp.where(u > high, high, u))


def _repeat(step: Callable[[Any, Any], Any], u: Any, times: int) -> Any:
    with np.errstate(all="ignore"):  # what is not finite is left out
        for i in range(times):
            u = step(i, u)
    return u


@jax.tree_util.register_pytree_node_class
class HostInvariants:
    """Invariants that only Python can evaluate: ``g(t, u)``, derivatives by central differences."""

    def __init__(self, function: Callable[[float, np.ndarray], np.ndarray]) -> None:
        self.function = function

    def jacobian(self, t: float, u: np.ndarray) -> np.ndarray:
        """``g'``, whose error only makes the iteration a little slower."""
        size = float(np.finfo(float).eps) ** (1 / 3) * np.maximum(abs(u), np.max(abs(u)) or 1.0)
        ends = np.eye(len(u)) * size
        pairs = [(self.function(t, u + e), self.function(t, u - e)) for e in ends]
        return np.stack([a - b for a, b in pairs], axis=-1) / (2.0 * size)

    def tree_flatten(self) -> tuple[tuple[()], "HostInvariants"]:
        """No numbers inside."""
        return (), self

    @classmethod
    def tree_unflatten(cls, own: "HostInvariants", _: Any) -> "HostInvariants":
        """The same."""
        return own


def linearised(invariants: Any, t: Any, u: Any) -> tuple[Any, Any]:
    """``g`` and ``g'``, shapes ``(k,)`` and ``(k, m)``."""
    if isinstance(invariants, HostInvariants):
        return invariants.function(float(t), u), invariants.jacobian(float(t), u)
    k, m = invariants.d, u.shape[0]
    derivative = jax.jacrev if k < m else jax.jacfwd
    return invariants(t, u), derivative(lambda u: invariants(t, u))(u)


def _nearest(xp: Any, scaled: Any, value: Any) -> Any:
    """``Aᵀ (A Aᵀ)⁻¹ g``: the least move across; rows that others imply move nothing."""
    rows, lower, sizes = _orthonormal(xp, scaled)
    move = xp.zeros(scaled.shape[1])
    parts: list[Any] = []
    for i, row in enumerate(rows):
        rest = value[i] - sum(a * b for a, b in zip(lower[i], parts, strict=True))
        known = sizes[i] > 0.0
        parts.append(xp.where(known, rest / xp.where(known, sizes[i], 1.0), 0.0))
        move = move + parts[-1] * row
    return move


def _orthonormal(xp: Any, matrix: Any) -> tuple[Any, list[list[Any]], list[Any]]:
    """Rows ``Q`` with ``A = L Q``, by Gram and Schmidt; a row that others imply is zero.

    ``L`` as the parts below its diagonal and the diagonal. There are few rows, and no call of
    LAPACK: batches of those wait for one another.
    """
    rows: list[Any] = []
    lower, sizes = [], []
    for given in matrix:
        row, parts = given, list[Any]()
        for known in rows:
            parts.append(xp.sum(known * row))
            row = row - parts[-1] * known
        size = norm(row)
        independent = size > _DEPENDENT * norm(given)
        rows.append(xp.where(independent, row / xp.where(independent, size, 1.0), 0.0))
        lower.append(parts)
        sizes.append(xp.where(independent, size, 0.0))
    return xp.stack(rows), lower, sizes


# At the start -------------------------------------------------------------------------------------


def arranged(function: Callable[..., Any], order: int, args: int) -> Callable[..., Any]:
    """An invariant as a function of ``t``, ``y, ..., y^(k-1)`` and all parameters.

    It may take the state alone, or time and state without the parameters.
    """
    if not callable(function):
        raise TypeError(
            "invariants must be a function g(t, y, *args) that is zero along the solution, or a "
            f"list of them, got {type(function).__name__}."
        )
    try:
        given = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return function
    if any(one.kind is Parameter.VAR_POSITIONAL for one in given):
        return function
    places = [one for one in given if one.kind is not Parameter.KEYWORD_ONLY]
    places = [one for one in places if one.kind is not Parameter.VAR_KEYWORD]
    if len([one for one in places if one.default is Parameter.empty]) == order:
        return lambda t, *rest: function(*rest[:order])
    if len(places) < 1 + order + args:
        return lambda *given: function(*given[: 1 + order])
    return function


def listed(invariants: Any) -> Sequence[Any]:
    """One function or several, as a list."""
    several = list(invariants) if isinstance(invariants, list | tuple) else [invariants]
    if not several:
        raise ValueError("invariants must be a function or a list of them, got an empty list.")
    return several


def read_bounds(bounds: Any, y0: Any, name: str = "y0") -> Bounds:
    """``(low, high)``, numbers or of the shape of ``y0``, around ``y0`` (where that is known)."""
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(
            f"bounds must be a pair (low, high), e.g. (0, np.inf) for y >= 0, got {bounds!r}."
        )
    flat = []
    for end, given in zip(("low", "high"), bounds, strict=True):
        try:
            values = np.asarray(given, float)
        except (TypeError, ValueError):
            raise TypeError(f"bounds must be made of numbers, got {end} = {given!r}.") from None
        if values.shape not in ((), y0.shape):
            raise ValueError(
                f"bounds: {end} must be a number or have the shape {y0.shape} of {name}, got "
                f"{values.shape}."
            )
        flat.append(np.broadcast_to(values, y0.shape).reshape(-1).copy())
    low, high = flat
    if not np.all(low <= high):
        i = int(np.argmin(low <= high))
        raise ValueError(
            f"bounds must have low <= high, got {low[i]:g} and {high[i]:g} for component {i}."
        )
    if isinstance(y0, np.ndarray):
        y = y0.reshape(-1)
        inside = (low <= y) & (y <= high)
        if not np.all(inside):
            i = int(np.argmin(inside))
            raise ValueError(
                f"{name} is outside of bounds: component {i} is {y[i]:g}, its bounds are "
                f"{low[i]:g} and {high[i]:g}."
            )
    bounded: Any = low, high
    return Bounds(*bounded)


def check_count(invariants: int, components: int) -> None:
    """Refuse more invariants than there are components."""
    if invariants > components:
        raise ValueError(
            f"invariants: {invariants} of them for {components} components leave no solution free "
            "to move: give at most one for each component."
        )


def check_start(
    constraint: Constraint, t0: Any, u0: np.ndarray, slope: np.ndarray | None, dtype: Any = float
) -> None:
    """Refuse invariants that are not fulfilled at the start, not independent, or no invariants.

    ``slope`` is ``u'`` there, ``dtype`` the type in which ``u0`` was given.
    """
    if constraint.invariants is None:
        return
    at = (_at_start_in_python if constraint.on_host else _at_start)(
        constraint, t0, u0, np.zeros_like(u0) if slope is None else slope
    )
    value, gradients, change, in_time = map(np.asarray, at)
    sizes = np.abs(gradients)
    if not (np.all(np.isfinite(value)) and np.all(np.isfinite(gradients))):
        raise ValueError(
            f"invariants must be finite with their derivatives at the start, got {value} and the "
            f"derivatives {gradients.tolist()}."
        )
    wrong = deviates(value, gradients, u0, dtype)
    if np.any(wrong):
        i = int(np.argmax(wrong))
        raise ValueError(
            f"invariants must be zero along the solution, and {_nth(i, value)} is {value[i]:.6g} "
            "at the start: subtract its value there, such as "
            "invariants=lambda t, y: energy(y) - energy(y0)."
        )
    weight = np.asarray(constraint.atol + constraint.rtol * np.abs(u0))
    dependent = np.asarray(_orthonormal(np, gradients * weight)[2]) == 0.0
    if np.any(dependent):
        i = int(np.argmax(dependent))
        why = (
            "its derivative by y is zero there (at an equilibrium nothing says in which direction "
            "to go)"
            if not np.any(sizes[i])
            else "its derivative is a combination of those of the invariants before it: leave it "
            "out"
        )
        raise ValueError(
            f"invariants must be independent of each other at the start, and {_nth(i, value)} is "
            f"not: {why}."
        )
    if slope is None or not np.all(np.isfinite(slope)):
        return
    terms = sizes @ np.abs(slope) + np.abs(in_time)
    allowed = max(_CHANGES, _ROUNDING * float(np.finfo(dtype).eps)) * terms
    if np.any(np.abs(change) > allowed):
        i = int(np.argmax(np.abs(change) - allowed))
        raise ValueError(
            f"invariants must stay constant along the solution, and {_nth(i, value)} changes at "
            f"the rate {change[i]:.6g} at the start (its terms: {terms[i]:.6g}): this equation "
            "does not conserve it."
        )


def deviates(value: Any, gradients: Any, u0: Any, dtype: Any) -> Any:
    """Which invariants ``(*B, k)`` are not zero, up to the rounding of what they are made of."""
    terms = np.sum(np.abs(gradients) * np.abs(u0)[..., None, :], axis=-1)
    return np.abs(value) > _ROUNDING * float(np.finfo(dtype).eps) * terms


def _nth(i: int, all_of_them: np.ndarray) -> str:
    return "it" if len(all_of_them) == 1 else f"number {i} of {len(all_of_them)}"


@compiled(alone=False)
def _at_start(constraint: Constraint, t: Array, u: Array, slope: Array) -> tuple[Array, ...]:
    g = constraint.invariants
    value, gradients = linearised(g, t, u)
    in_time = jax.jvp(lambda t: g(t, u), (t,), (jnp.ones(()),))[1]
    return value, gradients, gradients @ slope + in_time, in_time


def _at_start_in_python(
    constraint: Constraint, t: float, u: np.ndarray, slope: np.ndarray
) -> tuple[np.ndarray, ...]:
    value, gradients = linearised(constraint.invariants, t, u)
    # Derivatives by t are not known, so none is missed: nothing is said about a change.
    return value, gradients, np.zeros_like(value), np.zeros_like(value)
