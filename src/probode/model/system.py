"""Explicit equations of any order as systems of first order."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.record import record


@record
class System:
    """``u' = g(t, u)`` for ``u = (y, ..., y^(k-1))``, as a vector field like any other.

    ``g = (y', ..., y^(k-1), F)`` with ``F = explicit(f(t, u))``. Global errors are transported
    along it, and starts are made with it.
    """

    equation: Any
    field: Any

    @property
    def d(self) -> int:
        """The length of ``u``."""
        return int(self.equation.order * self.field.d)

    @property
    def reads(self) -> int:
        """Of ``u`` the value alone."""
        return 1

    def __call__(self, t: Array, u: Float[Array, " m"]) -> Float[Array, " m"]:
        """Evaluate ``g``."""
        return self._shifted(u, self.equation.explicit(self.field(t, u)))

    def jacobian(self, t: Array, u: Array) -> tuple[Array, Float[Array, "m m"]]:
        """``g`` and its Jacobian: identities above the diagonal, and below all ``∂F/∂y^(i)``."""
        value, jacobian = self.field.jacobian(t, u)
        shift = jnp.eye(u.shape[0])[value.shape[0] :]
        highest, last = self.explicit_along(value, jacobian.T)
        return self._shifted(u, highest), jnp.concatenate([shift, last.T])

    def jacobian_diagonal(self, t: Array, u: Array) -> tuple[Array, Float[Array, " m"]]:
        """``g``, and the diagonals of all ``∂F/∂y^(i)``: the rest of its Jacobian is known."""
        value, diagonals = self.field.jacobian_diagonal(t, u)
        highest, found = self.explicit_along(value, diagonals.reshape(-1, value.shape[0]))
        return self._shifted(u, highest), found.reshape(-1)

    @property
    def guarded(self) -> bool:
        """Whether entries of its Jacobian that are not finite are taken as zero."""
        return bool(self.field.guarded)

    def guard(self) -> "System":
        """The same with zeros for what is not finite in its Jacobian."""
        return System(self.equation, self.field.guard())

    def _shifted(self, u: Array, highest: Array) -> Array:
        return jnp.concatenate([u[highest.shape[0] :], highest])

    def explicit_along(self, value: Array, directions: Array) -> tuple[Array, Array]:
        """``F``, and its derivatives along directions of ``f``, one a row."""

        def along(direction: Array) -> tuple[Array, Array]:
            return jax.jvp(self.equation.explicit, (value,), (direction,))

        return jax.vmap(along, out_axes=(None, 0))(directions)
