"""``fit``: parameters of a differential equation from data."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probode.base.errors import check_choice
from probode.base.precision import double_precision
from probode.base.waiting import doing
from probode.engines.monitor import interruptible
from probode.filter.control import PControl, PIControl
from probode.filter.given import check_limits
from probode.filter.solvers import EK1, Solver
from probode.inference.likelihood import METHODS, calibration_for
from probode.inference.objective import Objective, Statement
from probode.inference.optimise import Optimum, drawn_starts
from probode.inference.optimise import search as climb
from probode.inference.parameters import read_starts
from probode.inference.result import Fit
from probode.inference.shooting import Shooting, begun
from probode.inference.stated import problem_at, read_statement
from probode.inference.task import Plan, read_task
from probode.inference.written import Untraceable, for_jax
from probode.model.diffusion import as_diffusion


@doing("fitting")
def fit(
    f: Callable[..., Any],
    data: Any,
    parameters: Mapping[str, Any],
    *,
    y0: Any,
    t_span: Any = None,
    noise: Any = None,
    observe: Callable[..., Any] | None = None,
    log_density: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    method: str = "fenrir",
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    calibration: str | None = None,
    diffusion: Any = None,
    starts: int | Sequence[Mapping[str, Any]] = 1,
    search: str = "direct",
    temper: Sequence[float] | None = None,
    max_iterations: int = 200,
    max_steps: int = 100_000,
    seed: int = 0,
    jac: Any = None,
) -> Fit:
    """Find the parameters of ``y' = f(t, y, p)`` for which data are the most probable.

    Maximises ``log p(data | p) + log p(p)``: the log likelihood (:func:`probode.log_likelihood`,
    which knows how wrong the solver is) and the log density of the priors, if there are any. Bounds
    are kept by a change of variables, whose Jacobian has no part in a maximum: the estimates are
    those of the parameters as you have named them.

    Parameters
    ----------
    f
        ``f(t, y, p, *args)``, written with JAX or NumPy, with ``p`` the parameters by name:
        ``p["rate"]`` or ``p.rate``. Or an equation with it, such as ``SecondOrder(f)``. Parameters
        have no values while ``f`` is traced, so neither ``if`` nor ``float()`` works on them.
    data
        :class:`Observations`, or a pair ``(t, u)`` of times and values with ``noise=`` given here.
        A list or dict of several such data sets (subjects, experiments) is fitted together:
        parameters with ``own=True`` have a value for each of them, all others are shared.
    parameters
        Names and starts: ``{"rate": 0.5}``, with bounds ``{"rate": (0.5, 0.0, 2.0)}``, or with all
        there is to say ``{"rate": Parameter(0.5, lower=0.0, prior=LogNormal(0.0, 1.0))}``. A start
        may be an array.
    y0
        The solution at ``t0``: a value, or a function of ``p``.
    t_span
        ``(t0, t1)`` or ``t0``, which may be a function of ``p``. If left out, from 0 to the last
        datum, provided that there is a datum at 0.
    noise
        Standard deviation of Gaussian data (or covariance) in all forms that :class:`Observations`
        takes, the name of a parameter, or a function of ``p``.
    observe
        What is measured: ``observe(t, y, p)``, or without ``p`` as for :class:`Observations`.
    log_density
        For data that are not Gaussian: ``log_density(u, y, p)``, or without ``p``.
    args
        What ``f`` takes after the parameters.
    method, calibration, solver, control, max_steps, jac
        As for :func:`probode.log_likelihood`.
    diffusion
        ``σ²`` of a solver with a fixed diffusion, instead of its estimate: a number, the name of a
        parameter, or a function of ``p``. With ``calibration="model"``.
    starts
        How many starts to try: yours, and others drawn from the priors (without one: between the
        bounds; without these: around yours). Or the starts themselves, a list of values by name,
        with that of ``parameters`` for what is not named; those without a solution are passed
        over. The best maximum is kept, ``Fit.starts`` has all.
    search
        ``"direct"``: to the nearest maximum of the likelihood. ``"shooting"``, for poor starts:
        the solution at every datum is an unknown as well, first near the datum and then tied to
        the equation, in stages (multiple shooting); the search then goes on from there. A direct
        search is done besides, and the better one kept. For Gaussian data.
    temper
        Diffusion tempering: values of the solver's diffusion, the largest first, such as
        ``10.0 ** np.arange(20, -1, -2)``. Each gives a likelihood that is the less certain of the
        equation the larger it is, and has fewer maxima; each search begins where the last has
        ended, and the likelihood that was asked for comes last.
    max_iterations
        Bound for each search.
    seed
        Of the starts.

    Returns
    -------
    Fit
        Estimates with standard errors, warnings, and what can be done with them. Ctrl-C ends the
        search with the best that was found so far.

    Examples
    --------
    >>> import numpy as np, probode
    >>> t = np.array([0.0, 1.0, 2.0, 3.0])
    >>> u = np.array([2.02, 0.73, 0.28, 0.09])
    >>> def f(t, y, p):
    ...     return -p.rate * y
    >>> found = probode.fit(f, (t, u), {"rate": 0.5}, y0=2.0, noise=0.02)
    >>> round(found.estimates["rate"], 2)
    1.0
    """
    check_choice("method", method, tuple(METHODS))
    check_choice("search", search, ("direct", "shooting"))
    steps = check_limits(max_steps, None)
    most = check_limits(max_iterations, None)
    if steps is None or most is None:
        raise ValueError("max_steps and max_iterations must be positive integers, got None.")
    calibration = calibration_for(method, calibration, diffusion)
    statement, names = read_statement(
        f, data, parameters, y0, t_span, noise, observe, log_density, args, jac, diffusion
    )
    given = read_starts(starts, statement.space)
    plan = Plan(method, calibration, solver.initialization, steps)
    objective = _objective(statement, plan, solver, control, diffusion)
    stages = _stages(objective, temper)
    shooting = _shooting(objective, temper) if search == "shooting" else None
    with interruptible() as pressed:
        found = []
        for start in _starts(objective, given, seed, shooting):
            found.append(_search(stages, shooting, start, pressed.is_set, most))
            if found[-1].interrupted:
                break
        best = max(found, key=lambda one: one.look.value)
        if not best.look.value > -np.inf:
            _check_start(objective, best.start)
        made = Fit(objective, best, found, names)
    if not made.success:
        warnings.warn(f"the fit has not converged: {made.message}.", RuntimeWarning, stacklevel=2)
    return made


def _objective(
    statement: Statement, plan: Plan, solver: Solver, control: PControl, diffusion: Any
) -> Objective:
    """Build the objective, with traceable copies of functions that are written with NumPy."""

    def made(statement: Statement) -> Objective:
        _check_problem(statement, solver, control, diffusion)
        known = None if diffusion is None or statement.diffusion else float(diffusion)
        return Objective(statement, plan, solver, control, known)

    try:
        return made(statement)
    except Exception as error:  # functions written with NumPy fail in any way
        try:
            written = for_jax(statement)
        except Untraceable:
            raise
        except Exception:
            raise error from None
        if written == statement:
            raise
    return made(written)


def _shooting(objective: Objective, temper: Any) -> Shooting:
    if temper is not None:
        raise ValueError(
            "search='shooting' and temper= are two ways to follow the data at first: pass one."
        )
    if objective.statement.data[0].log_density is not None or objective.statement.log_density:
        raise ValueError(
            "search='shooting' is for Gaussian data: its squares are those of residuals in units "
            "of a noise. With log_density= use starts=, or fit with a noise first."
        )
    return Shooting(objective)


def _search(
    stages: list[tuple[Objective, float | None]],
    shooting: Shooting | None,
    start: np.ndarray,
    pressed: Callable[[], bool],
    most: int,
) -> Optimum:
    """From one start to a maximum."""
    if shooting is None:
        return climb(stages, start, pressed=pressed, max_iterations=most)
    before = begun(shooting, start, pressed=pressed, max_iterations=most)
    found = climb(stages, before.z, pressed=pressed, max_iterations=most)
    iterations = before.iterations + found.iterations
    return found._replace(start=start, iterations=iterations)


def _starts(
    objective: Objective, given: int | list[np.ndarray], seed: int, shooting: Shooting | None
) -> list[np.ndarray]:
    """Where to search from; at one of them at least there is a solution.

    Data lead away from where there is none.
    """
    if isinstance(given, int):
        given = drawn_starts(objective, objective.space.start(), given, seed)
    if shooting is None and not any(objective.look(z).value > -np.inf for z in given):
        _check_start(objective, given[0])
    return given


def _check_problem(statement: Statement, solver: Solver, control: PControl, diffusion: Any) -> None:
    """Read all of it with the values of the start: what is wrong is said before any tracing."""
    values = statement.space.values(statement.space.start(), np)
    for s in range(len(statement.data)):
        problem = problem_at(statement, values, s)
        with double_precision():
            if statement.diffusion is not None:
                diffusion = statement.diffusion_at(values, s)
            read_task(**problem, solver=solver, control=control, diffusion=diffusion, frozen=True)


def _check_start(objective: Objective, z: np.ndarray) -> None:
    look = objective.look(z)
    if look.value > -np.inf:
        return
    values = objective.space.values(z, np)
    shown = ", ".join(f"{name} = {np.array2string(x, precision=4)}" for name, x in values.items())
    if not look.log_prior > -np.inf:
        raise ValueError(f"the priors give the start no probability: {shown}. Start elsewhere.")
    raise ValueError(
        f"there is no solution at the start ({shown}): the likelihood is zero. The solver failed, "
        f"or took more than max_steps = {objective.plan.max_steps} steps, before the last datum; "
        "or a datum is impossible there. Look at probode.solve with these values, and start "
        "elsewhere."
    )


def _stages(
    objective: Objective, temper: Sequence[float] | None
) -> list[tuple[Objective, float | None]]:
    """Objectives with a given diffusion, the largest first; then the one that was asked for."""
    if temper is None:
        return [(objective, None)]
    values = np.asarray(temper, float)
    if values.ndim != 1 or values.size == 0 or not np.all((values > 0) & np.isfinite(values)):
        raise ValueError(
            "temper must be a list of positive diffusions, the largest first, such as "
            f"10.0 ** np.arange(20, -1, -2), got {temper!r}."
        )
    if np.any(np.diff(values) > 0):
        raise ValueError(f"temper must go down, from the largest diffusion, got {temper!r}.")
    if objective.plan.kind != "fenrir":
        raise ValueError(
            f"temper is for method='fenrir', got method={objective.plan.kind!r}: its likelihood is "
            "the one that a large diffusion makes smooth."
        )
    solver = objective.solver
    if not solver.diffusion.fixed:
        solver = replace(solver, diffusion=as_diffusion("fixed"))
    plan = objective.plan._replace(calibration="model")
    tempered = Objective(objective.statement, plan, solver, objective.control, float(values[0]))
    return [*((tempered, float(value)) for value in values), (objective, None)]
