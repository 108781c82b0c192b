"""Defect transport: the error estimate and the error bars, against closed forms and references."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from compiling import jit_once

import probode
from probode import EK0, EK1, DiagonalEK1, PIControl, problems, solve
from probode.engines import native
from probode.global_error import in_jax, interpolant, scales
from probode.global_error.in_jax import carry_at_once, carry_over
from probode.global_error.schemes import scheme_for
from probode.global_error.stages import Collocation
from probode.global_error.transport import Carry

pytestmark = pytest.mark.optimised

BETWEEN = np.linspace(0.1, 9.9, 57)
SAVE_AT = np.linspace(0.0, 10.0, 41)
"""As many times in every test, so that one program serves all."""


def lotka_volterra(t, y):
    return jnp.array([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


@pytest.fixture(scope="module")
def reference():
    """DOP853 at rtol 1e-13: errors near 1e-12, judged are errors above 1e-8."""
    return scipy.integrate.solve_ivp(
        lambda t, y: [1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]],
        *((0, 10), [1, 1], "DOP853"),
        rtol=1e-13,
        atol=1e-13,
        dense_output=True,
    ).sol


def run(solver, rtol=1e-5, t1=10.0, **options):
    control = PIControl(rtol=rtol, atol=1e-3 * rtol)
    return solve(lotka_volterra, (0.0, t1), [1.0, 1.0], solver=solver, control=control, **options)


def lorenz(rtol, t1):
    problem = problems.get("lorenz")
    return solve(
        *(problem.vector_field, (0.0, t1), problem.y0, problem.args),
        solver=EK1(3),
        control=PIControl(rtol=rtol, atol=rtol * 1e-2),
    )


@functools.cache
def prothero_robinson():
    problem = problems.get("prothero-robinson")
    return solve(
        *(problem.vector_field, problem.t_span, problem.y0, problem.args),
        solver=EK1(3),
        control=PIControl(rtol=1e-7, atol=1e-10),
    ).calibrate()


def relative(estimate, error):
    return np.linalg.norm(estimate - error) / np.linalg.norm(error)


# --- the pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_interpolant_reproduces_polynomials_of_its_degree(k):
    rng = np.random.default_rng(0)
    polynomial = np.polynomial.Polynomial(rng.normal(size=2 * k + 2))
    a, h = 0.3, 0.7

    def derivatives(t):
        return np.array([polynomial.deriv(j)(t) if j else polynomial(t) for j in range(k + 1)])

    left, right = derivatives(a)[:, None], derivatives(a + h)[:, None]
    w = interpolant.data(np, k, left, right, np.array(h))
    tau = np.linspace(0, 1, 7)
    values, slopes = interpolant.rows_at(k, tuple(tau.tolist()))
    value, slope = left[0] + values @ w, slopes @ w / h
    np.testing.assert_allclose(interpolant.value_rows(np, k, tau), values, atol=1e-12)
    np.testing.assert_allclose(value[:, 0], polynomial(a + h * tau), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope[:, 0], polynomial.deriv()(a + h * tau), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("kind", "s", "order"), [("radau", 3, 5), ("radau", 4, 7), ("gauss", 3, 6)]
)
def test_collocation_integrates_polynomials_up_to_its_order(kind, s, order):
    method = Collocation(kind, s)
    powers = np.arange(order)
    exact = 1.0 / (powers + 1)
    np.testing.assert_allclose(method.weights @ method.nodes[:, None] ** powers, exact, atol=1e-14)
    assert abs(method.weights @ method.nodes**order - 1 / (order + 1)) > 1e-5


def test_the_spectrum_is_that_of_the_inverse_matrix():
    method = Collocation("radau", 4)
    values, columns, rows = method.spectrum
    inverse = (columns * values) @ rows
    np.testing.assert_allclose(inverse.real, np.linalg.inv(method.matrix), atol=1e-12)


def test_window_means_keep_small_values_behind_large_ones():
    x = np.concatenate([np.full(50, 1e20), np.full(50, 1e-20)])
    mean = scales.window_mean(np, x, 3)
    assert mean[60] == pytest.approx(1e-20)
    assert mean[50] == pytest.approx(3e20 / 7)
    direct = [x[max(0, i - 3) : i + 4].mean() for i in range(100)]
    np.testing.assert_allclose(mean, direct, rtol=1e-12)


# --- the estimate --------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [-1.0, 0.5, -1e4])
def test_the_error_of_a_linear_equation_is_the_closed_form(rate):
    """y' = rate y: the error of the mean is known exactly, stiff or not."""
    posterior = solve(
        lambda t, y, rate: rate * y,
        *((0.0, 2.0), [1.0], (rate,)),
        solver=EK1(3),
        control=PIControl(rtol=1e-4, atol=1e-7),
    ).calibrate()
    error = posterior.mean - np.exp(rate * posterior.t)[:, None]
    assert relative(posterior.global_error(), error) < 1e-3


