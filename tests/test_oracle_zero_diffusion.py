"""Where the 50-digit oracle predicts exactly, nothing is uncertain and nothing breaks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import OracleSolution, log_density, solve, transition
from oracle_checks import COMBINATIONS, assert_equal
from oracle_problems import LOGISTIC


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_exact_prediction_leaves_no_uncertainty(linearization: str, diffusion: str) -> None:
    """A constant vector field has residual zero, hence covariance zero everywhere."""
    sol = constant_field(linearization, diffusion)
    assert not sol.filter_cov.any() and not sol.smooth_cov.any()


@pytest.mark.parametrize(("linearization", "diffusion"), COMBINATIONS)
def test_exact_prediction_has_log_evidence_zero(linearization: str, diffusion: str) -> None:
    """A step whose innovation variance is exactly zero contributes nothing."""
    assert constant_field(linearization, diffusion).log_evidence == 0


def constant_field(linearization: str, diffusion: str) -> OracleSolution:
    """Solve y' = (1, -2), which the prior predicts without error."""
    return solve(
        lambda t, y: [1, -2],
        lambda t, y: [[0, 0], [0, 0]],
        [0, 0.25, 0.75],
        [[0, 1], [1, -2], [0, 0]],
        2,
        linearization,
        diffusion,
    )


@pytest.mark.parametrize("kind", ["fixed", "dynamic"])
def test_exactly_predicted_component_does_not_change_the_evidence(kind: str) -> None:
    """With a diffusion per component a constant component contributes nothing."""
    f, jac, grid, start = LOGISTIC.f, LOGISTIC.jac, [0, 0.25, 0.75], LOGISTIC.start(2)
    alone = solve(f, jac, grid, start, 2, "EK0", kind)
    both = solve(
        lambda t, y: [f(t, y[:1])[0], 1],
        lambda t, y: [[0, 0], [0, 0]],
        grid,
        np.hstack([start, [[0], [1], [0]]]),
        2,
        "EK0",
        f"{kind}-mv",
    )
    assert_equal(both.log_evidence, alone.log_evidence)


def zero_residual_at(node: int, q: int) -> OracleSolution:
    """Solve y' = f(t) by EK0 on five nodes, f(t_node) being exactly the predicted derivative."""
    grid, values = [0, 0.25, 0.75, 1, 1.5], [0.0, 1.0, 2.5, -1.0, 0.5]
    m0 = np.zeros((q + 1, 1))

    def run(values: list[Any]) -> OracleSolution:
        return solve(lambda t, y: [values[grid.index(t)]], lambda t, y: [[0]], grid, m0, q, "EK0")

    values[node] = run(values).predicted_mean[node - 1][1]
    return run(values)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_zero_residual_gives_zero_diffusion(q: int) -> None:
    """The diffusion vanishes in the one step whose residual vanishes, and only there."""
    assert [g != 0 for g in zero_residual_at(2, q).diffusion[:, 0]] == [True, False, True, True]


def test_zero_residual_keeps_the_variance_of_order_one() -> None:
    """With q = 1, y' known and no diffusion in the step the variance of y stays as it is."""
    sol = zero_residual_at(2, 1)
    assert_equal(sol.filter_cov[2], sol.filter_cov[1])


def test_zero_residual_contributes_no_evidence_at_order_one() -> None:
    """With q = 1 the innovation variance of that step is exactly zero."""
    sol = zero_residual_at(2, 1)
    used = [0, 2, 3]
    expected = sum(log_density(sol.residual[n], sol.innovation_cov[n]) for n in used)
    assert_equal(sol.log_evidence, expected)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_smoother_transports_the_state_through_a_step_without_diffusion(q: int) -> None:
    """Without diffusion x(t_2) = A x(t_1), so the smoothed covariances satisfy P_2 = A P_1 A^T."""
    sol = zero_residual_at(2, q)
    A = transition(0.5, q, 1)
    assert_equal(sol.smooth_cov[2], A @ sol.smooth_cov[1] @ A.T)
