"""A solve that cannot go on returns all that came before."""

import jax.numpy as jnp
import numpy as np
import pytest
from attempts import assert_finite, attempt

import probode
from probode import EK0, EK1, Status

GUARD = 30_000
"""Steps after which a solve that should have ended long ago is stopped (and the test fails)."""


def decay_until(t, y, end, beyond):
    """``-y`` until the time ``end``, from then on ``beyond`` (NaN, Inf)."""
    return jnp.where(t < end, -y, beyond)


def explosion(t, y):
    """``y' = y²``, ``y(0) = 1``: ``y = 1 / (1 - t)`` leaves to infinity at ``t = 1``."""
    return y * y


def assert_decay(posterior):
    """All that came back is ``exp(-t)``, with finite error bars."""
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean, np.exp(-posterior.t), rtol=1e-4)


SOLVERS = pytest.mark.parametrize(
    "solver",
    [EK0(2), EK1(2), EK0(2, "fixed"), EK1(2, "fixed")],
    ids=lambda s: f"{s.name}-{s.diffusion.name}",
)


@SOLVERS
def test_nan_from_some_time_on_ends_the_solve_shortly_before(solver):
    posterior = attempt(decay_until, y0=1.0, args=(0.5, np.nan), solver=solver, max_steps=GUARD)
    assert posterior.status == Status.NOT_FINITE
    assert not posterior.success
    assert "NaN or Inf" in posterior.message
    assert 0.5 - 1e-6 < posterior.t[-1] <= 0.5
    assert_decay(posterior)


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("end", [0.25, 0.3, 0.5, 0.7, 0.9])
def test_a_solve_that_cannot_go_on_ends_wherever_that_is(end, beyond):
    """The smallest step is a matter of rounding, which must not decide whether the solve ends."""
    posterior = attempt(decay_until, y0=1.0, args=(end, beyond), max_steps=5000)
    assert posterior.status == Status.NOT_FINITE
    assert end - 1e-6 < posterior.t[-1] <= end


TENTHS = np.linspace(0.0, 1.0, 11)


@pytest.mark.parametrize(
    "solver", [EK0(2), pytest.param(EK1(2), marks=pytest.mark.slow)], ids=lambda s: s.name
)
def test_nan_with_save_at_returns_the_rows_that_were_reached(solver):
    posterior = attempt(
        decay_until, y0=1.0, args=(0.45, np.nan), solver=solver, save_at=TENTHS, max_steps=GUARD
    )
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, TENTHS[:5])
    assert_decay(posterior)


@SOLVERS
def test_nan_on_a_grid_keeps_the_nodes_before(solver):
    grid = np.linspace(0.0, 1.0, 41)
    posterior = attempt(decay_until, y0=1.0, args=(0.51, np.nan), solver=solver, grid=grid)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, grid[grid < 0.51])
    assert_decay(posterior)


def test_nan_on_a_grid_with_save_at_keeps_the_rows_before():
    grid = np.linspace(0.0, 1.0, 41)
    posterior = attempt(decay_until, y0=1.0, args=(0.45, np.nan), grid=grid, save_at=TENTHS)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_array_equal(posterior.t, TENTHS[:5])
    assert_decay(posterior)


def test_nan_with_a_constant_step_keeps_the_steps_before():
    posterior = attempt(decay_until, y0=1.0, args=(0.51, np.nan), step=0.025)
    assert posterior.status == Status.NOT_FINITE
    np.testing.assert_allclose(posterior.t, np.arange(21) * 0.025)
    assert_decay(posterior)


@pytest.mark.parametrize(
    "solver", [EK0(2), EK1(2), EK0(3, "fixed")], ids=lambda s: f"{s.name}-{s.diffusion.name}"
)
def test_a_solution_that_explodes_ends_with_what_came_before(solver):
    # A fixed diffusion cannot explain the last steps, and takes it out on the smoothed past.
    smooth = not solver.diffusion.fixed
    posterior = attempt(explosion, (0.0, 2.0), 1.0, solver=solver, max_steps=GUARD, smooth=smooth)
    assert posterior.status in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    assert posterior.t[-1] == pytest.approx(1.0, abs=1e-2)
    assert_finite(posterior)
    early = posterior.t < 0.75
    np.testing.assert_allclose(posterior.mean[early], 1 / (1 - posterior.t[early]), rtol=1e-3)


def test_a_solution_that_explodes_with_save_at_returns_the_rows_that_were_reached():
    save_at = [0.25, 0.5, 0.75, 1.5]
    posterior = attempt(explosion, (0.0, 2.0), 1.0, save_at=save_at, max_steps=GUARD)
    assert posterior.status in (Status.STEP_TOO_SMALL, Status.NOT_FINITE)
    np.testing.assert_array_equal(posterior.t, save_at[:3])
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean, 1 / (1 - posterior.t), rtol=1e-3)


@SOLVERS
def test_a_start_that_is_not_finite_returns_the_initial_node(solver):
    posterior = attempt(decay_until, y0=1.0, args=(-1.0, np.nan), solver=solver)
    assert posterior.status == Status.START_NOT_FINITE
    assert "initial value" in posterior.message
    np.testing.assert_array_equal(posterior.t, [0.0])
    np.testing.assert_array_equal(posterior.mean, [1.0])
    np.testing.assert_array_equal(posterior.std, [0.0])


@pytest.mark.parametrize(("save_at", "rows"), [(TENTHS, 1), (0.5 + 0.5 * TENTHS, 0)])
def test_a_start_that_is_not_finite_with_save_at(save_at, rows):
    posterior = attempt(decay_until, y0=1.0, args=(-1.0, np.nan), save_at=save_at)
    assert posterior.status == Status.START_NOT_FINITE
    np.testing.assert_array_equal(posterior.t, save_at[:rows])
    np.testing.assert_array_equal(posterior.mean, [1.0] * rows)
    np.testing.assert_array_equal(posterior.std, [0.0] * rows)


@pytest.mark.parametrize("args", [(0.5, np.nan), (-1.0, np.nan)], ids=["later", "at-the-start"])
@pytest.mark.parametrize("save_at", [None, TENTHS], ids=["steps", "save_at"])
def test_a_failed_solve_can_be_shown(args, save_at):
    posterior = attempt(decay_until, y0=1.0, args=args, save_at=save_at, max_steps=1000)
    assert posterior.message in repr(posterior)


def test_a_solve_that_reaches_no_save_point_still_tells_how_far_it_came():
    """With calibrated error bars, of which there are none."""
    options = {"save_at": [50.0, 100.0], "max_steps": 8, "calibration": "defect"}
    found = probode.solve(lambda t, y: -y, (0.0, 100.0), np.ones(5), solver=EK0(3), **options)
    assert found.status == Status.MAX_STEPS
    assert found.stats.steps == 8
    assert found.mean.shape == found.std.shape == (0, 5)
