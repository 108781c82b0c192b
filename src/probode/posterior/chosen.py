"""The solution at chosen times, from steps whose covariances were not kept.

Smoothing goes from the end backwards and needs the filter's covariance of every step. Where all of
them would take much memory, they are dropped on the way and made again, span by span, when
smoothing comes to them (:class:`probode.engines.kept.Span`): the same numbers, for the price of
filtering twice. What stays are covariances at the times asked for, and means and standard
deviations at the steps, which is all that a calibration needs.
"""

from typing import Any

import numpy as np
from jaxtyping import Array, Float

from probode.base.limits import Limits
from probode.base.record import record
from probode.engines.kept import Kept
from probode.filter.loop import Solve
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.global_error.calibrate import calibrate_nodes
from probode.global_error.result import Calibration
from probode.model.gaussian import unpack
from probode.model.invariant import Constraint
from probode.posterior.paths import NodePath, Path


@record
class Trail:
    """Means and standard deviations (of ``y``) at the steps."""

    t: Float[Array, " N"]
    mean: Float[Array, "N n d"]
    std: Float[Array, "N d"]


@record
class ChosenPath(Path):
    """``y`` at chosen times, with its covariance; of the steps no covariance was kept."""

    times: Array
    mean: Float[Array, "K d"]
    columns: Array
    """Columns of the factor that belong to ``y``, in plain units."""
    trail: Trail
    smoothed: Array
    """Whether it is conditioned on the whole solve."""

    @property
    def t(self) -> Array:
        return self.times

    @property
    def is_smoothed(self) -> bool:
        return bool(self.smoothed)

    def select(self, method: Method, k: int) -> tuple[Array, Array]:
        if k != 0:
            raise ValueError(f"derivatives {_NOT_KEPT}")
        return self.mean, self.columns

    def evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        if k == 0 and np.all(np.isin(t, self.times)):
            order = np.argsort(self.times)
            at = order[np.searchsorted(np.asarray(self.times), t, sorter=order)]
            return self.mean[at], self.columns[at]
        raise ValueError(f"other times than posterior.t {_NOT_KEPT}")

    def sample(self, method: Method, n: int, key: Array, t: Any, spread: Array) -> Any:
        raise ValueError(f"joint samples {_NOT_KEPT}")

    def noise(self) -> tuple[Array, Array]:
        raise ValueError(f"per-step diffusions {_NOT_KEPT}")

    def step_sizes(self) -> Array:
        return self.trail.t[1:] - self.trail.t[:-1]


_NOT_KEPT = (
    "are not known: with t_eval and without dense_output the covariances of so large a solve are "
    "not kept. Pass dense_output=True to keep them (memory for all steps), or put the times you "
    "need into t_eval."
)


def chosen_path(
    final: Solve,
    kept: Kept,
    times: np.ndarray,
    smoothing: bool,
    limits: Limits,
    constraint: Constraint | None = None,
) -> tuple[ChosenPath, bool]:
    """Smooth span by span from the end, and keep what was asked for.

    Also whether there was time for all of it; if not, the earlier times are missing.
    """
    last, method = Marginals(final.state.mean, final.state.factor), kept.method
    parts: list[tuple[Any, ...]] = []
    end = True
    for span in reversed(kept.spans):
        if parts and limits.expired():
            return _together(parts, smoothing), False
        rows, smoothed = kept.joined(last, span.chunks(), smoothing, Limits())
        path = NodePath(rows, smoothed).held_to(method, constraint)
        low, high = sorted((rows.t[0], rows.t[-1]))
        # What lies at a node between two spans belongs to the earlier one.
        right = times == rows.t[-1]
        inside = times[(times >= low) & (times <= high) & ~(right & (not end))]
        end = False
        columns = path.select(method, 0)[1]
        found = (inside, *path.evaluate(method, inside, 0)) if inside.size else None
        parts.append((found, rows.t, np.array(path.means), method.structure.std(columns)))
        if smoothed is not None:
            last = Marginals(smoothed.mean[0], unpack(smoothed.factor[0]))
    return _together(parts, smoothing), True


def _together(parts: list[tuple[Any, ...]], smoothing: bool) -> ChosenPath:
    parts = parts[::-1]
    # Row 0 of each span repeats the last of the one before.
    trail: Any = (
        np.concatenate([parts[0][i], *(part[i][1:] for part in parts[1:])]) for i in range(1, 4)
    )
    found = [part[0] for part in parts if part[0] is not None]
    d = parts[0][2].shape[-1]
    values: Any = (np.zeros(0), np.zeros((0, d)), np.zeros((0, d, d)))
    if found:
        values = [np.concatenate(some) for some in zip(*found, strict=True)]
    made: Any = (*values, Trail(*trail), np.asarray(smoothing))
    return ChosenPath(*made)


def calibrate_chosen(
    method: Method, field: Any, path: ChosenPath, mode: str, limits: Limits
) -> tuple[Calibration, bool]:
    """The calibration of the steps, at the chosen times."""
    trail, smoothed = path.trail, bool(path.smoothed)
    made, whole = calibrate_nodes(
        *(method, field, trail.t, trail.mean, trail.std),
        smoothed=smoothed,
        mode=mode,
        limits=limits,
    )
    scales = made.scales_at(trail.t, path.times)
    error: Any = path.mean - made.corrected_at(trail.t, trail.mean, path.times)
    nodes = trail.t, trail.mean, path.times, path.mean
    own = made.own_between(*nodes, scales.own, np.inf)  # the errors at the ends alone say how much
    at_times = Calibration(
        *(made.mode, made.contact, made.kind, error, None, scales.ratio, own, made.signs),
        *(made.f_evaluations, made.jacobian_evaluations, made.looked),
    )
    return at_times, whole
