"""``solve_ivp``: SciPy's contract (see also test_scipy_suite), and what comes on top."""

import numpy as np
import pytest
import scipy.integrate
from only_python import number

import probode
from probode import solve_ivp


def lotka_volterra(t, y):
    return [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]


def branching(t, y):
    return [-y[0] if number(y[0]) > 0.5 else -0.5 * y[0]]


@pytest.fixture(scope="module")
def result():
    return solve_ivp(lotka_volterra, [0, 10], [1, 1], rtol=1e-6, atol=1e-9, dense_output=True)


def test_the_result_has_scipys_fields(result):
    theirs = scipy.integrate.solve_ivp(lotka_volterra, [0, 10], [1, 1])
    assert set(theirs.keys()) <= set(result.keys())
    assert result["y"] is result.y


def test_error_bars_come_in_the_shape_of_the_solution(result):
    assert result.y_std.shape == result.y.shape == (2, len(result.t))
    assert result.y_cov.shape == (len(result.t), 2, 2)
    np.testing.assert_allclose(
        np.sqrt(np.einsum("tii->it", result.y_cov)), result.y_std, rtol=1e-12
    )


def test_dense_output_has_means_standard_deviations_and_samples(result):
    t = np.linspace(0, 10, 7)
    assert result.sol(t).shape == result.sol.std(t).shape == (2, 7)
    assert result.sol(3.0).shape == (2,)
    assert result.sol.cov(t).shape == (7, 2, 2)
    assert result.sol.sample(5, t=t).shape == (5, 2, 7)


def test_values_agree_with_scipy(result):
    theirs = scipy.integrate.solve_ivp(
        lotka_volterra, [0, 10], [1, 1], method="DOP853", rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(result.y[:, -1], theirs.y[:, -1], rtol=1e-6)


def test_outside_the_span_the_standard_deviation_grows(result):
    std = result.sol.std([10.01, 10.1, 11.0])
    assert np.all(np.diff(std, axis=1) > 0)


def test_a_function_with_a_branch_is_solved_from_python():
    result = solve_ivp(branching, (0, 3), [1.0], rtol=1e-6)
    assert result.path == "python"
    exact = 0.5 * np.exp(-0.5 * (3 - np.log(2)))
    assert result.y[0, -1] == pytest.approx(exact, rel=1e-4)


def test_compiled_and_python_paths_agree():
    grid = np.linspace(0, 2, 21)

    def plain(t, y):
        return [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]

    def stubborn(t, y):
        return plain(number(t), [number(y[0]), number(y[1])])

    options = {"grid": grid, "initialization": "runge-kutta"}
    a = solve_ivp(plain, (0, 2), [1.0, 1.0], **options)
    b = solve_ivp(stubborn, (0, 2), [1.0, 1.0], grid=grid)
    assert (a.path, b.path) == ("jax", "python")
    # The Jacobian of the second is a finite difference.
    np.testing.assert_allclose(a.y, b.y, rtol=1e-6)
    np.testing.assert_allclose(a.y_std, b.y_std, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("options", [{"lband": 1, "uband": 1}, {"jac_sparsity": "tridiagonal"}])
def test_sparsity_saves_evaluations(options):
    n = 12
    calls = {"count": 0}

    def diffusion(t, y):
        calls["count"] += 1
        z = np.array([float(v) for v in y])
        return np.concatenate([[0], z[:-1]]) - 2 * z + np.concatenate([z[1:], [0]])

    if "jac_sparsity" in options:
        options = {"jac_sparsity": np.eye(n) + np.eye(n, k=1) + np.eye(n, k=-1)}
    y0 = np.sin(np.linspace(0, np.pi, n))
    sparse = solve_ivp(diffusion, (0, 1), y0, order=3, calibration="model", **options)
    evaluations = calls["count"]
    calls["count"] = 0
    dense = solve_ivp(diffusion, (0, 1), y0, order=3, calibration="model")
    assert evaluations < 0.5 * calls["count"]
    np.testing.assert_allclose(sparse.y[:, -1], dense.y[:, -1], rtol=1e-6)


class TestEvents:
    def test_the_time_of_an_event_has_a_standard_deviation(self):
        """The zeros of a cosine: errors are within a few standard deviations."""

        def oscillator(t, y):
            return [y[1], -y[0]]

        result = solve_ivp(oscillator, (0, 20), [1.0, 0.0], rtol=1e-4, events=lambda t, y: y[0])
        exact = np.pi * (np.arange(len(result.t_events[0])) + 0.5)
        assert len(exact) == 6
        assert np.all(np.abs(result.t_events[0] - exact) < 10 * result.t_events_std[0])
        assert np.all(result.t_events_std[0] > 0)

    def test_two_roots_inside_one_step_are_found(self):
        """A parabola that dips below zero between two steps of a coarse grid."""

        def fall(t, y):
            return [y[1], 2.0]

        def event(t, y):
            return y[0]

        # y = (t - 1)^2 - 1e-4, zero at 1 ± 0.01; the steps are 0.4 long.
        result = solve_ivp(
            fall, (0, 2), [1 - 1e-4, -2.0], grid=np.linspace(0, 2, 6), events=event, order=3
        )
        np.testing.assert_allclose(result.t_events[0], [0.99, 1.01], atol=1e-6)

    def test_a_terminal_event_ends_an_infinite_interval(self):
        def ball(t, y):
            return [y[1], -9.81]

        def ground(t, y):
            return y[0]

        ground.terminal, ground.direction = True, -1
        result = solve_ivp(ball, (0, np.inf), [0.0, 10.0], events=ground)
        assert (result.status, result.success) == (1, True)
        assert result.t[-1] == pytest.approx(20 / 9.81)
        assert result.message == "A termination event occurred."


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"max_num_steps": 3}, "number of steps"),
        ({"callback": lambda progress: True, "max_step": 1e-4}, "callback"),
        ({"time_limit": 0.1, "max_step": 1e-4}, "time limit"),
    ],
)
def test_stopping_early_keeps_what_there_is(options, word):
    result = solve_ivp(lotka_volterra, (0, 1000), [1.0, 1.0], **options)
    assert (result.status, result.success) == (-1, False)
    assert word in result.message
    assert 1 < len(result.t) == result.y.shape[1]
    assert result.t[-1] < 1000


