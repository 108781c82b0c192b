"""Numbers of a program that are known before it runs: computed when somebody asks for them."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from probode.base.jax_inside import IN_NUMPY, apply, operation


class Constant:
    """A number, or an array, that depends on no input of a program; computed when needed."""

    def __init__(self, value: Any = None, later: Callable[[], Any] | None = None) -> None:
        self._value, self._later = value, later

    @property
    def value(self) -> np.ndarray:
        """The number, or the array."""
        if self._later is not None:
            self._value, self._later = self._later(), None
        return np.asarray(self._value)


def computed_later(equation: Any, operands: list[Constant]) -> list[Constant]:
    """The results of an equation on numbers, if they are asked for."""

    @lru_cache(maxsize=1)
    def results() -> list[Any]:
        values = [x.value for x in operands]
        rule = IN_NUMPY.get(operation(equation))
        if rule is None or len(equation.outvars) > 1:
            return apply(equation, values)
        return [rule(equation.params, *values)]  # JAX would compile each kind of operation

    return [
        Constant(later=partial(lambda i: results()[i], i)) for i in range(len(equation.outvars))
    ]
