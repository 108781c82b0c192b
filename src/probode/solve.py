"""``solve``: the JAX-native front door."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.errors import check_choice
from probode.base.in_double import failure, in_double
from probode.base.limits import Limits, in_words
from probode.base.precision import double_precision, inside_trace, is_traced, on_host
from probode.base.waiting import doing
from probode.engines import saved_from_rows
from probode.engines.choice import engine_for, name_in_trace
from probode.engines.fallback import Fallback, may_lack_derivatives, value_at
from probode.engines.in_jax import JAX, smooth_saved, solve_saving
from probode.engines.kept import refuse_what_cannot_fit, state_bytes, working_bytes
from probode.engines.monitor import Monitor, Progress
from probode.engines.protocol import Engine, Inputs
from probode.filter import loop, saving
from probode.filter.control import Control, PControl, PIControl
from probode.filter.crossing import across_switches, stopping_at_switches
from probode.filter.given import (
    break_times,
    check_limits,
    grid_times,
    initial_values,
    save_times,
    span,
    step_control,
)
from probode.filter.restart import NO_RESTARTS, Restarts
from probode.filter.smooth import Marginals
from probode.filter.solvers import EK1, Solver, SparseEK1, for_function, with_start
from probode.filter.step import Method
from probode.global_error.beside import Beside
from probode.global_error.schemes import MODES, scheme_for
from probode.model.equation import FirstOrder, as_equation, check_equation
from probode.model.implicit import Implicit
from probode.model.invariant import Constraint, check_start, read_bounds
from probode.posterior import large
from probode.posterior.again import MODE, tightened
from probode.posterior.finish import calibrated, run_and_finish
from probode.posterior.held import constraint_for, type_of
from probode.posterior.in_trace import TraceOptions, solve_in_trace
from probode.posterior.paths import NodePath, Path, SavedPath
from probode.posterior.posterior import Posterior, Problem, Stats
from probode.programs.field import bind
from probode.programs.switches import switches


@doing("preparing the solve, or its result")
def solve(
    vector_field: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    *,
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    grid: Any = None,
    step: Any = None,
    smooth: bool = True,
    save_at: Any = None,
    max_steps: int | None = None,
    jac: Any = None,
    calibration: str = "model",
    time_limit: float | None = None,
    max_memory: float | str | None = None,
    callback: Callable[[Progress], Any] | None = None,
    invariants: Any = None,
    bounds: Any = None,
    breakpoints: Any = None,
    throw: bool = False,
    differentiate: str = "mean",
) -> Posterior:
    """Solve ``y' = f(t, y)``, ``y(t0) = y0`` (or another equation); return a posterior over ``y``.

    Parameters
    ----------
    vector_field
        ``f(t, y, *args)``, traceable by JAX; returns an array of the shape of ``y0``. Or an
        equation: ``SecondOrder(f)`` for ``y'' = f(t, y, y', *args)``, ``MassMatrix(f, M)`` for
        ``M y' = f``, ``Implicit(F)`` for ``F(t, y, y', *args) = 0``, or one of your own
        (:class:`Equation`).
    t_span
        ``(t0, t1)``; ``t1 < t0`` integrates backwards.
    y0
        Initial value: a number or an array of any shape; for an equation of order ``k`` a tuple of
        ``k`` of them, ``(y0, v0)`` for :class:`SecondOrder`. For :class:`Implicit` ``y0``, or a
        tuple ``(y0, yp0)`` with a guess of the slope.
    args
        Parameters passed on to ``vector_field``: numbers, arrays, pytrees of them.
    solver
        ``EK0(order, diffusion)``, ``EK1(...)``, ``DiagonalEK1(...)``, or for large stiff problems
        ``SparseEK1(order)`` (outside of ``jit``, ``vmap`` and ``grad``).
    control
        ``PIControl(rtol, atol)`` or ``PControl(rtol, atol)``: adaptive step sizes.
    grid
        Times of all steps, from ``t0`` to ``t1``, instead of adaptive step sizes.
    step
        A constant step size instead of adaptive ones.
    smooth
        Condition on the whole solve (smoother) or on the past only (filter; always ``SparseEK1``,
        which has no smoother).
    save_at
        Times at which to keep the solution, in the order of integration. Memory is then
        proportional to their number, not to the number of steps; ``save_at=t1`` keeps the final
        state only. With ``save_at`` or ``grid``, ``solve`` runs inside ``jit``, ``vmap``, ``grad``.
    max_steps
        Bound for the number of attempted steps.
    jac
        ``(t, y, *args) -> (d, d)`` (for ``DiagonalEK1`` also the diagonal ``(d,)``, for
        ``SparseEK1`` a sparse matrix of SciPy's), or a constant matrix; by default automatic
        differentiation. Outside a trace it is compared with the exact derivative near the start,
        which is used instead, with a warning, if they differ.
    calibration
        ``"model"``: standard deviations of the model. ``"defect"`` (default of ``solve_ivp``) or
        ``"defect-fast"``: of the size of the global error, see :meth:`Posterior.calibrate` (which
        does the same afterwards, except with ``save_at`` and inside a trace).
    time_limit
        Seconds after which to stop with what there is: steps, smoothing and calibration together
        (the steps end early enough for what has to follow). What cannot be interrupted is counted,
        and may exceed the limit: tracing and compiling at a first call, a single evaluation of
        ``f``, a single step. If smoothing or calibration were not done in time, ``message`` says
        so. No limit inside a trace.
    max_memory
        Bytes that the solve may take, or e.g. ``"4 GB"``; by default half of what is free. A solve
        that would need more ends with what it has and ``Status.MEMORY_LIMIT``.
    callback
        Called a few times a second with the progress; returning something true stops the solve.
    invariants
        ``g(t, y, *args)`` (or ``g(y)``; for :class:`SecondOrder` ``g(t, y, v, *args)``), a number
        or an array that is zero along the solution, or a list of such functions: means and samples
        are moved to where it is zero to rounding, see ``docs/models.md``.
    bounds
        ``(low, high)``, numbers or of the shape of ``y``: means and samples are put inside, and
        ``f`` is never evaluated outside. ``(0, np.inf)`` for ``y >= 0``.
    breakpoints
        Times at which ``f`` or its derivatives jump, increasing and within ``t_span``; or inputs of
        :mod:`probode.inputs`, whose times outside of it are left out (those among ``args`` are
        known). Steps end there, and the derivatives of the solution are found anew (of an implicit
        equation steps only end there), see ``docs/hybrid.md``. Inside a trace they may be traced.
    throw
        Whether to raise a ``RuntimeError`` if the solve fails, instead of returning the part that
        was solved, with a ``status``. Inside a trace the error is raised when the program runs; its
        class is JAX's, and it names the member of a batch. Without ``throw``, values that were not
        reached are NaN inside a trace, and so are losses and gradients: see ``success``.
    differentiate
        Results that have derivatives inside ``grad``, ``jvp`` and the like. ``"mean"``: means (and
        samples, as far as they move with them), by everything that the solution depends on: ``y0``,
        ``args``, ``t_span``, ``save_at``, ``breakpoints``. Steps, gains and covariances are held
        fixed, so derivatives of standard deviations, of the evidence, and by parameters of the
        solver are zero. ``"all"``: every number that is computed, at the steps taken. That costs
        several times as much, and is for problems that are not stiff: along stiff solutions
        derivatives of gains, and with them those of means, may grow by many orders of magnitude.

    Returns
    -------
    Posterior
        Also when the end was not reached, unless ``throw``: see ``status`` and ``message``.

    Examples
    --------
    >>> import probode
    >>> posterior = probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0)
    >>> bool(abs(posterior.mean[-1] - 0.36787944) < 1e-6)
    True
    """
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be EK0(...), EK1(...) or SparseEK1(...), got {solver!r}.")
    check_choice("calibration", calibration, ("model", *MODES))
    check_choice("differentiate", differentiate, ("mean", "all"))
    limits = Limits.read(time_limit, max_memory)
    whole_numbers = jnp.result_type(int)  # of the user: 32 bits, if the switch is off
    max_steps = check_limits(max_steps, callback)
    smooth = smooth and solver.smooths
    given_y0, given_jac = y0, jac
    with double_precision(), one_blas_thread():
        t0, t1 = span(t_span)
        equation, given_type = as_equation(vector_field), type_of(y0)
        asked = None
        if isinstance(solver, SparseEK1):
            (equation, asked), jac = large.read(equation, jac, args, np.shape(y0)), None
        equation = equation.suited(solver.jacobian, solver.initialization.name)
        y0, shape = initial_values(y0, equation)
        if equation.order > 1 and isinstance(args, tuple | list):
            equation.check_arguments(tuple(args))
        box = None if bounds is None else read_bounds(bounds, y0 if equation.reads == 1 else y0[0])
        if box is not None:
            assert equation.function is not None
            equation = replace(equation, function=box.around(equation.function))
            jac = box.around(jac) if callable(jac) else jac
        refuse_what_cannot_fit(solver.order, int(np.size(y0)) // equation.order, limits)
        grid = None if grid is None else grid_times(grid, t0, t1)
        times = None if save_at is None else save_times(save_at, t0, t1)
        diagonal = solver.jacobian == "diagonal"
        function, jac = equation.traced(jac)
        field = bind(function, t0, y0, args, jac, diagonal=diagonal, reads=equation.reads)
        solver = for_function(solver, field, t0, y0.reshape(-1))
        given_shape = (equation.order, *shape) if equation.order > 1 else shape
        steps = step_control(
            control, grid, step, t0, given_shape, equation, solver.prior.longest_step
        )
        # A solver of a user's own may know of equations of first order only.
        other = () if type(equation) is FirstOrder else (equation,)
        method = solver.method(field.d, *other)
        check_equation(equation, field, method.structure, method.jacobian)
        flat = y0.reshape(-1)
        implicit = isinstance(equation, Implicit)
        held = constraint_for(invariants, box, equation, t0, y0[0] if implicit else y0, args, steps)
        traced = is_traced(method, field, steps, t0, t1, flat, times, held) or inside_trace()
        if traced and times is None and grid is None:
            raise ValueError(
                "solve inside jit, vmap or grad needs an output of known size: pass save_at (the "
                "times at which you want the solution) or grid (the times of all steps)."
            )
        at_end = times is not None and (save_at is t_span[1] or _at_end_only(times, t1))
        breaks = break_times(breakpoints, args, t0, t1, isinstance(steps, PControl))
        found, restarts = None, NO_RESTARTS
        if not traced:
            found = switches(field, float(t0), float(t1)).joined(breaks, float(t0), float(t1))
        if isinstance(steps, PControl) and implicit:
            steps = stopping_at_switches(steps, field, breaks, t0, t1)
        elif isinstance(steps, PControl) and traced:
            steps = across_switches(steps, field, breaks, t0, t1, solver.initialization)
        if traced and may_lack_derivatives(field):
            field = field.guard()  # nothing can be done about it later
        if traced and differentiate == "mean":
            method = method.with_frozen_gains()
        if traced:  # an index that is not known yet looks into JAX's arrays only
            data = jax.tree.map(jnp.asarray, (field, steps, t0, t1, flat, times, grid))
            field, steps, t0, t1, flat, times, grid = data
        inputs = Inputs(method, solver.initialization, field, steps, t0, t1, flat)
        if found is not None and isinstance(steps, PControl) and not implicit:
            value_there = partial(value_at, field, flat)
            restarts = Restarts.around(found, float(t0), float(t1), value_there)
        given = Fallback(inputs, restarts)
        if asked is not None:
            large.equip(given, solver, calibration, asked, times, traced)
        state: Any = None
        if isinstance(equation, Implicit) and not traced:
            note, state, slope = equation.check_start(field, t0, flat)
            given.note(note)
        elif held is not None and not traced:
            value: Any = value_at(field, flat, float(t0))
            state, slope = flat, np.concatenate([flat[field.d :], equation.explicit(value)])
        if held is not None and not traced:
            check_start(held, t0, state, slope, given_type)
        beside = None
        if calibration != "model" and times is not None and asked is None:
            beside = Beside(scheme_for(method, False, calibration))
        wanted = "times" if times is not None else "grid" if traced else "steps"
        if at_end and beside is None and not (traced and max_steps is not None):
            wanted = "end"
        elif wanted == "times" and not (traced or smooth or beside or method.prior.per_step):
            wanted = "steps" if saved_from_rows.pays(method) else wanted
        engine = engine_for(method, steps, wanted)

        def finish(path: Path, final: loop.Solve, status: Any, limits: Limits) -> Posterior:
            known = given.inputs
            extra = loop.start_evaluations(known.initialization, steps, solver.order)
            extra *= 1 + restarts.passed(final.state.t)
            begun = with_start(solver, known.initialization)
            name = engine.name
            made = build_posterior(begun, method, shape, steps, path, final, status, extra, name)
            call = partial(
                solve,
                vector_field,
                args=args,
                solver=solver,
                smooth=smooth,
                jac=given_jac,
                calibration=MODE,
                max_memory=max_memory,
                invariants=invariants,
                bounds=bounds,
            )
            copied = jax.tree.map(np.array, given_y0)
            repeat = partial(_solved_again, call, control, float(t0), copied, np.asarray(breaks))
            problem = Problem(known.field, tuple(given.notes), found, repeat=repeat)
            made = replace(made, problem=problem)
            if asked is not None:
                return large.calibrated(made, given, calibration)
            return calibrated(made, known.field, calibration, limits)

        if traced:
            begins = solver.initialization
            options = TraceOptions(engine, begins, wanted, smooth, max_steps, beside)
            extra = loop.start_evaluations(begins, steps, solver.order)
            made = _Made(options, shape, extra, name_in_trace(engine), calibration, whole_numbers)
            given_data = solver, method, tuple(inputs[2:]), times, grid, held
            differentiated = None if engine is JAX else _made_in_jax
            return in_double(
                _made_in_trace, made, *given_data, differentiated=differentiated, throw=throw
            )[1]
        monitor = Monitor(limits, max_steps, callback, shape)
        if times is not None:
            _check_saved_memory(method, len(times), smooth, limits)
            if asked is not None:
                saved: tuple[Path, loop.Solve, Any] = large.saved_path(given, times, monitor)
            else:
                saved = _solve_saving(engine, given, times, wanted, smooth, monitor, beside)
            path, final, status = saved
            posterior = finish(path.held_to(method, held), final, status, limits)
            return _unless_failed(posterior) if throw else posterior
        monitor = monitor.bounded(method, smooth, calibration != "model")
        run = partial(engine.run, given)
        found_all = run_and_finish(run, smooth, monitor, finish, constraint=held)
        assert found_all is not None
        return _unless_failed(found_all) if throw else found_all


def _unless_failed(posterior: Posterior) -> Posterior:
    """Return the posterior; raise if the solve has failed."""
    if posterior.status < 0:
        raise RuntimeError(failure(posterior.status, posterior.message))
    return posterior


def build_posterior(
    solver: Solver,
    method: Method,
    shape: tuple[int, ...],
    control: Control,
    path: Path,
    final: loop.Solve,
    status: Any,
    extra: int,
    engine: str = "jax",
    evaluated: str = "jax",
) -> Posterior:
    """What the user holds.

    ``extra`` counts evaluations of ``f`` outside the steps; ``evaluated`` says how it is evaluated.
    """
    return Posterior(
        path=path,
        solver=solver,
        method=method,
        shape=shape,
        evidence=final.evidence,
        reference=final.reference,
        stats=_stats(method, final, extra, evaluated),
        status_code=status,
        tolerances=_tolerances(control),
        engine=engine,
    )


def _solved_again(
    call: Callable[..., Posterior],
    control: PControl,
    t0: float,
    y0: Any,
    breaks: np.ndarray,
    first: Posterior,
    part: float,
) -> Posterior:
    """The same solve with ``part`` of the tolerances, to where the first has come."""
    t = np.asarray(first.t, float)
    low, high = sorted((t0, float(t[-1])))
    if low == high:
        return first
    inside = breaks[(breaks >= low) & (breaks <= high)]
    # Smoothed means between the times asked for come from all steps.
    every = first.solver.smooths and isinstance(first.path, NodePath)
    return call(
        (t0, float(t[-1])),
        y0,
        control=tightened(control, first.solver.order, part),
        save_at=None if every else t,
        breakpoints=inside if len(inside) else None,
    )


def _tolerances(control: Control) -> tuple[Any, Any] | None:
    """``(rtol, atol)`` of an adaptive solve, outside a trace as NumPy arrays."""
    if not isinstance(control, PControl):
        return None
    pair = control.rtol, control.atol
    if all(map(on_host, pair)) or is_traced(pair) or inside_trace():
        return pair
    return np.asarray(pair[0]), np.asarray(pair[1])


def _at_end_only(times: Any, t1: Any) -> bool:
    """Whether the end of the interval, for all that is known, is the only save point."""
    return times.shape == (1,) and not is_traced(times, t1) and float(times[0]) == float(t1)


def _solve_saving(
    engine: Engine,
    given: Fallback,
    times: Array,
    wanted: str,
    smoothing: bool,
    monitor: Monitor,
    beside: Beside | None,
) -> tuple[Path, loop.Solve, Any]:
    """The same with the solution kept at given times only."""
    method = given.inputs.method
    if wanted == "end":
        solve, status, _ = engine.run(given, monitor, keep=False)
        kept = saving.saving_of_end(method, solve, smoothing)
    elif wanted == "steps":
        kept, status = saved_from_rows.solve_saving(engine, given, times, monitor)
    else:
        kept, status = solve_saving(given, times, smoothing, monitor, beside)
    final = kept.solve if on_host(kept.solve.status) else jax.tree.map(np.asarray, kept.solve)
    if smoothing and not on_host(kept.saved.t):
        marginals = smooth_saved(method, kept)
    else:  # of the end alone, the filter's marginal is the smoother's
        marginals = Marginals(kept.saved.mean, kept.saved.factor)
    reached = int(kept.count)
    saved, marginals = jax.tree.map(lambda x: np.asarray(x)[:reached], (kept.saved, marginals))
    return SavedPath(saved, marginals, kept), final, np.asarray(status.value)


class _Made(NamedTuple):
    """Properties of a posterior inside a trace that its compiled program is made for."""

    options: TraceOptions
    shape: tuple[int, ...]
    extra: int
    engine: str
    calibration: str
    whole_numbers: Any
    """Type of integers in the result: JAX's default outside of our scope of double precision."""


