"""What is measured of a solve: error, chi-squared statistic, evaluations, seconds."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from experiments.settings import FIRST_STEP
from probode.base.status import Status
from probode.filter.control import PControl
from probode.filter.solvers import EK0, EK1, Solver
from probode.model.diffusion import FixedDiffusion, as_diffusion
from probode.model.structure import Dense
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Gaussian, Posterior
from probode.problems import InitialValueProblem
from probode.solve import solve

_SOLVERS: dict[str, type[Solver]] = {"EK0": EK0, "EK1": EK1}

COVERAGE = 0.99

ABOVE_REFERENCE = 10.0
"""An error is known if it is so many times the error of the reference."""


_MEASURED_SECONDS = 0.1


def build(solver: str, order: int, diffusion: str = "dynamic") -> Solver:
    """A solver as the paper runs it.

    With a fixed diffusion the paper controls steps with the running estimate of the diffusion, so
    that is what is reproduced; the library's own default guards against its failures.
    """
    model = as_diffusion(diffusion)
    if isinstance(model, FixedDiffusion):
        model = dataclasses.replace(model, error="running")
    return _SOLVERS[solver](order, model)


def run(
    problem: InitialValueProblem, solver: Solver, atol: float, rtol: float, **options: Any
) -> Posterior:
    """Solve as the paper does: proportional control, a first step of 1e-3."""
    control = PControl(rtol=rtol, atol=atol, first_step=FIRST_STEP)
    return solve(
        problem.vector_field,
        problem.t_span,
        problem.y0,
        problem.args,
        solver=solver,
        control=control,
        **options,
    )


def filtered(posterior: Posterior) -> Posterior:
    """The filter inside a smoother: the same steps, conditioned on the past only."""
    assert isinstance(posterior.path, NodePath)
    path = NodePath(posterior.path.rows, None)
    return dataclasses.replace(posterior, path=path)


def whitened(gaussian: Gaussian, error: Float[np.ndarray, "N d"]) -> Float[np.ndarray, "N d"]:
    """``w`` with ``wᵀw = errorᵀ Cov⁻¹ error`` at each time; NaN where ``Cov`` is singular.

    Works on the factor ``Cov = RᵀR``: where components are almost perfectly correlated, a
    covariance has lost the small eigenvalue that its factor still knows.
    """
    if isinstance(gaussian.structure, Dense) and error.shape[1] > 1:
        assert not gaussian.multivariate
        root: Any = np.linalg.qr(np.asarray(gaussian.columns) * gaussian.spread, mode="r")
        diagonal = np.abs(np.diagonal(root, axis1=1, axis2=2))
        regular = (diagonal > 0.0).all(1) & np.isfinite(root).all((1, 2))
        root[~regular] = np.eye(error.shape[1])
        w = np.linalg.solve(root.swapaxes(1, 2), error[..., None])[..., 0]
        w[~regular] = np.nan
        return w
    std = np.asarray(gaussian.std)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((std > 0.0).all(1, keepdims=True), error / std, np.nan)


def chi_squared(gaussian: Gaussian, error: Float[np.ndarray, "N d"]) -> tuple[float, int]:
    """``1/N Σ rᵀ Cov⁻¹ r`` over the times with a regular covariance, and how many had none."""
    squares = (whitened(gaussian, error) ** 2).sum(1)
    singular = int(np.isnan(squares).sum())
    if singular == len(squares):
        return float("nan"), singular
    return float(np.nanmean(squares)), singular


def chi_squared_interval(d: int) -> tuple[float, float]:
    """The central 99 % of the chi-squared distribution with ``d`` degrees of freedom."""
    low, high = stats.chi2.interval(COVERAGE, d)
    return float(low), float(high)


def rms(error: np.ndarray) -> float:
    """Root mean square over times and components."""
    return float(np.sqrt(np.mean(error**2)))


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's: how well one curve tells where the other is large."""
    return float(stats.spearmanr(a, b).statistic)


def counts(posterior: Posterior) -> dict[str, int]:
    """Steps attempted and rejected, and evaluations of ``f`` and its Jacobian together."""
    found: Any = posterior.stats
    return {
        "steps": int(found.steps),
        "rejected": int(found.rejected),
        "evaluations": int(found.f_evaluations + found.jacobian_evaluations),
    }


def ending(posterior: Posterior) -> dict[str, Any]:
    """How the solve ended. An interrupted one is no result: the interruption goes on."""
    status: Any = posterior.status
    if status == Status.INTERRUPTED:
        raise KeyboardInterrupt
    return {
        "success": bool(posterior.success),
        "status": status.name,
        "message": posterior.message,
        "t_reached": float(posterior.t[-1]),
    }


def shortest(call: Callable[[], Any], repetitions: int) -> float:
    """Seconds of the fastest of some calls, after one that may compile; of more if they are short.

    Other work on the machine only ever adds time.
    """
    call()
    taken: list[float] = []
    while len(taken) < repetitions or sum(taken) < _MEASURED_SECONDS:
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)
