"""Errors of Python's arithmetic where a function is only tried are NaN: a step is rejected."""

import math
from contextlib import nullcontext

import numpy as np
import probode.scipy
import pytest
import scipy.integrate
from attempts import OwnError
from only_python import number

from probode import Status, solve_ivp
from probode.engines import native

FAILING = {
    "OverflowError": lambda x: math.exp(1000.0 + x),
    "ZeroDivisionError": lambda x: 1.0 / (x - x),
    "ValueError": lambda x: math.log(-1.0 - x * x),
}
METHODS = {"EK1": {}, "EK0": {}, "DiagonalEK1": {}, "EK0 twice": {"evaluations": 2}}


def decay_until(t, y, end, failing):
    """``-y`` until the time ``end``; from then on an error."""
    return [-number(y[0]) if t < end else failing(number(y[0]))]


def inside(t, y, failing):
    """``-y``, defined for ``|y| < 2``."""
    return [-number(y[0]) if abs(y[0]) < 2 else failing(number(y[0]))]


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "jax"])
@pytest.mark.parametrize("name", FAILING)
def test_a_solve_that_cannot_go_on_returns_what_came_before_and_names_the_error(name, kernels):
    with nullcontext() if kernels else native.disabled():
        result = solve_ivp(decay_until, (0, 1), [1.0], args=(0.5, FAILING[name]), rtol=1e-6)
    assert result.path == "python" and result.status == -1
    assert result.posterior.status == Status.NOT_FINITE
    assert f"decay_until raised {name}" in result.message
    assert 0.5 - 1e-6 < result.t[-1] <= 0.5
    np.testing.assert_allclose(result.y[0], np.exp(-result.t), rtol=1e-5)
    assert np.all(np.isfinite(result.y_std))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_step_too_long_is_tried_anew(method, vectorized):
    """With the first step of 8, ``y`` is predicted far outside of where ``f`` is defined."""

    def function(t, y, failing):
        if vectorized:
            return np.stack([inside(t, column, failing) for column in y.T], axis=1)
        return inside(t, y, failing)

    result = solve_ivp(
        *(function, (0, 9), [1.9], method.split()[0]),
        args=(FAILING["OverflowError"],),
        first_step=8.0,
        order=3,
        rtol=1e-6,
        atol=1e-9,
        vectorized=vectorized,
        **METHODS[method],
    )
    assert result.success, result.message
    assert result.y[0, -1] == pytest.approx(1.9 * np.exp(-9), abs=1e-6)
    assert "function raised OverflowError" in str(result.posterior.diagnose())


def test_beside_the_start_and_in_the_jacobian_there_may_be_no_value():
    """``y(0)`` is the last number at which ``f`` is defined; differences go beyond it."""

    def function(t, y):
        return [-math.sqrt(1.0 - y[0]) - 0.5 if number(y[0]) <= 1.0 else math.sqrt(-1.0)]

    result = solve_ivp(function, (0, 1), [1.0], rtol=1e-6, atol=1e-9)
    reference = scipy.integrate.solve_ivp(function, (0, 1), [1.0], "RK45", rtol=1e-9, atol=1e-12)
    assert result.success, result.message
    assert result.y[0, -1] == pytest.approx(reference.y[0, -1], abs=1e-5)


def test_a_jacobian_of_the_users_that_fails_counts_as_unknown():
    def jac(t, y):
        return [[-1.0 if t < 0.5 else math.exp(1000.0)]]

    result = solve_ivp(inside, (0, 1), [1.0], args=(math.sqrt,), jac=lambda t, y, f: jac(t, y))
    assert result.path == "python" and result.success
    assert result.y[0, -1] == pytest.approx(np.exp(-1), rel=1e-3)


@pytest.mark.parametrize("method", ["EK1", "EK0", "auto"])
@pytest.mark.parametrize(
    ("name", "error"),
    [("OverflowError", OverflowError), ("ZeroDivisionError", ZeroDivisionError)],
)
def test_at_the_initial_value_the_error_is_the_users(method, name, error):
    with pytest.raises(error):
        solve_ivp(decay_until, (0, 1), [1.0], method, args=(0.0, FAILING[name]))


@pytest.mark.parametrize("error", [OwnError("no"), ValueError("no such table"), KeyError("k")])
def test_errors_that_are_not_of_arithmetic_come_through(error):
    def raising(y):
        raise error

    with pytest.raises(type(error)):
        solve_ivp(decay_until, (0, 1), [1.0], args=(0.5, raising))


def test_it_is_said_once(caplog):
    def own(t, y):
        return decay_until(t, y, 0.5, FAILING["OverflowError"])

    for _ in range(2):
        solve_ivp(own, (0, 1), [1.0], order=2)
    assert len([text for text in caplog.messages if "own raised OverflowError" in text]) == 1


def test_under_scipys_own_driver_too():
    arguments = (0.5, FAILING["OverflowError"])
    result = scipy.integrate.solve_ivp(
        decay_until, (0, 1), [1.0], method=probode.scipy.EK1, args=arguments
    )
    assert result.status == -1 and "raised OverflowError" in result.message
    assert 0.5 - 1e-3 < result.t[-1] <= 0.5