@pytest.mark.parametrize(
    ("solver", "bound"),
    [(EK1(3), 1e-3), (EK1(5), 1e-2), (EK0(3), 1e-3), (EK0(5), 1e-2), (DiagonalEK1(4), 1e-2)],
    ids=lambda x: getattr(x, "name", x),
)
@pytest.mark.parametrize("smooth", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_estimate_is_the_error_at_the_nodes_and_between(reference, solver, bound, smooth):
    posterior = run(solver, smooth=smooth).calibrate()
    error = posterior.mean - reference(posterior.t).T
    assert relative(posterior.global_error(), error) < bound
    t = BETWEEN
    between = posterior(t).mean - reference(t).T
    assert relative(posterior.global_error(t), between) < 5 * bound
    assert relative(posterior.corrected(t), reference(t).T) < bound * 1e-3


def test_the_estimate_is_the_error_on_a_stiff_problem():
    problem = problems.get("van-der-pol", mu=1e3)
    arguments = problem.vector_field, (0.0, 1.5), problem.y0, problem.args
    judged = solve(*arguments, control=PIControl(rtol=1e-4, atol=1e-7)).calibrate()
    exact = solve(*arguments, solver=EK1(6), control=PIControl(rtol=1e-11, atol=1e-14))
    error = judged.mean - exact(judged.t).mean
    assert relative(judged.global_error(), error) < 0.05
    assert judged.diagnose().trusted


def test_the_fast_mode_needs_three_evaluations_and_a_look_and_is_of_the_right_size(reference):
    for solver in (EK1(3), EK0(3)):
        posterior = run(solver).calibrate("defect-fast")
        steps, f = posterior.stats.accepted, posterior.stats.calibration_f_evaluations
        assert 3 * steps < f < 3.5 * steps
        error = posterior.mean - reference(posterior.t).T
        assert relative(posterior.global_error(), error) < 0.3


def test_evaluations_are_counted_apart():
    plain = run(EK1(5))
    posterior = plain.calibrate()
    assert posterior.stats.f_evaluations == plain.stats.f_evaluations
    assert 8 * plain.stats.accepted <= posterior.stats.calibration_f_evaluations
    assert posterior.stats.calibration_f_evaluations <= 8.5 * plain.stats.accepted
    assert run(EK0(3)).calibrate().stats.calibration_jacobian_evaluations == 0


def test_backwards_is_the_mirror_of_forwards():
    def mirrored(t, y):
        return -lotka_volterra(-t, y)

    forward = run(EK1(3)).calibrate()
    backward = solve(
        *(mirrored, (0.0, -10.0), [1.0, 1.0]),
        solver=EK1(3),
        control=PIControl(rtol=1e-5, atol=1e-8),
    ).calibrate()
    np.testing.assert_allclose(backward.global_error(), forward.global_error(), rtol=1e-6)
    np.testing.assert_allclose(backward.std, forward.std, rtol=1e-6)


# --- the error bars -------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [EK1(3), EK1(8), EK0(4), DiagonalEK1(3)], ids=lambda s: s.name)
def test_error_bars_have_the_size_of_the_errors(reference, solver):
    posterior = run(solver).calibrate()
    judged = posterior.std > 1e-11  # the first steps are more accurate than the reference
    scaled = (posterior.mean - reference(posterior.t).T)[judged] / posterior.std[judged]
    assert 1 / 3 < np.mean(scaled**2) < 3
    assert np.mean(np.abs(scaled) < 1.96) >= 0.9


def test_standard_deviations_covariances_dense_output_and_samples_agree():
    posterior = run(EK1(3)).calibrate()
    np.testing.assert_allclose(
        np.sqrt(np.einsum("tii->ti", posterior.cov)), posterior.std, rtol=1e-12
    )
    some = slice(20, 20 + len(BETWEEN))
    np.testing.assert_allclose(posterior(posterior.t[some]).std, posterior.std[some], rtol=1e-9)
    chosen = [11, 42]
    drawn, dense = posterior.sample(3000, t=BETWEEN[chosen]), posterior(BETWEEN)
    # The standard deviation of 3000 draws has a standard error of 1.3 %.
    np.testing.assert_allclose(drawn.std(axis=0), dense.std[chosen], rtol=0.06)
    np.testing.assert_allclose(
        np.corrcoef(drawn[:, 0].T)[0, 1],
        dense.cov[chosen[0]][0, 1] / np.prod(dense.std[chosen[0]]),
        atol=0.06,
    )


def test_correlations_are_those_of_the_model():
    plain = run(EK1(3))
    i = len(plain.t) // 3

    def correlation(posterior):
        return posterior.cov[i][0, 1] / np.prod(posterior.std[i])

    assert correlation(plain.calibrate()) == pytest.approx(correlation(plain), rel=1e-10)


def test_a_component_without_error_has_no_error_bar():
    def field(t, y):
        return jnp.array([-y[0], 0.0])

    posterior = solve(field, (0.0, 1.0), [1.0, 2.0], solver=EK0(2, "dynamic-mv")).calibrate()
    np.testing.assert_array_equal(posterior.std[:, 1], 0.0)
    assert np.all(posterior.std[1:, 0] > 0.0)


def test_an_error_where_the_model_has_no_variance_gets_an_error_bar_of_its_own():
    error, std = np.array([[0.0], [2.0], [2.0]]), np.zeros((3, 1))
    scaled = scales.of_nodes(np, error, std, np.ones((3, 1)))
    np.testing.assert_array_equal(scaled.ratio, 1.0)
    np.testing.assert_allclose(scaled.own[1:], 2.0)


def test_a_lost_estimate_gives_wide_bands():
    error = np.array([[0.0], [1e-6], [np.nan]])
    mean = np.array([[0.0], [1.0], [3.0]])
    scaled = scales.of_nodes(np, error, np.full((3, 1), 1e-6), mean)
    assert scaled.ratio[-1, 0] * 1e-6 == pytest.approx(3.0)
    assert scaled.ratio[1, 0] < 10.0


def test_no_value_is_claimed_to_be_known_better_than_its_rounding():
    posterior = prothero_robinson()
    assert np.all(posterior.std[1:] >= 0.99 * np.finfo(float).eps * np.abs(posterior.mean[1:]))


# --- verdicts ------------------------------------------------------------------------------------


def test_a_good_estimate_is_trusted():
    diagnosis = run(EK1(5)).calibrate().diagnose()
    assert diagnosis.trusted
    assert "can be trusted" in str(diagnosis)


def test_chaos_is_flagged():
    posterior = lorenz(1e-4, 40.0).calibrate()
    diagnosis = posterior.diagnose()
    assert "size" in diagnosis.flags
    assert "must not be trusted" in str(diagnosis)
    assert "must not be trusted" in posterior._repr_html_()


@pytest.mark.parametrize("solver", [EK1(5), EK1(8)], ids=lambda s: s.name)
def test_the_estimate_holds_at_rounding_level(solver):
    """Errors of a few units in the last place, against long doubles."""
    posterior = solve(
        lambda t, y: jnp.array([y[1], -y[0]]),
        *((0.0, 10.0), [1.0, 0.0]),
        solver=solver,
        control=PIControl(rtol=1e-13, atol=1e-15),
    ).calibrate()
    t = posterior.t.astype(np.longdouble)
    error = posterior.mean - np.stack([np.cos(t), -np.sin(t)], axis=1)
    assert np.abs(error).max() < 1e-14
    assert relative(posterior.global_error(), error.astype(float)) < 0.3


def test_an_error_far_below_rounding_is_flagged():
    """A stiff equation forgets its rounding errors at once: nothing is left to estimate."""
    assert "rounding" in prothero_robinson().diagnose().flags


def test_no_estimate_is_coarser_than_the_error_of_a_high_order():
    """From order 7 on the interpolant has to be better than with three derivatives."""
    problem = problems.get("brusselator")
    arguments = problem.vector_field, problem.t_span, problem.y0, problem.args
    judged = solve(*arguments, solver=EK1(8), control=PIControl(1e-5, 1e-8)).calibrate()
    exact = solve(*arguments, solver=EK1(8), control=PIControl(1e-12, 1e-15))
    error = judged.mean - exact(judged.t).mean
    assert relative(judged.global_error(), error) < 0.1


def test_an_uncalibrated_posterior_says_so():
    posterior = run(EK1(2))
    assert "not calibrated" in str(posterior.diagnose())
    with pytest.raises(ValueError, match="calibrate"):
        posterior.global_error()


# --- transformations, files, compilation --------------------------------------------------------


def test_calibration_inside_vmap_is_that_of_single_solves():
    """Up to the corrections left out: a trace goes step by step, a single solve all at once."""
    grid = np.linspace(0.0, 2.0, 41)
    starts = np.array([[1.0, 1.0], [1.2, 0.8]])

    def solved(y0):
        posterior = solve(
            lotka_volterra, (0.0, 2.0), y0, solver=EK1(2), grid=grid, calibration="defect"
        )
        return posterior.std, posterior.global_error()

    with jax.enable_x64(True):
        std, error = jit_once(jax.vmap(solved))(starts)
    for i, start in enumerate(starts):
        single = solve(lotka_volterra, (0.0, 2.0), start, solver=EK1(2), grid=grid).calibrate()
        np.testing.assert_allclose(std[i], single.std, rtol=1e-3)
        error_size = np.abs(error[i]).max()
        np.testing.assert_allclose(error[i], single.global_error(), atol=1e-3 * error_size)


@pytest.mark.parametrize(
    ("solver", "smooth"),
    [
        (EK1(3), True),
        (EK0(3), False),
        pytest.param(EK1(3), False, marks=pytest.mark.slow),
        pytest.param(EK0(3), True, marks=pytest.mark.slow),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_save_at_estimates_the_error_on_the_way(reference, solver, smooth):
    posterior = run(solver, save_at=SAVE_AT, smooth=smooth, calibration="defect")
    error = posterior.mean - reference(SAVE_AT).T
    assert relative(posterior.global_error(), error) < 1e-2
    scaled = error[1:] / posterior.std[1:]
    assert 0.1 < np.mean(scaled**2) < 10
    assert posterior.diagnose().trusted


def test_save_at_cannot_be_calibrated_afterwards():
    with pytest.raises(ValueError, match="pass calibration='defect' to solve"):
        run(EK1(2), save_at=10.0).calibrate()


@pytest.mark.parametrize(
    "options", [{}, {"save_at": SAVE_AT, "calibration": "defect"}], ids=["nodes", "save_at"]
)
def test_a_file_keeps_the_calibration(tmp_path, options):
    posterior = run(EK1(3), **options)
    posterior = posterior if options else posterior.calibrate()
    posterior.save(tmp_path / "posterior.npz")
    loaded = probode.Posterior.load(tmp_path / "posterior.npz")
    np.testing.assert_array_equal(loaded.std, posterior.std)
    np.testing.assert_array_equal(loaded.global_error(), posterior.global_error())
    assert str(loaded.diagnose()) == str(posterior.diagnose())
    with pytest.raises(ValueError, match=r"vector field|save_at"):
        loaded.calibrate()


def test_new_values_and_other_numbers_of_steps_do_not_compile_again():
    def once(y0, rtol, t1):
        control = PIControl(rtol=rtol, atol=1e-9)
        posterior = solve(lotka_volterra, (0.0, t1), y0, solver=EK1(3), control=control)
        return posterior.calibrate()

    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    jax.jit(lambda x: 1.23 * x)(1.0)
    assert compiled  # the listener works
    first = once([1.0, 1.0], 1e-5, 10.0)
    del compiled[:]
    second = once([1.1, 0.9], 1e-6, 12.0)
    assert not compiled
    assert first.stats.accepted < 1024 < second.stats.accepted


def test_all_steps_at_once_is_step_by_step():
    """Two ways of carrying the error along: the same up to corrections of corrections."""
    posterior = run(EK1(3), rtol=1e-6, t1=2.0)
    scheme = scheme_for(posterior.method, True, "defect")
    means = np.asarray(posterior.path.smoothed.mean)[:, : scheme.k + 1]
    with jax.enable_x64(True):
        inputs = posterior.problem.field, posterior.t, means, Carry.start(jnp, 2)
        _, one, settled = jit_once(functools.partial(carry_at_once, scheme))(*inputs)
        _, other = jit_once(functools.partial(carry_over, scheme))(*inputs)
    assert settled
    size = np.abs(other.error).max()
    np.testing.assert_allclose(one.error, other.error, atol=1e-3 * size)
    np.testing.assert_allclose(one.stages, other.stages, atol=1e-3 * size)


@pytest.mark.slow
def test_where_the_error_is_no_small_perturbation_steps_go_one_by_one(monkeypatch):
    """A tolerance of a tenth, over two periods: the trajectory is lost."""
    one_by_one = []
    original = in_jax._block

    def counting(*inputs):
        one_by_one.append(inputs)
        return original(*inputs)

    monkeypatch.setattr(in_jax, "_block", counting)
    with native.disabled():  # the kernels always go one by one
        run(EK1(3), rtol=1e-6, t1=2.0).calibrate()
        assert not one_by_one
        run(EK1(3), rtol=0.1).calibrate()
    assert one_by_one
