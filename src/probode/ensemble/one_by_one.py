"""The engine without compilation: one member after the other, by the native kernels.

Where a vector field and its start are lists of operations (:mod:`probode.engines.native.lists`),
the kernels solve all members in one call on all cores (:mod:`probode.engines.native.members`), and
nothing is compiled for the ensemble: ends or save points, filtered or smoothed, with the model's
error bars or those of the transported defect.
"""

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.precision import double_precision
from probode.base.record import unchecked
from probode.base.status import Status
from probode.engines.lanes.records import COUNTS, SIGN_COUNT, LaneResults, Members
from probode.engines.monitor import one_blas_thread
from probode.engines.native.engine import NATIVE
from probode.engines.native.layout import layout_of, settings
from probode.engines.native.lists import Lists, lists_of
from probode.engines.native.members import NOTES, Bars, Given, Listed, Results, solve_members
from probode.engines.native.tape import tape_of
from probode.ensemble.function import bind_member
from probode.ensemble.problem import member, part, usable
from probode.ensemble.settings import Settings
from probode.filter.control import PControl
from probode.filter.loop import start_evaluations
from probode.filter.step import Method
from probode.global_error import beside, native
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme, scheme_for
from probode.global_error.sweeps import Sweeps
from probode.programs.field import Field
from probode.programs.program import timing
from probode.solve import solve

_MOST_BYTES = 2**30
"""Memory that the steps of one member may take, to be smoothed: of as many as are allowed."""

_MOST_ALONE = 256
"""Members with a vector field that switches in time, each of which is solved by a call of its own:
steps then end at the switches, where its derivatives are found anew."""


class Lacking(Exception):
    """What these kernels cannot do, in words."""


class _Prepared(NamedTuple):
    """What all members have in common."""

    method: Method
    scheme: Scheme | None
    field: Field
    control: PControl
    lists: Lists
    bars: Bars | None


def lacks(members: Members, settings: Settings, field: Field, count: int) -> str | None:
    """What the kernels lack to solve so many members like these; ``None``: nothing.

    ``field`` is the vector field of one of them.
    """
    if timing(field.program).switches:
        return None if count <= _MOST_ALONE else "starts anew where f switches in time"
    try:
        with double_precision():
            _prepare(members, settings, field)
    except Lacking as reason:
        return str(reason)
    return None


def _prepare(members: Members, settings: Settings, field: Field) -> _Prepared:
    method = settings.solver.method(field.d)
    tolerances = {"rtol": members.rtol[0], "atol": members.atol[0]}
    control = unchecked(type(settings.control), {**vars(settings.control), **tolerances})
    if type(control).flat is not PControl.flat:
        raise Lacking("a control of your own")
    control = control.flat((members.d,)).within(settings.solver.prior.longest_step)
    if not NATIVE.supports(method, control, "end"):
        raise Lacking("native kernels for this solver, or at all")
    rows = 8 * layout_of(method).row * min(settings.max_steps, 10**6)
    if settings.smooth and not members.only_end and 2 * rows > _MOST_BYTES:
        raise Lacking(f"room for {settings.max_steps} steps of so large a state to be smoothed")
    scheme, bars = None, None
    lists = lists_of(method, settings.solver.initialization, field, control, np.asarray(1.0))
    if lists is None or lists.start is None:
        raise Lacking("a list of the operations of f, or of its derivatives at the start")
    if settings.calibration != "model":
        scheme = scheme_for(method, False, settings.calibration)
        bars = _bars(scheme, field)
    return _Prepared(method, scheme, field, control, lists, bars)


def _bars(scheme: Scheme, field: Field) -> Bars:
    """How the kernels transport errors with a scheme."""
    swept = isinstance(scheme, Sweeps) and scheme.order == 1
    if not swept and type(scheme) is not Newton:
        raise Lacking("the transport of errors for this equation")
    kind = native.jacobian_kind(scheme)
    values, derivatives = tape_of("none", field, within=kind), tape_of(kind, field)
    if values is None or derivatives is None:
        raise Lacking("a list of the operations of f, or of its Jacobian")
    listed = [Listed(tape, np.asarray(tape.numbers(field))) for tape in (values, derivatives)]
    table = np.concatenate([native.table(scheme, field.d), beside.WINDOWS])
    return Bars(table, scheme.harmless, scheme.doubt, *listed)


