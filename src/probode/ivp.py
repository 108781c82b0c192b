"""``solve_ivp``: SciPy's contract, and the posterior."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from probode import engine, events, host, loop
from probode.calibration.host import HostProblem
from probode.calibration.schemes import MODES
from probode.calibration.target import Integrated, Target, reach
from probode.chosen import ChosenPath
from probode.control import Control, GridSteps, PControl, PIControl
from probode.engine import Monitor, one_blas_thread
from probode.errors import check_choice
from probode.fallback import Fallback, Inputs, guarded_on_host
from probode.finish import calibrated, run_and_finish
from probode.ivp_function import Traced, UserFunction, host_problem
from probode.ivp_method import (
    METHODS,
    read_method,
    say_if_costly,
    say_if_unstable,
    single_state,
    solvers_for,
)
from probode.ivp_options import Options, read_tolerances
from probode.ivp_result import Constant, Embedding, OdeResult, Solution
from probode.limits import Limits
from probode.paths import NodePath, Path
from probode.posterior import Posterior, Problem
from probode.precision import double_precision
from probode.progress import with_progress
from probode.solve import build_posterior, check_limits
from probode.solvers import Solver
from probode.status import Status
from probode.switches import NONE, stops_before, switches

__all__ = ["CONTROLS", "METHODS", "solve_ivp"]

CONTROLS: dict[str, type[PControl]] = {"PI": PIControl, "P": PControl}

_MOST_REPEATS = 3
"""Solves again where the steps missed something that a look between them saw."""

_MESSAGES = {0: Status.SUCCESS.message, 1: Status.EVENT.message}


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

    Same call, same result fields. Plain NumPy functions are compiled where they can be traced;
    where not, the solver is driven from Python.

    Parameters
    ----------
    fun
        ``fun(t, y, *args)``; NumPy, plain Python or JAX.
    t_span
        ``(t0, tf)``; ``tf`` may be infinite if a terminal event ends the integration.
    y0
        Initial state, shape ``(n,)``; real or complex.
    method
        ``"EK1"`` (for stiff problems too), ``"EK0"`` (cheap, non-stiff, large), ``"DiagonalEK1"``,
        ``"auto"`` (EK0 for larger problems, unless they turn out stiff), or a solver object such as
        ``probode.EK1(order=8)``.
    t_eval
        Times at which to return the solution; by default the steps taken. Without ``dense_output``
        and ``events``, covariances of a large problem (from 256 MB on) are kept at these times
        only, see ``docs/performance.md``.
    dense_output
        Whether to return ``sol``, a continuous solution.
    events
        Functions ``event(t, y, *args)`` whose zeros are wanted, with the attributes ``terminal``
        and ``direction``, as in SciPy. Steps are searched inside, whatever their length. A zero at
        the start counts if ``event`` leaves it in the wanted direction.
    vectorized
        Whether ``fun`` accepts several states as columns, shape ``(n, k)``.
    args
        Further arguments of ``fun``, of the events and of ``jac``.
    **options
        SciPy's: ``rtol=1e-3``, ``atol=1e-6`` (numbers or arrays), ``first_step``, ``min_step``,
        ``max_step``, ``jac`` (function or matrix, compared with ``fun`` at the start; where ``fun``
        can be traced and ``jac`` cannot, the exact derivative takes its place), ``jac_sparsity``,
        ``lband``, ``uband`` (then ``jac`` may be packed in bands).
        Ours: ``max_num_steps``, ``order=5`` (or ``"auto"``: from the tolerance and the
        stiffness), ``diffusion="dynamic"``, ``evaluations`` (of ``fun`` in a step of
        EK0, 1 or 2; by default 1, and 2 where method or order are ``"auto"``),
        ``smooth=True``, ``grid``, ``control`` ("PI", "P"), ``initialization``, ``progress=False``,
        ``time_limit`` (seconds, for everything: steps, smoothing, calibration, rounds),
        ``max_memory`` (bytes or e.g. ``"4 GB"``; by default half of what is free), ``callback``
        (called a few times a second with the progress; a true answer stops).
        Error bars: ``calibration="defect"`` (of the size of the global error),
        ``"defect-fast"`` (cheaper, coarser) or ``"model"`` (the posterior of the model as it is).
        A tolerance on the answer: ``global_rtol``, ``global_atol`` (numbers or arrays; then
        ``rtol`` and ``atol`` are only where to begin), met over the whole interval or, with
        ``global_at="end"``, at its end.

    Returns
    -------
    OdeResult
        SciPy's fields, and ``y_std``, ``y_cov``, ``t_events_std``, ``posterior``, ``path``.

    Examples
    --------
    >>> from probode import solve_ivp
    >>> result = solve_ivp(lambda t, y: [-0.5 * y[0]], [0, 1], [2.0], rtol=1e-6)
    >>> result.y.shape == result.y_std.shape
    True
    """
    chosen = Options.read(options)
    check_choice("calibration", chosen.calibration, ("model", *MODES))
    limits = Limits.read(chosen.time_limit, chosen.max_memory)
    check_limits(chosen.max_num_steps, chosen.callback)
    t0, tf = (float(t) for t in t_span)
    if np.isnan(t0) or np.isnan(tf) or np.isinf(t0):
        raise ValueError(f"t_span must be a pair of numbers, got {t_span!r}.")
    start = _initial_state(y0)
    arguments = _arguments(args)
    times = None if t_eval is None else _evaluation_times(t_eval, t0, tf)
    kind = read_method(method)
    if start.size == 0 or t0 == tf:
        return _without_integration(fun, t0, tf, start, times, dense_output, events, arguments)

    embedding = Embedding(start.size, np.iscomplexobj(start))
    control = _control(chosen, t0, tf, embedding)
    watched = None if events is None else _prepared_events(events, arguments)
    plain = single_state(fun, arguments, bool(vectorized))
    solvers = solvers_for(kind, chosen, control, plain, t0, tf, start)

    def output(posterior: Posterior, limits: Limits) -> None:
        """What is made of a posterior in the end, to see how long it takes."""
        low, high = np.min(posterior.t), np.max(posterior.t)
        inside = None if times is None else times[(times >= low) & (times <= high)]
        _result(posterior, "", {}, embedding, inside, False, watched, limits)

    def integrate(control: Control) -> Integrated:
        for solver, budget in solvers:
            solve = partial(
                _integrate,
                *(fun, t0, tf, start, arguments, bool(vectorized)),
                *(solver, control, chosen, embedding, watched),
                # Where nothing else is needed of the path than its values at these times.
                times=None if dense_output or watched is not None else times,
                output=output,
                limits=limits,
                budget=budget,
            )
            began = limits.elapsed
            done = solve()
            if done is None:
                continue
            in_time = limits.left > limits.elapsed - began  # another solve takes as long again
            return _again_where_something_was_missed(done, solve) if in_time else done
        raise AssertionError("the last solver has no budget")

    target, report = Target.read(chosen, embedding, control), None
    if target is None:
        posterior, path, counts = integrate(control)
    else:
        (posterior, path, counts), report = reach(target, control, integrate)
    if kind is not None:  # a choice of the user's
        say_if_unstable(posterior, plain, embedding, fun)
    result = _result(posterior, path, counts, embedding, times, dense_output, watched, limits)
    return result if report is None else report.onto(result)


