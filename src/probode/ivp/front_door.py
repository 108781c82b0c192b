"""``solve_ivp``: SciPy's contract, and the posterior."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from probode.base.errors import check_choice
from probode.base.limits import Limits
from probode.base.status import Status
from probode.base.waiting import doing
from probode.engines.kept import refuse_what_cannot_fit
from probode.filter.control import PControl
from probode.filter.given import break_times, check_limits
from probode.filter.solvers import Solver, SparseEK1
from probode.global_error.schemes import MODES
from probode.ivp.again import repeated_by
from probode.ivp.checkpoint import opened
from probode.ivp.constraint import box_of
from probode.ivp.evaluation import Evaluation
from probode.ivp.given import (
    CONTROLS,
    arguments_of,
    control_of,
    evaluation_times,
    initial_state,
    read_equation,
    read_implicit,
    with_guess,
)
from probode.ivp.hybrid import acts, solve_hybrid
from probode.ivp.method import (
    METHODS,
    is_large,
    large_kind,
    read_method,
    say_if_unstable,
    solvers_for,
)
from probode.ivp.noticed import with_notice
from probode.ivp.options import Options
from probode.ivp.result import Constant, Embedding, OdeResult, Solution, state_at
from probode.ivp.run import Carried, Task
from probode.ivp.target import Integrated, Target, reach
from probode.ivp.until import Pursuit
from probode.model.equation import Equation
from probode.model.implicit import Implicit
from probode.posterior import events
from probode.posterior.chosen import ChosenPath
from probode.posterior.paths import SavedPath
from probode.posterior.posterior import Posterior
from probode.programs.arithmetic import Guard

__all__ = ["CONTROLS", "METHODS", "solve_ivp"]

_NO_COUNTS = {"nfev": 0, "njev": 0, "nlu": 0}
_WITHOUT_END = 200_000
"""Steps towards an infinite end, unless the caller limits steps or time, or has a callback."""
_MESSAGES = {0: Status.SUCCESS.message, 1: Status.EVENT.message}


@doing("preparing the solve, or its result")
def solve_ivp(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    method: Any = "EK1",
    t_eval: Any = None,
    dense_output: bool = False,
    events: Any = None,
    vectorized: bool = False,
    args: Any = None,
    **options: Any,
) -> OdeResult:
    """Solve an initial value problem: ``scipy.integrate.solve_ivp`` with error bars.

    The call and the fields of the result are SciPy's; ``y_std`` has the error bars. A function in
    plain NumPy is compiled if it can be traced, and called from Python in every step if not.

    Parameters
    ----------
    fun
        ``fun(t, y, *args)`` returns ``y'``; NumPy, plain Python or JAX. With ``second_order=True``
        ``fun(t, y, v, *args)`` returns ``y''``. Or an equation such as ``probode.Implicit(fun)``.
    t_span
        ``(t0, tf)``; ``tf`` may be infinite if a terminal event, or ``until``, ends the solve. If
        neither does, it ends after 200 000 steps (or ``max_num_steps`` or ``time_limit``).
    y0
        Initial state, shape ``(n,)``; real or complex. Of second order ``[y0, v0]``: two numbers or
        vectors, or one array with values first and velocities after them. ``y``, ``y_std``, ``sol``
        and the states of events have the same order. Of an ``Implicit`` equation ``y0``, or a tuple
        of two vectors: ``y0`` and a guess of the slope.
    method
        ``"EK1"`` (all small problems, stiff or not), ``"EK0"`` (not stiff: cheap, also for many
        components), ``"SparseEK1"`` (stiff, up to a million components), ``"DiagonalEK1"``,
        ``"auto"`` (EK0 for larger problems, unless they turn out stiff), or a solver object such as
        ``probode.EK1(order=8)``. In the place of ``"EK1"``, ``SparseEK1`` is taken for more than a
        hundred components with ``jac_sparsity``, bands or a sparse ``jac``, and where a step of EK1
        would take a quarter of a second or its covariance would not fit into memory.
    t_eval
        Times at which to return the solution; by default the steps taken. Without ``dense_output``
        and ``events``, covariances of a large problem (from 256 MB on) are kept at these times
        only, see ``docs/performance.md``.
    dense_output
        Whether to return ``sol``, the solution at any time: ``sol(t)``, ``sol.std(t)``.
    events
        Functions ``event(t, y, *args)`` whose zeros are found, with the attributes ``terminal`` and
        ``direction``, as in SciPy. Long steps are searched inside. A zero at the start counts if
        ``event`` leaves it in the wanted direction. With an attribute ``reset``, a function
        ``reset(t, y, *args)`` (or ``reset(t, y)``) that returns a new state or a
        :class:`probode.Restart`, the solve goes on from there, see ``docs/hybrid.md``; if it is
        ``terminal`` as well, the solve ends at that occurrence, before its reset.
    vectorized
        Whether ``fun`` accepts several states as columns, shape ``(n, k)``.
    args
        Further arguments of ``fun``, of the events and of ``jac``.
    **options
        *Tolerances and steps, as in SciPy:* ``rtol=1e-3``, ``atol=1e-6`` (numbers or arrays),
        ``first_step``, ``min_step``, ``max_step``.

        *The Jacobian, as in SciPy:* ``jac`` (function or matrix), ``jac_sparsity``, ``lband``,
        ``uband`` (then ``jac`` may be packed in bands). If ``fun`` can be traced none is needed:
        its exact derivative is used (SparseEK1 uses ``jac``). A ``jac`` is compared with
        differences of ``fun``, during the solve too, and left out with a warning where it is wrong.

        *A tolerance on the answer:* ``global_rtol``, ``global_atol`` (numbers or arrays; then
        ``rtol`` and ``atol`` are only where to begin), met over the whole interval or, with
        ``global_at="end"``, at its end.

        *Error bars:* ``calibration="defect"`` (they have the size of the global error),
        ``"defect-fast"`` (cheaper, coarser) or ``"model"`` (those of the model, unchanged).
        ``smooth=False`` leaves out the pass backwards.

        *The method:* ``order=5`` (SparseEK1: 4; or ``"auto"``: from the tolerance and the
        stiffness), ``diffusion="dynamic"``, ``evaluations`` of ``fun`` in a step of EK0 (1 or 2;
        by default 1, and 2 where method or order are ``"auto"``), ``initialization`` ("taylor",
        "runge-kutta", "diffuse"; by default that of the solver, and "runge-kutta" for "taylor"
        where ``fun`` cannot be traced: see ``posterior.solver``), ``control`` ("PI", "P"), ``grid``
        (the times of all steps).

        *Limits:* ``max_num_steps``, ``time_limit`` (seconds, for everything: steps, smoothing,
        calibration, rounds), ``max_memory`` (bytes or e.g. ``"4 GB"``; by default half of what is
        free), ``callback`` (called a few times a second with the progress; a true answer stops),
        ``progress=False`` (``True`` shows a bar).

        *Other equations:* ``second_order=True``; ``rtol`` and ``atol`` then hold for values and
        velocities, or have numbers for all of them, and ``jac(t, y, v, *args)`` returns the pair
        ``(∂fun/∂y, ∂fun/∂v)`` or both side by side. ``mass_matrix``, for ``M y' = fun(t, y)``: a
        matrix, its diagonal, a sparse matrix, or a function ``M(t, y, *args)``. It may be singular
        (a differential-algebraic equation of index 1, for EK1); then a ``y0`` that does not fulfil
        the algebraic equations is changed in its algebraic components, see ``posterior.message``.
        ``fun`` has to be traceable.

        *Kinks and jumps:* ``breakpoints``, times at which ``fun`` or its derivatives jump
        (increasing, within ``t_span``, or inputs of :mod:`probode.inputs`, whose times outside of
        it are left out; those among ``args`` are known, and so are switches that can be read from
        ``fun``). Steps end there and the derivatives of the solution are found anew. ``jumps`` of
        ``y`` at given times, a list of pairs ``(time, map)`` with ``map(t, y, *args) -> y`` (or
        ``map(t, y)``), and ``doses``, made by :func:`probode.doses`. Error bars go through;
        ``posterior`` is then a :class:`probode.PiecewisePosterior`. See ``docs/hybrid.md``.

        *What the solution keeps to:* ``invariants`` (functions ``g(t, y, *args)`` or ``g(y)`` that
        are zero along it) and ``bounds`` (a pair ``(low, high)``, ``(0, np.inf)`` for ``y >= 0``),
        see ``docs/models.md``.

        *Long runs:* ``until="steady"`` (or :class:`probode.Steady`) solves until nothing moves any
        longer, ``until="periodic"`` (or :class:`probode.Periodic`) until the solution repeats
        itself; ``result.steady`` or ``result.periodic`` is what was found, with error bars.
        ``checkpoint``, a folder or a file ``name.npz`` (or :class:`probode.Checkpoint`), from which
        the same call goes on after a kill, to the same result bit by bit. See
        ``docs/long_runs.md``.

    Returns
    -------
    OdeResult
        SciPy's fields, and ``y_std``, ``y_cov``, ``t_events_std``, ``posterior`` (``None`` if
        ``y0`` is empty), ``path``.

    Examples
    --------
    >>> from probode import solve_ivp
    >>> result = solve_ivp(lambda t, y: [-0.5 * y[0]], [0, 1], [2.0], rtol=1e-6)
    >>> result.y.shape == result.y_std.shape
    True
    """
    chosen = Options.read(options)
    call = (fun, t_span, y0, method, t_eval, dense_output, events, vectorized, args)
    in_pieces = acts(chosen, events) and np.size(y0) > 0
    if in_pieces:
        t0, tf = (float(t) for t in t_span)
        times = None if t_eval is None else evaluation_times(t_eval, t0, tf)
        call = (fun, t_span, y0, method, times, dense_output, events, vectorized, args)
    if chosen.until is not None:
        if in_pieces:
            raise ValueError(
                "until cannot be combined with jumps, doses and events that act: leave it out."
            )
        chosen = chosen._replace(until=Pursuit(chosen.until))
    given = (chosen.max_num_steps, chosen.time_limit, chosen.callback)
    if _has_no_end(t_span) and given == (None, None, None):
        limited = options | {"max_num_steps": _WITHOUT_END}
        result = solve_ivp(*call, **limited)
        ended = result.status < 0 and result.posterior is not None
        if ended and result.posterior.status == Status.MAX_STEPS:
            result.message += (
                f" In {_WITHOUT_END} steps nothing has ended the solve, and t_span has no end: "
                "check that the terminal event can occur, or give max_num_steps or time_limit."
            )
        return result
    with opened(chosen.checkpoint) as journal:
        chosen = chosen._replace(checkpoint=journal)
        if in_pieces:
            piece = partial(solve_piece, ordered="order" in options, cuts=True)
            return solve_hybrid(piece, chosen, *call)
        return solve_piece(chosen, "order" in options, None, *call)


def _has_no_end(t_span: Any) -> bool:
    """Whether an interval ends at infinity; what is no interval is refused later, in words."""
    try:
        _, end = t_span
        return bool(np.isinf(float(end)))
    except (TypeError, ValueError):
        return False


def solve_piece(
    chosen: Options,
    ordered: bool,
    carried: Carried | None,
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    method: Any,
    t_eval: Any,
    dense_output: bool,
    events: Any,
    vectorized: bool,
    args: Any,
    cuts: bool = False,
) -> OdeResult:
    """A solve without jumps.

    ``ordered`` says whether the order is the user's; ``carried`` how uncertain the start is, if it
    is not exact; ``cuts`` whether its posterior is to end at an event that ends it. The rest are
    the arguments of :func:`solve_ivp`.
    """
    check_choice("calibration", chosen.calibration, ("model", *MODES))
    limits = Limits.read(chosen.time_limit, chosen.max_memory)
    check_limits(chosen.max_num_steps, chosen.callback)
    t0, tf = (float(t) for t in t_span)
    if np.isnan(t0) or np.isnan(tf) or np.isinf(t0):
        raise ValueError(f"t_span must be a pair of numbers, got {t_span!r}.")
    arguments = arguments_of(args)
    kind = read_method(method)
    if isinstance(method, str) and not isinstance(fun, Equation) and not chosen.second_order:
        kind = large_kind(kind, chosen, y0)
    if is_large(kind) and not ordered:
        chosen = chosen._replace(order=SparseEK1.order)
    equation = read_equation(fun, chosen, arguments, is_large(kind))
    if isinstance(equation, Implicit):
        equation, kind, chosen = read_implicit(equation, kind, chosen)
    if equation.function is None:
        raise TypeError("`fun` must be a function fun(t, y), got None.")
    fun = equation.function
    y0, guess = with_guess(y0, equation)
    start = initial_state(y0, equation)
    slope = None if guess is None else initial_state(guess, equation)
    if slope is not None and slope.shape != start.shape:
        raise ValueError(
            f"the guess of the slope must have the shape of `y0`, {start.shape}, got {slope.shape}."
        )
    times = None if t_eval is None else evaluation_times(t_eval, t0, tf)
    if start.size == 0:
        return _without_integration(t0, tf, start, times, dense_output, events, arguments)
    if t0 == tf:  # no step, whatever was said of them
        chosen = chosen._replace(grid=None, first_step=None)

    order = equation.order
    least = kind.order if isinstance(kind, Solver) else chosen.order
    least = order if isinstance(least, str) else least  # "auto": not less than that
    refuse_what_cannot_fit(least, start.size // order, limits)
    embedding = Embedding(start.size // order, np.iscomplexobj(start), order)
    box = box_of(chosen, start, embedding)
    chosen = chosen._replace(bounds=box)
    control = control_of(chosen, t0, tf, embedding)
    breakpoints = break_times(chosen.breakpoints, arguments, t0, tf, isinstance(control, PControl))
    watched = None if events is None else _prepared_events(events, arguments)
    guard = Guard(fun, t0, start)
    evaluation = Evaluation(equation, arguments, bool(vectorized), guard, box)
    solvers = solvers_for(kind, chosen, control, evaluation, t0, tf, start, order)

    def output(posterior: Posterior, limits: Limits) -> None:
        """What is made of a posterior in the end, to see how long it takes."""
        low, high = np.min(posterior.t), np.max(posterior.t)
        inside = None if times is None else times[(times >= low) & (times <= high)]
        _result(posterior, "", {}, embedding, inside, False, watched, limits)

    task = Task(
        *(fun, t0, tf, start, arguments, bool(vectorized), chosen, embedding, watched, equation),
        times=None if dense_output or watched is not None else times,
        output=output,
        limits=limits,
        slope=slope,
        breakpoints=breakpoints,
        carried=carried,
        cuts=cuts,
    )
    if t0 == tf:
        point = task.integrate(solvers, control)
        values = (t0, tf, start, times, dense_output, events, arguments)
        return _without_integration(*values, point)
    target, report = Target.read(chosen, embedding, control), None

    def solve(task: Task) -> Integrated:
        nonlocal report
        integrate = partial(task.integrate, solvers)
        if target is None:
            return integrate(control)
        done, report = reach(target, control, integrate)
        return done

    posterior, path, counts = with_notice(task, evaluation, solve)
    posterior = repeated_by(posterior, task, control, evaluation)
    if kind is not None:  # a choice of the user's
        say_if_unstable(posterior, evaluation, embedding, fun)
    result = _result(posterior, path, counts, embedding, times, dense_output, watched, limits)
    if chosen.until is not None:
        result = chosen.until.concluded(result, embedding)
    return result if report is None else report.onto(result)


def _prepared_events(functions: Any, arguments: tuple[Any, ...]) -> list[events.Event]:
    return events.prepare(functions, arguments)


def _result(
    posterior: Posterior,
    path: str,
    counts: dict[str, int],
    embedding: Embedding,
    times: np.ndarray | None,
    dense_output: bool,
    watched: list[events.Event] | None,
    limits: Limits,
) -> OdeResult:
    """SciPy's result from a posterior."""
    path_taken = posterior.path
    nodes = np.asarray(path_taken.trail.t if isinstance(path_taken, ChosenPath) else posterior.t)
    found = None
    end: Any = nodes[-1] if len(nodes) else np.nan  # none of the chosen times was reached
    if watched is not None:
        found = events.locate(watched, posterior, embedding.values, limits)
        if not found.whole:
            posterior = posterior.without("events")
    forward = not len(nodes) or nodes[-1] >= nodes[0]
    last = None if found is None else found.end
    status = 1 if posterior.status == Status.EVENT else 0 if posterior.success else -1
    if last is not None:
        status, end = 1, last.t
        nodes = np.append(nodes[nodes < end] if forward else nodes[nodes > end], end)
    t = nodes if times is None else times[times <= end] if forward else times[times >= end]
    if isinstance(path_taken, ChosenPath | SavedPath):
        t = posterior.t
    t, y, y_std = _values(posterior, embedding, t, last if times is None else None)
    return OdeResult(
        t=t,
        y=y,
        sol=Solution(posterior, embedding, nodes) if dense_output else None,
        t_events=None if found is None else found.t,
        y_events=None if found is None else found.y,
        **counts,
        status=status,
        message=" ".join(
            [
                _MESSAGES.get(status, posterior.message if status < 0 else ""),
                *(f"On the way: {note}." for note in posterior.problem.said),
            ]
        ),
        success=status >= 0,
        y_std=y_std,
        t_events_std=None if found is None else found.std,
        posterior=posterior,
        path=path,
    )


