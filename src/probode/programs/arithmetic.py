"""Errors of Python's arithmetic in a user's function, as the NaN that they are in NumPy.

``math.exp(1000.0)``, ``2.0 ** 10000``, ``1.0 / 0.0`` and ``math.log(-1.0)`` raise where arrays have
Inf or NaN. A solver asks at points where the solution does not go; a step to a point with NaN is
rejected, and a shorter one is tried. So an error there counts as NaN, and nothing that came before
is lost. At the initial value no step is shorter: there the error is the user's to see.
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from probode.base.said import code_of, first_time, logger, name_of

_OF_MATH = re.compile(r"math domain error|expected a .*(input|number).*, got")
"""What ``math`` says of numbers outside of a function's domain; since Python 3.14 it says which."""


def is_of_arithmetic(error: Exception) -> bool:
    """Whether numbers are the reason: too large, a division by zero, outside of a domain."""
    if isinstance(error, OverflowError | ZeroDivisionError):
        return True
    return type(error) is ValueError and _OF_MATH.match(str(error)) is not None


class Guard:
    """NaN in place of errors of arithmetic in what is made of ``fun``, but at the initial value.

    ``notes`` has each kind of error in words, and where it came up first.
    """

    def __init__(self, fun: Callable[..., Any], t0: float, y0: np.ndarray) -> None:
        self._fun, self._t0, self._y0 = fun, t0, y0
        self._kinds: set[type] = set()
        self.notes: list[str] = []

    def over(
        self, function: Callable[..., Any], shape: tuple[int, ...] | None = None
    ) -> Callable[..., Any]:
        """``function(t, y, ...)``, guarded; its values have this shape, or that of ``y``."""

        def guarded(t: float, y: np.ndarray, *rest: Any) -> Any:
            try:
                return function(t, y, *rest)
            except Exception as error:
                if not self._excuses(error, t, y):
                    raise
                return np.full(y.shape if shape is None else shape, np.nan)

        return guarded

    def _excuses(self, error: Exception, t: float, y: np.ndarray) -> bool:
        if not np.all(np.isfinite(y)):  # whatever it says of numbers that are none
            return True
        if not is_of_arithmetic(error) or (t == self._t0 and np.array_equal(y, self._y0)):
            return False
        kind = type(error)
        if kind not in self._kinds:
            self._kinds.add(kind)
            with np.printoptions(precision=3, threshold=6, edgeitems=2):
                self.notes.append(
                    f"{name_of(self._fun)} raised {kind.__name__} ({error}) at t = {t:.6g}, "
                    f"y = {y}, which counts as NaN: steps that lead there are rejected"
                )
            if first_time("arithmetic", code_of(self._fun), kind):
                logger.warning("%s.", self.notes[-1])
        return True