def _initial_state(y0: Any) -> np.ndarray:
    y = np.asarray(y0)
    if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
        raise ValueError(f"`y0` must be made of numbers, got an array of {y.dtype}.")
    y = y.astype(complex if np.iscomplexobj(y) else float)
    if y.ndim != 1:
        raise ValueError(f"`y0` must be 1-dimensional, got shape {y.shape}.")
    if not np.all(np.isfinite(y)):
        raise ValueError("All components of the initial state `y0` must be finite.")
    return y


def _arguments(args: Any) -> tuple[Any, ...]:
    if args is None:
        return ()
    try:
        return tuple(args)
    except TypeError:
        raise TypeError(
            f"Supplied 'args' cannot be unpacked. Pass a tuple, e.g. `args=({args},)`."
        ) from None


def _evaluation_times(t_eval: Any, t0: float, tf: float) -> np.ndarray:
    times = np.asarray(t_eval)
    if times.ndim != 1:
        raise ValueError(f"`t_eval` must be 1-dimensional, got shape {times.shape}.")
    if np.any(times < min(t0, tf)) or np.any(times > max(t0, tf)):
        raise ValueError(f"Values in `t_eval` are not within `t_span` [{t0:g}, {tf:g}].")
    steps = np.diff(times)
    if (tf > t0 and np.any(steps <= 0)) or (tf < t0 and np.any(steps >= 0)):
        raise ValueError("Values in `t_eval` are not sorted in the direction of integration.")
    return times


