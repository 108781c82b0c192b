"""Solving until something is found in the solution: what looks for it, between chunks of steps."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from probode.base.limits import Limits
from probode.base.precision import double_precision
from probode.engines.fallback import Fallback
from probode.engines.protocol import Given
from probode.filter.loop import Rows
from probode.ivp.options import Options
from probode.ivp.periodic import Periodic
from probode.ivp.result import Embedding, OdeResult
from probode.ivp.steady import Steady
from probode.model.equation import Equation
from probode.model.implicit import Implicit

_STEP = float(np.finfo(float).eps) ** (1 / 3)
"""Of central differences, as part of a component."""
_AIMS: dict[str, Any] = {"steady": Steady, "periodic": Periodic}

Watch = Callable[[Rows], int | None]


class _OutOfTimeError(Exception):
    """The time limit was reached between two evaluations of a look."""


class Looking(Protocol):
    """Looks at the nodes of a solve, and keeps what it finds."""

    def __call__(self, t: np.ndarray, u: np.ndarray) -> int | None:
        """Nodes of a chunk: times, and states with their derivatives ``(N, n, D)``.

        Row 0 repeats the last of the chunk before. The number of steps to keep, once found.
        """

    def onto(self, result: OdeResult, embedding: Embedding) -> None:
        """Put what was found, or that nothing was, onto a result."""


class Along(NamedTuple):
    """What is known of a solve to those who look at it, in real form, as a system ``u' = g``."""

    slope: Callable[[float, np.ndarray], np.ndarray]
    """``g(t, u)``."""
    linearised: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    """``g`` and ``∂g/∂u`` at many points."""
    exact: bool
    """Whether Jacobians are those of a program, or differences."""
    t0: float
    tf: float
    rtol: Any
    atol: Any

    @staticmethod
    def of(
        given: Given,
        embedding: Embedding,
        options: Options,
        t0: float,
        tf: float,
        limits: Limits,
    ) -> "Along":
        """Read what an engine is given; looks that take many evaluations end with the time."""
        equation, field = given.inputs.method.equation, given.inputs.field
        exact = isinstance(given, Fallback)
        value: Callable[[float, np.ndarray], np.ndarray] = (
            given.value if isinstance(given, Fallback) else field.function
        )

        def slope(t: float, u: np.ndarray) -> np.ndarray:
            return _as_system(equation, u, np.asarray(value(t, u), float))

        def linearised(t: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if not isinstance(given, Fallback):
                values, matrices = [], []
                for a, b in zip(t.tolist(), u, strict=True):
                    if limits.left <= 0.0:
                        raise _OutOfTimeError
                    values.append(slope(a, b))
                    matrices.append(_differences(slope, a, b))
                return np.stack(values), np.stack(matrices)
            f, rows = given.full_jacobians(t, u)
            m, d = u.shape[1], f.shape[1]
            above = np.broadcast_to(np.eye(m)[d:], (len(t), m - d, m))
            return np.concatenate([u[:, d:], f], axis=1), np.concatenate([above, rows], axis=1)

        scales = [np.asarray(getattr(options, name), float) for name in ("rtol", "atol")]
        rtol, atol = (embedding.repeated(x) for x in scales)
        return Along(slope, linearised, exact, t0, tf, rtol, atol)


def _as_system(equation: Equation, u: np.ndarray, f: np.ndarray) -> np.ndarray:
    return f if equation.order == 1 else np.concatenate([u[len(f) :], f])


def _differences(slope: Any, t: float, u: np.ndarray) -> np.ndarray:
    """Central differences, component by component."""
    size = np.maximum(np.abs(u), 1e-3 * np.max(np.abs(u), initial=0.0))
    steps = _STEP * np.where(size > 0.0, size, 1.0)
    columns = []
    for i, h in enumerate(steps):
        above, below = u.copy(), u.copy()
        above[i] += h
        below[i] -= h
        columns.append((slope(t, above) - slope(t, below)) / (above[i] - below[i]))
    return np.stack(columns, axis=1)


class Pursuit:
    """What one call is after."""

    def __init__(self, aim: Any) -> None:
        if isinstance(aim, str) and aim in _AIMS:
            aim = _AIMS[aim]()
        if not isinstance(aim, Steady | Periodic):
            raise ValueError(
                "until must be 'steady', 'periodic', probode.Steady(...) or "
                f"probode.Periodic(...), got {aim!r}."
            )
        self.aim = aim
        self._looking: Looking | None = None

    def watch(self, along: Along, equation: Equation, other: Watch | None) -> Watch:
        """What sees the rows of a run, together with whoever looks for events."""
        if isinstance(equation, Implicit):
            raise ValueError(f"until is for explicit equations, got {type(equation).__name__}.")
        self._looking = looking = self.aim.looking(along)

        def watch(rows: Rows) -> int | None:
            ended = None if other is None else other(rows)
            t, u = np.asarray(rows.t), np.asarray(equation.stacked(np.asarray(rows.mean)))
            if ended is not None:
                t, u = t[: ended + 1], u[: ended + 1]
            try:
                found = looking(t, u)
            except _OutOfTimeError:
                return ended
            return ended if found is None else found

        return watch

    def concluded(self, result: OdeResult, embedding: Embedding) -> OdeResult:
        """A result with what was found."""
        if self._looking is not None:
            with double_precision():
                self._looking.onto(result, embedding)
        return result
