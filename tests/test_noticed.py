"""Discontinuities that nobody announced: noticed, located, said."""

import json

import numpy as np
import pytest
from only_python import number

from probode import solve_ivp

OPTIONS = {"rtol": 1e-6, "atol": 1e-8}


def through_text(t, y):
    """A switch in time that cannot be followed."""
    return [1.0 if json.loads(json.dumps(float(t))) > 1.2345 else -1.0]


def test_a_switch_in_time_becomes_a_breakpoint():
    result = solve_ivp(through_text, (0, 10), [0.0], **OPTIONS)
    told = solve_ivp(through_text, (0, 10), [0.0], breakpoints=[1.2345], **OPTIONS)
    assert "f jumps at t = 1.2345," in result.message and result.success
    assert len(result.t) == len(told.t) and "jumps" not in told.message
    assert result.y[0, -1] == pytest.approx(10.0 - 2.0 * 1.2345, abs=1e-10)
    assert "1.2345" in str(result.posterior.diagnose())


BEGIN, STOP = 5.3, 5.301


def by_constants(t):
    return 5.3 < t < 5.301


def by_variables(t):
    return t >= BEGIN and t < STOP


@pytest.mark.parametrize("is_on", [by_constants, by_variables])
def test_a_pulse_between_numbers_in_the_code_is_found(is_on):
    """Far shorter than the distance of looks along the solution, which is 0.01."""
    result = solve_ivp(
        lambda t, y: [100.0 if is_on(t) else -0.0 * number(y[0])], (0, 20), [0.0], **OPTIONS
    )
    assert result.y[0, -1] == pytest.approx(0.1, abs=1e-9)
    assert result.posterior.diagnose().trusted


@pytest.mark.parametrize("method", ["EK0", "EK1"])
@pytest.mark.parametrize("traced", [True, False])
def test_a_switch_by_the_state_is_located(method, traced):
    """A spring with dry friction, which turns at multiples of pi; between them, in closed form."""

    def friction(t, y):
        sign = np.sign(y[1]) if traced else (1.0 if number(y[1]) > 0 else -1.0)
        return np.array([y[1], -y[0] - 0.2 * sign])

    result = solve_ivp(friction, (0, 8), [2.0, 0.0], method, **OPTIONS)
    assert "f jumps where the solution is" in result.message
    found = result.message.split("at t = ")[1].split(", which")[0].split(", ")
    assert [float(t) for t in found] == pytest.approx([np.pi, 2.0 * np.pi], abs=1e-6)
    half = np.floor(result.t / np.pi)
    # Around -0.2 on the way up, 0.2 on the way down, with 0.4 less at each turn.
    centre = np.where(half % 2 == 0, 0.2, -0.2)
    swing = 2.0 - 0.2 - 0.4 * half
    error = result.y[0] - (centre + swing * np.cos(result.t))
    known = result.y_std[0] > 1e-12
    assert 1 / 3 < np.mean((error[known] / result.y_std[0, known]) ** 2) < 3.0


def test_a_solution_that_slides_is_told():
    result = solve_ivp(
        lambda t, y: [-1.0 if number(y[0]) > 0 else 1.0],
        (0, 5),
        [2.0],
        max_num_steps=2000,
        **OPTIONS,
    )
    assert result.status == -1 and "slide" in result.message
    assert result.t[-1] == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize(
    ("f", "span", "y0"),
    [
        (lambda t, y: np.array([y[1], 100 * (1 - y[0] ** 2) * y[1] - y[0]]), (0, 200), [2.0, 0.0]),
        (lambda t, y: np.array([np.tanh(1e6 * (t - 1.0))]), (0, 2), [0.0]),
    ],
    ids=["van der Pol", "a thin layer"],
)
def test_what_is_continuous_is_no_jump(f, span, y0):
    result = solve_ivp(f, span, y0, **OPTIONS)
    assert result.success and "jumps" not in result.message


def test_stiffness_that_begins_half_way_is_said():
    rates = np.linspace(1.0, 2.0, 8)

    def stiffens(t, y):
        return -rates * (1.0 + 1e6 / (1.0 + np.exp(-20.0 * (t - 5.0)))) * (y - np.sin(t))

    result = solve_ivp(stiffens, (0, 10), np.ones(8), "auto", rtol=1e-3)
    assert result.success and result.posterior.solver.name.startswith("EK1")
    assert "EK0" in result.message and "took its place" in result.message