@pytest.mark.parametrize("y0", [[1.0, 1.0], [1.0 + 0.1j, 1.0]], ids=["real", "complex"])
@pytest.mark.parametrize("t", [0.7, [0.7], [0.2, 0.7], [[0.2, 0.7, 0.9], [0.1, 0.3, 0.5]]])
def test_each_sample_has_the_shape_of_the_mean(y0, t):
    sol = solve_ivp(lotka_volterra, (0, 1), y0, dense_output=True).sol
    mean, drawn = sol(t), sol.sample(5, t=t)
    assert mean.shape == sol.std(t).shape == (2, *np.shape(t))
    assert drawn.shape == (5, *mean.shape)
    # Its components are those of the mean: within its error bars.
    assert np.all(np.abs(drawn - mean) < 10 * sol.std(t) + 1e-12)


def test_complex_states_are_embedded():
    result = solve_ivp(lambda t, y: 1j * y, (0, 1), [1 + 0j], rtol=1e-8, dense_output=True)
    assert result.y.dtype == complex
    assert result.y[0, -1] == pytest.approx(np.exp(1j), abs=1e-6)
    assert result.sol(0.5) == pytest.approx(np.exp(0.5j), abs=1e-6)
    assert np.isrealobj(result.y_std)


def turning(t, y):
    return [(0.3 + 1j) * y[0] - 0.2 * y[1], 1j * y[0] * y[1]]


@pytest.mark.parametrize("t_eval", [None, [0.3, 0.7]])
def test_the_covariance_of_complex_states_is_complex(t_eval):
    """``E[(y - m)(y - m)ᴴ]``, here put together from the real form ``P = E[x xᵀ]``."""
    result = solve_ivp(turning, (0, 1), [1 + 0.5j, 2 - 1j], t_eval=t_eval, dense_output=True)
    assert result.y_cov.shape == (len(result.t), 2, 2)
    real = np.asarray(result.posterior(result.t).cov)
    to_complex = np.hstack([np.eye(2), 1j * np.eye(2)])
    expected = to_complex @ real @ to_complex.conj().T
    np.testing.assert_allclose(result.y_cov, expected, atol=1e-14 * np.abs(real).max())
    np.testing.assert_array_equal(result.sol.cov(result.t), result.y_cov)
    variances = np.einsum("tii->it", result.y_cov)
    np.testing.assert_allclose(np.sqrt(variances.real), result.y_std, rtol=1e-12)


def test_the_covariance_of_a_complex_state_that_does_not_move_is_complex():
    result = solve_ivp(turning, (1, 1), [1 + 0.5j, 2 - 1j])
    assert (result.y_cov.shape, result.y_cov.dtype) == ((2, 2, 2), complex)


def test_unknown_options_are_named_in_a_warning():
    with pytest.warns(UserWarning, match="`rtoll`"):
        solve_ivp(lotka_volterra, (0, 0.1), [1.0, 1.0], rtoll=1e-3)


def test_an_unknown_method_is_an_error_that_names_ours():
    with pytest.raises(ValueError, match=r"EK0.*EK1"):
        solve_ivp(lotka_volterra, (0, 1), [1.0, 1.0], method="RK45")


@pytest.mark.parametrize("name", ["EK0", "EK1"])
def test_scipy_can_drive_our_solvers(name):
    result = scipy.integrate.solve_ivp(
        lotka_volterra,
        (0, 3),
        [1.0, 1.0],
        method=getattr(probode.scipy, name),
        rtol=1e-6,
        atol=1e-8,
        dense_output=True,
    )
    theirs = scipy.integrate.solve_ivp(
        lotka_volterra, (0, 3), [1.0, 1.0], method="DOP853", rtol=1e-11, atol=1e-12
    )
    assert result.success
    np.testing.assert_allclose(result.y[:, -1], theirs.y[:, -1], rtol=1e-5)
    np.testing.assert_allclose(result.sol(result.t), result.y, rtol=1e-12)


def test_progress_can_be_shown(capsys):
    solve_ivp(lotka_volterra, (0, 5), [1.0, 1.0], progress="always", max_step=1e-3)
    assert "steps/s" in capsys.readouterr().err


def test_progress_is_silent_without_a_terminal(capsys):
    solve_ivp(lotka_volterra, (0, 5), [1.0, 1.0], progress=True, max_step=1e-3)
    assert capsys.readouterr().err == ""
