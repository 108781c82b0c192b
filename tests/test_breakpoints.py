"""Breakpoints: times at which f jumps, known to the user alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number

import probode
from probode import EK1, PIControl, solve_ivp
from probode.base.precision import double_precision

JUMPS = np.array([1.0, 2.5])
SHARP = 1e17
"""So steep that tanh is a jump, of which its program says nothing."""
METHODS = ("EK0", "EK1", "DiagonalEK1", "SparseEK1")
TOLERANCES = {"rtol": 1e-6, "atol": 1e-9}


def hidden(t, y):
    return [np.tanh(SHARP * (t - 1.0)) - np.tanh(SHARP * (t - 2.5)) - y[0]]


def hidden_in_jax(t, y):
    return jnp.tanh(SHARP * (t - 1.0)) - jnp.tanh(SHARP * (t - 2.5)) - y


def solution(t, y0=1.0):
    """``y' = 2 [1 <= t < 2.5] - y``."""
    on = -np.expm1(-np.clip(np.asarray(t) - 1.0, 0.0, 1.5))
    return y0 * np.exp(-np.asarray(t)) + 2.0 * on * np.exp(-np.maximum(np.asarray(t) - 2.5, 0.0))


AROUND = np.concatenate([np.linspace(0.0, 4.0, 81), JUMPS, JUMPS - 1e-3, JUMPS + 1e-3])
AROUND.sort()


@pytest.mark.parametrize("method", METHODS)
def test_the_error_bars_are_right_on_both_sides(method):
    result = solve_ivp(
        hidden, (0, 4), [1.0], method, breakpoints=JUMPS, dense_output=True, **TOLERANCES
    )
    error = np.abs(result.y[0] - solution(result.t))
    later = result.t > 0.1  # at the start both are of the size of rounding
    assert result.success
    assert np.max(error[later] / result.y_std[0, later]) < 4.0
    # Between the steps the interpolant is as good as the steps: 1e-6 relative each, and a margin.
    assert np.max(np.abs(result.sol(AROUND)[0] - solution(AROUND))) < 2e-5


def test_steps_end_there_and_there_are_few_of_them():
    known = solve_ivp(hidden, (0, 4), [1.0], breakpoints=JUMPS, **TOLERANCES)
    unknown = solve_ivp(hidden, (0, 4), [1.0], **TOLERANCES)
    for jump in JUMPS:
        assert np.min(np.abs(known.t - jump)) < 1e-13
    # Those that nobody announced are found, at the price of a solve that runs into them.
    assert "f jumps at t = " in unknown.message and "jumps" not in known.message
    assert len(known.t) == len(unknown.t) and known.nfev < 0.5 * unknown.nfev


def test_the_slope_is_the_one_of_its_side():
    posterior = solve_ivp(hidden, (0, 4), [1.0], breakpoints=JUMPS, **TOLERANCES).posterior
    for side, inflow in ((-1e-6, 0.0), (1e-6, 2.0)):
        t = 1.0 + side
        slope = float(posterior.derivative(t).mean[0])
        assert slope == pytest.approx(inflow - solution(t), abs=1e-4)


def test_a_function_that_only_python_runs():
    def branching(t, y):
        return [float(np.tanh(SHARP * (number(t) - 1.0))) - y[0] if y[0] < 1e9 else 0.0]

    result = solve_ivp(branching, (0, 2), [1.0], breakpoints=[1.0], **TOLERANCES)
    after = np.maximum(result.t - 1.0, 0.0)
    expected = 2.0 * np.exp(-result.t) - 1.0 + 2.0 * -np.expm1(-after)
    assert result.path == "python"
    assert np.max(np.abs(result.y[0] - expected)) < 1e-5


