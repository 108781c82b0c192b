"""Where numbers are extreme or data are exact, results stay finite, sane and right."""

import jax.numpy as jnp
import numpy as np
import oracle
import oracle_problems
import pytest
from only_python import number
from oracle import mpf, to_numpy

from probode import EK0, EK1, DiagonalEK1, PIControl, Status, problems, solve, solve_ivp
from probode.filter.start import explodes

pytestmark = pytest.mark.optimised

LOTKA_VOLTERRA = problems.get("lotka-volterra")


def lotka_volterra(**options):
    problem = LOTKA_VOLTERRA
    options.setdefault("t_span", problem.t_span)
    t_span = options.pop("t_span")
    return solve(problem.vector_field, t_span, problem.y0, problem.args, **options)


def assert_finite(posterior):
    assert np.all(np.isfinite(posterior.mean))
    assert np.all(np.isfinite(posterior.std))
    assert np.isfinite(posterior.log_evidence)


def test_order_eleven_at_a_tolerance_of_1e_13():
    posterior = lotka_volterra(solver=EK1(11), control=PIControl(rtol=1e-13, atol=1e-15))
    assert_finite(posterior)
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], LOTKA_VOLTERRA.reference_end, atol=1e-12)
    assert np.max(posterior.std) < 1e-9


def test_smoothing_of_order_eight_with_tiny_steps():
    """h = 1e-5: residuals are rounding noise, the smoothed solution is right all the same."""
    posterior = lotka_volterra(t_span=(0.0, 0.005), solver=EK1(8), step=1e-5)
    exact = lotka_volterra(t_span=(0.0, 0.005), solver=EK1(5), control=PIControl(1e-12, 1e-14))
    assert_finite(posterior)
    middle = len(posterior.t) // 2
    np.testing.assert_allclose(posterior.mean[middle], exact(posterior.t[middle]).mean, rtol=1e-11)
    assert np.max(posterior.std) < 1e-9


@pytest.mark.parametrize("order", [2, 5, 8])
def test_a_grid_so_fine_that_residuals_are_noise(order):
    posterior = lotka_volterra(t_span=(0.0, 1e-4), solver=EK1(order), step=1e-7)
    assert posterior.status in (Status.SUCCESS, Status.NOT_FINITE)
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean[-1], [1.00005, 0.9998], atol=1e-7)
    assert np.max(posterior.std) < 1e-9


@pytest.mark.parametrize("scale", [1e-9, 1e11])
@pytest.mark.parametrize("solver", [EK0(1), EK0(5), EK1(5), EK1(11)], ids=lambda s: s.name)
def test_extreme_time_scales(scale, solver):
    posterior = solve(
        lambda t, y, rate: -rate * y, (0.0, scale), 1.0, (3.0 / scale,), solver=solver
    )
    assert posterior.success
    assert_finite(posterior)
    assert posterior.mean[-1] == pytest.approx(np.exp(-3.0), abs=1e-4)
    assert posterior(0.37 * scale).mean == pytest.approx(np.exp(-3 * 0.37), abs=1e-4)


@pytest.mark.parametrize("diffusion", ["dynamic", "fixed"])
@pytest.mark.parametrize("method", [EK0, EK1])
@pytest.mark.parametrize("value", [0.0, 2.0])
def test_a_constant_vector_field_is_solved_exactly(method, diffusion, value):
    """No residual at all: zero standard deviation, and nothing divides by it."""
    posterior = solve(
        lambda t, y: value * jnp.ones_like(y), (0.0, 2.0), [1.0, 0.5], solver=method(3, diffusion)
    )
    assert_finite(posterior)
    np.testing.assert_allclose(posterior.mean[-1], [1.0 + 2 * value, 0.5 + 2 * value], rtol=1e-14)
    assert np.all(posterior.std <= 1e-14)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("method", [EK0, EK1, DiagonalEK1])
def test_covariance_survives_where_the_residual_vanishes(method, order):
    """f = -y until t = 1, then zero: from there on steps have no noise, but the past has."""
    grid = 0.125 * np.arange(17)
    start = [[(-1.0) ** k * value for value in (1.0, 0.5)] for k in range(order + 1)]
    judge = oracle.solve(
        lambda t, y: [-y[0], -y[1]] if t < 1 else [mpf(0), mpf(0)],
        lambda t, y: [[-1, 0], [0, -1]] if t < 1 else [[0, 0], [0, 0]],
        grid,
        start,
        order,
        method.__name__,
        "dynamic",
    )
    posterior = solve(
        lambda t, y: jnp.where(t < 1, -y, 0 * y),
        (0.0, 2.0),
        [1.0, 0.5],
        solver=method(order),
        grid=grid,
    )
    exact = np.sqrt(np.einsum("nii->ni", to_numpy(judge.smooth_cov)))[:, :2]
    np.testing.assert_allclose(posterior.std, exact, rtol=1e-6)
    np.testing.assert_allclose(posterior.mean, to_numpy(judge.smooth_mean)[:, :2], rtol=1e-10)


