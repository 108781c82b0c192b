"""Solving ``(M - c J) u = b`` by iterations: nothing is factorised, and no matrix is formed.

Vectors are JAX's and stay on its device; an iteration of Newton's method is one program.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import compiled
from probode.programs.field import Field

_TOLERANCE = 1e-3
"""How exact solutions have to be: an error only makes Newton's method a little slower."""
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
    mass
        ``M``, sparse.
    """

    name = "Krylov"

    def __init__(
        self, field: Field, preconditioner: Callable[..., Any] | None = None, mass: Any = None
    ) -> None:
        self._preconditioner, self._field = preconditioner, field
        self._mass = None
        if mass is not None:
            entries = mass.tocoo()
            self._mass = tuple(map(jnp.asarray, (entries.row, entries.col, entries.data)))

    def factorised(self, jacobian: Any, c: float) -> Any:
        """``jacobian`` is where it is taken, ``(t, y)``."""
        t, y = jacobian
        return Solving(self._preconditioner, self._field, self._mass, t, y, c)

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
    t: float
    y: Any
    c: float

    def __call__(self, b: Any) -> Any:
        """The solution; NaN where it was not found: the step is then taken shorter."""
        return _solved(*self, b)

    def iteration(
        self, t: float, at: Any, h: float, weight: Any, longest: float
    ) -> tuple[Any, Any, float]:
        """``u = W z``, ``v = W u`` and the length of ``u``."""
        u, v, length = _iteration(*self, t, at, h, weight)
        return u, v, float(length)


@compiled()
def _value(field: Field, t: Any, y: Any) -> Any:
    return field(t, y)


@compiled(0)
def _solved(preconditioner: Any, field: Field, mass: Any, t: Any, y: Any, c: Any, b: Any) -> Any:
    return _solver(preconditioner, field, mass, t, y, c)(b)


@compiled(0)
def _iteration(*given: Any) -> Any:
    *system, t, at, h, weight = given
    _, field, mass, *_ = system
    solve = _solver(*system)

    def once(b: Any, _: Any) -> tuple[Any, Any]:
        u = solve(b)
        return _weighed(mass, u), u

    # As a loop: what solves is then compiled once.
    _, (u, v) = jax.lax.scan(once, _weighed(mass, at[1]) - h * field(t, at[0]), length=2)
    parts = u * weight
    return u, v, jnp.sqrt(parts @ parts / parts.size)


def _weighed(mass: Any, v: Any) -> Any:
    if mass is None:
        return v
    row, column, entry = mass
    return jnp.zeros_like(v).at[row].add(entry * v[column])


def _solver(
    preconditioner: Any, field: Field, mass: Any, t: Any, y: Any, c: Any
) -> Callable[[Any], Any]:
    """What solves ``(M - c J) u = b``; NaN where it does not find ``u``."""
    from jax.scipy.sparse.linalg import bicgstab, gmres

    _, push = jax.linearize(lambda y: field(t, y), y)

    def matrix(v: Any) -> Any:
        return _weighed(mass, v) - c * push(v)

    near = None if preconditioner is None else lambda v: preconditioner(t, y, c, v)

    def is_found(u: Any, b: Any, most: float) -> Any:
        return jnp.linalg.norm(matrix(u) - b) <= most * jnp.linalg.norm(b)

    def by_gmres(u: Any, b: Any) -> Any:
        # "batched": the other way stops where residuals are ten times as large as asked for.
        rounds = {"restart": _RESTART, "maxiter": _RESTARTS, "solve_method": "batched"}
        u, _ = gmres(matrix, b, x0=u, tol=_TOLERANCE, M=near, **rounds)
        return jnp.where(is_found(u, b, 10.0 * _TOLERANCE), u, jnp.nan)

    def solve(b: Any) -> Any:
        first = jnp.zeros_like(b) if near is None else near(b)
        u, _ = bicgstab(matrix, b, x0=first, tol=_TOLERANCE, maxiter=_FEW, M=near)
        return jax.lax.cond(
            is_found(u, b, 2.0 * _TOLERANCE), lambda u, b: u, lambda u, b: by_gmres(first, b), u, b
        )

    return solve
