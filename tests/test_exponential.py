"""Exponential integrators: solves with the integrated Ornstein-Uhlenbeck prior."""

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp
from scipy.linalg import expm

import probode
from probode import EK0, EK1, IOUP, DiagonalEK1
from probode.base.precision import double_precision
from probode.model.gaussian import unpack

LINEAR = np.array([[-1.0, 2.0], [0.0, -100.0]])
START = np.array([1.0, 1.0])


def linear(t: float, y: jax.Array) -> jax.Array:
    return jnp.asarray(LINEAR) @ y


LINEAR_SOLVERS = [EK1(IOUP(3, LINEAR)), EK0(IOUP(3, LINEAR)), EK1(IOUP(3, "jacobian"))]


@pytest.mark.slow
@pytest.mark.parametrize("solver", LINEAR_SOLVERS, ids=["EK1", "EK0", "per step"])
def test_the_equation_that_the_prior_knows_is_solved_to_rounding(solver: probode.EK1) -> None:
    posterior = probode.solve(linear, (0.0, 2.0), START, solver=solver)
    assert posterior.engine == "jax" and posterior.method.structure.name == "dense"
    assert posterior.stats.accepted < 20
    np.testing.assert_allclose(posterior.mean[-1], expm(2.0 * LINEAR) @ START, atol=1e-14)
    np.testing.assert_allclose(posterior(0.77).mean, expm(0.77 * LINEAR) @ START, atol=1e-14)


def test_backwards_in_time_what_decays_grows() -> None:
    end = expm(0.05 * LINEAR) @ START
    posterior = probode.solve(linear, (0.05, 0.0), end, solver=LINEAR_SOLVERS[0])
    np.testing.assert_allclose(posterior.mean[-1], START, rtol=1e-12)


def test_order_one_is_the_exponential_trapezoidal_rule() -> None:
    """``y_1 = e^z y_0 + h (φ_1 - φ_2) N(y_0) + h φ_2 N(ŷ)``, ``ŷ`` the exponential Euler step.

    ``y' - L y`` is a Brownian motion under the prior, and all that EK0 observes.
    """
    rate, h = -30.0, 0.1

    def nonlinear(y: float) -> float:
        return 0.3 * y**2

    posterior = probode.solve(
        *(lambda t, y: rate * y + 0.3 * y**2, (0.0, h), 1.0),
        solver=EK0(IOUP(1, rate), "fixed"),
        step=h,
        smooth=False,
    )
    z = rate * h
    first, second = np.expm1(z) / z, (np.expm1(z) - z) / z**2
    predicted = np.exp(z) + h * first * nonlinear(1.0)
    wanted = predicted + h * second * (nonlinear(predicted) - nonlinear(1.0))
    np.testing.assert_allclose(posterior.mean[-1], wanted, rtol=1e-12)


def logistic(t: float, y: jax.Array) -> jax.Array:
    return -y + 0.01 * y**2


def logistic_exact(t: float) -> float:
    return 1.0 / (0.99 * np.exp(t) + 0.01)


