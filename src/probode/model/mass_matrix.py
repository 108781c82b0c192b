"""Equations with a mass matrix: ``M y' = f(t, y)``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.jax_inside import is_tracer
from probode.model.equation import Equation, FirstOrder
from probode.model.implicit import SINGULAR, Implicit

_LARGEST = 2000
"""Components up to which a sparse mass matrix is written out: EK1 is dense anyway."""


@dataclass(frozen=True)
class MassMatrix(Implicit):
    """``M y' = f(t, y, *args)``: EK1 for any ``M``, singular ones (of index 1) included.

    Rows of ``M`` that are zero are algebraic equations ``0 = f_i(t, y)``. EK0 and DiagonalEK1 take
    a constant regular ``M`` (then they solve ``y' = M⁻¹ f``).

    Parameters
    ----------
    function
        ``f(t, y, *args)``, traceable by JAX; returns an array of the shape of ``y``.
    mass
        A matrix ``(d, d)``, a diagonal ``(d,)``, a sparse matrix (all but SparseEK1 write it out),
        or a function ``M(t, y, *args)`` that returns one of the first two. Its numbers are data:
        new ones compile nothing. For a ``y`` of another shape than a vector it acts on ``y``
        flattened.
    inconsistent
        ``"fix"`` or ``"refuse"``: see :class:`Implicit`. The value at the start is ``y0``: a guess
        of ``y'`` is not needed here.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, probode
    >>> def circle(t, y):
    ...     return jnp.array([-y[1], y[0] ** 2 + y[1] ** 2 - 1.0])
    >>> equation = probode.MassMatrix(circle, np.array([1.0, 0.0]))
    >>> posterior = probode.solve(equation, (0.0, 0.5), [0.0, 1.0])
    """

    mass: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if hasattr(self.mass, "toarray"):
            if self.mass.shape[0] > _LARGEST:
                return  # for SparseEK1, which takes it as it is
            object.__setattr__(self, "mass", self.mass.toarray())
        if self.mass is None or callable(self.mass) or is_tracer(self.mass):
            return
        mass = self.mass if isinstance(self.mass, jax.Array) else _numbers(self.mass)
        if mass.ndim not in (1, 2) or (mass.ndim == 2 and mass.shape[0] != mass.shape[1]):
            raise ValueError(
                "the mass matrix must be a square matrix (d, d), its diagonal (d,), or a function "
                f"M(t, y, *args) that returns one of them, got shape {mass.shape}."
            )
        if not np.all(np.isfinite(mass)):
            raise ValueError(f"the mass matrix must be finite, got {np.asarray(mass)}.")
        object.__setattr__(self, "mass", mass)

    @property
    def form(self) -> Equation:
        """Without function and matrix, which are in what is evaluated."""
        return MassMatrix(inconsistent=self.inconsistent)

    def check_size(self, d: int) -> None:
        """Refuse a matrix that is not one for ``d`` components."""
        if self.mass is None:
            raise TypeError("MassMatrix(f, M) needs a mass matrix M, got none.")
        if not callable(self.mass) and self.mass.shape not in ((d,), (d, d)):
            raise ValueError(
                f"the mass matrix must have shape ({d}, {d}), or ({d},) for a diagonal one (y0 has "
                f"{d} components), got {self.mass.shape}."
            )

    def traced(self, jac: Any) -> tuple[Callable[..., Any] | None, Any]:
        """``F = M y' - f``, and its Jacobians from that of ``f``."""
        function, mass = self.function, self.mass
        assert function is not None

        def weighed(t: Any, y: Any, yp: Any, *args: Any) -> Any:
            value = jnp.asarray(function(t, y, *args))
            return _product(_mass(mass, t, y, args), yp) - value.reshape(jnp.shape(y))

        if jac is None:
            return weighed, None

        def jacobians(t: Any, y: Any, yp: Any, *args: Any) -> Any:
            by_value = -jnp.asarray(jac(t, y, *args) if callable(jac) else jac, float)
            d = jnp.size(y)
            if callable(mass):

                def product(flat: Any) -> Any:
                    return _product(_mass(mass, t, flat.reshape(jnp.shape(y)), args), yp).reshape(d)

                by_value = by_value + jax.jacfwd(product)(jnp.reshape(y, d))
            matrix = _mass(mass, t, y, args)
            return jnp.concatenate([by_value, jnp.diag(matrix) if matrix.ndim == 1 else matrix], 1)

        return weighed, jacobians

    def as_implicit(self, jac: Any) -> tuple[Implicit, Any]:
        """The same equation without a matrix of its own, ``F = M y' - f``, and its Jacobians."""
        function, jac = self.traced(jac)
        return Implicit(function, inconsistent=self.inconsistent), jac

    def suited(self, kind: str, start: str) -> Equation:
        """For a solver without the full Jacobian: ``y' = M⁻¹ f``, if ``M`` has an inverse."""
        if hasattr(self.mass, "toarray"):
            raise ValueError(
                f"a sparse mass matrix of shape {self.mass.shape} is for SparseEK1: all other "
                f"solvers write it out, up to {_LARGEST} components."
            )
        if kind == "full":
            return super().suited(kind, start)
        if callable(self.mass) or is_tracer(self.mass):
            self._refuse("with a matrix that is not constant is solved by EK1")
        mass, function = self.mass, self.function
        if mass is None or _is_singular(np.asarray(mass)):
            self._refuse("with a singular matrix, a differential-algebraic equation, needs EK1")
        assert function is not None
        inverse = 1.0 / mass if mass.ndim == 1 else np.linalg.inv(mass)

        def explicit(t: Any, y: Any, *args: Any) -> Any:
            return _product(inverse, jnp.asarray(function(t, y, *args)).reshape(jnp.shape(y)))

        return FirstOrder(explicit)


def _numbers(mass: Any) -> np.ndarray:
    try:
        return np.asarray(mass, float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "the mass matrix must be made of real numbers, or a function M(t, y, *args), got "
            f"{mass!r}: {error}"
        ) from None


def _mass(mass: Any, t: Any, y: Any, args: tuple[Any, ...]) -> Any:
    if not callable(mass):
        return jnp.asarray(mass)
    found, d = jnp.asarray(mass(t, y, *args), float), jnp.size(y)
    if found.shape not in ((d,), (d, d)):
        raise ValueError(
            f"the mass matrix M(t, y, *args) must have shape ({d}, {d}), or ({d},) for a diagonal "
            f"one, got {found.shape}."
        )
    return found


def _product(matrix: Any, y: Any) -> Any:
    flat = jnp.reshape(y, -1)
    moved = matrix * flat if matrix.ndim == 1 else matrix @ flat
    return moved.reshape(jnp.shape(y))


def _is_singular(mass: np.ndarray) -> bool:
    if mass.ndim == 1:
        return bool(np.any(mass == 0.0))
    rows = np.max(np.abs(mass), axis=1, keepdims=True)
    if np.any(rows == 0.0):
        return True
    scaled = mass / rows
    columns = np.max(np.abs(scaled), axis=0)
    return bool(np.any(columns == 0.0)) or bool(np.linalg.cond(scaled / columns) > 1.0 / SINGULAR)
