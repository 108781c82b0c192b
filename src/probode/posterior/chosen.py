"""The solution at chosen times, from steps whose covariances were not kept.

Smoothing goes from the end backwards and needs the filter's covariance of every step. Where all of
them would take much memory, they are dropped on the way and made again, span by span, when
smoothing comes to them (:class:`probode.engines.kept.Span`): the same numbers, for the price of
filtering twice. What stays are covariances at the times asked for; and, for a calibration, means
and standard deviations at all steps, along which it carries the error. Without one, a few do.
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
    """Means and standard deviations (of ``y, ..., y^(k-1)``) at the steps."""

    t: Float[Array, " N"]
    mean: Float[Array, "M n d"]
    std: Float[Array, "M m"]
    nodes: Array | None = None
    """The steps whose means were kept; ``None``: all of them."""


@record
class ChosenPath(Path):
    """``y`` at chosen times, with its covariance; of the steps no covariance was kept."""

    times: Array
    mean: Float[Array, "K *k d"]
    """Means of ``y``; of ``y, ..., y^(k-1)`` for an equation of order ``k > 1``."""
    columns: Array
    """Columns of the factor that belong to them, in plain units."""
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
        order = method.equation.order
        if k >= order:
            raise ValueError(f"derivatives {_NOT_KEPT}")
        return (self.mean, self.columns) if order == 1 else (self.mean[:, k], self.columns[:, k])

    def evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        if k < method.equation.order and np.all(np.isin(t, self.times)):
            order = np.argsort(self.times)
            at = order[np.searchsorted(np.asarray(self.times), t, sorter=order)]
            mean, columns = self.select(method, k)
            return mean[at], columns[at]
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
    derivatives_kept: int = 0,
) -> tuple[ChosenPath, bool]:
    """Smooth span by span from the end, and keep the solution at the chosen times.

    Also return whether there was time for all of it; if not, the earlier times are missing. For a
    calibration, ``derivatives_kept`` derivatives of the means are kept at all steps; if that is
    zero, whole means at the ends of spans are.
    """
    last, method = Marginals(final.state.mean, final.state.factor), kept.method
    derivatives = range(method.equation.order)
    parts: list[list[Any]] = []
    end = True
    for span in reversed(kept.spans):
        if parts and limits.expired():
            return _together(parts, smoothing, derivatives_kept > 0), False
        rows, smoothed = kept.joined(last, span.chunks(), smoothing, Limits())
        path = NodePath(rows, smoothed).held_to(method, constraint)
        low, high = sorted((rows.t[0], rows.t[-1]))
        # What lies at a node between two spans belongs to the earlier one.
        right = times == rows.t[-1]
        inside = times[(times >= low) & (times <= high) & ~(right & (not end))]
        end = False
        some = slice(None) if derivatives_kept else [0, len(rows.t) - 1]
        rest = slice(derivatives_kept or None)
        columns = [path.select(method, k)[1] for k in derivatives]
        stds = np.concatenate([method.structure.std(part[some]) for part in columns], axis=-1)
        found = _of_order([path.evaluate(method, inside, k) for k in derivatives])
        kept_here = (inside, *found) if inside.size else None
        # Copies: a view would keep the rows of the whole span.
        parts.append([kept_here, np.array(rows.t), np.array(path.means[some, rest]), stds])
        if smoothed is not None:
            last = Marginals(smoothed.mean[0], unpack(smoothed.factor[0]))
    return _together(parts, smoothing, derivatives_kept > 0), True


def _of_order(each: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Means and columns of one derivative, or of several along a second axis.

    A triangle has fewer rows in its first columns: the others are zero.
    """
    if len(each) == 1:
        return each[0]
    shape = np.max([columns.shape for _, columns in each], axis=0)
    room = np.zeros((len(each), *shape))
    for k, (_, columns) in enumerate(each):
        room[k][tuple(slice(size) for size in columns.shape)] = columns
    return np.stack([mean for mean, _ in each], axis=1), np.moveaxis(room, 0, 1)


def _together(parts: list[list[Any]], smoothing: bool, all_nodes: bool) -> ChosenPath:
    nodes: Any = None
    trail: list[Any] = []
    parts = parts[::-1]
    if not all_nodes:
        nodes = np.array([0, *np.cumsum([len(part[1]) - 1 for part in parts])])
    d, several = parts[0][2].shape[-1], parts[0][3].shape[-1] // parts[0][2].shape[-1]
    for i in range(1, 4):  # row 0 of each span repeats the last of the one before
        trail.append(np.concatenate([parts[0][i], *(part[i][1:] for part in parts[1:])]))
        for part in parts:  # what was copied is not held any longer
            part[i] = None
    found = [part[0] for part in parts if part[0] is not None]
    order = () if several == 1 else (several,)
    values: Any = (np.zeros(0), np.zeros((0, *order, d)), np.zeros((0, *order, d, d)))
    if found:
        values = [np.concatenate(some) for some in zip(*found, strict=True)]
    made: Any = (*values, Trail(trail[0], trail[1], trail[2], nodes), np.asarray(smoothing))
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
    means: Any = method.equation.stacked(trail.mean)
    mean: Any = path.mean.reshape(len(path.times), means.shape[-1])
    error: Any = mean - made.corrected_at(trail.t, means, path.times)
    nodes = trail.t, means, path.times, mean
    own = made.own_between(*nodes, scales.own, np.inf)  # the errors at the ends alone say how much
    at_times = Calibration(
        *(made.mode, made.contact, made.kind, error, None, scales.ratio, own, made.signs),
        *(made.f_evaluations, made.jacobian_evaluations, made.looked),
    )
    return at_times, whole
