"""The filter's solution at given times, from the rows of its steps, which are then let go.

For large states: a compiled loop that saves on its way (:mod:`probode.filter.saving`) hands all it
has saved from one chunk of steps to the next, new memory each time. Here a chunk of rows is
looked at, and only what lies at the times is kept.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.status import Status
from probode.engines.kept import state_bytes
from probode.engines.monitor import Monitor
from probode.engines.protocol import Engine, Given
from probode.filter.loop import Rows
from probode.filter.saving import Saving
from probode.filter.step import Method, State, extrapolate
from probode.model.gaussian import unpack
from probode.model.structure import Dense

_LARGE = 4 * 2**20
"""Bytes of a state from which on rows are looked at."""


def pays(method: Method) -> bool:
    """Whether states are so large, and rows of the kernels no larger than they are."""
    return state_bytes(method) > _LARGE and not isinstance(method.structure, Dense)


def solve_saving(
    engine: Engine, given: Given, times: Any, monitor: Monitor
) -> tuple[Saving, Status]:
    """Solve and keep the filter's state at given times only."""
    taken = _Taken(given.inputs.method, np.asarray(times))
    monitor = monitor._replace(watch=taken.look)
    solve, status, _ = engine.run(given, monitor, keep=False)
    saved, lengths = taken.rows()
    count: Any = np.asarray(taken.count)
    return Saving(solve, solve.state, None, saved, None, count, lengths=lengths), status


class _Taken:
    """What was found at the times so far."""

    def __init__(self, method: Method, times: np.ndarray) -> None:
        self._method, self._times = method, times
        self._found: list[Rows] = []
        self._lengths: list[Any] = []

    @property
    def count(self) -> int:
        """How many times were reached."""
        return len(self._found)

    def look(self, rows: Rows) -> None:
        """Take what is at the times that these steps have passed."""
        t = np.asarray(rows.t)
        sign = -1.0 if self._times[-1] < t[0] else 1.0
        for i in range(len(t)):
            while self.count < len(self._times) and sign * self._times[self.count] <= sign * t[i]:
                self._take(rows, i)

    def _take(self, rows: Rows, i: int) -> None:
        """The next time, which lies in the step to row ``i`` or at its end."""
        time, right = self._times[self.count], _state(rows, i)
        inside = right
        if time != right.t:
            known = _state(rows, i - 1), time, rows.scale[i], rows.h[i]
            inside = jax.tree.map(np.asarray, _inside(self._method, *known))
        row: Any = (time, inside.h, rows.scale[i], inside.mean, inside.factor)
        self._found.append(Rows(*(np.array(x) for x in row)))  # type: ignore[arg-type]
        self._lengths.append(rows.h[i] if i > 0 else np.nan)

    def rows(self) -> tuple[Rows, Any]:
        """Rows at all times, NaN where they were not reached, and the lengths of the steps."""
        structure, missing = self._method.structure, len(self._times) - self.count
        n, d = structure.n, structure.d
        scale = (d,) if self._method.diffusion.varies_by_component else ()
        shapes = ((), (), scale, (n, d), structure.factor_shape)
        blank: Any = Rows(*(np.full(shape, np.nan) for shape in shapes))  # type: ignore[arg-type]
        found = [*self._found, *[blank] * missing]
        saved = jax.tree.map(lambda *each: np.stack(each), *found)
        return saved, np.array([*self._lengths, *[np.nan] * missing], float)


def _state(rows: Rows, i: int) -> State:
    return State(rows.t[i], rows.h[i], rows.mean[i], unpack(rows.factor[i]))


@compiled()
def _inside(method: Method, left: State, t: Array, scale: Array, whole: Array) -> State:
    """Predicted over a part of a step of length ``whole``, with its part of the noise."""
    h = jnp.asarray(t) - left.t
    return extrapolate(method, left, h, scale * method.prior.noise_scale(h / whole))