def solve_one_by_one(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
) -> LaneResults:
    """Solve all members; those that have not been begun when ``stop`` is set are interrupted.

    Raises :class:`Lacking` for those that the kernels cannot solve.
    """
    fits = usable(members)
    count, times, d = members.count, members.times.shape[1], members.d
    found = Results(
        np.full((count, times, d), np.nan),
        np.full((count, times, d), np.nan),
        np.full((count, times, d, d), np.nan) if settings.covariance else None,
        np.zeros((count, NOTES)),
    )
    found.notes[:, 0] = np.where(fits, *_UNSOLVED)
    if not fits.any():
        return _results(found, None, settings, fits)
    which = np.flatnonzero(fits)
    mine = members if fits.all() else part(members, which)
    with double_precision(), one_blas_thread():
        field = bind_member(vector_field, mine, settings, 0)
        if timing(field.program).switches:
            return _alone(vector_field, members, fits, settings, on_progress, stop)
        prepared = _prepare(mine, settings, field)
        given = _given(prepared, mine, settings)
        own = found if fits.all() else found.some(which)
        solve_members(given, own, stop=stop, on_progress=on_progress)
    if own is not found:
        for whole, some in zip(found, own, strict=True):
            if whole is not None:
                whole[which] = some
    return _results(found, prepared, settings, fits)


def _alone(
    vector_field: Callable[..., Any],
    members: Members,
    fits: np.ndarray,
    settings: Settings,
    on_progress: Callable[[int], Any] | None,
    stop: Event | None,
) -> LaneResults:
    """Each member by a call of :func:`probode.solve`, which begins anew at switches."""
    d, times = members.d, members.times
    found = blank_results(members, settings, np.where(fits, *_UNSOLVED))
    for i in np.flatnonzero(fits).tolist():
        if stop is not None and stop.is_set():
            break
        span, y0, args = member(members, i)
        tolerances = {
            "rtol": np.reshape(members.rtol[i], y0.shape if members.rtol.ndim > 1 else ()),
            "atol": np.reshape(members.atol[i], y0.shape if members.atol.ndim > 1 else ()),
        }
        made = solve(
            *(vector_field, span, y0, args),
            solver=settings.solver,
            control=replace(settings.control, **tolerances),
            smooth=settings.smooth,
            save_at=span[1] if members.only_end else times[i],
            max_steps=settings.max_steps,
            jac=settings.jac,
            calibration=settings.calibration,
        )
        stats, reached = made.stats, len(made.t)
        found.status[i] = made.status.value
        for name in COUNTS:
            getattr(found, name)[i] = getattr(stats, name)
        found.f_evaluations[i] += stats.calibration_f_evaluations
        found.jacobian_evaluations[i] += stats.calibration_jacobian_evaluations
        found.mean[i, :reached] = made.mean.reshape(reached, d)
        found.std[i, :reached] = made.std.reshape(reached, d)
        if found.cov is not None:
            found.cov[i, :reached] = made.marginals.cov.reshape(reached, d, d)
        if found.signs is not None and made.calibration is not None:
            lost = not np.all(np.isfinite(made.calibration.error))
            found.signs[i] = (*np.asarray(made.calibration.signs), lost)
        if on_progress is not None:
            on_progress(1)
    return found


_UNSOLVED = Status.INTERRUPTED.value, Status.START_NOT_FINITE.value


def blank_results(members: Members, settings: Settings, status: np.ndarray) -> LaneResults:
    """Results of members of which nothing is known."""
    count, times, d = members.count, members.times.shape[1], members.d
    mean, std = (np.full((count, times, d), np.nan) for _ in range(2))
    cov = np.full((count, times, d, d), np.nan) if settings.covariance else None
    signs = None if settings.calibration == "model" else np.full((count, SIGN_COUNT), np.nan)
    counts = {name: np.zeros(count, int) for name in COUNTS}
    return LaneResults(mean, std, cov, status, signs=signs, **counts)


