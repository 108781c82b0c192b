"""``log_likelihood``: the logarithm of the probability of data, given parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.errors import check_choice
from probode.base.in_double import in_double
from probode.base.precision import double_precision, inside_trace, is_traced
from probode.filter.control import PControl, PIControl
from probode.filter.given import check_limits
from probode.filter.solvers import EK1, Solver
from probode.global_error.schemes import MODES
from probode.inference.backward import fenrir, plain
from probode.inference.forward import forward
from probode.inference.task import Plan, Task, read_task

METHODS: dict[str, Callable[[Plan, Task], tuple[Array, Array]]] = {
    "fenrir": fenrir,
    "dalton": forward,
    "filter": forward,
    "plain": plain,
}


def log_likelihood(
    vector_field: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: tuple[Any, ...] = (),
    data: Any = None,
    *,
    method: str = "fenrir",
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    calibration: str | None = None,
    diffusion: Any = None,
    grid: Any = None,
    max_steps: int = 100_000,
    jac: Any = None,
) -> Any:
    """``log p(data | parameters)`` of a model ``y' = f(t, y, *args)``, ``y(t0) = y0``.

    A sum over all data. Pure JAX: inside ``jit``, ``vmap``, ``grad`` (in either mode), whatever
    JAX's 64-bit switch says. Parameters may be anywhere: in ``args``, ``y0``, ``t_span``, the noise
    of the data, what ``observe`` closes over.

    Parameters
    ----------
    vector_field, t_span, y0, args, solver, control, jac
        As for :func:`probode.solve`. Steps end at the times of the data; the last datum is where
        the solve ends. Where ``vector_field`` switches in time, and at the times of inputs among
        ``args``, the solve starts anew; these times may be parameters.
    data
        :class:`Observations`.
    method
        How the uncertainty of the solver enters. ``"fenrir"``: the data under the solver's
        posterior (one pass back in time). ``"dalton"``: ``log p(data, equation) - log p(equation)``
        by two filters, one of which is drawn towards the data: for long intervals, chaos.
        ``"filter"``: that filter's predictions of the data. ``"plain"``: as if the solution were
        exact.
    calibration
        Of which size that uncertainty is. ``"corrected"`` (default of ``"fenrir"``): the estimated
        error is taken off the solution, and a third of its size is left as uncertainty, for what
        the estimate may be wrong by. ``"defect"`` and ``"defect-fast"``: the solution as it is,
        with an uncertainty of the size of its true error. ``"model"`` (all that ``"dalton"`` and
        ``"filter"`` have): that of the solver's diffusion model.
    diffusion
        ``σ²`` of a solver with a fixed diffusion, instead of its estimate: a number, or a parameter
        to be fitted or tempered. With ``calibration="model"``.
    grid
        Times of the steps, to which those of the data are added, instead of adaptive ones: say,
        ``posterior.t`` of a solve near the parameters. Adaptive steps change from one parameter to
        the next, and the likelihood with them, by as much as the tolerance; on a grid it is smooth.
        Calibrated uncertainty says what that costs in accuracy.
    max_steps
        Attempted steps after which to give up.

    Returns
    -------
    float
        ``-inf`` where there is no solution (the solve failed, or took more than ``max_steps``);
        derivatives are zero there, never NaN.

    Notes
    -----
    Derivatives with ``calibration="model"`` are those of the number that is returned, steps held
    fixed. With ``"plain"`` and all other calibrations they are those of the solution: the filter
    applied to the sensitivities, the size of its uncertainty held fixed.

    Examples
    --------
    >>> import jax, numpy as np, probode
    >>> data = probode.Observations([1.0, 2.0], [0.4, 0.1], noise=0.05)
    >>> def f(t, y, rate):
    ...     return -rate * y
    >>> def loss(rate):
    ...     return -probode.log_likelihood(f, (0.0, 2.0), 1.0, (rate,), data)
    >>> bool(jax.grad(loss)(0.5) < 0.0 < jax.grad(loss)(2.0))
    True
    """
    check_choice("method", method, tuple(METHODS))
    calibration = calibration_for(method, calibration, diffusion)
    steps = check_limits(max_steps, None)
    if steps is None:
        raise ValueError("max_steps must be a positive integer, got None.")
    frozen = method == "plain" or calibration != "model"
    wanted = jnp.result_type(float)  # of the user: single precision, if the switch is off
    with double_precision(), one_blas_thread():
        task = read_task(
            vector_field, t_span, y0, args, data, solver, control, jac, diffusion, frozen, grid
        )
        plan = Plan(method, calibration, solver.initialization, steps)
        return evaluate(plan, task, wanted)


def calibration_for(method: str, calibration: str | None, diffusion: Any) -> str:
    """The size of the uncertainty that is meant; raises where there is no such thing."""
    if calibration is None:
        return "model" if method != "fenrir" or diffusion is not None else "corrected"
    check_choice("calibration", calibration, ("model", "corrected", *MODES))
    if calibration != "model" and method != "fenrir":
        raise ValueError(
            f"calibration={calibration!r} is for method='fenrir': {method!r} "
            + (
                "has no uncertainty of the solver."
                if method == "plain"
                else "needs the noise of the model while it goes along; use calibration='model'."
            )
        )
    if calibration != "model" and diffusion is not None:
        raise ValueError(
            f"diffusion= is the size of the model's uncertainty, calibration={calibration!r} "
            "replaces that: pass one of them."
        )
    return calibration


def evaluate(plan: Plan, task: Task, wanted: Any) -> Any:
    """The log likelihood; inside a trace with the number type that is ``wanted``."""
    leaves, tree = jax.tree.flatten(task)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    if not (is_traced(leaves) or inside_trace()):
        return np.asarray(_value(plan, tree, *leaves))

    static = plan, tree, wanted
    return in_double(_values, static, leaves, differentiated=_with_slopes)


def _values(static: tuple[Plan, Any, Any], leaves: Sequence[Array]) -> Array:
    """Return the log likelihood in the user's type."""
    plan, tree, wanted = static
    return _inline(plan, tree, leaves).astype(wanted)


