"""What happens between the steps is seen: switches are stopped at, pulses looked for."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode import EK1, PIControl, solve_ivp
from probode.base.precision import double_precision
from probode.engines import native
from probode.ivp import run as ivp_run
from probode.programs.field import bind
from probode.programs.program import timing
from probode.programs.switches import stops_before, switches

RATE = 0.5
TABLE = np.array([1.0, 2.5, 4.0])


def response(t, start, length, height, rate=RATE):
    """``y' = height [start <= t < start + length] - rate y``, ``y = 0`` before."""
    during = np.clip(t - start, 0.0, length)
    return height / rate * -np.expm1(-rate * during) * np.exp(-rate * (t - start - during))


def pulse(t, y):
    return [np.where((t >= 50) & (t < 50.5), 10.0, 0.0) - RATE * y[0]]


def python_pulse(t, y):
    return [(10.0 if 50 <= t < 50.5 else 0.0) - RATE * number(y[0])]


def bump(t, y):
    """Smooth, and short: nothing in the program says when."""
    return [10.0 * np.exp(-(((t - 50) / 0.2) ** 2)) - RATE * y[0]]


def bump_response(t):
    """Long after the bump: its integral with ``exp(-rate (t - s))``."""
    width = 0.2
    return 10.0 * width * np.sqrt(np.pi) * np.exp((RATE * width / 2) ** 2 - RATE * (t - 50))


def field_of(function, *args):
    with double_precision():
        return bind(function, jnp.asarray(0.0), jnp.ones(1), args, None, diagonal=False)


SWITCHING = {
    "comparison": (lambda t, y: jnp.where((t >= 3) & (t < 4.5), 1.0, 0.0) - y, [3, 4.5]),
    "remainder": (lambda t, y: jnp.where(t % 4 < 0.5, 1.0, 0.0) - y, [0.5, 4, 4.5, 8, 8.5]),
    "shifted": (
        lambda t, y: jnp.where((2 * t - 3) % 5 < 1, 1.0, 0.0) - y,
        [1.5, 2, 4, 4.5, 6.5, 7, 9, 9.5],
    ),
    "floor": (lambda t, y: jnp.floor(t / 4) - y, [4, 8]),
    "ramp": (lambda t, y: jnp.maximum(0.0, t - 6) - y, [6]),
    "triangle": (lambda t, y: jnp.maximum(0.0, 1 - jnp.abs(t - 5) / 0.25) - y, [4.75, 5, 5.25]),
    "clip": (lambda t, y: jnp.clip(t, 2.0, 3.0) - y, [2, 3]),
    "piecewise": (lambda t, y: jnp.piecewise(t, [t < 1, t >= 2], [0.0, 5.0, 1.0]) - y, [1, 2]),
    "select": (lambda t, y: jnp.select([t < 1, t < 2], [1.0, 2.0], 0.0) - y, [1, 2]),
    "branch": (lambda t, y: jax.lax.cond(t < 4.5, lambda y: -y, lambda y: y, y), [4.5]),
    "lookup": (lambda t, y: jnp.arange(4.0)[jnp.searchsorted(TABLE, t)] - y, TABLE),
    "interpolation": (lambda t, y: jnp.interp(t, TABLE, TABLE**2) - y, TABLE),
    "square wave": (
        lambda t, y: jnp.where(jnp.sin(t) > 0, 1.0, 0.0) - y,
        [np.pi, 2 * np.pi, 3 * np.pi],
    ),
    "smooth": (lambda t, y: jnp.sin(t) * y, []),
    "state": (lambda t, y: jnp.where(y > 0.5, 1.0, jnp.exp(-t)), []),
}


@pytest.mark.parametrize("name", SWITCHING)
def test_a_program_says_when_it_switches(name):
    function, expected = SWITCHING[name]
    with double_precision():
        found = switches(field_of(function), 0.0, 10.0)
    assert found.depends_on_time
    np.testing.assert_allclose(found.times, expected, rtol=1e-13)


def test_times_among_the_parameters_are_stopped_at():
    def doses(t, y, times, length):
        return jnp.sum(jnp.where((t >= times) & (t < times + length), 1.0, 0.0)) - y

    field = field_of(doses, np.array([1.0, 4.0]), 0.25)
    with double_precision():
        found = switches(field, 0.0, 10.0)
        moved = switches(field.with_arguments((np.array([2.0, 20.0]), 0.5)), 0.0, 10.0)
    np.testing.assert_allclose(found.times, [1.0, 1.25, 4.0, 4.25], rtol=1e-14)
    np.testing.assert_allclose(moved.times, [2.0, 2.5], rtol=1e-14)


def test_fine_tables_are_looked_at_instead():
    table = np.linspace(0.0, 10.0, 1001)
    field = field_of(lambda t, y: jnp.interp(t, table, jnp.sin(table)) - y)
    with double_precision():
        found = switches(field, 0.0, 10.0)
    assert len(found.tables) > 900 and len(found.times) < 3


def test_without_time_there_is_nothing_to_look_for():
    field = field_of(lambda t, y: -y)
    assert not timing(field.program).depends
    result = solve_ivp(lambda t, y: -y, (0, 1), [1.0])
    assert result.posterior.problem.look.probes == 0
    assert "does not depend on t" in str(result.posterior.diagnose())


@pytest.mark.parametrize(("t0", "t1"), [(0.0, 10.0), (10.0, 0.0)])
def test_stops_lie_right_before_the_switches(t0, t1):
    before = stops_before(np.array([3.0, 5.0, 12.0]), t0, t1)
    times = np.array([3.0, 5.0]) if t1 > t0 else np.array([5.0, 3.0])
    assert np.all((times - before) * np.sign(t1 - t0) > 0)
    np.testing.assert_allclose(before, times, rtol=1e-13)