def test_many_steps_need_no_limit():
    """A few ten thousand steps, chunk after chunk."""
    posterior = solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=EK0(1), step=2e-5)
    assert posterior.stats.accepted == 50_000
    assert len(posterior.t) == 50_001
    assert posterior.mean[-1] == pytest.approx(np.exp(-1.0), abs=1e-9)


@pytest.mark.parametrize("initialization", ["taylor", "runge-kutta", "diffuse"])
@pytest.mark.parametrize("diffusion", ["dynamic", pytest.param("fixed", marks=pytest.mark.slow)])
def test_every_start_reaches_the_solution(initialization, diffusion):
    posterior = lotka_volterra(
        solver=EK1(4, diffusion, initialization=initialization),
        control=PIControl(rtol=1e-7, atol=1e-9),
    )
    assert posterior.success
    np.testing.assert_allclose(posterior.mean[-1], LOTKA_VOLTERRA.reference_end, atol=1e-5)


def test_a_diffuse_start_is_what_the_oracle_conditions_on():
    order, grid = 3, np.linspace(0.0, 0.5, 6)
    exact = oracle_problems.LOTKA_VOLTERRA
    mean = np.zeros((order + 1, 2))
    mean[0], mean[1] = exact.y0, [float(v) for v in exact.f(0, list(exact.y0))]
    variances = np.repeat([0.0, 0.0, 1.0, 1.0], 2)
    for diffusion in ("dynamic", "fixed"):
        judge = oracle.solve(
            exact.f, exact.jac, grid, mean, order, "EK1", diffusion, np.diag(variances)
        )
        ours = lotka_volterra(
            t_span=(0.0, 0.5), solver=EK1(order, diffusion, initialization="diffuse"), grid=grid
        )
        np.testing.assert_allclose(ours.mean, to_numpy(judge.smooth_mean)[:, :2], rtol=1e-9)
        exact_std = np.sqrt(np.einsum("nii->ni", to_numpy(judge.smooth_cov)))[:, :2]
        np.testing.assert_allclose(ours.std, exact_std, rtol=1e-7)


def test_a_runge_kutta_start_knows_its_derivatives_within_a_few_standard_deviations():
    posterior = lotka_volterra(
        solver=EK1(5, initialization="runge-kutta"), smooth=False, control=PIControl(1e-6, 1e-8)
    )
    exact = to_numpy(oracle_problems.LOTKA_VOLTERRA.start(5))
    for k in range(2, 6):
        start = posterior.derivative(0.0, k)
        assert np.all(np.abs(start.mean - exact[k]) < 20 * start.std)


@pytest.mark.parametrize("order", [5, 6, 7, 8])
def test_steps_do_not_collapse_after_an_exact_start(order):
    posterior = lotka_volterra(
        t_span=(0.0, 10.0), solver=EK1(order), smooth=False, control=PIControl(1e-6, 1e-9)
    )
    steps = np.diff(posterior.t)
    assert steps[3:50].min() > 0.3 * np.median(steps)


def test_a_first_step_that_is_given_is_taken():
    control = PIControl(1e-6, 1e-9, first_step=1e-2)
    posterior = lotka_volterra(solver=EK1(8), smooth=False, control=control)
    assert posterior.t[1] - posterior.t[0] == 1e-2


def test_a_vector_field_may_contain_a_loop():
    def cumulative(t, y):
        import jax

        return jax.lax.fori_loop(0, 3, lambda i, z: -0.5 * z * y, y)

    posterior = solve(cumulative, (0.0, 1.0), [1.0], solver=EK1(3))
    assert posterior.success


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(
    ("slopes", "shorter"),
    [
        ([1.0, 2.0, 3.0], False),
        ([1.0, 50.0, 6000.0], True),
        ([1.0, np.nan, np.nan], True),
        ([0.0, 0.0, np.inf], True),
        ([np.nan, np.nan, np.nan], False),
    ],
    ids=["a solution", "an explosion", "out of the domain", "from rest", "never inside"],
)
def test_a_runge_kutta_start_is_made_shorter_where_that_may_help(xp, slopes, shorter):
    assert bool(explodes(xp, xp.asarray(slopes)[:, None])) == shorter


@pytest.mark.parametrize("path", ["python", "numpy"])
def test_the_runge_kutta_start_of_a_stiff_equation_does_not_explode(path):
    """A heat equation: Runge-Kutta steps of the first step's length would amplify rounding."""
    d = 20
    x, h = np.linspace(0, 1, d + 2)[1:-1], 1 / (d + 1)

    def heat(t, y):
        if path == "python":
            number(y[0])  # cannot be traced
        return np.diff(np.concatenate([[0.0], y, [0.0]]), 2) / h**2

    result = solve_ivp(heat, (0, 0.1), np.sin(np.pi * x), initialization="runge-kutta")
    exact = np.exp(-4 / h**2 * np.sin(np.pi * h / 2) ** 2 * 0.1) * np.sin(np.pi * x)
    assert result.path == path
    assert np.abs(result.y[:, -1] - exact).max() < 1e-4
    assert len(result.t) < 30
