"""The user's equation at one point, called from Python with the arguments that it takes."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.model.equation import Equation
from probode.model.implicit import Implicit
from probode.model.invariant import Bounds
from probode.model.mass_matrix import MassMatrix
from probode.programs.arithmetic import Guard


@dataclass(frozen=True)
class Evaluation:
    """The function of an equation at a time and a state as the user writes it.

    For ``y^(k) = f`` it is the right-hand side of the system of first order for
    ``u = (y, ..., y^(k-1))``; for ``M y' = f`` it is ``f``. For a residual ``F(t, y, y')`` the
    state is ``u = (y, y')``, and the value is that of ``F``.
    """

    equation: Equation
    arguments: tuple[Any, ...] = ()
    vectorized: bool = False
    guard: Guard | None = None
    """Guard that turns errors of arithmetic into NaN; ``None``: they are raised."""
    box: Bounds | None = None
    """Bounds outside of which the function is not evaluated."""

    def __call__(self, t: float, u: np.ndarray) -> Any:
        """Return the value."""
        function: Any = self._residual if self.is_residual else self._rate
        if self.box is not None:
            function = self.box.around(function)
        return (function if self.guard is None else self.guard.over(function))(t, u)

    @property
    def is_residual(self) -> bool:
        """Whether the value is a residual of ``y`` and ``y'``."""
        return isinstance(self.equation, Implicit) and not isinstance(self.equation, MassMatrix)

    def _residual(self, t: float, u: np.ndarray) -> Any:
        return self._value(t, *np.split(u, 2))

    def _rate(self, t: float, u: np.ndarray) -> Any:
        order = self.equation.order
        if order == 1:
            return self._value(t, u)
        xp: Any = np if isinstance(u, np.ndarray) else jnp
        value = self._value(t, *xp.split(u, order))
        highest: Any = self.equation.explicit(xp.ravel(xp.asarray(value)))
        return xp.concatenate([u[len(highest) :], highest])

    def _value(self, t: float, *parts: Any) -> Any:
        function: Any = self.equation.function
        if not self.vectorized:
            return function(t, *parts, *self.arguments)
        return np.ravel(function(t, *(part[:, None] for part in parts), *self.arguments))
