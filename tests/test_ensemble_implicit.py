"""Ensembles of implicit equations: mass matrices, differential-algebraic equations, residuals."""

import logging
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, FirstOrder, Implicit, MassMatrix, Normal, PIControl, solve_ensemble
from probode.base.status import Status

TIMES = np.linspace(0.5, 2.0, 4)
OPTIONS = {
    "calibration": "model",
    "solver": EK1(2),
    "control": PIControl(1e-6, 1e-8),
    "save_at": TIMES,
}
RATES = np.array([0.5, 1.0, 2.0])


def decay(t, y, k):
    """``y_0' = -k y_0`` and ``0 = y_1 - y_0²``."""
    return jnp.stack([-k * y[0], y[1] - y[0] ** 2])


def exact(k, start=1.0):
    value = start * np.exp(-k * TIMES)
    return np.stack([value, value**2], axis=-1)


TRUTH = np.stack([exact(k) for k in RATES])


def decays(y0=(1.0, 1.0), inconsistent="fix", **options):
    equation = MassMatrix(decay, np.array([1.0, 0.0]), inconsistent=inconsistent)
    return solve_ensemble(equation, (0.0, 2.0), np.array(y0), (RATES,), **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def calibrated():
    return decays(calibration="defect", covariance=True)


def test_all_components_of_all_members(calibrated):
    assert calibrated.mean.shape == (3, 4, 2)
    assert calibrated.engine == "vmapped" and calibrated.success.all()
    np.testing.assert_allclose(calibrated.mean, TRUTH, atol=1e-5)


def test_algebraic_equations_hold(calibrated):
    gap = calibrated.mean[..., 1] - calibrated.mean[..., 0] ** 2
    assert np.max(abs(gap)) < 1e-9


def test_error_bars_are_calibrated(calibrated):
    chi2 = np.mean(((calibrated.mean - TRUTH) / calibrated.std) ** 2)
    assert 1 / 3 < chi2 < 3, chi2


def test_covariances_belong_to_the_error_bars(calibrated):
    spread = np.sqrt(np.diagonal(calibrated.cov, axis1=-2, axis2=-1))
    np.testing.assert_allclose(spread, calibrated.std, rtol=1e-9)


@pytest.mark.slow
def test_a_member_alone_is_the_same_solve_also_after_pickling(calibrated):
    alone = pickle.loads(pickle.dumps(calibrated)).member(1)
    np.testing.assert_allclose(alone.mean, calibrated.mean[1], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(alone.std, calibrated.std[1], rtol=1e-2)


@pytest.mark.slow
def test_samples_spread_as_the_error_bars_say(calibrated):
    drawn = calibrated.sample(200)
    assert drawn.shape == (3, 200, 4, 2)
    away = (drawn.mean(axis=1) - calibrated.mean) / calibrated.std
    assert np.max(abs(away)) < 6 / np.sqrt(200)


STARTS = np.array([[1.0, 1.0], [1.0, 0.3], [1.0, 1.0]])


def test_starts_are_made_consistent_member_by_member(caplog):
    with caplog.at_level(logging.WARNING, logger="probode"):
        fixed = decays(STARTS, calibration="defect", covariance=True)
    np.testing.assert_allclose(fixed.mean, TRUTH, atol=1e-5)
    assert "y0 of 1 members does not fulfil the algebraic equations" in caplog.text


@pytest.mark.slow
def test_a_start_that_is_refused_fails_alone():
    refused = decays(STARTS, "refuse")
    np.testing.assert_array_equal(refused.failed, [1])
    assert refused.status[1] == Status.START_NOT_FINITE
    assert "inconsistent='refuse'" in refused.message
    np.testing.assert_allclose(refused.mean[[0, 2]], TRUTH[[0, 2]], atol=1e-5)
    with pytest.raises(ValueError, match="does not fulfil the algebraic equations"):
        refused.member(1)


@pytest.mark.slow
def test_a_start_that_is_not_found_fails_alone():
    """``exp(y_1) = -y_0`` has no solution for positive ``y_0``."""
    equation = MassMatrix(lambda t, y: jnp.stack([-y[0], jnp.exp(y[1]) + y[0]]), [1.0, 0.0])
    starts = np.array([[-1.0, 0.0], [1.0, 0.0]])
    some = solve_ensemble(equation, (0.0, 2.0), starts, **OPTIONS)
    np.testing.assert_array_equal(some.status, [Status.SUCCESS, Status.START_NOT_FINITE])
    np.testing.assert_allclose(some.mean[0, :, 1], -TIMES, atol=1e-5)


@pytest.mark.slow
def test_moments_of_uncertain_starts_and_numpy_functions():
    """An uncertain ``y_0``; the algebraic component follows it."""
    equation = MassMatrix(
        lambda t, y: np.array([-y[0], y[1] - 2.0 * y[0]]), lambda t, y: np.array([1.0, 0.0])
    )
    uncertain = solve_ensemble(
        equation, (0.0, 2.0), [Normal(1.0, 0.01), 2.0], cubature=3, **OPTIONS
    )
    moments = uncertain.moments()
    wanted = np.exp(-TIMES)[:, None] * [1.0, 2.0]
    np.testing.assert_allclose(moments.mean, wanted, atol=1e-5)
    np.testing.assert_allclose(moments.std, 0.1 * wanted, atol=1e-5)


@pytest.mark.slow
def test_guesses_of_the_slope_choose_the_solution():
    """Clairaut's ``y = t y' + y'²`` has the lines ``y = c t + c²``: two through each start."""
    slopes = np.array([[-0.5], [0.5], [0.8]])
    equation = Implicit(lambda t, y, yp: y - t * yp - yp**2)
    lines = solve_ensemble(equation, (0.0, 0.8), (slopes**2, slopes + 0.05), save_at=[0.4, 0.8],
                           solver=EK1(3), calibration="model")  # fmt: skip
    wanted = slopes[:, None] * np.array([0.4, 0.8])[:, None] + slopes[:, None] ** 2
    np.testing.assert_allclose(lines.mean, wanted, rtol=1e-9)
    np.testing.assert_allclose(lines.member(0).mean, wanted[0], rtol=1e-9)
    np.testing.assert_array_equal(lines[1:].rerun([0]).mean, lines.mean[1:2])


@pytest.mark.slow
def test_ek0_solves_a_regular_matrix_as_an_explicit_equation():
    equation = MassMatrix(lambda t, y, k: -2.0 * k * y, np.array([[2.0]]))
    fast = solve_ensemble(equation, (0.0, 2.0), [1.0], (RATES,), solver=EK0(3), rtol=1e-6)
    assert type(fast.settings.equation) is FirstOrder
    np.testing.assert_allclose(fast.mean[:, 0, 0], np.exp(-2.0 * RATES), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: decays(solver=EK0(3)), "needs EK1"),
        (lambda: decays(engine="lanes"), "is for y' = f"),
        (lambda: decays((1.0, 1.0, 1.0)), "mass matrix must have shape"),
        (
            lambda: solve_ensemble(
                Implicit(lambda t, y, yp: y - yp), (0, 1), (np.ones((3, 2)), [1.0])
            ),
            "same shape for a member",
        ),
    ],
)
def test_what_does_not_fit_is_said(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_a_store_knows_the_start(tmp_path):
    pytest.importorskip("zarr")
    store = tmp_path / "lines"
    equation = Implicit(lambda t, y, yp: y - t * yp - yp**2)

    def lines(slope):
        return solve_ensemble(
            *(equation, (0.0, 0.8), ([[0.25]], [slope])),
            store=store,
            solver=EK1(1),
            smooth=False,
            calibration="model",
        )

    np.testing.assert_array_equal(lines(0.5).mean, lines(0.5).mean)
    with pytest.raises(ValueError, match="differs from this one in: y0"):
        lines(-0.5)