@pytest.mark.parametrize("span", [(0.0, 4.0), (4.0, 0.0)])
def test_solve_takes_them_in_both_directions(span):
    y0 = np.array([solution(span[0])])
    posterior = probode.solve(
        hidden_in_jax, span, y0, control=PIControl(1e-8, 1e-10), breakpoints=JUMPS
    )
    bound = 1e-6 * (1.0 if span[0] == 0.0 else np.exp(4.0))  # backwards errors grow
    assert np.max(np.abs(posterior.mean[:, 0] - solution(posterior.t))) < bound


def test_at_chosen_times_and_with_events():
    times = np.array([0.5, 1.0, 1.0 + 1e-9, 2.0, 2.5, 3.5])
    result = solve_ivp(
        *(hidden, (0, 4), [1.0]),
        t_eval=times,
        events=lambda t, y: y[0] - 1.0,
        breakpoints=JUMPS,
        **TOLERANCES,
    )
    assert np.max(np.abs(result.y[0] - solution(times))) < 1e-5
    # 2 (1 - e^-s) + e^-(1+s) = 1, s after the first jump; the way down begins at solution(2.5)
    up, down = 1.0 + np.log(2.0 - np.exp(-1.0)), 2.5 + np.log(solution(2.5))
    assert result.t_events[0][-2:] == pytest.approx([up, down], abs=1e-5)


def test_at_an_end_and_with_no_end():
    result = solve_ivp(hidden, (1.0, 2.5), [1.0], breakpoints=JUMPS, **TOLERANCES)
    expected = 2.0 - np.exp(-(result.t - 1.0))
    assert np.max(np.abs(result.y[0] - expected)) < 1e-5

    def low(t, y):
        return y[0] - 0.1 if t > 3.0 else 1.0

    low.terminal = True
    without = solve_ivp(hidden, (0, np.inf), [1.0], events=low, breakpoints=JUMPS, **TOLERANCES)
    assert without.status == 1
    assert without.t[-1] == pytest.approx(2.5 + np.log(solution(2.5) / 0.1), abs=1e-3)


def test_inside_a_trace_steps_end_there():
    def at_end(y0, times):
        posterior = probode.solve(
            *(hidden_in_jax, (0.0, 4.0), y0),
            solver=EK1(3),
            control=PIControl(1e-5, 1e-7),
            save_at=4.0,
            breakpoints=times,
        )
        return posterior.mean[-1, 0]

    with double_precision():
        found = jax.jit(at_end)(jnp.ones(1), jnp.asarray(JUMPS))
    assert float(found) == pytest.approx(solution(4.0), abs=1e-4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([2.0, 1.0], "strictly increasing"),
        ([1.0, 1.0], "strictly increasing"),
        ([-1.0, 1.0], "between t0 = 0 and t1 = 4"),
        ([1.0, 5.0], "between t0 = 0 and t1 = 4"),
        ([1.0, np.nan], "finite"),
        ([[1.0, 2.0]], "shape"),
    ],
)
@pytest.mark.parametrize("front_door", [solve_ivp, probode.solve])
def test_what_cannot_be_meant_is_refused(front_door, given, words):
    with pytest.raises(ValueError, match=words):
        front_door(hidden_in_jax, (0.0, 4.0), np.ones(1), breakpoints=given)


def test_other_refusals():
    with pytest.raises(TypeError, match="real numbers"):
        solve_ivp(hidden, (0, 4), [1.0], breakpoints="here")
    with pytest.raises(ValueError, match="adaptive"):
        solve_ivp(hidden, (0, 4), [1.0], breakpoints=[1.0], grid=[0.0, 2.0, 4.0])
    with pytest.raises(ValueError, match="adaptive"):
        probode.solve(hidden_in_jax, (0, 4), np.ones(1), breakpoints=[1.0], step=0.1)


def test_with_a_mass_matrix_steps_end_there():
    result = solve_ivp(
        hidden, (0, 4), [1.0], mass_matrix=np.eye(1), breakpoints=JUMPS, **TOLERANCES
    )
    assert np.max(np.abs(result.y[0] - solution(result.t))) < 1e-5
    for jump in JUMPS:
        assert np.min(np.abs(result.t - jump)) < 1e-13
