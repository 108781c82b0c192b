"""Events: which zeros are crossings, that none is lost, and what is known about their times."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.integrate
from only_python import number

from probode import EK1, solve_ivp
from probode.engines import native
from probode.posterior.crossings import Search
from probode.posterior.hermite import Curve

G = 9.81


def ball(t, y):
    return [y[1], -G]


def oscillator(t, y):
    return [y[1], -y[0]]


def clock(t, y):
    return [1.0]


def event(function, terminal=None, direction=0):
    def g(t, y):
        return function(t, y)

    g.terminal, g.direction = terminal, direction
    return g


def height(t, y):
    return y[0]


def times(fun, t_span, y0, *events, **options):
    """Times of all events, in one array per event."""
    return solve_ivp(fun, t_span, y0, events=events, **options).t_events


LAUNCH, LANDING = 0.0, 20 / G


@pytest.mark.parametrize(
    ("direction", "expected"), [(-1, [LANDING]), (0, [LAUNCH, LANDING]), (1, [LAUNCH])]
)
def test_a_zero_at_the_start_counts_in_the_direction_in_which_it_is_left(direction, expected):
    """A ball launched from the ground; the first step goes far beyond its landing."""
    (found,) = times(ball, (0, 50), [0.0, 10.0], event(height, direction=direction))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("v", [10.0, 1e-3, 1e-8])
def test_a_launch_does_not_hide_the_landing_however_soon_it_is(v):
    result = solve_ivp(ball, (0, 50), [0.0, v], events=event(height, True, -1))
    assert result.status == 1
    np.testing.assert_allclose(result.t_events[0], [2 * v / G], rtol=1e-9)


@pytest.mark.parametrize("e", [0.9, 0.5])
def test_a_ball_bounces_twenty_times(e):
    """Each time the solve begins where the last one ended, on the zero of the same event."""
    t, y, found = 0.0, np.array([0.0, 10.0]), []
    for _ in range(20):
        result = solve_ivp(ball, (t, 50), y, events=event(height, True, -1))
        t, y = result.t_events[0][0], result.y_events[0][0] * [1.0, -e]
        found.append(t)
    np.testing.assert_allclose(found, np.cumsum(20 / G * e ** np.arange(20)), rtol=1e-12)


CASES = {
    "sine": (oscillator, (0, 10), [0.0, 1.0], height),
    "cosine": (oscillator, (0, 10), [1.0, 0.0], height),
    "backwards": (oscillator, (10, 0), [0.0, 1.0], height),
    "time": (oscillator, (0, 10), [0.0, 1.0], lambda t, y: math.cos(2 * t)),
    "start": (clock, (0, 1), [0.0], lambda t, y: t),
    "end": (clock, (0, 1), [0.0], lambda t, y: t - 1),
    "product": (oscillator, (0, 10), [1.0, 0.0], lambda t, y: y[0] * y[1]),
}


@pytest.mark.parametrize("terminal", [None, True, 2])
@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("name", CASES)
def test_events_are_those_of_scipy(name, direction, terminal):
    """Where SciPy's steps are short enough to see all of them; each zero once."""
    fun, t_span, y0, function = CASES[name]
    options = {"rtol": 1e-8, "atol": 1e-10, "events": event(function, terminal, direction)}
    ours = solve_ivp(fun, t_span, y0, **options)
    theirs = scipy.integrate.solve_ivp(fun, t_span, y0, max_step=0.03, **options)
    assert ours.status == theirs.status
    np.testing.assert_allclose(ours.t_events[0], theirs.t_events[0], atol=1e-6)
    np.testing.assert_allclose(ours.t[-1], theirs.t[-1], atol=1e-6)


def test_a_function_that_is_zero_at_first_crosses_where_it_leaves_zero():
    result = solve_ivp(clock, (0, 10), [0.0], events=event(lambda t, y: max(0.0, y[0] - 3.3), 1))
    assert result.status == 1
    np.testing.assert_allclose(result.t_events[0], [3.3], rtol=1e-12)


@pytest.mark.parametrize(("direction", "expected"), [(-1, [3.3]), (0, [3.3, 6.6]), (1, [6.6])])
def test_a_function_that_stays_at_zero_arrives_and_leaves(direction, expected):
    gap = event(lambda t, y: max(3.3 - t, 0.0) + max(t - 6.6, 0.0), direction=direction)
    (found,) = times(clock, (0, 10), [0.0], gap)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_function_that_is_always_zero_crosses_nothing():
    (found,) = times(clock, (0, 10), [0.0], event(lambda t, y: 0.0, True))
    assert found.size == 0


