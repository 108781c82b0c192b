"""Run a traced program with NumPy, without compiling anything.

Checking a trace takes a handful of evaluations of a small program: NumPy has finished long before a
compiler would have started. Programs with operations that are not listed here are compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from probode.base import jax_inside
from probode.base.jax_inside import (
    IN_NUMPY,
    Closed,
    Unreadable,
    called,
    equations,
    kind,
    operation,
    reading,
    walk,
)

_SHAKE = 1e-13
"""Relative change of all intermediate results that is to show what rounding does."""


class Evaluator:
    """A traced program with one output as a function of NumPy arrays.

    ``is_plain`` says that all its operations are listed here.
    """

    def __init__(self, program: Closed) -> None:
        self._program = program
        self._compiled: Callable[..., Any] | None = None
        self.is_plain = False
        try:
            with reading(*_PLAIN):
                self.is_plain = all(
                    called(equation) is not None or operation(equation) in IN_NUMPY
                    for equation in equations(program.jaxpr)
                )
        except Unreadable:
            pass
        if not self.is_plain:
            self._compile()

    def _compile(self) -> None:
        jaxpr, constants = self._program.jaxpr, self._program.consts
        self._compiled = jax.jit(lambda *inputs: jax_inside.run(jaxpr, constants, *inputs))

    def __call__(self, *inputs: Any) -> np.ndarray:
        """The value."""
        if self._compiled is None:
            try:
                with reading(*_PLAIN, expected=(FloatingPointError,)):
                    return _run(self._program, inputs)
            except Unreadable:
                self._compile()
        assert self._compiled is not None
        return np.asarray(self._compiled(*inputs)[0])

    def spread(self, *inputs: Any) -> np.ndarray:
        """Estimate how far the value moves when all intermediate results move a little.

        Of a program that was compiled only the state moves, the second input. The time does not:
        on the other side of a switch the value is another one.
        """
        value, generator = self(*inputs), np.random.default_rng(0)
        if self._compiled is not None:
            t, y, *rest = inputs
            y = np.asarray(y)
            moved = [y * (1 + _SHAKE * generator.uniform(-1, 1, y.shape)) for _ in "ab"]
            return np.maximum(*(np.abs(self(t, one, *rest) - value) for one in moved))

        def shake(result: np.ndarray) -> np.ndarray:
            if result.dtype.kind not in "fc":
                return result
            return result * (1 + _SHAKE * generator.uniform(-1, 1, result.shape))

        shaken = [_run(self._program, inputs, shake) for _ in "ab"]
        return np.maximum(*(np.abs(other - value) for other in shaken))


_PLAIN = ("programs that NumPy can run", "checking a function takes a compilation")


def count_equations(jaxpr: Any) -> int:
    """The length of a program, with everything that it calls; zero if it cannot be read."""
    try:
        with reading("programs that can be counted", "long ones are compiled all the same"):
            return sum(1 for _ in equations(jaxpr))
    except Unreadable:
        return 0


def _run(
    program: Closed,
    inputs: Sequence[Any],
    change: Callable[[np.ndarray], np.ndarray] = lambda result: result,
) -> np.ndarray:
    def apply(equation: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
        result = IN_NUMPY[operation(equation)](equation.params, *operands)
        results = result if isinstance(result, list) else [result]
        pairs = zip(equation.outvars, results, strict=True)
        return [change(np.asarray(value, kind(variable)[1])) for variable, value in pairs]

    given = list(map(np.asarray, inputs))
    (result,) = walk(*program, given, lambda value, _: np.asarray(value), apply)
    return np.asarray(result)
