"""Members by the native kernels, or on a card: no loop of XLA's.

Where a vector field and its start are lists of operations (:mod:`probode.engines.native.lists`),
members are solved side by side (:mod:`probode.engines.abreast`): ends or save points, filtered or
smoothed, with the model's error bars or those of the transported defect. What that lacks (constant
steps, wide blocks, very many steps to be smoothed) is solved on the cores one member after the
other (:mod:`probode.engines.native.members`).
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.blas import one_blas_thread
from probode.base.limits import cores, free_memory
from probode.base.precision import double_precision
from probode.base.record import unchecked
from probode.base.status import Status
from probode.base.turns import in_turns
from probode.engines.abreast import cuda, on_card, on_host
from probode.engines.abreast import problem as abreast
from probode.engines.lanes.records import COUNTS, SIGN_COUNT, LaneResults, Members
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
from probode.model.structure import Dense
from probode.programs.field import Field
from probode.programs.program import timing
from probode.solve import solve

_PART_OF_MEMORY = 0.8
"""Of what is free, for the steps of the members at work, to be smoothed: as many as are allowed."""

_NO_MEMORY = (
    "free memory on the card for its threads (XLA_PYTHON_CLIENT_PREALLOCATE=false, set before JAX "
    "is imported, leaves more of it free)"
)

_MOST_ALONE = 4096
"""Largest number of members that are solved by one call each if the vector field switches in time:
solves then restart at the switches. A call takes some ten milliseconds, so more members are solved
in a batch."""


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


def lacks(
    members: Members, settings: Settings, field: Field, count: int, device: Any = None
) -> str | None:
    """What the kernels lack to solve so many members like these; ``None``: nothing.

    ``field`` is the vector field of one of them; ``device`` is a card, or ``None`` for the cores.
    """
    if timing(field.program).switches:
        alone = device is None and count <= _MOST_ALONE
        return None if alone else "a start anew where f switches in time"
    try:
        with double_precision():
            _prepare(members, settings, field, device)
    except Lacking as reason:
        return str(reason)
    return None


def _prepare(members: Members, settings: Settings, field: Field, device: Any) -> _Prepared:
    method = settings.solver.method(field.d)
    tolerances = {"rtol": members.rtol[0], "atol": members.atol[0]}
    control = unchecked(type(settings.control), {**vars(settings.control), **tolerances})
    if type(control).flat is not PControl.flat:
        raise Lacking("a control of your own")
    control = control.flat((members.d,)).within(settings.solver.prior.longest_step)
    if method.error != "residual":
        raise Lacking("steps that are linearised again, which members do not count")
    _check(method, control, members, settings, device)
    scheme, bars = None, None
    lists = lists_of(method, settings.solver.initialization, field, control, np.asarray(1.0))
    if lists is None or lists.start is None:
        raise Lacking("a list of the operations of f, or of its derivatives at the start")
    if settings.calibration != "model":
        scheme = scheme_for(method, False, settings.calibration)
        bars = _bars(scheme, field)
    return _Prepared(method, scheme, field, control, lists, bars)


def _check(
    method: Method, control: PControl, members: Members, settings: Settings, device: Any
) -> None:
    """Raise :class:`Lacking` where the kernels do not have such a solver, or not the room."""
    if device is not None:
        missing = on_card.lacks(device)
        missing = missing or abreast.lacks(method, settings.solver.initialization, control)
        if missing is None and _columns_of_block(method) > on_card.MOST_COLUMNS:
            missing = "room for so large a state in a thread"
        if missing is not None:
            raise Lacking(missing)
        return
    if not NATIVE.supports(method, control, "end"):
        raise Lacking("native kernels for this solver, or at all")
    rows = 8 * layout_of(method).row * min(settings.max_steps, 10**6)
    most = _PART_OF_MEMORY * free_memory() / cores()
    if settings.smooth and not members.only_end and 2 * rows > most:
        raise Lacking(f"room for {settings.max_steps} steps of so large a state to be smoothed")


def _columns_of_block(method: Method) -> int:
    structure = method.structure
    return structure.n * (structure.d if isinstance(structure, Dense) else 1)


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


def side_by_side(
    vector_field: Callable[..., Any], members: Members, settings: Settings, device: Any = None
) -> abreast.Problem:
    """The members as :mod:`probode.engines.abreast` takes them, all of which can be begun."""
    with double_precision():
        field = bind_member(vector_field, members, settings, 0)
        return _abreast(_prepare(members, settings, field, device), members, settings)


def solve_one_by_one(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
) -> LaneResults:
    """Solve all members; those that have not been begun when ``stop`` is set are interrupted.

    On the cores, or on ``device``, a card.

    Raises :class:`Lacking` for those that the kernels cannot solve.
    """
    fits = usable(members)
    count, times, d = members.count, members.times.shape[1], members.d
    whole = bool(fits.all())
    found = Results(
        _room((count, times, d), whole),
        _room((count, times, d), whole),
        _room((count, times, d, d), whole) if settings.covariance else None,
        np.zeros((NOTES, count)),
    )
    found.notes[0] = np.where(fits, *_UNSOLVED)
    if not fits.any():
        return _results(found, None, settings, fits)
    which = np.flatnonzero(fits)
    mine = members if whole else part(members, which)
    with double_precision(), one_blas_thread():
        field = bind_member(vector_field, mine, settings, 0)
        if timing(field.program).switches:
            return _alone(vector_field, members, fits, settings, on_progress, stop)
        prepared = _prepare(mine, settings, field, device)
        own = found if whole else found.some(which)
        _solve(prepared, mine, settings, own, device, stop=stop, on_progress=on_progress)
    if own is not found:
        found.put(which, own)
    left = np.flatnonzero(found.notes[0] == Status.INTERRUPTED.value)
    for array in (found.mean, found.std, found.cov):
        if array is not None:
            array[left] = np.nan
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


def _room(shape: tuple[int, ...], whole: bool) -> np.ndarray:
    """Where results go: all of it is written, or it is not known before."""
    return np.empty(shape) if whole else np.full(shape, np.nan)


_COUNTED = 2**15
"""Members that are counted at a time, in memory that is near."""

_UNSOLVED = Status.INTERRUPTED.value, Status.START_NOT_FINITE.value


def blank_results(members: Members, settings: Settings, status: np.ndarray) -> LaneResults:
    """Results of members of which nothing is known."""
    count, times, d = members.count, members.times.shape[1], members.d
    mean, std = (np.full((count, times, d), np.nan) for _ in range(2))
    cov = np.full((count, times, d, d), np.nan) if settings.covariance else None
    signs = None if settings.calibration == "model" else np.full((count, SIGN_COUNT), np.nan)
    counts = {name: np.zeros(count, int) for name in COUNTS}
    return LaneResults(mean, std, cov, status, signs=signs, **counts)


def _solve(
    prepared: _Prepared,
    members: Members,
    settings: Settings,
    found: Results,
    device: Any,
    **how: Any,
) -> None:
    """All members, side by side where that is possible; the others one after the other."""
    method = prepared.method
    if device is not None:
        try:
            return on_card.solve(_abreast(prepared, members, settings), found, device, **how)
        except cuda.OutOfMemory:
            raise Lacking(_NO_MEMORY) from None
    lacking = abreast.lacks(method, settings.solver.initialization, prepared.control)
    if lacking is not None or _columns_of_block(method) > on_host.MOST_COLUMNS:
        solve_members(_given(prepared, members, settings), found, **how)
        return
    on_host.solve(_abreast(prepared, members, settings), found, **how)
    full = np.flatnonzero(found.notes[0] == abreast.NO_ROOM)
    if len(full):  # so many steps that they are kept of one member at a time
        own = found.some(full)
        solve_members(_given(prepared, part(members, full), settings), own, stop=how.get("stop"))
        found.put(full, own)


class _Column(NamedTuple):
    """Numbers that each member has of its own: where they are among those of the start."""

    places: np.ndarray
    numbers: np.ndarray
    """``(B, size)``."""


def _columns(prepared: _Prepared, members: Members) -> list[_Column]:
    """What differs, or may differ, between members: parameters, the end, tolerances."""
    field, control, count = prepared.field, prepared.control, members.count
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
    return [
        _Column(np.arange(start, start + size), np.reshape(own[mark.k], (count, size)))
        for mark, start, size in zip(marks, starts, sizes, strict=False)
        if isinstance(mark, _Mark)
    ]


def _of_field(field: Field) -> int:
    return sum(np.size(x) for x in jax.tree.leaves(field))


def _given(prepared: _Prepared, members: Members, settings_: Settings) -> Given:
    """The members as the kernels read them that solve one after the other."""
    method, _, field, control, lists, bars = prepared
    count, d = members.count, members.d
    columns = _columns(prepared, members)
    last = 2.0**53
    chosen = settings(
        method, control, members.t1[0], settings_.smooth and not members.only_end, last,
        settings_.max_steps, np.inf,
    )  # fmt: skip

    def each(tolerance: np.ndarray) -> np.ndarray:
        return _contiguous(np.broadcast_to(np.reshape(tolerance, (count, -1)), (count, d)))

    assert lists.start is not None
    return Given(
        settings=_contiguous(chosen),
        start=Listed(lists.start, _contiguous(lists.start_numbers)),
        field=Listed(lists.field, _contiguous(lists.field_numbers)),
        bars=bars,
        places=np.concatenate([column.places for column in columns]).astype(np.int32),
        of_field=_of_field(field),
        only_end=members.only_end,
        at=_contiguous(np.concatenate([members.t0[:, None], members.y0], axis=1)),
        t1=_contiguous(members.t1),
        rtol=each(members.rtol),
        atol=each(members.atol),
        numbers=_contiguous(np.concatenate([column.numbers for column in columns], axis=1)),
        save_at=_shared(members.save_at.reshape(-1, members.save_at.shape[-1])),
    )


def _abreast(prepared: _Prepared, members: Members, settings_: Settings) -> abreast.Problem:
    """The members as engines read them that solve side by side: what varies, and only that."""
    method, _, field, control, lists, bars = prepared
    count = members.count
    assert lists.start is not None
    start_numbers = np.array(lists.start_numbers, float)
    varying: list[_Column] = []
    for column in _columns(prepared, members):
        shared = _shared(column.numbers)
        if len(shared) < count:
            start_numbers[column.places] = shared[0]
        else:
            varying.append(column)
    places = np.concatenate([np.zeros(0, int), *(column.places for column in varying)])
    numbers = [np.zeros((count, 0)), *(column.numbers for column in varying)]
    follows = method.jacobian != "none"
    value = bars.value if bars else Listed(lists.field, np.asarray(lists.field_numbers))
    sizes = abreast.sizes_of(
        *(method, control, bars),
        smoothed=settings_.smooth and not members.only_end,
        only_end=members.only_end,
        covariance=settings_.covariance,
    )
    prior, of_scheme = abreast.tables_of(method, bars)

    def each(tolerance: np.ndarray) -> np.ndarray:
        return _shared(np.reshape(tolerance, (count, -1)))

    return abreast.Problem(
        sizes=sizes,
        prior=prior,
        scheme=of_scheme,
        options=abreast.options_of(control, bars, float(settings_.max_steps)),
        lists=abreast.Lists(lists.start, value.tape, lists.field if follows else None),
        numbers=(
            start_numbers,
            _contiguous(value.numbers),
            _contiguous(lists.field_numbers if follows else []),
        ),
        own=abreast.Own(places, _contiguous(np.concatenate(numbers, axis=1)), _of_field(field)),
        t0=_shared(members.t0[:, None]),
        t1=_shared(members.t1[:, None]),
        y0=_shared(members.y0),
        rtol=each(members.rtol),
        atol=each(members.atol),
        save_at=_shared(members.save_at.reshape(-1, members.save_at.shape[-1])),
        members=count,
    )


def _shared(rows: np.ndarray) -> np.ndarray:
    """One row, where all members have the same."""
    same = len(rows) == 1 or rows.strides[0] == 0 or bool(np.all(rows == rows[:1]))
    return _contiguous(rows[:1] if same else rows)


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
    count = len(fits)
    status, counts = np.empty(count, int), {name: np.empty(count, int) for name in COUNTS}

    def some(first: int, last: int) -> None:
        which = slice(first, last)
        status[which] = own = found.notes[0, which].astype(int)
        status[which][own == Status.RUNNING.value] = Status.MAX_STEPS.value
        solved = (own != Status.INTERRUPTED.value) & fits[which]
        for name, numbers in zip(
            COUNTS, _counts(found.notes[1:5, which], prepared, settings, solved), strict=True
        ):
            counts[name][which] = numbers

    in_turns(some, count, least=_COUNTED, most=_COUNTED)
    signs = None if settings.calibration == "model" else found.notes[5:].T
    return LaneResults(found.mean, found.std, found.cov, status, signs=signs, **counts)


def _counts(
    notes: np.ndarray, prepared: _Prepared | None, settings: Settings, solved: np.ndarray
) -> Iterator[Any]:
    """What some members took, by the names of ``COUNTS``."""
    attempted, accepted, corrections, repeats = notes.astype(int)
    yield from (attempted, accepted, attempted - accepted)
    if prepared is None:
        yield from (0, 0)
        return
    method, scheme = prepared.method, prepared.scheme
    begun = start_evaluations(settings.solver.initialization, prepared.control, method.prior.order)
    f = method.f_evaluations(attempted, accepted) + begun * solved
    jacobians = method.jacobian_evaluations(attempted, accepted)
    if scheme is not None:
        f = f + accepted * scheme.f_per_step + scheme.collocation.s * (corrections + repeats)
        jacobians = jacobians + accepted * scheme.jacobians_per_step + repeats
    yield from (f, jacobians)
