"""Observed orders of convergence, and the paper's stiff example."""

import numpy as np
import pytest
import scipy.integrate

from probode import EK0, EK1, PControl, problems, solve

pytestmark = pytest.mark.optimised

LOTKA_VOLTERRA = problems.get("lotka-volterra")
END_AT_2 = scipy.integrate.solve_ivp(
    lambda t, y: [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]],
    (0.0, 2.0),
    [1.0, 1.0],
    method="DOP853",
    rtol=1e-13,
    atol=1e-15,
).y[:, -1]


@pytest.mark.parametrize("method", [EK0, EK1])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_the_error_falls_with_at_least_the_order(method, order):
    """Errors at the end for halved steps, on Lotka-Volterra to t = 2."""
    steps = {1: 200, 2: 100, 3: 100, 4: 80, 5: 80}[order]
    errors = []
    for number in (steps, 2 * steps):
        posterior = solve(
            LOTKA_VOLTERRA.vector_field,
            (0.0, 2.0),
            LOTKA_VOLTERRA.y0,
            LOTKA_VOLTERRA.args,
            solver=method(order),
            step=2.0 / number,
        )
        errors.append(np.linalg.norm(posterior.mean[-1] - END_AT_2))
    assert np.log2(errors[0] / errors[1]) > order - 0.2


@pytest.mark.parametrize(
    ("start", "iterations", "bound"),
    [((2.0, 0.0), 23_824, 7e-2), ((0.0, 3.0**0.5), 30_000, 2e-2)],
)
def test_stiff_van_der_pol_as_in_the_paper(start, iterations, bound):
    """mu = 1e6, EK1(3), atol 1e-6, rtol 1e-3, P control: final error and number of iterations."""
    problem = problems.get("van-der-pol", y0=start)
    posterior = solve(
        problem.vector_field,
        problem.t_span,
        problem.y0,
        problem.args,
        solver=EK1(3),
        control=PControl(rtol=1e-3, atol=1e-6),
    )
    assert posterior.success
    assert np.linalg.norm(posterior.mean[-1] - problem.reference_end) < bound
    assert posterior.stats.steps == pytest.approx(iterations, rel=0.1)


@pytest.mark.parametrize("rtol", [1e-4, 1e-7])
@pytest.mark.parametrize("method", [EK0, EK1])
def test_tighter_tolerances_give_smaller_errors(method, rtol):
    """The error at the end stays below a hundred times the tolerance (P and PI control)."""
    problem = LOTKA_VOLTERRA
    posterior = solve(
        problem.vector_field,
        problem.t_span,
        problem.y0,
        problem.args,
        solver=method(5),
        control=PControl(rtol=rtol, atol=1e-3 * rtol),
    )
    assert np.max(np.abs(posterior.mean[-1] - problem.reference_end)) < 100 * rtol
