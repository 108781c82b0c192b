"""Solves that end where the solution comes to rest or repeats itself, and those that must not."""

import numpy as np
import pytest
from only_python import number
from scipy.integrate import solve_ivp as scipy_ivp
from scipy.optimize import brentq

from probode import Implicit, Periodic, Steady, solve_ivp


def logistic(t, y):
    return y * (1.0 - y)


def damped(t, y):
    return np.array([y[1], -y[0] - 0.3 * y[1] + 0.5])


def exchange(t, y):
    """The sum is conserved."""
    return np.array([-2.0 * y[0] + y[1], 2.0 * y[0] - y[1]])


def robertson(t, y):
    slow, fast = 0.04 * y[0], 1e4 * y[1] * y[2]
    return np.array([fast - slow, slow - fast - 3e7 * y[1] ** 2, 3e7 * y[1] ** 2])


def only_python(t, y):
    return [y[0] * (1.0 - y[0])] if number(y[0]) < 9.0 else [0.0]


REST = {
    "logistic": (logistic, [0.1], [1.0], {}),
    "damped oscillator": (damped, [1.0, 0.0], [0.5, 0.0], {}),
    "conserved": (exchange, [1.0, 0.3], [1.3 / 3.0, 2.6 / 3.0], {}),
    "EK0": (damped, [1.0, 0.0], [0.5, 0.0], {"method": "EK0"}),
    "python": (only_python, [0.1], [1.0], {}),
    "second order": (lambda t, y, v: 0.5 - y - 0.3 * v, [1.0, 0.0], [0.5, 0.0], {}),
}


@pytest.mark.parametrize("name", REST)
def test_a_solution_at_rest_is_found_with_its_state(name):
    """Roots are found to rounding; what is conserved is as uncertain as the solve has it."""
    fun, y0, state, options = REST[name]
    options = {"second_order": True, **options} if name == "second order" else options
    result = solve_ivp(fun, (0.0, np.inf), y0, until="steady", **options)
    steady = result.steady
    assert result.status == 1 and result.success and "steady state was reached" in result.message
    assert steady.found and steady.refined and steady.stable
    assert steady.t == result.t[-1] < 500.0
    np.testing.assert_array_less(np.abs(steady.y - state), 3.0 * steady.y_std + 1e-13)
    np.testing.assert_array_less(steady.y_std, 1e-6)
    np.testing.assert_allclose(result.y[:, -1], state, rtol=2e-3, atol=2e-6)


def test_an_algebraic_decay_is_found_with_what_is_left_of_it():
    """Robertson's reaction ends at (0, 0, 1) as 1/t: Newton's method cannot help."""
    aim = Steady(rtol=1e-5, atol=1e-7)
    result = solve_ivp(robertson, (0.0, 1e14), [1.0, 0.0, 0.0], until=aim, rtol=1e-6, atol=1e-10)
    steady = result.steady
    assert steady.found and not steady.refined
    error = np.abs(steady.y - [0.0, 0.0, 1.0])
    assert np.all(error <= 3.0 * steady.y_std) and np.all(steady.y_std <= 30.0 * error + 1e-15)


NO_REST = {
    "drift": (lambda t, y: 1e-9 + 0.0 * y, (0.0, 1e6), [1.0]),
    "slow drift of a root": (lambda t, y: -1e3 * (y - np.sin(1e-6 * t)), (0.0, 1e7), [1.0]),
    "for ever slower": (lambda t, y: 1.0 / (1.0 + t) + 0.0 * y, (0.0, 1e9), [1.0]),
    "forced": (lambda t, y: np.sin(t) - y, (0.0, 100.0), [1.0]),
    "past a saddle": (lambda t, y: np.array([-y[0], y[1]]), (0.0, 18.0), [1.0, 1e-7]),
    "too early": (logistic, (0.0, 3.0), [0.1]),
}


@pytest.mark.parametrize("name", NO_REST)
def test_what_moves_is_not_called_steady(name):
    fun, span, y0 = NO_REST[name]
    result = solve_ivp(fun, span, y0, until="steady")
    assert not result.success and result.status == -1 and not result.steady.found
    assert "No steady state up to" in result.message
    assert result.t[-1] == span[1] and np.all(np.isfinite(result.y))
    np.testing.assert_array_equal(result.steady.y, result.y[:, -1])


def test_a_start_at_an_unstable_state_stays_there_and_says_so():
    result = solve_ivp(logistic, (0.0, 100.0), [0.0], until="steady")
    assert result.steady.found and result.steady.stable is False
    assert "not stable" in result.message
    np.testing.assert_array_equal(result.steady.y, [0.0])


def van_der_pol(t, y):
    return np.array([y[1], (1.0 - y[0] ** 2) * y[1] - y[0]])


def brusselator(t, y):
    return np.array([1.0 + y[0] ** 2 * y[1] - 4.0 * y[0], 3.0 * y[0] - y[0] ** 2 * y[1]])


def lotka_volterra(t, y):
    return np.array([1.5 * y[0] - y[0] * y[1], y[0] * y[1] - 3.0 * y[1]])


def python_oscillator(t, y):
    return [y[1], (1.0 - y[0] ** 2) * y[1] - y[0]] if number(y[0]) < 9.0 else [0.0, 0.0]


def reference_period(fun, y0, long):
    """By SciPy: times between the last upward crossings of the mean of the first component."""
    found = scipy_ivp(
        fun, (0.0, long), y0, method="DOP853", rtol=1e-13, atol=1e-13, dense_output=True
    )
    late = np.linspace(0.5 * long, long, 4000)
    values = found.sol(late)[0]
    middle = 0.5 * (values.min() + values.max())
    up = np.flatnonzero((values[:-1] < middle) & (values[1:] >= middle))
    times = [brentq(lambda t: found.sol(t)[0] - middle, late[i], late[i + 1]) for i in up]
    return times[-1] - times[-2]