def test_numbers_that_are_none_cross_nothing():
    (found,) = times(clock, (0, 10), [0.0], lambda t, y: y[0] - 2 if abs(t - 5) > 1 else np.nan)
    np.testing.assert_allclose(found, [2.0])


ROOTS = np.array([0.013, 1.7, 1.7001, 4.0, 4.6, 8.5])


@pytest.mark.parametrize("direction", [-1, 0, 1])
def test_no_crossing_within_a_long_step_is_lost(direction):
    """A polynomial of degree six, solved exactly in a few steps; two roots are close together."""
    polynomial = np.polynomial.Polynomial.fromroots(ROOTS)
    slope = polynomial.deriv().coef[::-1]
    rising = np.sign(polynomial.deriv()(ROOTS))
    result = solve_ivp(
        lambda t, y: [np.polyval(slope, t)],
        (0, 10),
        [polynomial(0.0)],
        order=6,
        grid=[0, 3, 10],
        events=event(height, direction=direction),
    )
    # Conditioning: rounding of the largest values over the slope at the two that are close.
    expected = ROOTS[rising * direction >= 0]
    np.testing.assert_allclose(result.t_events[0], expected, atol=1e-7)


@pytest.mark.parametrize("depth", [1e-2, 1e-6, 1e-10])
def test_two_crossings_are_told_apart_however_close(depth):
    (found,) = times(lambda t, y: [2 * (t - 4.9)], (0, 10), [4.9**2 - depth], height)
    np.testing.assert_allclose(found, 4.9 + np.sqrt(depth) * np.array([-1, 1]), atol=1e-8)


def test_what_comes_close_to_zero_does_not_cross_it():
    (found,) = times(lambda t, y: [2 * (t - 4.9)], (0, 10), [4.9**2 + 1e-10], height)
    assert found.size == 0


@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("t", [4.9, 5.0])
def test_what_touches_zero_and_turns_back_does_not_cross_it(t, direction):
    """Five is a sample: there the function is exactly zero."""
    bowl = event(lambda time, y: (time - t) ** 2, direction=direction)
    (found,) = times(clock, (0, 10), [0.0], bowl)
    assert found.size == 0


@pytest.mark.parametrize(
    "sharp", [lambda x: 1.0 if x > 0.3 else -1.0, lambda x: np.round(x - 0.8) + 0.5]
)
def test_events_may_jump(sharp):
    (found,) = times(oscillator, (0, 6), [0.0, 1.0], lambda t, y: sharp(y[0]), rtol=1e-8)
    np.testing.assert_allclose(found, [np.arcsin(0.3), np.pi - np.arcsin(0.3)], atol=1e-6)


def test_events_in_time_do_not_depend_on_the_steps():
    """Three steps, the last over tens of periods."""
    result = solve_ivp(clock, (0, 100), [0.0], events=lambda t, y: np.sin(t))
    assert len(result.t) < 5
    np.testing.assert_allclose(result.t_events[0], np.pi * np.arange(32), atol=1e-12)


def test_events_of_complex_states_see_complex_states():
    spiral = lambda t, y: (1j - 0.1) * y  # noqa: E731
    real, size = times(
        spiral, (0, 10), [1, 2j], lambda t, y: y[0].real, lambda t, y: abs(y[1]) - 1, rtol=1e-8
    )
    np.testing.assert_allclose(real, np.pi * np.array([0.5, 1.5, 2.5]), atol=1e-6)
    np.testing.assert_allclose(size, [10 * np.log(2)], atol=1e-6)


def only_python(t, y):
    return [y[1], -number(y[0])]


WAYS = {
    "EK1": {},
    "EK0": {"method": "EK0"},
    "DiagonalEK1": {"method": "DiagonalEK1"},
    "first order": {"order": 1},
    "filter": {"smooth": False},
    "short steps": {"max_step": 0.02},
    "without kernels": {},
}


@pytest.mark.parametrize(
    ("way", "fun"), [*((way, oscillator) for way in WAYS), ("EK1", only_python)]
)
def test_events_are_found_on_every_path(way, fun):
    with native.disabled() if way == "without kernels" else nullcontext():
        result = solve_ivp(
            fun, (0, 12), [0.0, 1.0], events=event(height, 3), rtol=1e-5, atol=1e-7, **WAYS[way]
        )
    assert result.status == 1
    np.testing.assert_allclose(result.t_events[0], np.pi * np.arange(3), atol=2e-3)
    assert result.t[-1] == result.t_events[0][-1]
    assert result.y.shape == result.y_std.shape == (2, len(result.t))


