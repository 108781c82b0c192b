"""Solving ``(M - c J) u = b`` by iterations: nothing is factorised, and no matrix is formed.

Vectors are JAX's and stay on its device; an iteration of Newton's method is one program.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import compiled
from probode.engines.two_pole.vectors import norm
from probode.programs.field import Field

_ROUGH, _EXACT = 0.1, 0.01
"""Residuals that are left of ``u = W z`` and of ``v = W u``, as parts of ``z`` and ``u``. What is
left of the first is in the ``z`` of Newton's next iteration; what is left of the second stays."""
_FEW = 20
"""Iterations of BiCGSTAB, the cheapest where a preconditioner is good; GMRES where it is not."""
_RESTART, _RESTARTS = 10, 30
"""Iterations after which to begin anew, and how often before giving up."""


class Krylov:
    """BiCGSTAB, and GMRES where that does not get there, with products ``J v`` only.

    Parameters
    ----------
    field
        The vector field, whose products are those of JAX (``jax.jvp``).
    preconditioner
        ``(t, y, c, b) -> u``, an approximate solution, to be traced by JAX; ``None``: ``u = b``.
    diagonal
        ``(t, y)`` to the diagonal of ``J``, by which systems are divided (Jacobi's preconditioner)
        where there is none of the user's; ``None``: they are not.
    mass
        ``M``, sparse.
    """

    name = "Krylov"

    def __init__(
        self,
        field: Field,
        preconditioner: Callable[..., Any] | None = None,
        diagonal: Callable[[float, Any], np.ndarray] | None = None,
        mass: Any = None,
    ) -> None:
        self._preconditioner, self._field, self._diagonal = preconditioner, field, diagonal
        self._known: tuple[Any, Any] = (None, None)
        self._mass = None
        self._weights = 1.0 if mass is None else jnp.asarray(mass.diagonal())
        if mass is not None:
            entries = mass.tocoo()
            self._mass = tuple(map(jnp.asarray, (entries.row, entries.col, entries.data)))

    def factorised(self, jacobian: Any, c: float) -> Any:
        """``jacobian`` is where it is taken, ``(t, y)``."""
        t, y = jacobian
        divisor = None
        if self._diagonal is not None:
            if self._known[0] is not jacobian:
                self._known = jacobian, jnp.asarray(self._diagonal(t, y))
            divisor = self._weights - c * self._known[1]
        return Solving(self._preconditioner, self._field, self._mass, divisor, t, y, c)

    def f(self, t: float, y: Any) -> Any:
        """``f(t, y)``."""
        return _value(self._field, t, y)

    def weighed(self, v: Any) -> Any:
        """``M v``."""
        return _weighed(self._mass, v)

    def invert(self, invert: Callable[[np.ndarray], np.ndarray] | None) -> Any:
        """``M⁻¹ v``, once at the start, by a factorisation on the host."""
        return None if invert is None else lambda v: jnp.asarray(invert(np.asarray(v)))


class Solving(NamedTuple):
    """``b -> u``, and the same twice in an iteration of Newton's method."""

    preconditioner: Any
    field: Field
    mass: Any
    divisor: Any
    """The diagonal of ``M - c J``, or ``None``."""
    t: float
    y: Any
    c: float

    def __call__(self, b: Any) -> Any:
        """The solution; NaN where it was not found: the step is then taken shorter."""
        return _solved(*self, b)

    def iteration(
        self, t: float, at: Any, h: float, weight: Any, longest: float
    ) -> tuple[Any, Any, float, float]:
        """``u = W z``, ``v = W u`` and their lengths."""
        u, v, length, twice = _iteration(*self, t, at, h, weight)
        return u, v, float(length), float(twice)


@compiled()
def _value(field: Field, t: Any, y: Any) -> Any:
    return field(t, y)


@compiled(0)
def _solved(*given: Any) -> Any:
    *system, b = given
    return _solver(*system)(b, _ROUGH)


@compiled(0)
def _iteration(*given: Any) -> Any:
    *system, t, at, h, weight = given
    _, field, mass, *_ = system
    solve = _solver(*system)

    def once(b: Any, tol: Any) -> tuple[Any, Any]:
        u = solve(b, tol)
        return _weighed(mass, u), u

    # As a loop: what solves is then compiled once.
    z = _weighed(mass, at[1]) - h * field(t, at[0])
    _, (u, v) = jax.lax.scan(once, z, jnp.array([_ROUGH, _EXACT]))
    return u, v, norm(jnp, u, weight), norm(jnp, v, weight)


def _weighed(mass: Any, v: Any) -> Any:
    if mass is None:
        return v
    row, column, entry = mass
    return jnp.zeros_like(v).at[row].add(entry * v[column])


def _solver(
    preconditioner: Any, field: Field, mass: Any, divisor: Any, t: Any, y: Any, c: Any
) -> Callable[[Any, Any], Any]:
    """What solves ``(M - c J) u = b`` up to a part of ``b``; NaN where it does not find ``u``."""
    from jax.scipy.sparse.linalg import bicgstab, gmres

    _, push = jax.linearize(lambda y: field(t, y), y)

    def matrix(v: Any) -> Any:
        return _weighed(mass, v) - c * push(v)

    near: Callable[[Any], Any] | None = None
    if preconditioner is not None:
        near = partial(preconditioner, t, y, c)
    elif divisor is not None:

        def near(v: Any) -> Any:
            return v / divisor

    def is_found(u: Any, b: Any, most: Any) -> Any:
        return jnp.linalg.norm(matrix(u) - b) <= most * jnp.linalg.norm(b)

    def by_gmres(u: Any, b: Any, tol: Any) -> Any:
        # "batched": the other way stops where residuals are ten times as large as asked for.
        rounds = {"restart": _RESTART, "maxiter": _RESTARTS, "solve_method": "batched"}
        u, _ = gmres(matrix, b, x0=u, tol=tol, M=near, **rounds)
        return jnp.where(is_found(u, b, 10.0 * tol), u, jnp.nan)

    def refined(u: Any, b: Any) -> Any:
        """With as much of ``near(residual)`` as makes the residual smallest."""
        assert near is not None
        residual = b - matrix(u)
        change = near(residual)
        moved = matrix(change)
        return u + (moved @ residual) / (moved @ moved) * change

    def begun(b: Any, tol: Any) -> Any:
        if near is None:
            return jnp.zeros_like(b)
        u = near(b)
        return jax.lax.cond(is_found(u, b, tol), lambda u, b: u, refined, u, b)

    def solve(b: Any, tol: Any) -> Any:
        first = begun(b, tol)
        u, _ = bicgstab(matrix, b, x0=first, tol=tol, maxiter=_FEW, M=near)
        found = is_found(u, b, 2.0 * tol)
        return jax.lax.cond(found, lambda: u, lambda: by_gmres(first, b, tol))

    return solve
