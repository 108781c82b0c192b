"""Vector fields that are finite where their derivatives are not: draining tanks and their like."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode import EK0, EK1, DiagonalEK1, PIControl, Status, solve_ivp


def tank(t, y):
    """``y' = -sqrt(y)`` while there is any: ``(sqrt(y0) - t/2)²``, empty at ``2 sqrt(y0)``."""
    return -np.sqrt(np.maximum(y, 0.0))


def level(t, y0):
    return np.maximum(np.sqrt(y0) - t / 2, 0.0) ** 2


def emptying(t, y, p):
    """``y' = -y^p``, ``p < 1``: ``(y0^(1-p) - (1-p) t)^(1/(1-p))`` until it is empty."""
    return -(np.maximum(y, 0.0) ** p)


TIMES = np.linspace(0.0, 5.0, 26)


def assert_honest(result, truth, level):
    """Errors within the level, and within five standard deviations (or what rounding leaves)."""
    assert result.success, result.message
    error = np.abs(result.y - truth)
    assert error.max() < level
    assert np.all(error <= 5.0 * result.y_std + 1e-2 * level)


@pytest.mark.parametrize("rtol", [1e-3, 1e-6, 1e-9])
def test_a_tank_runs_empty_and_stays_empty(rtol):
    result = solve_ivp(tank, (0, 3), [1.0], rtol=rtol, atol=1e-3 * rtol, t_eval=TIMES[TIMES <= 3])
    assert_honest(result, level(result.t, 1.0), 0.1 * rtol)


@pytest.mark.parametrize("method", ["EK1", "EK0", "DiagonalEK1", "auto"])
def test_tanks_that_are_empty_at_different_times(method):
    y0 = np.array([1.0, 2.0, 0.25])
    result = solve_ivp(tank, (0, 5), y0, method=method, t_eval=TIMES)
    assert_honest(result, level(TIMES, y0[:, None]), 1e-4)


@pytest.mark.parametrize("p", [1 / 3, 0.5, 0.8])
def test_other_powers_below_one(p):
    result = solve_ivp(emptying, (0, 5), [1.0], args=(p,), rtol=1e-6, atol=1e-9, t_eval=TIMES)
    truth = np.maximum(1.0 - (1 - p) * TIMES, 0.0) ** (1 / (1 - p))
    assert_honest(result, truth, 1e-5)


def test_powers_above_one_need_no_fallback():
    result = solve_ivp(emptying, (0, 3), [1.0], args=(1.5,), rtol=1e-6)
    assert result.y[0, -1] == pytest.approx((1 + 0.5 * 3) ** -2, rel=1e-5)
    assert "not finite" not in str(result.posterior.diagnose())


def test_a_start_where_the_derivative_is_infinite():
    """``y' = 1 + sqrt|y|``: with ``s = sqrt(y)``, ``t = 2 s - 2 log(1 + s)``."""
    result = solve_ivp(lambda t, y: 1.0 + np.abs(y) ** 0.5, (0, 3), [0.0], rtol=1e-8, atol=1e-10)
    assert result.success
    s = np.sqrt(result.y[0, -1])
    assert 2 * s - 2 * np.log1p(s) == pytest.approx(3.0, abs=1e-7)
    assert "begun by Runge-Kutta" in str(result.posterior.diagnose())


def test_an_equilibrium_without_a_derivative():
    result = solve_ivp(lambda t, y: np.abs(y) ** 0.5, (0, 3), [0.0])
    assert result.success
    np.testing.assert_array_equal(result.y, 0.0)


def test_it_is_said_once_and_in_the_diagnosis(caplog):
    def own(t, y):
        return -1.5 * np.sqrt(np.maximum(y, 0.0))

    results = [solve_ivp(own, (0, 3), [y0]) for y0 in (1.0, 0.5)]
    said = [r for r in caplog.records if "derivative of f by y is not finite" in r.message]
    assert len(said) == 1
    for result in results:
        assert "taken as zero" in str(result.posterior.diagnose())


def test_python_functions_go_on_without_a_derivative_too():
    def drain(t, y):
        return [-(number(y[0]) ** 0.5) if y[0] > 0 else 0.0]

    def jac(t, y):
        return [[-0.5 / np.sqrt(y[0]) if y[0] > 0 else -np.inf]]

    result = solve_ivp(drain, (0, 3), [1.0], jac=jac, t_eval=TIMES[TIMES <= 3])
    assert result.path == "python"
    assert_honest(result, level(result.t, 1.0), 1e-3)


STRUCTURES = [EK1(3), DiagonalEK1(3, "dynamic-mv"), EK0(3)]
KEPT = [
    # With save_at a solve is compiled for long: once will do.
    pytest.param(kept, solver, marks=[pytest.mark.slow] * (kept == "save_at" and solver != EK1(3)))
    for kept in ("steps", "save_at", "end")
    for solver in STRUCTURES
]


@pytest.mark.parametrize(
    ("kept", "solver"),
    KEPT,
    ids=lambda x: x if isinstance(x, str) else f"{x.name}-{x.diffusion.name}",
)
def test_every_way_to_keep_a_solve(solver, kept):
    save_at = {"steps": None, "save_at": np.linspace(0.0, 3.0, 7), "end": 3.0}[kept]
    y0 = np.array([1.0, 0.25])
    posterior = probode.solve(
        tank_in_jax, (0.0, 3.0), y0, solver=solver, control=PIControl(1e-5, 1e-8), save_at=save_at
    )
    assert posterior.success
    truth = level(np.asarray(posterior.t)[:, None], y0)
    np.testing.assert_allclose(posterior.mean, truth, atol=1e-4)


def tank_in_jax(t, y):
    return -jnp.sqrt(jnp.maximum(y, 0.0))


def test_constant_steps_and_grids_go_on():
    grid = np.linspace(0.0, 3.0, 301)
    posterior = probode.solve(tank_in_jax, (0.0, 3.0), 1.0, grid=grid, solver=EK1(2))
    assert posterior.success
    np.testing.assert_allclose(posterior.mean, level(grid, 1.0), atol=1e-3)


def test_inside_jit_a_tank_runs_empty():
    @jax.jit
    def end(y0):
        return probode.solve(tank_in_jax, (0.0, 3.0), y0, save_at=3.0).mean[-1]

    assert float(end(1.0)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("engine", ["auto", pytest.param("vmapped", marks=pytest.mark.slow)])
def test_members_of_an_ensemble_run_empty(engine):
    y0 = np.array([[1.0], [0.25], [9.0], [0.0]])
    found = probode.solve_ensemble(tank_in_jax, (0.0, 3.0), y0, engine=engine)
    assert np.all(found.status == Status.SUCCESS)
    np.testing.assert_allclose(np.ravel(found.mean), level(3.0, y0[:, 0]), atol=1e-6)


def test_where_f_itself_is_not_finite_the_message_says_where():
    result = solve_ivp(lambda t, y: -np.sqrt(y), (0, 3), [1.0])
    assert result.status == -1
    assert "f(t, y) is NaN or Inf" in result.message and "t = 2.0" in result.message
    assert result.t[-1] == pytest.approx(2.0, abs=1e-2)


def test_a_start_where_f_is_not_finite_says_so():
    with np.errstate(all="ignore"):
        result = solve_ivp(lambda t, y: y * np.log(y), (0, 1), [0.0])
    assert result.status == -1
    assert "at the initial value, t = 0, y = [0.]" in result.message
