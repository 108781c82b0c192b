"""Error bars of EK0 where stability, not the tolerance, limits the steps."""

import numpy as np
import pytest

from probode import EK0, solve_ivp

MASSES = 24
STIFFNESS = 2.0 * np.eye(MASSES) - np.eye(MASSES, k=1) - np.eye(MASSES, k=-1)
SQUARES, MODES = np.linalg.eigh(STIFFNESS)
START = MODES[:, :2] @ np.array([1.0, 0.1])
"""Only the slowest oscillations of a chain of masses: steps grow until the fastest, which rounding
excites, become unstable."""


def acceleration(t, y, v):
    return -(STIFFNESS @ y)


def exact(t):
    return np.cos(np.outer(t, np.sqrt(SQUARES))) * (MODES.T @ START) @ MODES.T


@pytest.mark.parametrize(
    ("order", "evaluations", "rtol"), [(5, 2, 1e-3), (3, 2, 1e-2), (4, 1, 1e-2)]
)
def test_the_estimate_is_the_error_of_oscillations_at_the_limit_of_stability(
    order, evaluations, rtol
):
    """Two sweeps multiply an error with ``h |λ| = 1.5`` by 1.4 in each step, or damp others."""
    given = acceleration, (0, 150), np.concatenate([START, np.zeros(MASSES)])
    options = {"second_order": True, "rtol": rtol, "atol": 1e-3 * rtol}
    posterior = solve_ivp(*given, EK0(order, evaluations=evaluations), **options).posterior
    assert 2.0 * np.max(np.diff(posterior.t)) > 1.5  # the largest frequency is almost two
    error = np.asarray(posterior.mean) - exact(posterior.t)
    off = np.asarray(posterior.global_error()) - error
    assert np.linalg.norm(off) <= 0.2 * np.linalg.norm(error)
    assert 0.3 <= np.mean((error[1:] / posterior.std[1:]) ** 2) <= 3.0
