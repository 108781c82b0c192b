"""t_eval without dense output: memory for these times, not for all steps, and the same numbers."""

from contextlib import nullcontext

import numpy as np
import pytest

from probode import solve_ivp
from probode.engines import kept, native
from probode.posterior import export
from probode.posterior.chosen import ChosenPath

Y0 = np.array([2.0, 0.0])


def van_der_pol(t, y):
    return np.array([y[1], 5.0 * (1.0 - y[0] ** 2) * y[1] - y[0]])


@pytest.fixture
def from_the_first_chunk(monkeypatch):
    """Covariances are dropped at once, spans are short."""
    monkeypatch.setattr(kept, "SPARSE_FROM", 0)
    monkeypatch.setattr(kept, "MOST_ROWS", 64)


TIMES = np.linspace(0.0, 20.0, 37)


@pytest.mark.parametrize(
    ("smooth", "path"),
    [
        pytest.param(True, nullcontext, id="smoother-kernels"),
        pytest.param(True, native.disabled, id="smoother-jax"),
        pytest.param(False, nullcontext, id="filter-kernels"),
        pytest.param(False, native.disabled, id="filter-jax", marks=pytest.mark.slow),
    ],
)
def test_values_are_those_of_a_solve_that_keeps_everything(from_the_first_chunk, path, smooth):
    """Bounds: rounding of the smoother, which is run in pieces."""
    problem, options = (van_der_pol, (0.0, 20.0), Y0), {"order": 3, "smooth": smooth}
    with path():
        whole = solve_ivp(*problem, t_eval=TIMES, dense_output=True, **options)
        chosen = solve_ivp(*problem, t_eval=TIMES, **options)
    np.testing.assert_array_equal(chosen.t, whole.t)
    np.testing.assert_allclose(chosen.y, whole.y, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(chosen.y_std, whole.y_std, rtol=1e-4)
    np.testing.assert_allclose(chosen.y_cov[-1], whole.y_cov[-1], rtol=1e-3)
    error = whole.posterior.global_error(TIMES)
    np.testing.assert_allclose(chosen.posterior.global_error(), error, rtol=1e-4, atol=1e-12)
    assert chosen.posterior.diagnose().flags == whole.posterior.diagnose().flags
    assert chosen.nfev == whole.nfev


@pytest.mark.parametrize("calibration", ["defect", "model"])
def test_of_second_order_values_and_velocities_are_kept(from_the_first_chunk, calibration):
    def spring(t, y, v):
        return -y - 0.1 * v

    problem = (spring, (0.0, 20.0), [[1.0], [0.0]])
    options = {"second_order": True, "rtol": 1e-8, "atol": 1e-10, "calibration": calibration}
    whole = solve_ivp(*problem, t_eval=TIMES, dense_output=True, **options)
    chosen = solve_ivp(*problem, t_eval=TIMES, **options)
    assert isinstance(chosen.posterior.path, ChosenPath)
    np.testing.assert_allclose(chosen.y, whole.y, atol=1e-9)
    np.testing.assert_allclose(chosen.y_std, whole.y_std, rtol=1e-3)
    np.testing.assert_allclose(chosen.y_cov[-1], whole.y_cov[-1], rtol=1e-3, atol=1e-20)


@pytest.mark.parametrize("calibration", ["defect", "model"])
def test_of_the_steps_no_more_is_kept_than_is_needed(from_the_first_chunk, calibration):
    """Without a calibration their times; with one, four of six derivatives; no view of all rows."""
    result = solve_ivp(van_der_pol, (0.0, 20.0), Y0, t_eval=TIMES, calibration=calibration)
    trail, steps = result.posterior.path.trail, int(result.posterior.stats.accepted)
    assert len(trail.t) == steps + 1 and trail.t.base is None
    numbers = trail.mean.size + trail.std.size
    assert numbers <= (10 * (steps + 1) if calibration == "defect" else steps)


@pytest.mark.parametrize("times", [[20.0], [0.0, 20.0], [7.3], np.linspace(20.0, 0.0, 9)])
def test_any_times_can_be_chosen(from_the_first_chunk, times):
    span = (20.0, 0.0) if times[0] > times[-1] else (0.0, 20.0)
    problem = (lambda t, y: np.cos(t) * y, span, [1.0])
    result = solve_ivp(*problem, t_eval=times, rtol=1e-8, atol=1e-10)
    exact = np.exp(np.sin(result.t) - np.sin(span[0]))
    np.testing.assert_array_equal(result.t, times)
    np.testing.assert_allclose(result.y[0], exact, rtol=1e-6)


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p(1.0),
        lambda p: p.derivative(TIMES[1]),
        lambda p: p.sample(),
        lambda p: p.diffusion,
        lambda p: p.calibrate(),
    ],
    ids=["evaluate", "derivative", "sample", "diffusion", "calibrate"],
)
def test_what_was_not_kept_is_said(from_the_first_chunk, use):
    posterior = solve_ivp(van_der_pol, (0.0, 20.0), Y0, t_eval=TIMES).posterior
    with pytest.raises(ValueError, match="kept"):
        use(posterior)


def test_it_is_shown_and_stored_as_any_other(from_the_first_chunk, tmp_path):
    posterior = solve_ivp(van_der_pol, (0.0, 20.0), Y0, t_eval=TIMES).posterior
    assert "20" in str(posterior) and posterior._repr_html_()
    export.save(posterior, tmp_path / "chosen.npz")
    np.testing.assert_array_equal(export.load(tmp_path / "chosen.npz").std, posterior.std)


def test_a_small_solve_keeps_everything():
    posterior = solve_ivp(van_der_pol, (0.0, 20.0), Y0, t_eval=TIMES).posterior
    assert posterior(1.0).mean.shape == (2,)


def test_a_large_solve_fits_where_all_of_its_steps_do_not(monkeypatch):
    monkeypatch.setattr(kept, "SPARSE_FROM", 2**20)
    monkeypatch.setattr(kept, "MOST_ROWS", 64)
    problem = (lambda t, y: -np.arange(1.0, 11.0) * y, (0.0, 50.0), np.ones(10))
    options = {"rtol": 1e-10, "max_memory": 16 * 2**20, "t_eval": [50.0], "max_step": 0.05}
    assert not solve_ivp(*problem, **options, dense_output=True).success
    assert solve_ivp(*problem, **options).success


def test_a_checkpoint_keeps_all_steps_and_is_smoothed_in_one_piece(from_the_first_chunk, tmp_path):
    """Bit by bit as a solve that keeps everything; not as one that is smoothed in pieces."""
    problem, options = (van_der_pol, (0.0, 20.0), Y0), {"t_eval": TIMES}
    stored = solve_ivp(*problem, **options, checkpoint=tmp_path / "run")
    whole = solve_ivp(*problem, **options, dense_output=True)
    np.testing.assert_array_equal(stored.y, whole.y)
    np.testing.assert_array_equal(stored.y_std, whole.y_std)
