"""Error bars after many periods: what an estimate leaves out in a step adds up."""

import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

from probode import EK0, EK1, PIControl, solve, solve_ivp
from probode.engines import native

PERIOD = 2 * np.pi


def orbit(t, y):
    cube = (y[0] ** 2 + y[1] ** 2) ** 1.5
    return jnp.stack([y[2], y[3], -y[0] / cube, -y[1] / cube])


def place(t, eccentricity):
    """Position and velocity by Kepler's equation, from the nearest point on."""
    t = np.asarray(t, float)
    e, anomaly = eccentricity, t + eccentricity * np.sin(t)
    for _ in range(12):
        anomaly = anomaly - (anomaly - e * np.sin(anomaly) - t) / (1 - e * np.cos(anomaly))
    c, s, b = np.cos(anomaly), np.sin(anomaly), np.sqrt(1 - e**2)
    return np.stack([c - e, b * s, -s / (1 - e * c), b * c / (1 - e * c)], axis=-1)


def revolve(solver, rtol, periods, eccentricity=0.0, **options):
    return solve(
        *(orbit, (0.0, periods * PERIOD), place(0.0, eccentricity)),
        solver=solver,
        control=PIControl(rtol=rtol, atol=1e-3 * rtol),
        **options,
    )


def off(posterior, eccentricity=0.0):
    """How far the estimated error is from the true one, relative to it, at the end."""
    error = np.asarray(posterior.mean)[-1] - place(posterior.t[-1], eccentricity)
    return np.linalg.norm(posterior.global_error()[-1] - error) / np.linalg.norm(error)


RUNS = {
    "few long steps": (EK1(5), 1e-3, 40, 0.0),
    "errors that grow with the square of time": (EK1(5), 1e-5, 60, 0.0),
    "an ellipse": (EK1(4), 1e-5, 30, 0.3),
    "sweeps": (EK0(5, evaluations=2), 1e-5, 50, 0.0),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_estimate_follows_the_error_over_many_periods(run):
    """The energy drifts, so that the error grows quadratically; Kepler's equation tells how far."""
    solver, rtol, periods, eccentricity = RUNS[run]
    posterior = revolve(solver, rtol, periods, eccentricity).calibrate()
    assert off(posterior, eccentricity) < 0.05
    assert posterior.diagnose().trusted


@pytest.mark.parametrize("run", ["sweeps", pytest.param("few long steps", marks=pytest.mark.slow)])
def test_the_estimate_follows_it_without_kernels(run):
    solver, rtol, periods, _ = RUNS[run]
    with native.disabled():
        assert off(revolve(solver, rtol, periods).calibrate()) < 0.05


@pytest.mark.parametrize("run", ["few long steps", "sweeps"])
def test_the_fast_estimate_has_the_size_of_the_error(run):
    solver, rtol, periods, _ = RUNS[run]
    assert off(revolve(solver, rtol, periods).calibrate("defect-fast")) < 0.5


def test_the_estimate_follows_it_where_chosen_times_are_kept():
    solver, rtol, periods, _ = RUNS["few long steps"]
    times = np.linspace(0.0, periods * PERIOD, 11)
    assert off(revolve(solver, rtol, periods, save_at=times, calibration="defect")) < 0.05


def test_the_estimate_follows_it_where_only_python_knows_the_function():
    def opaque(t, y):
        cube = number(y[0] ** 2 + y[1] ** 2) ** 1.5
        return np.array([y[2], y[3], -y[0] / cube, -y[1] / cube])

    result = solve_ivp(opaque, (0.0, 30 * PERIOD), place(0.0, 0.0), rtol=1e-3, atol=1e-6)
    assert result.path == "python"
    assert off(result.posterior) < 0.05


def test_a_tolerance_on_the_answer_is_met_after_many_periods():
    """Absolute: every component passes through zero."""
    result = solve_ivp(orbit, (0.0, 60 * PERIOD), place(0.0, 0.0), global_atol=1e-3)
    assert result.success
    assert np.abs(result.y.T - place(result.t, 0.0)).max() <= 1e-3


def test_the_fast_estimate_of_very_many_steps_is_not_trusted():
    posterior = revolve(EK1(3), 1e-5, 40).calibrate("defect-fast")
    assert posterior.stats.accepted > 5000
    assert "long" in posterior.diagnose().flags
