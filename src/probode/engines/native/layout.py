"""How a solve lies in memory for the kernels: vectors of doubles, as in ``src/layout.hpp``."""

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.precision import is_traced, on_host
from probode.base.status import Status
from probode.filter import loop
from probode.filter.control import (
    ConstantStep,
    Control,
    ControlState,
    GridSteps,
    PControl,
    PIControl,
)
from probode.filter.loop import Counts, Rows, Solve
from probode.filter.smooth import Marginals
from probode.filter.start import Initialization
from probode.filter.step import Method, State
from probode.model.diffusion import Evidence
from probode.model.gaussian import pack as triangle
from probode.model.prior import IWP
from probode.model.structure import BlockDiagonal, Dense, Isotropic
from probode.programs.field import Field

_STRUCTURES = {Isotropic: 0.0, BlockDiagonal: 1.0, Dense: 2.0}
_NUMBERS = 20
"""Settings of the control and of a chunk, before the tolerances."""
_JACOBIANS = {"none": 0.0, "diagonal": 1.0, "full": 2.0}


class Layout:
    """Sizes of the vectors of a method."""

    def __init__(self, method: Method) -> None:
        structure, diffusion = method.structure, method.diffusion
        self.n, self.d = structure.n, structure.d
        self.reads = method.equation.order * self.d  # numbers that f takes
        self.multivariate = diffusion.multivariate
        self.scale_per_component = diffusion.varies_by_component
        self.scales = self.d if diffusion.varies_by_component else 1
        self.sums = self.d if diffusion.multivariate else 1
        self.factor_shape = structure.factor_shape
        self.mean = self.n * self.d
        self.factor = int(np.prod(self.factor_shape))
        size = self.factor_shape[-1]
        self.triangle_shape = (*self.factor_shape[:-2], size * (size + 1) // 2)
        self.marginal = self.mean + int(np.prod(self.triangle_shape))
        self.row = 2 + self.scales + self.marginal
        # With two evaluations in a step: between them, the first and the gain of every block, or
        # where the first linearisation leads from and to. Before these, how often there was one.
        gain = self.factor // self.factor_shape[-1] if method.evaluations == 2 else self.d
        self.corrects = method.error == "correction"
        twice = method.evaluations == 2 or self.corrects
        self.between = 2 + self.d + gain if twice else 0
        self.row_offset = 1 + self.mean + 11 + 3 * self.sums + self.between
        self.state = self.row_offset + 2 + self.scales + self.mean + self.factor
        self.head = np.array(
            [
                _STRUCTURES[type(structure)],
                self.n,
                self.d,
                _JACOBIANS[method.jacobian],
                diffusion.fixed,
                diffusion.multivariate,
                method.evaluations,
                diffusion.remembers,
                method.equation.order,
                self.corrects,
            ]
        )
        self.each = np.ones(self.reads)
        prior = method.prior
        assert isinstance(prior, IWP)
        self.tables = np.concatenate(
            [prior.transition().ravel(), prior.noise_factor().ravel(), prior.weights]
        )
        self.without_control = np.concatenate(
            [self.head, np.zeros(_NUMBERS + 2 * self.reads), self.tables]
        )

    def rows(self, buffer: Any, count: int) -> Rows:
        """Rows ``0..count`` of a buffer, as views; factors are packed."""
        return self._rows(buffer.reshape(-1, self.row)[: count + 1], self.triangle_shape)

    def table(self, rows: Rows) -> np.ndarray:
        """The memory that :meth:`rows` are views of, a row each."""
        t = np.asarray(rows.t)  # the first number of each
        strides = t.strides[0], t.itemsize
        return np.lib.stride_tricks.as_strided(t, (len(t), self.row), strides)

    def buffer(self, rows: Rows) -> np.ndarray:
        """The memory of rows (with square factors) that were made elsewhere."""
        count = len(rows.t)
        parts = (rows.t, rows.h, rows.scale, rows.mean, triangle(rows.factor))
        return np.concatenate([np.reshape(x, (count, -1)) for x in parts], axis=1).reshape(-1)

    def _rows(self, table: Any, factor_shape: tuple[int, ...]) -> Rows:
        scale = table[:, 2 : 2 + self.scales]
        at = 2 + self.scales
        return Rows(
            table[:, 0],
            table[:, 1],
            scale if self.scale_per_component else scale[:, 0],
            table[:, at : at + self.mean].reshape(-1, self.n, self.d),
            table[:, at + self.mean :].reshape(-1, *factor_shape),
        )

    def marginals(self, table: Any) -> Marginals:
        """Smoothed rows of a table, as views; factors are packed."""
        return Marginals(
            table[:, : self.mean].reshape(-1, self.n, self.d),
            table[:, self.mean :].reshape(-1, *self.triangle_shape),
        )

    def steps(self, state: np.ndarray) -> int:
        """Steps accepted in the current chunk."""
        return int(state[1 + self.mean + 8])

    def revive(self, state: np.ndarray) -> None:
        """Set a solve that has stopped to go on, with steps as long as the last one."""
        numbers = state[1 + self.mean :]
        numbers[0], numbers[4] = state[self.row_offset + 1], Status.RUNNING.value

    def solve(self, state: Any) -> Solve:
        """A solve from its vector, as views (of a traced vector: as parts)."""
        numbers = state[1 + self.mean : self.row_offset]
        host = on_host(state)
        integer: Any = np.int64 if host else _to_integer
        flag: Any = np.bool_ if host else _to_flag
        step, error, control_accepted, rejected, status, attempted, accepted, reference = (
            numbers[i] for i in range(8)
        )
        sums = numbers[11 : 11 + 3 * self.sums].reshape(3, self.sums)
        squares, log_det, terms = sums if self.multivariate else sums[:, 0]
        again = integer(numbers[12 + 3 * self.sums]) if self.corrects else None
        row = self._rows(state[None, self.row_offset :], self.factor_shape)
        return Solve(
            state=State(row.t[0], row.h[0], row.mean[0], row.factor[0]),
            scale=row.scale[0],
            control=ControlState(step, error, integer(control_accepted), flag(rejected)),
            evidence=Evidence(numbers[10], squares, log_det, terms, self.d, self.multivariate),
            counts=Counts(integer(attempted), integer(accepted), again=again),
            status=integer(status),
            reference=reference,
        )


def _to_integer(x: Any) -> Any:
    return x.astype(int)


def _to_flag(x: Any) -> Any:
    return x != 0.0


@lru_cache(maxsize=256)
def layout_of(method: Method) -> Layout:
    """The layout of a method, computed once."""
    return Layout(method)


def settings(
    method: Method,
    control: Control,
    t1: Any,
    keep: bool,
    wanted: float,
    last_attempt: float,
    seconds: float,
) -> Any:
    """What does not change within a chunk of steps."""
    layout = layout_of(method)
    xp: Any = jnp if is_traced(control, t1) else np
    numbers: list[Any] = [0.0] * _NUMBERS
    numbers[1:6] = (*_CODES, t1)
    numbers[13:17] = wanted, last_attempt, seconds, keep
    rtol: Any = 0.0
    atol: Any = 0.0
    grid: Any = np.zeros(0)
    if isinstance(control, PControl):
        numbers[6:11] = (
            control.rho,
            control.eta_min,
            control.eta_max,
            control.min_step,
            control.max_step,
        )
        rtol, atol = control.rtol, control.atol
        if control.stops is not None:
            grid = control.stops
            numbers[19] = grid.shape[0]
        if isinstance(control, PIControl):
            numbers[0], numbers[11], numbers[12] = 1, control.integral, control.proportional
    elif isinstance(control, ConstantStep):
        numbers[0], numbers[17], numbers[18] = 2, control.start, control.size
    elif isinstance(control, GridSteps):
        grid = control.grid
        numbers[0], numbers[19] = 3, grid.shape[0]
    tolerances = [x * layout.each for x in (rtol, atol)]
    parts = [layout.head, xp.asarray(numbers, float), *tolerances, layout.tables, grid]
    return xp.concatenate(parts)


_CODES = (Status.RUNNING, Status.SUCCESS, Status.STEP_TOO_SMALL, Status.NOT_FINITE)


def begin(
    method: Method,
    initialization: Initialization,
    field: Field,
    control: Control,
    t0: Array,
    t1: Array,
    y0: Array,
) -> Array:
    """The vector of a solve before its first step."""
    return pack(method, loop.begin(method, initialization, field, control, t0, t1, y0))


def pack(method: Method, solve: Solve) -> Array:
    """A solve as one vector (its prediction is filled in by the kernel)."""
    control, evidence, layout = solve.control, solve.evidence, layout_of(method)
    xp: Any = np if on_host(solve.status) else jnp
    between: list[Any] = [xp.zeros(layout.between)]
    if layout.corrects:
        between = [xp.zeros(1), solve.counts.again, xp.zeros(layout.between - 2)]
    parts = [
        xp.zeros(1 + layout.mean),
        control.h,
        control.error,
        control.accepted,
        control.rejected,
        solve.status,
        solve.counts.attempted,
        solve.counts.accepted,
        solve.reference,
        xp.zeros(2),
        evidence.steps,
        evidence.squares,
        evidence.log_det,
        evidence.terms,
        *between,
        solve.state.t,
        solve.state.h,
        solve.scale,
        solve.state.mean,
        solve.state.factor,
    ]
    return xp.concatenate([xp.ravel(part).astype(float) for part in parts])