CYCLES = {
    "Van der Pol": (van_der_pol, [2.0, 0.0], 100.0),
    "Brusselator": (brusselator, [1.5, 3.0], 150.0),
    "Lotka-Volterra": (lotka_volterra, [10.0, 5.0], 20.0),
}


@pytest.mark.parametrize("name", CYCLES)
def test_periods_have_true_error_bars(name):
    """Over tolerances: within four standard deviations, which are not far too large either.

    The reference is good to about 1e-11.
    """
    fun, y0, long = CYCLES[name]
    period, scores = reference_period(fun, y0, long), []
    for tol in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        result = solve_ivp(
            fun, (0.0, np.inf), y0, until="periodic", rtol=tol, atol=0.1 * tol, max_num_steps=20_000
        )
        assert result.status == 1 and result.periodic.found
        assert result.period == result.periodic.period
        scores.append((result.period - period) / np.hypot(result.period_std, 1e-11))
        assert result.period_std < 0.03 * tol * period
    assert np.max(np.abs(scores)) < 4.0
    assert np.sqrt(np.mean(np.square(scores))) > 0.1


def test_a_point_of_the_orbit_leads_back_to_itself():
    result = solve_ivp(
        van_der_pol, (0.0, np.inf), [0.1, 0.0], until=Periodic(1e-6, 1e-8), rtol=1e-8
    )
    orbit = result.periodic
    there = scipy_ivp(
        van_der_pol, (0.0, orbit.period), orbit.y, method="DOP853", rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(there.y[:, -1], orbit.y, atol=1e-6)
    np.testing.assert_allclose(orbit.multipliers[0], 1.0, atol=1e-4)
    assert abs(orbit.multipliers[1]) < 0.01  # e^-7.06, for which see any book on it


def test_a_function_that_only_python_can_evaluate_has_periods_too():
    result = solve_ivp(python_oscillator, (0.0, 60.0), [2.0, 0.0], until="periodic", rtol=1e-5)
    assert abs(result.period - 6.66328686) < 4.0 * result.period_std + 1e-8


def lorenz(t, y):
    return np.array(
        [10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]]
    )


NO_CYCLES = {
    "chaos": (lorenz, (0.0, 60.0), [1.0, 1.0, 1.0], {"rtol": 1e-2}),
    "chaos, finer": (lorenz, (0.0, 60.0), [1.0, 1.0, 1.0], {"rtol": 1e-4}),
    "damped": (lambda t, y: np.array([y[1], -y[0] - 0.02 * y[1]]), (0.0, 200.0), [1.0, 0.0], {}),
    "at rest": (logistic, (0.0, 50.0), [0.1], {}),
    "torus": (
        lambda t, y: np.array([y[1], -y[0], y[3], -2.0 * y[2]]),
        (0.0, 200.0),
        [1.0, 0.0, 1.0, 0.0],
        {"rtol": 1e-5},
    ),
}


@pytest.mark.parametrize("name", NO_CYCLES)
def test_what_does_not_repeat_itself_is_not_called_periodic(name):
    fun, span, y0, options = NO_CYCLES[name]
    result = solve_ivp(fun, span, y0, until="periodic", **options)
    assert not result.success and not result.periodic.found and np.isnan(result.period)
    assert "No periodic orbit" in result.message
    assert result.t[-1] == span[1]


def test_an_event_that_comes_first_ends_the_solve():
    def half(t, y):
        return y[0] - 0.5

    half.terminal = True
    result = solve_ivp(logistic, (0.0, 100.0), [0.1], until="steady", events=half)
    np.testing.assert_allclose(result.t_events[0], [np.log(9.0)], rtol=1e-3)
    assert not result.steady.found


def test_a_checkpoint_goes_on_to_the_same_state(tmp_path):
    whole = solve_ivp(van_der_pol, (0.0, 100.0), [0.1, 0.0], until="periodic", rtol=1e-6)
    for most in (50, 150, None):
        result = solve_ivp(
            *(van_der_pol, (0.0, 100.0), [0.1, 0.0]),
            until="periodic",
            rtol=1e-6,
            max_num_steps=most,
            checkpoint=tmp_path / "run",
        )
    assert (result.period, result.period_std) == (whole.period, whole.period_std)
    np.testing.assert_array_equal(result.y, whole.y)


@pytest.mark.parametrize("until", ["steadily", 3, Steady])
def test_other_aims_are_refused(until):
    with pytest.raises(ValueError, match="until must be 'steady', 'periodic'"):
        solve_ivp(logistic, (0.0, 1.0), [0.1], until=until)


@pytest.mark.parametrize("given", [{"rtol": -1.0}, {"atol": "small"}, {"rtol": np.nan}])
@pytest.mark.parametrize("aim", [Steady, Periodic])
def test_bad_tolerances_are_refused(aim, given):
    with pytest.raises(ValueError, match="must be a positive number"):
        aim(**given)


def test_what_it_is_not_for_is_said():
    with pytest.raises(ValueError, match="explicit equations"):
        solve_ivp(Implicit(lambda t, y, v: v + y), (0.0, 1.0), [1.0], until="steady")
    with pytest.raises(ValueError, match="jumps"):
        solve_ivp(
            *(logistic, (0.0, 1.0), [0.1]), until="steady", jumps=[(0.5, lambda t, y: 2.0 * y)]
        )
    with pytest.raises(ValueError, match="SparseEK1"):
        solve_ivp(logistic, (0.0, 1.0), [0.1], until="steady", method="SparseEK1")