def _with_slopes(static: tuple[Plan, Any, Any], leaves: Sequence[Array]) -> Array:
    """Return the log likelihood, with its derivatives."""
    plan, tree, wanted = static

    @jax.custom_jvp
    def value(*leaves: Array) -> Array:
        return _values(static, leaves)

    def rule(primals: Any, tangents: Any) -> tuple[Array, Array]:
        moving = tuple(i for i, x in enumerate(tangents) if not isinstance(x, SymbolicZero))
        found, slopes = _slopes(plan, tree, moving, *primals)
        parts = [
            jnp.sum(slope * tangents[i].astype(float))
            for i, slope in zip(moving, slopes, strict=True)
        ]
        return found.astype(wanted), sum(parts, jnp.zeros(())).astype(wanted)

    value.defjvp(rule, symbolic_zeros=True)
    found: Array = value(*leaves)
    return found


def _inline(plan: Plan, tree: Any, leaves: Sequence[Array]) -> Array:
    """The value; ``-inf`` where there is no solution."""
    total, succeeded = METHODS[plan.kind](plan, jax.tree.unflatten(tree, leaves))
    return jnp.where(succeeded & (total < jnp.inf), total, -jnp.inf)


_value = compiled(0, 1)(lambda plan, tree, *leaves: _inline(plan, tree, leaves))


def _slopes(plan: Plan, tree: Any, moving: tuple[int, ...], *leaves: Array) -> Any:
    """The value and its derivatives by some of the leaves, in forward mode.

    A pass forward in time for all of them together: no bound on the steps, nothing to keep, and
    nothing left to do afterwards, outside of double precision.
    """
    sizes = [leaves[i].size for i in moving]
    splits = np.cumsum(sizes)[:-1]

    def at(*values: Array) -> Array:
        full = list(leaves)
        for i, one in zip(moving, values, strict=True):
            full[i] = one
        return _inline(plan, tree, full)

    given = [leaves[i] for i in moving]

    def along(direction: Array) -> tuple[Array, Array]:
        parts = jnp.split(direction, splits)
        shaped = [p.reshape(x.shape).astype(x.dtype) for p, x in zip(parts, given, strict=True)]
        return jax.jvp(at, tuple(given), tuple(shaped))

    value, slopes = jax.vmap(along, out_axes=(None, 0))(jnp.eye(sum(sizes)))
    slopes = jnp.where(jnp.isfinite(value) & jnp.isfinite(slopes), slopes, 0.0)
    parts = jnp.split(slopes, splits)
    return value, [p.reshape(x.shape) for p, x in zip(parts, given, strict=True)]
