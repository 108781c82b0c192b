"""Where f switches in time the solution goes on and its derivatives are found anew."""

import bisect
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode import EK0, EK1, PIControl, solve_ivp
from probode.base.precision import double_precision
from probode.engines import native

RATE = 0.5


def response(t, start, length, height, rate=RATE):
    """``y' = height [start <= t < start + length] - rate y``, ``y = 0`` before."""
    during = np.clip(t - start, 0.0, length)
    after = np.maximum(t - start - during, 0.0)
    return height / rate * -np.expm1(-rate * during) * np.exp(-rate * after)


def pulse(t, y):
    return [np.where((t >= 50) & (t < 50.5), 10.0, 0.0) - RATE * y[0]]


def doses(t, y):
    return [np.where(t % 24 < 0.05, 100.0, 0.0) - 0.1 * y[0]]


def square_wave(t, y):
    return [np.where(np.sin(t) > 0, 1.0, -1.0) - y[0]]


def ramp(t, y):
    return [np.maximum(0.0, t - 6) - y[0]]


def doses_taken(t, every=24.0, length=0.05, height=100.0, rate=0.1):
    starts = np.arange(0.0, np.max(t) + every, every)
    return sum(response(t, start, length, height, rate) for start in starts)


def wave_followed(t):
    """From switch to switch: ``y' = ±1 - y``."""
    t = np.atleast_1d(t)
    y, out = 0.0, np.zeros(t.shape)
    for k in range(int(np.max(t) // np.pi) + 1):
        level, begin = (-1.0) ** k, k * np.pi
        inside = t >= begin
        out[inside] = level + (y - level) * np.exp(-(t[inside] - begin))
        y = level + (y - level) * np.exp(-np.pi)
    return out


def ramp_followed(t):
    late = np.maximum(t - 6.0, 0.0)
    return np.exp(-t) + late - 1.0 + np.exp(-late)


CASES = {
    "pulse": (pulse, (0.0, 60.0), 0.0, lambda t: response(t, 50, 0.5, 10.0)),
    "doses": (doses, (0.0, 71.9), 0.0, doses_taken),
    "square wave": (square_wave, (0.0, 10.0), 0.0, wave_followed),
    "ramp": (ramp, (0.0, 10.0), 1.0, ramp_followed),
}


@pytest.mark.parametrize("solver", [EK1(5), EK1(8), EK0(5)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_tight_tolerances_get_across(name, solver):
    function, span, y0, truth = CASES[name]
    result = solve_ivp(function, span, [y0], solver, rtol=1e-10, atol=1e-12)
    assert result.success, result.message
    assert result.posterior.diagnose().trusted
    error = np.abs(result.y[0] - truth(result.t))
    # A switch at time t has its rounding: that times the jump belongs to every solution.
    assert np.max(error) < 1e-8 * np.max(result.y[0])


@pytest.mark.parametrize("solver", [EK1(3), EK1(5), EK0(3)], ids=str)
def test_error_bars_are_of_the_size_of_the_error_across_switches(solver):
    result = solve_ivp(doses, (0.0, 71.9), [0.0], solver, rtol=1e-6, atol=1e-8)
    error = (result.y[0] - doses_taken(result.t))[2:]
    chi = np.mean((error / result.y_std[0, 2:]) ** 2)
    assert 1 / 5 < chi < 5
    estimate = np.asarray(result.posterior.global_error())[2:, 0]
    assert np.linalg.norm(estimate - error) < 0.1 * np.linalg.norm(error)


def test_no_time_is_lost_after_a_switch():
    """The first step after it is chosen like a first step: not one of rounding's length."""
    result = solve_ivp(pulse, (0, 60), [0.0], EK1(5), rtol=1e-6, atol=1e-8)
    after = result.t[np.searchsorted(result.t, 50.0 + 1e-9)]
    assert after - 50.0 > 1e-4
    assert len(result.t) < 120


def test_dense_output_has_the_slope_of_either_side():
    posterior = solve_ivp(pulse, (0, 60), [0.0], EK1(5), rtol=1e-8, atol=1e-10).posterior
    near = np.array([50 - 1e-6, 50 + 1e-6])
    left, right = np.asarray(posterior.derivative(near).mean)[:, 0]
    assert left == pytest.approx(0.0, abs=1e-6)
    assert right == pytest.approx(10.0, rel=1e-4)


def test_samples_go_through_the_switch_in_one_piece():
    solved = probode.solve(switched, (0.0, 1.0), 1.0, control=PIControl(1e-4, 1e-6), solver=EK1(3))
    draws = np.asarray(solved.sample(20))
    i = int(np.searchsorted(np.asarray(solved.t), 0.3))
    assert solved.t[i] - solved.t[i - 1] < 1e-13
    spread, rise = np.std(draws[:, i]), np.abs(draws[:, i] - draws[:, i - 1])
    assert np.max(rise) < 1e-2 * spread


def switched(t, y):
    return jnp.where((t >= 0.3) & (t < 0.35), 1.0, 0.0) - y


@pytest.mark.parametrize("solver", [EK1(3), EK0(2), EK1(2, diffusion="fixed")], ids=str)
def test_kernels_and_jax_start_anew_alike(solver):
    control, found = PIControl(1e-6, 1e-9), []
    for run in (native.available(), False):
        with double_precision() if run else native.disabled():
            made = probode.solve(switched, (0.0, 1.0), 0.0, control=control, solver=solver)
            found.append((np.asarray(made.t), np.asarray(made.mean), np.asarray(made.std)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-12)


def test_save_points_around_a_switch_agree_with_the_whole_solve():
    times = np.array([0.0, 0.2, 0.3, 0.32, 0.35, 1.0])
    control = PIControl(1e-6, 1e-9)
    whole = probode.solve(switched, (0.0, 1.0), 0.0, control=control)
    saved = probode.solve(switched, (0.0, 1.0), 0.0, control=control, save_at=times)
    at = whole(times)
    np.testing.assert_allclose(saved.mean, at.mean, rtol=1e-7, atol=1e-11)
    np.testing.assert_allclose(saved.std, at.std, rtol=1e-2, atol=1e-12)


@pytest.mark.parametrize("backwards", [False, True])
def test_switches_at_the_ends_belong_to_neither(backwards):
    """At t0 the function may still be, at t1 it may already be, what it is on the other side."""

    def f(t, y):
        return [np.where((t > 1) & (t < 2), 1.0, 1e3)]

    t0, t1 = (2.0, 1.0) if backwards else (1.0, 2.0)
    result = solve_ivp(f, (t0, t1), [0.0], rtol=1e-10, atol=1e-12)
    assert result.success
    assert result.y[0, -1] == pytest.approx(t1 - t0, rel=1e-9)


def test_a_solve_that_got_stuck_is_not_trusted():
    result = solve_ivp(lambda t, y: y**2, (0, 2), [1.0])
    assert result.status == -1
    diagnosis = result.posterior.diagnose()
    assert not diagnosis.trusted and "stuck" in diagnosis.flags


TIMES = [3.0, 10.0, 31.7]


def python_doses(t, y):
    return [(200.0 if t % 12 < 0.05 else 0.0) - RATE * number(y[0])]


def python_table_of_doses(t, y):
    given = 0.0
    for start in TIMES:
        if start <= t < start + 0.05:
            given += 200.0
    return [given - RATE * number(y[0])]


def only_when_there_is_something(t, y):
    """Which branch is taken depends on y, too: at the start there is no switch in sight."""
    if number(y[0]) < 0.5:
        return [1.0 - RATE * number(y[0])]
    return [(201.0 if t % 12 < 0.05 else 1.0) - RATE * number(y[0])]


def truth_of_doses(t):
    return doses_taken(t, 12.0, 0.05, 200.0, RATE)


def truth_of_table(t):
    return sum(response(t, start, 0.05, 200.0) for start in TIMES)


def truth_of_branches(t):
    later = sum(response(t, 12.0 * k, 0.05, 200.0) for k in range(1, 6))
    return later + response(t, 0.0, 100.0, 1.0)


@pytest.mark.parametrize("tolerance", [{"rtol": 1e-3}, {"rtol": 1e-8, "atol": 1e-10}], ids=str)
@pytest.mark.parametrize(
    ("function", "truth"),
    [
        (python_doses, truth_of_doses),
        (python_table_of_doses, truth_of_table),
        (only_when_there_is_something, truth_of_branches),
    ],
)
def test_pulses_of_a_function_run_in_python(function, truth, tolerance):
    result = solve_ivp(function, (0, 71.9), [0.0], **tolerance)
    assert result.path == "python" and result.success
    assert result.posterior.diagnose().trusted
    assert np.max(np.abs(result.y[0] - truth(result.t))) < tolerance["rtol"] * np.max(result.y[0])


def test_a_tolerance_on_the_answer_sees_the_pulses_of_a_python_function():
    result = solve_ivp(python_doses, (0, 71.9), [0.0], global_rtol=1e-4)
    assert result.success
    assert result.y[0, -1] == pytest.approx(truth_of_doses(71.9), rel=1e-4)


def test_pulses_too_short_to_be_found_are_flagged():
    """Some are found, each shorter than the time between two looks."""

    def spikes(t, y):
        return [(1.0 if math.sin(200 * t) > 0.999999 else 0.0) - number(y[0])]

    result = solve_ivp(spikes, (0, 1), [0.0], EK0(3), rtol=1e-6, atol=1e-9)
    assert "switches" in result.posterior.diagnose().flags


def test_a_step_before_a_switch_does_not_pass_it():
    """There is a stop behind the switch: the step ends at the nearer one."""

    def pulses(t, y):
        return [(10.0 if 5 <= t < 5.1 else 0.0) + (1.0 if 8.0 <= t < 8.02 else 0.0)]

    result = solve_ivp(pulses, (0, 10), [0.0], breakpoints=[5.0, 5.1], rtol=1e-6, atol=1e-9)
    assert np.all(np.diff(result.t) > 0.0) and {5.0, 5.1} <= set(np.round(result.t, 12))
    assert result.y[0, -1] == pytest.approx(1.02, rel=1e-6)


def helper(t):
    return math.floor(t / 4)


def imported_inside(t, y):
    from math import sin

    return [float(sin(t) > 0)]


class Wave:
    frequency = 1.0

    def field(self, t, y):
        return [float(math.sin(self.frequency * t) > 0)]


def looked_up(t, y):
    return [[1.0, -2.0, 4.0, 0.0][bisect.bisect([1.5, 4.0, 6.5], float(t))]]


LOCATED = {
    "comparison": (lambda t, y: [float(2 * t - 1 < 5)], [3]),
    "remainder": (lambda t, y: [float(t % 4 < 0.5)], [0.5, 4, 4.5, 8, 8.5]),
    "integers": (lambda t, y: [float(int(t / 4))], [4, 8]),
    "helper": (lambda t, y: [float(helper(t))], [4, 8]),
    "one after the other": (lambda t, y: [1.0 if t < 2 else 2.0 if t < 7 else 3.0], [2, 7]),
    "sine": (lambda t, y: [float(math.sin(t) > 0)], [np.pi, 2 * np.pi, 3 * np.pi]),
    "imported inside": (imported_inside, [np.pi, 2 * np.pi, 3 * np.pi]),
    "method": (Wave().field, [np.pi, 2 * np.pi, 3 * np.pi]),
    "bisect": (looked_up, [1.5, 4.0, 6.5]),
    "equal at the steps": (lambda t, y: [{0: 1.0, 1: -1.0}[int(t) % 2]], list(range(1, 10))),
}


@pytest.mark.parametrize("name", LOCATED)
def test_switches_that_only_python_knows_of_are_located(name):
    """In the steps, or where looks between them show that steps have passed over them."""
    function, expected = LOCATED[name]
    result = solve_ivp(function, (0, 9.9), [0.0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(result.posterior.problem.switches.times, expected, rtol=1e-12)
    assert result.success and result.posterior.diagnose().trusted


def kepler(t, y):
    """Newton's iteration, which compares numbers made of ``t`` with each other."""
    anomaly = t
    while abs(anomaly - 0.3 * math.sin(anomaly) - t) > 1e-13:
        step = (anomaly - 0.3 * math.sin(anomaly) - t) / (1 - 0.3 * math.cos(anomaly))
        anomaly = anomaly - step
    return [1.0 / (1.0 - 0.3 * math.cos(anomaly))]


def test_an_iteration_is_no_switch():
    result = solve_ivp(kepler, (0, 10), [0.0], rtol=1e-6, atol=1e-9)
    anomaly = result.y[0]
    np.testing.assert_allclose(anomaly - 0.3 * np.sin(anomaly), result.t, atol=1e-6)
    assert len(result.posterior.problem.switches.times) == 0 and len(result.t) < 300
    assert result.posterior.diagnose().trusted


def test_a_function_that_keeps_its_times():
    """It compares ``t`` with all times at which it was called before."""
    history = [0.0]

    def remembers(t, y):
        history.append(float(t))
        return [-float(y[0]) if sum(s < t for s in history) >= 0 else 0.0]

    result = solve_ivp(remembers, (0, 2), [1.0], rtol=1e-6, atol=1e-9)
    assert result.success and len(history) < 10_000
    assert result.y[0, -1] == pytest.approx(np.exp(-2.0), rel=1e-6)


def test_a_jump_in_which_the_steps_get_stuck_is_located():
    """Next to the start of ``y`` at zero, where the tolerance is absolute and tiny."""
    result = solve_ivp(python_doses, (1, 30), [0.0], rtol=1e-9, atol=1e-12)
    truth = sum(response(result.t, start, 0.05, 200.0) for start in (12.0, 24.0))
    assert result.success
    assert np.max(np.abs(result.y[0] - np.where(result.t < 12.0, 0.0, truth))) < 1e-9


def test_a_short_pulse_is_located():
    def pulse(t, y):
        return [1e3 - y[0]] if 5.3 < json.loads(str(float(t))) < 5.33 else [-y[0]]

    result = probode.solve_ivp(pulse, (0, 20), [1.0], rtol=1e-6, atol=1e-9)
    after = 1e3 * (np.exp(-(20 - 5.33)) - np.exp(-(20 - 5.3))) + np.exp(-20.0)
    assert abs(result.y[0, -1] - after) < 1e-8
