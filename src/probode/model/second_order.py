"""Equations of second order, solved as they stand."""

from dataclasses import dataclass
from typing import ClassVar

from probode.model.equation import Equation


@dataclass(frozen=True)
class SecondOrder(Equation):
    """``y'' = f(t, y, y', *args)``: mechanics, without making a system of first order of it.

    The state holds ``y`` and its derivatives once, not those of ``y`` and ``y'``: half as many
    components, which costs EK1 an eighth. The value at the start is a pair ``(y0, v0)``; tolerances
    hold for ``y`` and for ``y'``.

    Parameters
    ----------
    function
        ``f(t, y, v, *args)``, traceable by JAX; returns an array of the shape of ``y``.

    Examples
    --------
    >>> import probode
    >>> swing = probode.SecondOrder(lambda t, y, v: -y)
    >>> posterior = probode.solve(swing, (0.0, 1.0), (1.0, 0.0))
    >>> bool(abs(posterior.mean[-1] - 0.54030231) < 1e-5)
    True
    """

    order: ClassVar[int] = 2
