"""What ``solve_ivp`` solves with: the method and order asked for, or chosen."""

from collections.abc import Callable
from typing import Any

import numpy as np

from probode.base.errors import check_choice
from probode.base.later import sparse
from probode.base.limits import in_words
from probode.base.precision import double_precision
from probode.base.said import code_of, first_time, logger, name_of
from probode.engines.kept import row_bytes
from probode.filter.control import Control, PControl
from probode.filter.solvers import DENSE_LIMIT_BYTES, EK0, EK1, DiagonalEK1, Solver, SparseEK1
from probode.filter.step import Method
from probode.ivp import choice
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.model.structure import Dense
from probode.posterior.posterior import Posterior

METHODS: dict[str, type[Solver]] = {
    "EK0": EK0,
    "EK1": EK1,
    "DiagonalEK1": DiagonalEK1,
    "SparseEK1": SparseEK1,
}
AUTO = "auto"

_FEW_STEPS, _LONG = 40, 1.5
"""Steps that a solve takes at least, and seconds that are worth a word."""
_MANY_STEPS = 500
"""Solves with fewer steps are not looked at: they are over before a hint is read."""


_OF_SCIPY = ("RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA")


def read_method(method: Any) -> Solver | type[Solver] | None:
    """A solver, a class of solvers, or ``None``: to be chosen."""
    if isinstance(method, Solver):
        return method
    if isinstance(method, str):
        if method in _OF_SCIPY:
            raise ValueError(
                f"`method` {method!r} is SciPy's. Leave it out for EK1, which solves stiff and "
                "other problems, or take one of 'EK0' (explicit, for larger problems that are not "
                "stiff), 'DiagonalEK1', 'SparseEK1', 'auto'."
            )
        check_choice("method", method, (*METHODS, AUTO))
        if method == AUTO:
            return None
        method = METHODS[method]
    method = getattr(method, "solver", method)  # the classes of probode.scipy
    if not (isinstance(method, type) and issubclass(method, Solver)):
        raise ValueError(
            f"`method` must be one of {', '.join(METHODS)}, {AUTO!r} or a solver, got {method!r}."
        )
    return method


_MANY_COMPONENTS = 100
"""From which on a Jacobian that is said to be sparse is used as one, unless EK1 itself is asked."""
_TOO_LONG = 10.0
"""Seconds of a short solve by EK1 from which on its name alone stands for the sparse one."""


def large_kind(
    kind: Solver | type[Solver] | None, options: Options, y0: Any
) -> Solver | type[Solver] | None:
    """``kind``, or :class:`SparseEK1` where EK1 would be slow for nothing, or impossible."""
    if kind is not EK1 and kind is not None:
        return kind
    d, order = np.size(y0), 5 if isinstance(options.order, str) else options.order
    given = [options.jac_sparsity, options.lband, options.uband]
    matrix = options.jac is not None and not callable(options.jac)
    is_sparse = any(one is not None for one in given) or (matrix and sparse.issparse(options.jac))
    too_large = kind is EK1 and 16.0 * ((order + 1) * d) ** 2 > DENSE_LIMIT_BYTES
    seconds = _FEW_STEPS * choice.seconds_of_dense_step(d, order)
    too_slow = kind is EK1 and seconds > _TOO_LONG and _can_be_sparse(options, y0)
    if is_sparse and d > _MANY_COMPONENTS:
        reason = "with a sparse Jacobian"
    elif too_large:
        reason = "are too many for the covariance of EK1"
    elif too_slow:
        reason = f"would take EK1 about {seconds / _FEW_STEPS:.1g} s a step"
    else:
        return kind
    if first_time("large", d):
        logger.warning(
            "d = %d components %s: solved by SparseEK1, whose steps cost as much as a sparse "
            "factorisation (no smoother, no samples).%s",
            *(d, reason, "" if too_large else " method=probode.EK1() is the dense one."),
        )
    return SparseEK1


def _can_be_sparse(options: Options, y0: Any) -> bool:
    """Whether nothing is asked for that EK1 has and SparseEK1 has not."""
    names = ("diffusion", "control", "initialization", "invariants", "bounds", "mass_matrix")
    usual = Options()
    asked = any(getattr(options, name) is not getattr(usual, name) for name in names)
    jumps = options.jumps is not None or options.doses is not None
    return not (asked or jumps or np.iscomplexobj(y0))