def _values(
    posterior: Posterior, embedding: Embedding, t: Any, last: events.End | None
) -> tuple[Any, Any, Any]:
    """Times, means and standard deviations; empty lists (as in SciPy) where there is no time."""
    if len(t) == 0:
        return [], [], []
    # At the steps taken the posterior is known already, ...
    known = last is not None or t is posterior.t
    mean, std = state_at(posterior, None if known else np.asarray(t, float))
    if last is not None:  # ... and so it is at the event that ended them.
        before = len(t) - 1
        mean = np.concatenate([mean[:before], last.mean[None]])
        std = np.concatenate([std[:before], last.std[None]])
    return t, embedding.values(mean).T, embedding.stds(std).T


def _without_integration(
    t0: float,
    tf: float,
    y0: np.ndarray,
    times: np.ndarray | None,
    dense_output: bool,
    functions: Any,
    arguments: tuple[Any, ...],
    point: tuple[Posterior | None, str, dict[str, int]] = (None, "none", _NO_COUNTS),
) -> OdeResult:
    """An empty system, or an interval of length zero (a posterior of one point): nothing to solve.

    As in SciPy the times are both ends of the interval.
    """
    posterior, path, counts = point
    ts = np.array([t0, tf])
    solution = Constant(y0, ts)
    t = ts if times is None else times
    watched = [] if functions is None else _prepared_events(functions, arguments)
    none = None if functions is None else [np.array([]) for _ in watched]
    return OdeResult(
        t=t,
        y=solution(t),
        sol=solution if dense_output else None,
        t_events=none,
        y_events=none,
        **counts,
        status=0,
        message=_MESSAGES[0],
        success=True,
        y_std=solution.std(t),
        y_cov=solution.cov(t),
        t_events_std=none,
        posterior=posterior,
        path=path,
    )
