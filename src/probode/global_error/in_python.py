"""The transport of a vector field that only Python can evaluate: the same schemes, in NumPy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, ClassVar

import numpy as np

from probode.base.limits import Limits
from probode.engines.in_python import on_host
from probode.global_error.schemes import Scheme, block_steps
from probode.global_error.transport import Carry, Transported, empty
from probode.model.equation import Equation, FirstOrder
from probode.model.system import System

_STEPS_BETWEEN_LOOKS = 4
"""Looks at the clock, with a time limit: an evaluation in Python may take long."""


@dataclass(frozen=True)
class HostProblem:
    """A vector field evaluated in Python: NumPy in, NumPy out."""

    function: Callable[[float, np.ndarray], np.ndarray]
    jacobian: Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None
    """``(t, y, f(t, y)) -> J``, the matrix or its diagonal; ``None`` for EK0."""
    order: int = 1
    """Derivatives in ``y``, where it is that of a :class:`probode.model.system.System`."""
    xp: ClassVar[Any] = np

    @staticmethod
    def cond(which: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """``yes()`` or ``no()``."""
        return yes() if which else no()

    @staticmethod
    def while_loop(going: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
        """``state = body(state)`` while ``going(state)``."""
        while going(state):
            state = body(state)
        return state

    def at_stages(self, t: Any, y: Any) -> Any:
        """``f`` at all stages of a step, or of several."""
        if t.ndim > 1:
            return np.stack([self.at_stages(*step) for step in zip(t, y, strict=True)])
        return np.array([self.function(a, b) for a, b in zip(t.tolist(), y, strict=True)])

    def jacobian_at(self, t: Any, y: Any, f: Any) -> Any:
        """The Jacobian where ``f`` is known, in one step or in several."""
        if np.ndim(t):
            return np.stack([self.jacobian_at(*step) for step in zip(t, y, f, strict=True)])
        assert self.jacobian is not None
        return np.asarray(self.jacobian(float(t), y, f), float)

    def diagonal_at(self, t: Any, y: Any) -> Any:
        """The diagonals of the Jacobians of several steps."""
        found, m = self.jacobian_at(t, y, self.at_stages(t, y)), y.shape[-1]
        if found.ndim == y.ndim:
            return found
        d = m // self.order
        return found[..., m - d + np.arange(m) % d, np.arange(m)]


def as_system(equation: Equation, problem: HostProblem) -> HostProblem:
    """The same as :class:`probode.model.system.System`, in NumPy."""
    if type(equation) is FirstOrder:
        return problem
    function, known = problem.function, problem.jacobian
    system = on_host(equation, function)
    moved: Any = System(equation, None).explicit_along

    def jacobian(t: float, u: np.ndarray, g: np.ndarray) -> np.ndarray:
        assert known is not None
        d = len(u) // equation.order
        plain = type(equation).explicit is Equation.explicit
        f = g[-d:] if plain else function(t, u)
        rows = np.asarray(known(t, u, f), float)
        rows = rows.reshape(-1, d) if rows.ndim == 1 else rows.T
        rows = rows if plain else np.asarray(moved(f, rows)[1])
        if len(rows) != len(u):  # the diagonals of all blocks
            return rows.reshape(-1)
        return np.concatenate([np.eye(len(u))[d:], rows.T])

    return HostProblem(system, None if known is None else jacobian, equation.order)


def transport(
    scheme: Scheme, problem: HostProblem, t: Any, means: Any, limits: Limits
) -> Transported:
    """Carry the error along all nodes, or as many as there is time for.

    What does not depend on the error is done for many steps at once.
    """
    d, steps = means.shape[-1], t.shape[0] - 1
    means = means[:, : scheme.k + 1]
    out: Any = empty(steps, scheme.collocation.s, d)
    carry = Carry.start(np, d)
    size = block_steps(scheme, d) if limits.left == np.inf else _STEPS_BETWEEN_LOOKS
    for begin in range(0, steps, size):
        if limits.expired():
            return Transported(*(rows[:begin] for rows in out))
        here, after = slice(begin, min(begin + size, steps)), slice(begin + 1, begin + size + 1)
        block = scheme.prepare(problem, t[here], t[after] - t[here], means[here], means[after])
        for n, step in enumerate(_by_step(block), begin):
            if limits.expired():
                return Transported(*(rows[:n] for rows in out))
            carry, moved = scheme.advance(problem, step, carry)
            for rows, value in zip(out, moved, strict=True):
                rows[n] = value
    return out


def _by_step(prepared: Any) -> Iterator[Any]:
    """What was prepared for several steps, one after the other."""
    if prepared is None:
        return repeat(None)
    if isinstance(prepared, np.ndarray):
        return iter(prepared)
    parts = zip(*(_by_step(part) for part in prepared), strict=False)
    return map(type(prepared)._make, parts)