def is_large(kind: Solver | type[Solver] | None) -> bool:
    """Whether it is the solver for large systems."""
    return isinstance(kind, SparseEK1) or kind is SparseEK1


def solvers_for(
    method: Solver | type[Solver] | None,
    options: Options,
    control: Control,
    function: Callable[[float, np.ndarray], Any],
    t0: float,
    tf: float,
    y0: np.ndarray,
    derivatives: int = 1,
) -> list[choice.Candidate]:
    """What to solve with: as asked for, or chosen.

    ``y0`` and ``function`` are those of a system of first order, with so many ``derivatives``.
    """
    if isinstance(method, Solver):
        return [choice.Candidate(method)]
    if method is SparseEK1:
        chosen = SparseEK1.order if isinstance(options.order, str) else options.order
        return [choice.Candidate(SparseEK1(chosen, options.diffusion))]
    order = None
    if isinstance(options.order, str):
        check_choice("order", options.order, (AUTO,))
    else:
        order = options.order
    rtol = float(np.min(control.rtol)) if isinstance(control, PControl) else Options().rtol
    length = tf - t0 if np.isfinite(tf) else 0.0

    def pace() -> choice.Pace:
        with double_precision():
            return choice.pace(function, t0, y0, length)

    def evaluation() -> float:
        with double_precision():
            return choice.price_of_evaluation(function, y0)

    found = choice.candidates(
        method,
        order,
        options.diffusion,
        rtol,
        (2 if np.iscomplexobj(y0) else 1) * y0.size // derivatives,
        pace,
        evaluation,
        options.evaluations,
        derivatives - 1,
        sparse=derivatives == 1 and not np.iscomplexobj(y0) and options.diffusion == "dynamic",
    )
    if method is None or order is None:
        logger.info("chosen: %s.", " then ".join(one.solver.name for one in found))
    return found


def say_if_costly(solver: Solver, method: Method) -> None:
    """Tell the user of a dense covariance, before starting, what a step of it costs."""
    if not isinstance(method.structure, Dense):
        return
    seconds = choice.seconds_of_dense_step(method.structure.d, solver.order)
    if _FEW_STEPS * seconds > _LONG and first_time("costly", solver.name, method.structure.d):
        logger.warning(
            "%s with d = %d components: a step takes about %.1g s and %s, with the covariance of "
            'all components. method="SparseEK1", or "auto" (EK0 where it pays), or a lower order '
            "take less; t_eval without dense_output keeps less; time_limit and max_memory "
            "bound both.",
            *(solver.name, method.structure.d, seconds, in_words(2 * row_bytes(method))),
        )


def say_if_unstable(
    posterior: Posterior,
    evaluation: Callable[..., Any],
    embedding: Embedding,
    fun: Callable[..., Any],
) -> None:
    """Tell the user of EK0 once when its steps were limited by stability, not by the tolerance.

    ``evaluation(t, y)`` computes what the user's ``fun`` does. A function is examined once per
    order and number of steps: the evaluations for it take longer than a solve.
    """
    solver, steps = posterior.solver, int(posterior.stats.accepted)
    first_order = posterior.method.equation.order == 1  # of others the limits are not known
    if not isinstance(solver, EK0) or steps < _MANY_STEPS or not first_order:
        return
    if not first_time("looked at", code_of(fun), solver.name, round(np.log2(steps))):
        return
    nodes = np.linspace(0.1, 0.9, 5) * len(posterior.t)
    limited = []
    for i in nodes.astype(int):
        y = embedding.values(np.asarray(posterior.mean)[i : i + 1])[0]
        with double_precision():
            rate = choice.spectral_radius(evaluation, float(posterior.t[i]), y)
        step = float(posterior.step_sizes[i - 1])
        limited.append(choice.is_limited_by_stability(solver, step, rate))
    if 2 * sum(limited) > len(limited) and first_time("unstable", code_of(fun), solver.name):
        logger.warning(
            "the steps of %s on %s are limited by stability, not by the tolerance: %sEK1, or a "
            'lower order, takes fewer (method="auto" and order="auto" choose).',
            *(solver.name, name_of(fun), "evaluations=2, " if solver.evaluations == 1 else ""),
        )