def assert_covered(result, truth, relative):
    assert result.success, result.message
    error = abs(result.y[0, -1] - truth)
    assert error < relative * abs(truth)
    assert error < 5 * result.y_std[0, -1]
    assert result.posterior.diagnose().trusted


@pytest.mark.parametrize(("rtol", "relative"), [(1e-3, 1e-2), (1e-6, 1e-5)])
@pytest.mark.parametrize("method", ["EK1", "EK0"])
def test_a_pulse_while_the_solution_is_at_rest(method, rtol, relative):
    result = solve_ivp(pulse, (0, 60), [0.0], method, rtol=rtol, atol=1e-3 * rtol)
    assert_covered(result, response(60, 50, 0.5, 10), relative)
    assert "steps end there" in str(result.posterior.diagnose())


def test_a_pulse_that_only_python_knows_of():
    result = solve_ivp(python_pulse, (0, 60), [0.0], rtol=1e-6, atol=1e-9)
    assert result.path == "python"
    assert_covered(result, response(60, 50, 0.5, 10), 1e-4)


@pytest.mark.parametrize("listed", [True, False], ids=["as it comes", "by XLA"])
def test_a_smooth_and_short_bump(listed):
    with nullcontext() if listed else native.disabled():
        result = solve_ivp(bump, (0, 60), [0.0], rtol=1e-6, atol=1e-9)
    assert_covered(result, bump_response(60), 1e-4)
    # One look in each cell, but where it falls on a step: more where f is a list of operations.
    cells = 1024 if listed and native.available() else 256
    assert 0.98 * cells <= result.posterior.problem.look.probes <= cells


def test_backwards_in_time():
    result = solve_ivp(lambda t, y: [np.where((t > 5) & (t <= 5.5), 1.0, 0.0)], (60, 0), [0.0])
    assert result.y[0, -1] == pytest.approx(-0.5, rel=1e-3)


def doses(t, y, every, length, height):
    return np.where(t % every < length, height, 0.0) - 0.1 * y


def test_a_tolerance_on_the_answer_sees_the_doses():
    result = solve_ivp(doses, (0, 144), [0.0], args=(24.0, 0.05, 100.0), global_rtol=1e-3)
    truth = sum(response(144, 24 * k, 0.05, 100.0, 0.1) for k in range(6))
    assert result.success
    assert result.y[0, -1] == pytest.approx(truth, rel=1e-3)


def test_what_was_missed_is_flagged_and_no_success_of_a_tolerance(monkeypatch):
    monkeypatch.setattr(ivp_run, "_MOST_REPEATS", 0)
    result = solve_ivp(bump, (0, 60), [0.0], global_rtol=1e-3, global_atol=1e-6)
    diagnosis = result.posterior.diagnose()
    assert "between" in diagnosis.flags and not diagnosis.trusted
    assert "near t = 4" in str(diagnosis) or "near t = 5" in str(diagnosis)
    assert not result.success and "cannot be trusted" in result.message


def test_what_may_not_have_been_seen_is_said():
    result = solve_ivp(lambda t, y: [np.cos(t) - y[0]], (0, 60), [0.0])
    look = result.posterior.problem.look
    assert not look.seen
    assert look.gap < 60 / 100
    assert f"shorter than {look.gap:.2g} may not have been seen" in str(result.posterior.diagnose())


@pytest.mark.parametrize("rtol", [1e-3, 1e-8])
@pytest.mark.parametrize(
    "function",
    [
        lambda t, y: [-1e6 * (y[0] - np.cos(t)) - np.sin(t)],
        lambda t, y: [np.cos(20 * t) * y[0]],
        lambda t, y: [y[1], -(1 + 0.5 * np.sin(3 * t)) * y[0]],
    ],
    ids=["stiff", "fast", "parametric"],
)
def test_smooth_forcing_raises_no_alarm(function, rtol):
    y0 = [1.0] if len(function(0.0, np.ones(2))) == 1 else [1.0, 0.0]
    result = solve_ivp(function, (0, 10), y0, rtol=rtol, atol=1e-3 * rtol)
    assert "between" not in result.posterior.diagnose().flags


def test_a_solve_without_a_step_is_not_trusted():
    with np.errstate(all="ignore"):
        result = solve_ivp(lambda t, y: y * np.log(y), (0, 1), [0.0])
    diagnosis = result.posterior.diagnose()
    assert diagnosis.flags == ("unchecked",) and "no step was taken" in str(diagnosis)


def switched(t, y):
    return jnp.where((t >= 0.3) & (t < 0.35), 1.0, 0.0) - y


def test_kernels_and_jax_stop_at_the_same_times():
    control = PIControl(1e-6, 1e-9)
    times = []
    for run in (native.available(), False):
        with native.disabled() if not run else double_precision():
            posterior = probode.solve(switched, (0.0, 1.0), 0.0, control=control, solver=EK1(3))
            times.append(np.asarray(posterior.t))
    for t in times:
        for switch in (0.3, 0.35):
            assert np.min(np.abs(t - switch)) < 1e-14
    np.testing.assert_allclose(times[0][:5], times[1][:5], rtol=1e-6)


def test_with_save_at_switches_are_stopped_at_too():
    posterior = probode.solve(
        switched, (0.0, 1.0), 0.0, save_at=np.array([0.2, 1.0]), solver=EK1(3)
    )
    assert posterior.mean[-1] == pytest.approx(response(1.0, 0.3, 0.05, 1.0, 1.0), rel=1e-4)
    assert posterior.mean[0] == 0.0
