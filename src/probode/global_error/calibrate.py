"""Calibrating the nodes of a solve: transport, scales, signs."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.limits import Limits
from probode.base.precision import on_host
from probode.filter.step import Method
from probode.global_error import in_jax, in_python, native, scales
from probode.global_error.between import evaluator
from probode.global_error.closer import IN_PYTHON, Care, look_closer, no_smaller
from probode.global_error.diagnosis import Looked, Tally
from probode.global_error.implicit import ImplicitNewton
from probode.global_error.in_python import HostProblem
from probode.global_error.result import Calibration
from probode.global_error.schemes import Scheme, scheme_for
from probode.global_error.transport import Transported
from probode.model.equation import Equation
from probode.programs.kinks import kinked


def calibrate_nodes(
    method: Method,
    problem: Any,
    t: Any,
    means: Any,
    std: Any,
    *,
    smoothed: bool,
    mode: str,
    limits: Limits,
    begins: Any = None,
) -> tuple[Calibration, bool]:
    """Estimate the error of ``means`` ``(N, q+1, d)`` at times ``t``, and scale ``std``.

    For an equation of order ``k`` they are those of ``u = (y, ..., y^(k-1))``: ``std`` is
    ``(N, k d)``. Also whether that was done in time for all steps. ``begins`` is the error of the
    first, if it has one: with ``e₀`` it, ``e - e₀`` is the error of ``P - e₀``, and zero there.
    """
    has_jacobian = not isinstance(problem, HostProblem) or problem.jacobian is not None
    scheme, equation = scheme_for(method, smoothed, mode, has_jacobian), method.equation
    may_bend = isinstance(problem, HostProblem) or kinked(problem)
    means, problem = equation.stacked(means), as_system(equation, problem)
    given = means
    if begins is not None:
        means = np.concatenate([means[:, :1] - begins, means[:, 1:]], axis=1)

    def finished(moved: Transported) -> Calibration:
        if begins is not None:
            moved = moved._replace(error=moved.error + begins, stages=moved.stages + begins)
        return assemble(scheme, mode, t, given, std, moved, equation.order, begins)

    def deviations(moved: Transported) -> np.ndarray:
        known = finished(moved).scales
        return no_smaller(np.hypot(std * known.ratio, known.own)[1:], given[:, 0])

    moved = _transport(scheme, problem, t, means, limits)
    finite = not on_host(t) or bool(np.all(np.isfinite(moved.error)))
    if not finite and not isinstance(problem, HostProblem) and not problem.guarded:
        # Perhaps only because a derivative is missing.
        problem = problem.guard()
        moved = _transport(scheme, problem, t, means, limits)
        finite = bool(np.all(np.isfinite(moved.error)))
    whole = moved.error.shape[0] == t.shape[0] - 1
    if not (on_host(t) and finite and whole and len(t) > 1) or isinstance(scheme, ImplicitNewton):
        return finished(moved), whole
    carry = partial(_transport, scheme, problem, limits=limits)
    f = evaluator(problem)[0] if may_bend else None
    care = IN_PYTHON if isinstance(problem, HostProblem) else Care()
    nodes = np.asarray(t), np.asarray(means)
    moved, kinks, spent = look_closer(scheme, carry, f, *nodes, moved, deviations, care)
    made = finished(moved)
    looked: Any = np.array(Looked(True, 0, kinks=kinks), float)
    return replace(made, f_evaluations=made.f_evaluations + spent, looked=looked), whole


def as_system(equation: Equation, problem: Any) -> Any:
    """The equation as ``u' = g(t, u)``, however its function is evaluated."""
    if isinstance(problem, HostProblem):
        return in_python.as_system(equation, problem)
    return equation.first_order(problem)


def _transport(scheme: Scheme, problem: Any, t: Any, means: Any, limits: Limits) -> Transported:
    """By Python where only that evaluates ``f``, by the kernels where they can, else by JAX."""
    if isinstance(problem, HostProblem):
        return in_python.transport(scheme, problem, t, means, limits)
    if not on_host(t):
        return in_jax.transport_traced(scheme, problem, t, means)
    nodes = np.asarray(t), np.asarray(means)
    moved = native.transport(scheme, problem, *nodes, limits)
    return in_jax.transport(scheme, problem, *nodes, limits) if moved is None else moved


@np.errstate(all="ignore")  # what overflows is seen by its signs
def assemble(
    scheme: Scheme,
    mode: str,
    t: Array,
    means: Array,
    std: Array,
    moved: Transported,
    parts: int,
    begins: Any = None,
) -> Calibration:
    """Scales and signs of a transport; steps that it did not reach have no estimate (NaN).

    ``parts`` are the derivatives in the state; ``begins`` is the error of the first node.
    """
    xp: Any = np if on_host(t) else jnp
    steps = moved.error.shape[0]
    signs = Tally.over(xp, means[: steps + 1, 0], moved).signs(xp, scheme.harmless)
    if steps < t.shape[0] - 1:
        rest = ((0, t.shape[0] - 1 - steps), (0, 0))
        padded: Any = [
            np.pad(rows, (*rest, *[(0, 0)] * (rows.ndim - 2)), constant_values=np.nan)
            for rows in (moved.error, moved.stages)
        ]
        moved = moved._replace(error=padded[0], stages=padded[1])
    exact = begins is None
    first = xp.zeros_like(means[:1, 0]) if exact else begins[None]
    error = xp.concatenate([first, moved.error])
    each = partial(scales.of_nodes, xp, doubt=scheme.doubt, several=parts > 1, exact=exact)
    scaled = scales.by_parts(each, parts, error, std, means[:, 0])
    return Calibration.of(
        *(scheme, mode, error, moved.stages, scaled, signs),
        *(steps, moved.corrections.sum(), moved.repeats.sum()),
    )
