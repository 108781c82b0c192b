"""Ensembles of equations of second order: values and velocities of all members."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode import EK0, Normal, PIControl, SecondOrder, Sweep, solve_ensemble

TIMES = np.linspace(0.5, 3.0, 6)
OPTIONS = {
    "calibration": "model",
    "solver": EK0(3),
    "control": PIControl(1e-6, 1e-6),
    "save_at": TIMES,
}


def spring(t, y, v, k):
    return -k * y


def exact(k, y0, v0):
    """Value and velocity at all times, ``(T, 2)``."""
    w = np.sqrt(k)
    value = y0 * np.cos(w * TIMES) + v0 / w * np.sin(w * TIMES)
    return np.stack([value, v0 * np.cos(w * TIMES) - y0 * w * np.sin(w * TIMES)], axis=1)


def springs(**options):
    k = np.array([1.0, 2.0, 4.0])
    start = np.array([1.0]), np.array([[0.0], [0.5], [1.0]])
    return solve_ensemble(SecondOrder(spring), (0.0, 3.0), start, (k,), **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def calibrated():
    return springs(calibration="defect", covariance=True)


TRUTH = np.stack([exact(k, 1.0, v) for k, v in ((1.0, 0.0), (2.0, 0.5), (4.0, 1.0))])[..., None]


def test_values_and_velocities_of_all_members(calibrated):
    assert calibrated.mean.shape == (3, 6, 2, 1)
    assert calibrated.engine == "vmapped" and calibrated.success.all()
    np.testing.assert_allclose(calibrated.mean, TRUTH, atol=1e-4)


def test_error_bars_are_calibrated_for_both(calibrated):
    chi2 = np.mean(((calibrated.mean - TRUTH) / calibrated.std) ** 2, axis=(0, 1))
    assert np.all((chi2 > 1 / 3) & (chi2 < 3)), chi2


def test_covariances_are_joint(calibrated):
    assert calibrated.cov.shape == (3, 6, 2, 2)
    spread = np.sqrt(np.diagonal(calibrated.cov, axis1=-2, axis2=-1))
    np.testing.assert_allclose(spread, calibrated.std[..., 0], rtol=1e-9)


@pytest.mark.slow
def test_a_member_alone_is_the_same_solve(calibrated):
    alone = calibrated.member(1)
    # Steps of another program: rounding moves errors, and bars, by parts of themselves.
    np.testing.assert_allclose(alone.state().mean, calibrated.mean[1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(alone.state().std, calibrated.std[1], rtol=1e-2)
    assert alone.method.equation.order == 2


def test_parts_views_and_pickles(calibrated):
    part = calibrated[1:]
    np.testing.assert_array_equal(part.mean, calibrated.mean[1:])
    table = calibrated.to_xarray()
    assert table.y.shape == (3, 6, 2)
    np.testing.assert_array_equal(table.y[..., 1], calibrated.mean[:, :, 1, 0])
    again = pickle.loads(pickle.dumps(calibrated))
    np.testing.assert_array_equal(again.mean, calibrated.mean)
    assert again.settings.equation.order == 2


@pytest.mark.slow
def test_samples_are_of_both(calibrated):
    drawn = calibrated.sample(400)
    assert drawn.shape == (3, 400, 6, 2, 1)
    away = (drawn.mean(axis=1) - calibrated.mean) / calibrated.std
    assert np.max(abs(away)) < 6 / np.sqrt(400)


def test_uncertain_starts_of_values_and_velocities():
    start = (np.array([1.0]), Normal([0.5], 0.01))
    uncertain = solve_ensemble(
        SecondOrder(spring), (0.0, 3.0), start, (1.0,), cubature=3, **OPTIONS
    )
    moments = uncertain.moments()
    # Linear in v0: the variance of y is 0.01 sin², that of v 0.01 cos².
    wanted = 0.1 * np.stack([abs(np.sin(TIMES)), abs(np.cos(TIMES))], axis=1)
    np.testing.assert_allclose(moments.std[..., 0], wanted, atol=1e-4)
    np.testing.assert_allclose(moments.mean[..., 0], exact(1.0, 1.0, 0.5), atol=1e-4)


def test_values_and_velocities_vary_along_dimensions_of_their_own():
    start = (
        Sweep(np.array([[1.0], [2.0]]), "height"),
        Sweep(np.array([[0.0], [0.5], [1.0]]), "push"),
    )
    grid = solve_ensemble(SecondOrder(spring), (0.0, 3.0), start, (1.0,), **OPTIONS)
    assert grid.shape == (2, 3) and grid.dims == ("height", "push")
    np.testing.assert_allclose(grid.mean[1, 2, ..., 0], exact(1.0, 2.0, 1.0), atol=1e-4)


@pytest.mark.slow
def test_a_numpy_function_is_traced_and_goes_along_in_pickles():
    ensemble = solve_ensemble(
        SecondOrder(lambda t, y, v, k: [-k * y[0] + np.sin(0.0)]),
        *((0.0, 3.0), ([1.0], [0.0]), (np.array([1.0, 4.0]),)),
        **OPTIONS,
    )
    np.testing.assert_allclose(ensemble.mean[1, ..., 0], exact(4.0, 1.0, 0.0), atol=1e-4)
    alone = pickle.loads(pickle.dumps(ensemble)).member(1)
    np.testing.assert_allclose(alone.state().mean, ensemble.mean[1], rtol=1e-7, atol=1e-9)


def test_a_store_knows_the_equation(tmp_path):
    pytest.importorskip("zarr")
    store = tmp_path / "springs"
    written = springs(store=store)
    again = springs(store=store)
    np.testing.assert_array_equal(written.mean, again.mean)
    with pytest.raises(ValueError, match="differs"):
        solve_ensemble(
            lambda t, y, k: -k * y, (0.0, 3.0), np.ones((3, 2)),
            (np.array([1.0, 2.0, 4.0]),), store=store, **OPTIONS,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: springs(engine="lanes"), "SecondOrder"),
        (
            lambda: solve_ensemble(SecondOrder(spring), (0, 1), np.ones((3, 2)), (1.0,)),
            "needs 2 values at t0",
        ),
        (
            lambda: solve_ensemble(SecondOrder(spring), (0, 1), (np.ones((3, 2)), [0.0]), (1.0,)),
            "one shape",
        ),
        (
            lambda: solve_ensemble(SecondOrder(spring), (0, 1), ([1.0], np.ones((3, 1)))),
            "is called as f",
        ),
        (lambda: springs(solver=EK0(1)), "too low"),
        (lambda: springs(atol=probode.Shared([1.0, 1.0, 1.0])), "atol must be"),
    ],
)
def test_what_does_not_fit_is_said(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


@pytest.mark.slow  # what is compiled for first order is tested in test_no_derivative
def test_members_whose_derivatives_are_not_finite_go_on():
    """``sqrt`` of what starts at zero has no derivative there."""
    equation = SecondOrder(lambda t, y, v, k: -k * jnp.sqrt(jnp.maximum(y, 0.0)))
    start = np.zeros((2, 1)), np.array([[1.0], [0.5]])
    ensemble = solve_ensemble(
        equation, (0.0, 0.1), start, (1.0,), solver=probode.EK1(3), calibration="model"
    )
    assert ensemble.success.all()