@pytest.mark.parametrize(
    ("solver", "bound"),
    [
        (EK0(IOUP(3, -1.0), "fixed"), 1.1e-8),
        pytest.param(EK1(IOUP(3, -1.0), "fixed"), 7e-9, marks=pytest.mark.slow),
        (EK1(IOUP(3, "jacobian"), "fixed"), 1e-7),
        pytest.param(
            EK0(IOUP(3, "jacobian"), "fixed", structure="block-diagonal"),
            1e-7,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["EK0", "EK1", "EK1 per step", "EK0 per step"],
)
def test_published_accuracy_with_ten_steps(solver: probode.EK1, bound: float) -> None:
    """EK1 without a rate has an error of 9e-7 there, EK0 of 11.8."""
    posterior = probode.solve(logistic, (0.0, 10.0), 1.0, solver=solver, step=1.0)
    assert abs(posterior.mean[-1] - logistic_exact(10.0)) < bound


def forced(t: float, y: jax.Array) -> jax.Array:
    """Stiff, coupled, not linear, not autonomous."""
    matrix = jnp.asarray([[-1.0, 2.0], [0.5, -50.0]])
    return matrix @ y + jnp.stack([jnp.sin(t), 0.1 * y[0] ** 2])


GRID = np.linspace(0.0, 2.0, 9)
ROSENBROCK = EK1(IOUP(2, "jacobian"), "fixed")
KINDS = {
    "per step": ROSENBROCK,
    "diagonal": DiagonalEK1(IOUP(2, "jacobian"), "fixed"),
    "matrix": EK1(IOUP(2, LINEAR), "fixed"),
    "components": EK1(IOUP(2, np.array([-1.0, -50.0])), "fixed"),
}


@pytest.mark.parametrize(
    "kind",
    [
        "per step",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("matrix", "diagonal", "components")
        ),
    ],
)
def test_dense_output_is_the_posterior_at_a_node_put_there(kind: str) -> None:
    """Each step's own transition, also between its ends and in composed kernels."""
    solver = KINDS[kind]
    posterior = probode.solve(forced, (0.0, 2.0), START, solver=solver, grid=GRID)
    times = [0.33, 0.5, 1.27, 2.0]
    saved = probode.solve(forced, (0.0, 2.0), START, solver=solver, grid=GRID, save_at=times)
    np.testing.assert_allclose(posterior(times).mean, saved.mean, rtol=1e-10)
    np.testing.assert_allclose(posterior(times).std, saved.std, rtol=1e-6)


def test_the_smoother_uses_each_step_s_own_drift() -> None:
    """Against the joint Gaussian of all states, put together from the drifts that were kept."""
    posterior = probode.solve(
        forced, (0.0, 2.0), START, solver=ROSENBROCK, grid=np.linspace(0.0, 2.0, 4)
    )
    rows, method = posterior.path.rows, posterior.method
    drifts = rows.drift
    assert drifts.shape == (4, 2, 2)
    for i in range(4):
        mean = jnp.asarray(rows.mean[i, 0])
        jacobian = jax.jacfwd(lambda y: forced(rows.t[i], y))(mean)  # noqa: B023
        np.testing.assert_allclose(drifts[i], jacobian, rtol=1e-5)
    # Backwards: p(x_i | x_(i+1)) by covariances in plain units.
    size = method.structure.n * 2

    @jit_once
    def over(h, drift):
        of_step = method.prior.over(h, drift)
        return jnp.repeat(of_step.coordinates(h), 2), of_step.matrix, of_step.factor

    with double_precision():
        factors = [np.asarray(unpack(rows.factor[i])) for i in range(4)]
        scales = [np.repeat(method.prior.coordinates(jnp.asarray(h)), 2) for h in rows.h]
        covariances = [
            (scale[:, None] * (factor.T @ factor)) * scale
            for factor, scale in zip(factors, scales, strict=True)
        ]
        mean, covariance = rows.mean[3].reshape(size), covariances[3]
        for i in (2, 1, 0):
            h = rows.t[i + 1] - rows.t[i]
            coords, matrix, factor = (np.asarray(x) for x in over(h, drifts[i]))
            moved = coords[:, None] * matrix / coords
            noise = factor * coords * float(rows.scale[i + 1])
            predicted = moved @ covariances[i] @ moved.T + noise.T @ noise
            gain = covariances[i] @ moved.T @ np.linalg.inv(predicted)
            before = rows.mean[i].reshape(size)
            mean = before + gain @ (mean - moved @ before)
            covariance = covariances[i] + gain @ (covariance - predicted) @ gain.T
            np.testing.assert_allclose(posterior.mean[i], mean[:2], rtol=1e-7)
            if i:
                unit = np.sqrt(posterior.method.diffusion.calibration(posterior.evidence))
                std = unit * np.sqrt(np.diag(covariance)[:2])
                np.testing.assert_allclose(posterior.std[i], std, rtol=1e-4)


@pytest.mark.slow
def test_samples_have_the_mean_and_deviation_of_the_posterior() -> None:
    posterior = probode.solve(forced, (0.0, 2.0), START, solver=ROSENBROCK, grid=GRID)
    drawn, at = posterior.sample(4000, t=[0.33, 1.5]), posterior([0.33, 1.5])
    np.testing.assert_allclose((drawn.mean(0) - at.mean) / at.std, 0.0, atol=5 / np.sqrt(4000))
    np.testing.assert_allclose(drawn.std(0) / at.std, 1.0, atol=5 / np.sqrt(8000))


@pytest.mark.parametrize("kind", ["per step", pytest.param("matrix", marks=pytest.mark.slow)])
def test_posteriors_are_saved_and_loaded_with_their_drifts(kind: str, tmp_path: Path) -> None:
    posterior = probode.solve(forced, (0.0, 2.0), START, solver=KINDS[kind], grid=GRID)
    posterior.save(tmp_path / "posterior.npz")
    loaded = probode.Posterior.load(tmp_path / "posterior.npz")
    np.testing.assert_array_equal(loaded(0.3).std, posterior(0.3).std)
    assert loaded.method == posterior.method
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(posterior))(0.3).mean, loaded(0.3).mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate",
    [
        LINEAR,
        *(pytest.param(np.array(rate), marks=pytest.mark.slow) for rate in (-3.0, [-1.0, -50.0])),
    ],
)
def test_derivatives_by_the_rate(rate: np.ndarray) -> None:
    """Reverse mode against a difference: two solves on one grid."""
    grid = np.linspace(0.0, 0.5, 4)

    def end(rate):
        options = {"grid": grid, "smooth": False, "differentiate": "all"}
        posterior = probode.solve(forced, (0.0, 0.5), START, solver=EK1(IOUP(2, rate)), **options)
        return posterior.mean[-1, 0] + posterior.std[-1, 0]

    step = 1e-5 * np.ones_like(rate)
    with jax.enable_x64(True):
        both = jax.jit(jax.value_and_grad(end))
        slope = jnp.sum(both(jnp.asarray(rate))[1])
        difference = both(jnp.asarray(rate + step))[0] - both(jnp.asarray(rate - step))[0]
    assert slope == pytest.approx(float(difference) / 2e-5, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: IOUP(3, "J"), ValueError, "numbers or 'jacobian'"),
        (lambda: IOUP(3, np.nan), ValueError, "rate must be finite"),
        (lambda: IOUP(3, 1j), TypeError, "real number"),
        (lambda: IOUP(3, np.ones((2, 3))), ValueError, r"matrix \(d, d\), got shape \(2, 3\)"),
        (lambda: IOUP(3, np.ones((2, 2, 2))), ValueError, "got shape"),
        (lambda: EK0(IOUP(3, LINEAR), structure="isotropic"), ValueError, "use one of dense"),
        (lambda: EK0(IOUP(3, [-1.0, 0.0]), structure="isotropic"), ValueError, "block-diagonal"),
        (lambda: EK0(IOUP(3, LINEAR), "dynamic-mv"), ValueError, "which IOUP"),
        (lambda: DiagonalEK1(IOUP(3, LINEAR), structure="block-diagonal"), ValueError, "dense"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("rate", [np.ones(3), np.eye(3)])
def test_rates_for_other_components_are_refused_before_any_step(rate: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"shape \(3.*y has 2 components"):
        probode.solve(forced, (0.0, 1.0), START, solver=EK1(IOUP(3, rate)))


@pytest.mark.parametrize(
    ("solver", "name"),
    [
        (EK0(IOUP(3, -1.0)), "isotropic"),
        (EK0(IOUP(3, START)), "block-diagonal"),
        (DiagonalEK1(IOUP(3, "jacobian")), "block-diagonal"),
        (DiagonalEK1(IOUP(3, LINEAR)), "dense"),
        (EK0(IOUP(3, "jacobian")), "dense"),
        (EK0(IOUP(3, "jacobian"), "dynamic-mv"), "block-diagonal"),
    ],
)
def test_the_smallest_structure_that_fits_is_chosen(solver: probode.EK1, name: str) -> None:
    assert solver.method(2).structure.name == name


def test_steps_at_which_the_integrated_wiener_process_diverges() -> None:
    """Burgers' equation on 30 points, ten steps: ``|h L|`` is up to 29."""
    n, width = 30, 1.0 / 31
    x = np.linspace(0.0, 1.0, n + 2)[1:-1]
    laplacian = 0.075 / width**2 * (np.eye(n, k=1) - 2.0 * np.eye(n) + np.eye(n, k=-1))

    def burgers(t: float, u: jax.Array) -> jax.Array:
        slope = jnp.pad(u[1:], (0, 1)) - jnp.pad(u[:-1], (1, 0))
        return laplacian @ u - u * slope / (2.0 * width)

    start = np.sin(3.0 * np.pi * x) ** 3 * (1.0 - x) ** 1.5

    def in_numpy(t: float, u: np.ndarray) -> np.ndarray:
        slope = np.pad(u[1:], (0, 1)) - np.pad(u[:-1], (1, 0))
        return laplacian @ u - u * slope / (2.0 * width)

    true = scipy_solve_ivp(in_numpy, (0, 1), start, "Radau", rtol=1e-9, atol=1e-11).y[:, -1]

    def error(solver: probode.EK1) -> float:
        made = probode.solve(burgers, (0.0, 1.0), start, solver=solver, step=0.1, smooth=False)
        return float(np.max(abs(made.mean[-1] - true)))

    assert error(EK1(2, "fixed")) > 0.1
    assert error(EK0(IOUP(2, laplacian), "fixed")) < 3.4e-4
    assert error(EK1(IOUP(2, "jacobian"), "fixed")) < 1.6e-4


@pytest.mark.slow
def test_members_of_an_ensemble_have_drifts_of_their_own() -> None:
    starts, solver = np.array([[1.0, 1.0], [5.0, -1.0]]), EK1(IOUP(2, "jacobian"))
    how = {"solver": solver, "save_at": [1.0], "smooth": False, "calibration": "model"}
    ensemble = probode.solve_ensemble(forced, (0.0, 1.0), starts, **how)
    for mean, std, start in zip(ensemble.mean, ensemble.std, starts, strict=True):
        alone = probode.solve(forced, (0.0, 1.0), start, **how)
        np.testing.assert_allclose(mean, alone.mean, rtol=1e-10)
        np.testing.assert_allclose(std, alone.std, rtol=1e-4)


def test_steps_across_a_switch_start_with_a_new_drift() -> None:
    """``y' = -y`` up to ``t = 1``, then ``y' = -3 (y - 1)``."""

    def switching(t: float, y: jax.Array) -> jax.Array:
        return jnp.where(t < 1.0, -y, -3.0 * (y - 1.0))

    posterior = probode.solve(switching, (0.0, 2.0), 1.0, solver=EK1(IOUP(2, "jacobian")))
    rows = posterior.path.rows
    np.testing.assert_array_equal(rows.drift.ravel(), np.where(rows.t < 1.0, -1.0, -3.0))
    for t in (1.3, 2.0):
        true = 1.0 + (np.exp(-1.0) - 1.0) * np.exp(-3.0 * (t - 1.0))
        np.testing.assert_allclose(posterior(t).mean, true, rtol=1e-9)


def by_python(t: float, y: np.ndarray) -> list[float]:
    first, second = (number(value) for value in y)
    return [
        -first + 2.0 * second + float(np.sin(t)),
        0.5 * first - 50.0 * second + 0.1 * first**2,
    ]


@pytest.mark.filterwarnings("ignore")
def test_functions_of_python_take_numbers_as_rates() -> None:
    solver = EK0(IOUP(2, np.array([[-1.0, 2.0], [0.5, -50.0]])))
    result = probode.solve_ivp(by_python, (0, 1), START, method=solver, rtol=1e-6, atol=1e-8)
    assert result.posterior.stats.path == "python"
    wanted = scipy_solve_ivp(by_python, (0, 1), START, "Radau", rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(result.y[:, -1], wanted.y[:, -1], rtol=1e-5)
    with pytest.raises(ValueError, match="give the rate as numbers"):
        probode.solve_ivp(by_python, (0, 1), START, method=EK1(IOUP(2, "jacobian")))


@pytest.mark.parametrize("solver", [EK0(IOUP(2, LINEAR)), EK1(IOUP(2, "jacobian"))])
def test_calibrated_error_bars_are_of_the_size_of_the_error(solver: probode.EK1) -> None:
    """The transport of the error is implicit where the steps are, EK0 with a rate included."""
    true = scipy_solve_ivp(
        by_python, (0, 2), START, "Radau", dense_output=True, rtol=1e-11, atol=1e-13
    )
    control = probode.PIControl(1e-4, 1e-6)
    posterior = probode.solve(
        forced, (0.0, 2.0), START, solver=solver, control=control, calibration="defect"
    )
    times = posterior.t[1:]
    chi2 = np.mean(((posterior(times).mean - true.sol(times).T) / posterior(times).std) ** 2)
    assert 1 / 3 < chi2 < 3
    assert posterior.diagnose().trusted


@pytest.mark.slow
def test_dense_output_of_many_components_comes_to_an_end() -> None:
    """Batches of their decompositions would wait for one another."""
    d = 60
    posterior = probode.solve(
        *(lambda t, y: -0.5 * y + jnp.sin(t), (0.0, 1.0), np.ones(d)),
        solver=EK1(IOUP(2, -0.5)),
        step=0.25,
    )
    t = np.linspace(0.0, 1.0, 12)
    exact = np.exp(-0.5 * t) * 1.8 + 0.4 * np.sin(t) - 0.8 * np.cos(t)
    found = posterior(t).mean
    np.testing.assert_allclose(found, np.repeat(exact[:, None], d, axis=1), atol=1e-3)