@pytest.mark.parametrize("way", ["EK1", "EK0", "filter"])
def test_states_at_events_are_those_of_the_dense_output(way):
    result = solve_ivp(
        oscillator, (0, 9), [0.1, 1.0], events=event(height, 2), dense_output=True, **WAYS[way]
    )
    at = result.t_events[0]
    np.testing.assert_allclose(result.y_events[0], result.sol(at).T, atol=1e-12)
    np.testing.assert_allclose(result.y_events[0][:, 0], 0.0, atol=1e-15)
    np.testing.assert_allclose(result.y[:, -1], result.sol(at[-1]), atol=1e-12)
    np.testing.assert_allclose(result.y_std[:, -1], result.sol.std(at[-1]), rtol=1e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 5, 8])
def test_the_curve_between_nodes_is_the_posterior_mean(order):
    """Conditioned on both ends of a step, an IWP has an interpolating polynomial as its mean."""
    result = solve_ivp(oscillator, (0, 5), [0.0, 1.0], method=EK1(order=order), rtol=1e-4)
    posterior = result.posterior
    curve = Curve(posterior.t, posterior.path.means)
    step, s = np.arange(len(curve.h)), np.full(len(curve.h), 0.3)
    at = curve.time(step, s)
    np.testing.assert_allclose(curve(step, s), posterior(at).mean, atol=1e-12)
    np.testing.assert_allclose(curve.slope(step, s), posterior.derivative(at).mean, atol=1e-10)


@pytest.mark.parametrize("way", ["EK1", "EK0"])
def test_the_standard_deviation_of_a_time_is_that_across_over_the_speed(way):
    """More events than are evaluated together; the direction is that of the event's gradient."""
    gradient = np.array([2.0, -1.0])
    result = solve_ivp(
        oscillator,
        (0, 110),
        [0.0, 1.0],
        events=lambda t, y: gradient @ y + 0.5 * t / 55,
        **WAYS[way],
    )
    at = result.t_events[0]
    assert len(at) > 33
    across = np.sqrt(np.einsum("i,nij,j->n", gradient, result.posterior(at).cov, gradient))
    speed = result.posterior.derivative(at).mean @ gradient + 0.5 / 55
    np.testing.assert_allclose(result.t_events_std[0], across / np.abs(speed), rtol=1e-5)


@pytest.mark.parametrize("level", [1 - 1e-3, 1.0, 1 + 2e-5, 1 + 1e-3])
def test_a_solve_that_ends_early_has_a_terminal_event(level):
    """At the top of a sine, which filter and smoother may see on different sides of the level."""
    top = event(lambda t, y: y[0] - level, True)
    result = solve_ivp(oscillator, (0, 3), [0.0, 1.0], order=3, rtol=1e-2, atol=1e-2, events=top)
    assert result.status == len(result.t_events[0])
    assert result.t[-1] == (result.t_events[0][0] if result.status else 3.0)


def test_a_zero_between_two_chunks_is_counted_once():
    search = Search([lambda t, y: y[0] - 1], [0.0])
    line = [np.array([[[t], [1.0]], [[t + 1], [1.0]]]) for t in (0.0, 1.0)]
    found = [search(Curve(np.array([t, t + 1]), line[int(t)])) for t in (0.0, 1.0)]
    assert [crossing.t for crossing in found[0] + found[1]] == [1.0]


def test_an_event_is_called_from_python_with_its_own_state_a_few_times_a_step():
    calls = []

    def spoil(t, y):
        calls.append(t)
        value, y[:] = y[0], np.nan
        return value

    result = solve_ivp(oscillator, (0, 20), [1.0, 0.0], events=[spoil, height], rtol=1e-6)
    np.testing.assert_array_equal(*result.t_events)
    crossings = len(result.t_events[0])
    assert len(calls) < 5 * len(result.t) + 30 * crossings


@pytest.mark.parametrize("value", [None, [1.0, 2.0], 1j])
def test_an_event_must_return_one_number(value):
    with pytest.raises(TypeError, match="one real number"):
        times(clock, (0, 1), [0.0], lambda t, y: value)


def test_an_error_of_an_event_comes_through():
    def broken(t, y):
        raise ValueError("out of order")

    with pytest.raises(ValueError, match="out of order"):
        times(clock, (0, 1), [0.0], broken)


def test_an_event_need_not_exist_beside_its_zero():
    """At the end of the interval, and where the square root of the state begins."""
    result = solve_ivp(clock, (0, 1), [0.0], events=lambda t, y: math.sqrt(y[0]))
    np.testing.assert_array_equal(result.t_events[0], [0.0])
    assert np.isnan(result.t_events_std[0][0])