def _given(prepared: _Prepared, members: Members, settings_: Settings) -> Given:
    """The members as the kernels read them."""
    method, _, field, control, lists, bars = prepared
    count, d = members.count, members.d
    _, _, args = member(members, 0)
    leaves = jax.tree.leaves(members.args)
    places = field.data_leaves(args)
    varying = {i for i, axis in enumerate(members.axes) if axis is not None}
    if not varying <= set(places):
        raise Lacking("whole numbers that are part of the program and vary")
    # What a member has of its own, in the order of the leaves; marks show where that is.
    own: list[Any] = [members.t1, members.rtol, members.atol]
    marked = [_Mark(len(own) + k) if i in varying else field.args[k] for k, i in enumerate(places)]
    own += [leaves[i] if i in varying else np.zeros((count, 0)) for i in places]
    tolerances = {"rtol": _Mark(1), "atol": _Mark(2)}
    marked_control = unchecked(type(control), {**vars(control), **tolerances})
    marks = jax.tree.leaves((replace(field, args=marked), marked_control, _Mark(0)))
    sizes = [np.size(x) for x in jax.tree.leaves((field, control, np.asarray(1.0)))]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    at: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    for mark, start, size in zip(marks, starts, sizes, strict=False):
        if isinstance(mark, _Mark):
            at.append(np.arange(start, start + size))
            columns.append(np.reshape(own[mark.k], (count, size)))
    last = 2.0**53
    chosen = settings(
        method, control, members.t1[0], settings_.smooth and not members.only_end, last,
        settings_.max_steps, np.inf,
    )  # fmt: skip
    shared = np.ptp(members.save_at, axis=0).max() == 0.0 if members.save_at.ndim > 1 else True
    times = members.save_at.reshape(-1, members.save_at.shape[-1])

    def each(tolerance: np.ndarray) -> np.ndarray:
        return _contiguous(np.broadcast_to(np.reshape(tolerance, (count, -1)), (count, d)))

    assert lists.start is not None
    return Given(
        settings=_contiguous(chosen),
        start=Listed(lists.start, _contiguous(lists.start_numbers)),
        field=Listed(lists.field, _contiguous(lists.field_numbers)),
        bars=bars,
        places=np.concatenate(at).astype(np.int32),
        of_field=sum(np.size(x) for x in jax.tree.leaves(field)),
        only_end=members.only_end,
        at=_contiguous(np.concatenate([members.t0[:, None], members.y0], axis=1)),
        t1=_contiguous(members.t1),
        rtol=each(members.rtol),
        atol=each(members.atol),
        numbers=_contiguous(np.concatenate(columns, axis=1)),
        save_at=_contiguous(times[:1] if shared else times),
    )


class _Mark:
    """In place of a number that members have of their own."""

    def __init__(self, k: int) -> None:
        self.k = k


def _contiguous(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array, dtype=float)


def _results(
    found: Results, prepared: _Prepared | None, settings: Settings, fits: np.ndarray
) -> LaneResults:
    """What an engine returns."""
    numbers = found.notes[:, :5].astype(int).T
    status, attempted, accepted, corrections, repeats = numbers
    f, jacobians = np.zeros((2, len(status)), int)
    if prepared is not None:
        method, scheme = prepared.method, prepared.scheme
        begun = start_evaluations(
            settings.solver.initialization, prepared.control, method.prior.order
        )
        solved = (status != Status.INTERRUPTED.value) & fits
        f = method.f_evaluations(attempted, accepted) + begun * solved
        jacobians = jacobians + method.jacobian_evaluations(attempted, accepted)
        if scheme is not None:
            f = f + accepted * scheme.f_per_step + scheme.collocation.s * (corrections + repeats)
            jacobians = jacobians + accepted * scheme.jacobians_per_step + repeats
    running = status == Status.RUNNING.value
    status = np.where(running, Status.MAX_STEPS.value, status)
    return LaneResults(
        *(found.mean, found.std, found.cov, status, attempted, accepted, attempted - accepted),
        *(f, jacobians, None if settings.calibration == "model" else found.notes[:, 5:]),
    )