def _made_in_trace(
    made: _Made,
    solver: Solver,
    method: Method,
    data: tuple[Any, ...],
    times: Array | None,
    grid: Array | None,
    held: Constraint | None,
) -> tuple[Array, Posterior]:
    """Return a status, and the posterior."""
    field, control = data[:2]
    path, final, status = solve_in_trace(made.options, method, data, times, grid, held)
    begun = with_start(solver, made.options.initialization)
    posterior = build_posterior(
        begun, method, made.shape, control, path, final, status, made.extra, made.engine
    )
    posterior = calibrated(posterior, field, made.calibration, Limits())

    def typed(x: Any) -> Any:
        whole = jnp.issubdtype(jnp.result_type(x), jnp.integer)
        return jnp.asarray(x, made.whole_numbers) if whole else x

    return status, jax.tree.map(typed, posterior)


def _made_in_jax(made: _Made, *data: Any) -> tuple[Array, Posterior]:
    """Return the status and posterior by an engine that has derivatives."""
    return _made_in_trace(made._replace(options=replace(made.options, engine=JAX)), *data)


def _stats(method: Method, final: loop.Solve, extra: int, evaluated: str) -> Stats:
    attempted, accepted, f, jacobians, factorisations, again = final.counts
    if f is None:
        steps = attempted, accepted, 0 if again is None else again
        f = method.f_evaluations(*steps) + extra
        jacobians = method.jacobian_evaluations(*steps)
    assert jacobians is not None
    return Stats(
        steps=attempted,
        accepted=accepted,
        rejected=attempted - accepted,
        f_evaluations=f,
        jacobian_evaluations=jacobians,
        factorisations=0 if factorisations is None else factorisations,
        path=evaluated,
    )


def _check_saved_memory(method: Method, times: int, smoothing: bool, limits: Limits) -> None:
    """Refuse save points that do not fit: each has a state and, to smooth it, a backward kernel."""
    needed = working_bytes(method) + times * (3 if smoothing else 1) * state_bytes(method)
    if not limits.allows(needed):
        raise ValueError(
            f"{times} times in save_at take {in_words(needed)}, more than max_memory = "
            f"{in_words(limits.memory)}. Use fewer times, smooth=False (a third of it), EK0 (whose "
            "states are small), a lower order, or a larger max_memory."
        )
