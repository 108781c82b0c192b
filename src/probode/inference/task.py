"""What a likelihood is computed from: a model, where its solution begins, and data."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.precision import is_traced
from probode.base.record import record
from probode.base.status import Status
from probode.filter.control import Control, GridSteps, PControl
from probode.filter.crossing import Crossings, across_switches, also_stopping_at, snapped
from probode.filter.given import break_times, initial_values, span, step_control
from probode.filter.loop import begin
from probode.filter.saving import Beside, Saving, begin_saving, run_saving
from probode.filter.solvers import Solver, for_function
from probode.filter.start import Initialization
from probode.filter.step import Method
from probode.model.equation import FirstOrder, as_equation, check_equation
from probode.model.implicit import Implicit
from probode.model.observations import Data, Observations
from probode.programs.field import Field, bind

_LEAST_STEP = 1e-6
"""Of the interval: points of a grid that are nearer to a datum are left out."""


@record
class Task:
    """The numbers of a problem and its data; all of it may be traced."""

    method: Method
    field: Field
    control: Control
    """Its steps end at the times of the data."""
    t0: Array
    y0: Array
    data: Data
    times: Array
    """Times at which the solution is needed: those of the data; at a switch, right before it."""
    inside: Array
    """Whether all data are in the interval."""
    diffusion: Array | None
    """``σ²``, if it is given."""

    @property
    def end(self) -> Array:
        """Where the solve ends: what comes after the last datum says nothing about it."""
        return self.times[-1]


class Plan(NamedTuple):
    """What is computed of a task: part of the program."""

    kind: str
    calibration: str
    initialization: Initialization
    max_steps: int

    @property
    def transport(self) -> str:
        """How errors are estimated, where they are."""
        return "defect" if self.calibration == "corrected" else self.calibration


def read_task(
    vector_field: Any,
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...],
    data: Any,
    solver: Solver,
    control: Any,
    jac: Any,
    diffusion: Any,
    frozen: bool,
    grid: Any = None,
) -> Task:
    """Check what users give, trace their functions."""
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be EK0(...), EK1(...) or DiagonalEK1(...), got {solver!r}.")
    if not solver.smooths:
        raise ValueError(
            f"{solver.name} has no likelihood: it runs outside of jit, vmap and grad. Use EK0 or "
            "EK1."
        )
    if not isinstance(data, Observations):
        raise TypeError(f"data must be Observations(t, u, noise), got {type(data).__name__}.")
    if not isinstance(control, PControl):
        raise TypeError(
            f"control must be PIControl(rtol, atol) or PControl(rtol, atol), got {control!r}. For "
            "steps of at most one length h: PIControl(1e3, 1e3, first_step=h, max_step=h)."
        )
    t0, t1 = span(t_span)
    equation = as_equation(vector_field).suited(solver.jacobian, solver.initialization.name)
    if isinstance(equation, Implicit):
        raise TypeError(
            f"likelihoods of {type(equation).__name__} are not there yet: write the equation as "
            "y' = f(t, y) where its algebraic part can be solved for, or fit the means of solve."
        )
    values, shape = initial_values(y0, equation)
    function, jac = equation.traced(jac)
    field = bind(
        function,
        t0,
        values,
        args,
        jac,
        diagonal=solver.jacobian == "diagonal",
        reads=equation.reads,
    )
    if for_function(solver, field, t0, values.reshape(-1)) is not solver:
        raise ValueError(
            "vector_field calls jax.pure_callback, which JAX cannot differentiate, and the Taylor "
            "start needs derivatives: pass solver=EK0(order, initialization='runge-kutta')."
        )
    given_shape = (equation.order, *shape) if equation.order > 1 else shape
    steps = step_control(control, None, None, t0, given_shape, equation, solver.prior.longest_step)
    other = () if type(equation) is FirstOrder else (equation,)
    method = solver.method(field.d, *other)
    check_equation(equation, field, method.structure, method.jacobian)
    method = method.with_frozen_gains() if frozen else method
    backwards = not is_traced(t0, t1) and float(t1) < float(t0)
    bound = data.bound(t0, tuple(values) if equation.order > 1 else values, backwards)
    _check_interval(data, t0, t1)
    xp: Any = jnp if is_traced(t0, t1, data.t) else np
    inside = (data.t >= xp.minimum(t0, t1)) & (data.t <= xp.maximum(t0, t1))
    known = break_times(None, args, t0, t1, True)
    assert isinstance(steps, PControl)
    ends: Any = across_switches(steps, field, known, t0, bound.t[-1], solver.initialization)
    wanted = snapped(bound.t, ends)
    ends = also_stopping_at(ends, wanted, t0, t1)
    if grid is not None:
        nodes = _read_grid(grid, wanted, t0, backwards, ends.crossings)
        ends = GridSteps(nodes, ends.crossings)
    if diffusion is not None:
        diffusion = _read_diffusion(diffusion, method)
    return Task(
        method,
        field,
        ends,
        jnp.asarray(t0, float),
        jnp.asarray(values, float).reshape(-1),
        bound,
        jnp.asarray(wanted),
        jnp.asarray(xp.all(inside)),
        diffusion,
    )


def _read_grid(
    grid: Any, times: Any, t0: Any, backwards: bool, crossings: Crossings | None
) -> Array:
    """Times of all steps: those given, the start, the data, across switches; to the last datum."""
    if crossings is not None and is_traced(crossings):
        raise ValueError(
            "with grid, the times at which the vector field switches must be known when the "
            "likelihood is traced, but they depend on parameters here: leave grid out."
        )
    if is_traced(grid, times, t0):
        raise ValueError(
            "grid needs times that are known when the likelihood is traced: those of the data, t0 "
            "and grid itself must not be parameters."
        )
    given = np.asarray(grid, float).reshape(-1)
    if not np.all(np.isfinite(given)):
        raise ValueError("grid must be finite: there are times that are not.")
    needed = np.unique(np.append(np.asarray(times, float), float(t0)))
    low, high = needed[0], needed[-1]
    if crossings is not None:
        ends = np.append(crossings.before, crossings.after)
        ends = ends[np.isfinite(np.tile(crossings.before, 2)) & (ends > low) & (ends < high)]
        needed = np.union1d(needed, ends)
    inside = given[(given > low) & (given < high)]
    # A step as short as the distance of a datum from a point of the grid helps nobody.
    near = np.abs(inside[:, None] - needed).min(axis=1, initial=np.inf)
    apart = _LEAST_STEP * (high - low)
    nodes = np.unique(np.concatenate([needed, inside[near > apart]]))
    return jnp.asarray(nodes[::-1] if backwards else nodes)


def _check_interval(data: Observations, t0: Any, t1: Any) -> None:
    if is_traced(data.t, t0, t1):
        return
    low, high = min(float(t0), float(t1)), max(float(t0), float(t1))
    shown = data.outside(low, high)
    if shown:
        raise ValueError(
            f"data lie outside of the interval ({float(t0):g}, {float(t1):g}): at {shown}. The "
            "solution begins at t0, so there can be no data before it; make t_span larger, or "
            "leave these data out."
        )


def _read_diffusion(diffusion: Any, method: Method) -> Array:
    if not method.diffusion.fixed:
        raise ValueError(
            f"diffusion= is for solvers with a fixed diffusion, got {method.diffusion.name!r}: a "
            "dynamic one is estimated in every step. Use EK1(order, 'fixed'), EK0(order, 'fixed')."
        )
    value = jnp.asarray(diffusion, float)
    expected = ((), (method.structure.d,)) if method.diffusion.multivariate else ((),)
    if value.shape not in expected:
        raise ValueError(
            f"diffusion must be one number{' or one per component' * (len(expected) - 1)}, got the "
            f"shape {value.shape}."
        )
    if not is_traced(value) and not np.all(np.isfinite(value) & (np.asarray(value) > 0)):
        raise ValueError(f"diffusion must be positive and finite (it is σ²), got {diffusion!r}.")
    return value


def solved(plan: Plan, task: Task, smooth: bool, beside: Beside | None = None) -> Saving:
    """The filter from the start to the last datum, its state (and kernels) kept at the data."""
    end = task.end
    solve = begin(task.method, plan.initialization, task.field, task.control, task.t0, end, task.y0)
    kept = begin_saving(task.method, solve, task.times.shape[0], smooth, beside)
    return run_saving(task.method, task.field, task.control, kept, end, task.times, plan.max_steps)


def succeeded(task: Task, kept: Saving) -> Array:
    """Whether the solve has reached all data."""
    reached = (kept.count == task.data.t.shape[0]) & task.inside
    return reached & (kept.solve.status == Status.SUCCESS.value)


def spread_of(task: Task, solve: Any) -> Array:
    """Factor of the model's standard deviations: of a fixed diffusion the square root of ``σ²``.

    One number, or one per component.
    """
    method = task.method
    if task.diffusion is not None:
        return jnp.sqrt(task.diffusion) * method.prior.unit_noise(solve.reference)
    return jnp.sqrt(method.constant(method.diffusion.calibration(solve.evidence)))