def _control(options: Options, t0: float, tf: float, embedding: Embedding) -> Control:
    """Step size control on the real form of the state."""
    if options.max_step <= 0:
        raise ValueError(f"`max_step` must be positive, got {options.max_step!r}.")
    if options.first_step is not None:
        if options.first_step <= 0:
            raise ValueError(f"`first_step` must be positive, got {options.first_step!r}.")
        if options.first_step > abs(tf - t0):
            raise ValueError(f"`first_step` exceeds bounds: {options.first_step!r} > |tf - t0|.")
    if options.grid is not None:
        with double_precision():
            return GridSteps(jnp.asarray(_grid(options.grid, t0, tf)))
    rtol, atol = read_tolerances(options.rtol, options.atol, embedding)
    kind = options.control
    if isinstance(kind, PControl):
        return kind
    if isinstance(kind, str):
        check_choice("control", kind, tuple(CONTROLS))
        kind = CONTROLS[kind]
    return kind(
        rtol,
        atol,
        first_step=options.first_step,
        min_step=options.min_step,
        max_step=options.max_step,
    )


def _grid(grid: Any, t0: float, tf: float) -> np.ndarray:
    times = np.asarray(grid, float)
    steps = np.diff(times)
    if times.ndim != 1 or times.size < 2 or times[0] != t0 or times[-1] != tf:
        raise ValueError(f"`grid` must be a vector of times from {t0:g} to {tf:g}.")
    if np.any(steps * np.sign(tf - t0) <= 0):
        raise ValueError("`grid` must be strictly monotone from t0 to tf.")
    return times


def _prepared_events(functions: Any, arguments: tuple[Any, ...]) -> list[events.Event]:
    return events.prepare(functions, arguments)


def _integrate(
    fun: Callable[..., Any],
    t0: float,
    tf: float,
    start: np.ndarray,
    arguments: tuple[Any, ...],
    vectorized: bool,
    solver: Solver,
    control: Control,
    options: Options,
    embedding: Embedding,
    watched: list[events.Event] | None,
    times: np.ndarray | None,
    output: Callable[[Posterior, Limits], None],
    limits: Limits,
    budget: int | None,
    suspects: np.ndarray = NONE,
) -> Integrated | None:
    """Run the solve on the real form of the state, compiled where the function can be traced.

    With ``times``, and where the covariances of all steps would take much memory, the posterior is
    kept there only. ``None`` if it has taken ``budget`` steps and is not done. Steps end where the
    function switches, and at the times ``suspects``.
    """
    bounds = [bound for bound in (options.max_num_steps, budget) if bound is not None]
    user = UserFunction(fun, arguments, vectorized, options, solver, embedding)
    y0 = embedding.flatten(start)
    with (
        with_progress(options.progress, t0, tf, options.callback) as callback,
        double_precision(),
        one_blas_thread(),
    ):
        if isinstance(control, PControl):
            control = control.flat(y0.shape)
        method = solver.method(y0.size)
        say_if_costly(solver, method)
        bound = min(bounds, default=None)
        calibrating = options.calibration != "model"

        def attempt(traced: Traced | None) -> Posterior | None:
            watch = None
            if watched is not None and any(np.isfinite(event.terminal) for event in watched):
                watch = events.Watch(watched, embedding.values)
            monitor = Monitor(limits, bound, callback, y0.shape, watch)
            sparse = times is not None and traced is not None
            monitor = monitor.bounded(method, options.smooth, calibrating, sparse)
            found = None if traced is None else switches(traced.field, t0, tf)
            steps = control
            if isinstance(steps, PControl):
                stops = suspects if found is None else np.concatenate([found.times, suspects])
                steps = steps.with_stops(stops_before(stops, t0, tf), tf)
            run: Callable[[Monitor], Any]
            problem: Callable[[], Problem]
            asked = solver
            if traced is not None:
                if options.initialization is not None:
                    asked = dataclasses.replace(solver, initialization=options.initialization)
                begin, path = asked.initialization, traced.path
                given = Fallback(Inputs(method, begin, traced.field, steps, t0, tf, y0))
                run = partial(engine.solve_all, given)

                def problem() -> Problem:
                    return Problem(given.inputs.field, tuple(given.notes), found)

                def extra() -> int:
                    return loop.start_evaluations(given.inputs.initialization, steps, solver.order)
            else:
                said: list[str] = []
                hosted, path = user.on_host(y0.size), "python"
                hosted = hosted._replace(jacobian=guarded_on_host(hosted.jacobian, said))
                run, begun = host.steps_on_host(method, hosted, steps, t0, tf, y0)

                def problem() -> Problem:
                    again = partial(host_problem, user, y0.size)
                    return Problem(HostProblem(*hosted), tuple(said), again=again)

                def extra() -> int:
                    return begun

            def finish(nodes: Path, final: loop.Solve, status: Any, limits: Limits) -> Posterior:
                made = build_posterior(
                    asked, method, y0.shape, steps, nodes, final, status, extra(), path
                )
                known = problem()
                made = dataclasses.replace(made, problem=known, is_complex=embedding.is_complex)
                return calibrated(made, known.field, options.calibration, limits)

            return run_and_finish(
                run, method, options.smooth, monitor, finish, output, times, budget
            )

        traced = user.traced(t0, tf, y0)
        posterior = attempt(traced)
        if (
            posterior is not None
            and traced is not None
            and not user.still_holds(traced, *_steps_of(posterior.path))
        ):
            posterior = attempt(None)
        if posterior is None:
            return None
    stats = posterior.stats
    counts = {
        "nfev": int(stats.f_evaluations) + int(stats.calibration_f_evaluations),
        "njev": int(stats.jacobian_evaluations) + int(stats.calibration_jacobian_evaluations),
        "nlu": 0,
    }
    return posterior, str(stats.path), counts


def _steps_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Times and means (with their derivatives) of the steps that a solve took."""
    rows: Any = path.trail if isinstance(path, ChosenPath) else cast(NodePath, path).rows
    return np.asarray(rows.t), np.asarray(rows.mean)


def _again_where_something_was_missed(
    done: Integrated, solve: Callable[..., Integrated | None]
) -> Integrated:
    """Solve again with steps that end where a look between the steps saw more than they did."""
    suspects, cost = NONE, dict.fromkeys(done[2], 0)
    for _ in range(_MOST_REPEATS):
        look = done[0].problem.look
        if look is None or not look.seen or done[0].status != Status.SUCCESS:
            break
        suspects = np.union1d(suspects, look.suspects)
        again = solve(suspects=suspects)
        if again is None:
            break
        cost = {name: cost[name] + done[2][name] for name in cost}
        done = again
    posterior, path, counts = done
    return posterior, path, {name: cost[name] + counts[name] for name in counts}


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
    end = nodes[-1]
    if watched is not None:
        found = events.locate(watched, posterior, embedding.values, limits)
        if not found.whole:
            posterior = posterior.without("events")
    forward = nodes[-1] >= nodes[0]
    last = None if found is None else found.end
    status = 1 if posterior.status == Status.EVENT else 0 if posterior.success else -1
    if last is not None:
        status, end = 1, last.t
        nodes = np.append(nodes[nodes < end] if forward else nodes[nodes > end], end)
    t = nodes if times is None else times[times <= end] if forward else times[times >= end]
    if isinstance(path_taken, ChosenPath):
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
        message=_MESSAGES.get(status, posterior.message if status < 0 else ""),
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
    at = posterior.marginals if known else posterior(np.asarray(t, float))
    mean, std = np.asarray(at.mean), np.asarray(at.std)
    if last is not None:  # ... and so it is at the event that ended them.
        before = len(t) - 1
        mean = np.concatenate([mean[:before], last.mean[None]])
        std = np.concatenate([std[:before], last.std[None]])
    return t, embedding.values(mean).T, embedding.stds(std).T


def _without_integration(
    fun: Callable[..., Any],
    t0: float,
    tf: float,
    y0: np.ndarray,
    times: np.ndarray | None,
    dense_output: bool,
    functions: Any,
    arguments: tuple[Any, ...],
) -> OdeResult:
    """An empty system, or an interval of length zero: nothing to solve."""
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
        nfev=0,
        njev=0,
        nlu=0,
        status=0,
        message=_MESSAGES[0],
        success=True,
        y_std=solution.std(t),
        y_cov=solution.cov(t),
        t_events_std=none,
        posterior=None,
        path="none",
    )
