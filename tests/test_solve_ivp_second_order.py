"""``solve_ivp`` for equations of second order: SciPy's contract with values and velocities."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from only_python import number

import probode
from probode import EK0, EK1, SecondOrder, solve_ivp

TIGHT = {"rtol": 1e-7, "atol": 1e-7}


def driven(t, y, v):
    return np.sin(2 * t) - y


def only_python(t, y, v):
    """The same, but it branches on a value."""
    return np.sin(2 * t) - y if number(y[0]) < 100.0 else 0.0 * y


def exact(t):
    """Of ``x'' = sin 2t - x``, ``x(0) = -1``, ``x'(0) = 0``: value and velocity."""
    value = (2 * np.sin(t) - 3 * np.cos(t) - np.sin(2 * t)) / 3
    return np.stack([value, (2 * np.cos(t) + 3 * np.sin(t) - 2 * np.cos(2 * t)) / 3])


def solve(fun=driven, span=(0.0, 5.0), start=(-1.0, 0.0), **options):
    return solve_ivp(fun, span, start, second_order=True, **{**TIGHT, **options})


def chi2(result):
    """Mean squares of errors in units of their bars, of values and of velocities."""
    later = result.t > 0.0
    error = result.y - exact(result.t)
    return np.mean((error[:, later] / result.y_std[:, later]) ** 2, axis=1)


def test_values_are_above_velocities():
    result = solve()
    assert result.success and result.path == "numpy"
    assert result.y.shape == result.y_std.shape == (2, len(result.t))
    np.testing.assert_allclose(result.y, exact(result.t), atol=1e-6)


@pytest.mark.parametrize("fun", [driven, only_python], ids=["traced", "python"])
@pytest.mark.parametrize("method", ["EK1", "EK0", "DiagonalEK1", EK0(5, evaluations=2)], ids=str)
def test_error_bars_are_calibrated_for_both(fun, method, caplog):
    caplog.set_level(logging.ERROR)
    result = solve(fun, method=method)
    assert result.success and result.posterior.diagnose().trusted
    assert (result.path == "python") == (fun is only_python)
    found = chi2(result)
    assert np.all((found > 1 / 3) & (found < 3)), found


@pytest.mark.parametrize(
    "start",
    [
        [[-1.0, 0.5], [0.0, 1.0]],
        (np.array([-1.0, 0.5]), np.array([0.0, 1.0])),
        np.array([[-1.0, 0.5], [0.0, 1.0]]),
        [-1.0, 0.5, 0.0, 1.0],
    ],
    ids=["lists", "pair", "matrix", "stacked"],
)
def test_a_start_is_a_pair_or_one_array(start):
    result = solve(start=start, method="EK0")
    np.testing.assert_allclose(result.y[:, 0], [-1.0, 0.5, 0.0, 1.0])
    np.testing.assert_allclose(result.y[[0, 2]], exact(result.t), atol=1e-5)


def test_dense_output_is_stacked():
    result = solve(dense_output=True, t_eval=[1.0, 2.5])
    assert result.y.shape == (2, 2)
    np.testing.assert_allclose(result.sol(2.5), result.y[:, 1], rtol=1e-12)
    np.testing.assert_allclose(result.sol([1.0, 2.5]), exact(np.array([1.0, 2.5])), atol=1e-6)
    np.testing.assert_allclose(result.sol.std(2.5), result.y_std[:, 1], rtol=1e-12)
    np.testing.assert_allclose(
        np.sqrt(np.diagonal(result.y_cov, axis1=1, axis2=2)).T, result.y_std, rtol=1e-9
    )
    drawn = result.sol.sample(200, t=[1.0, 2.5])
    assert drawn.shape == (200, 2, 2)
    away = abs(drawn.mean(axis=0) - result.y) / result.y_std
    assert np.max(away) < 6 / np.sqrt(200)


@pytest.mark.parametrize("fun", [driven, only_python], ids=["traced", "python"])
def test_events_see_values_and_velocities(fun):
    def turns(t, u):
        return u[1]

    def stop(t, u):
        return u[0] - 1.2

    stop.terminal = True
    result = solve(fun, events=[turns, stop])
    assert result.status == 1
    value, velocity = exact(result.t[-1])
    assert value == pytest.approx(1.2, abs=1e-6)
    assert result.y[0, -1] == pytest.approx(1.2, abs=1e-9)
    assert result.y_events[1].shape == (1, 2)
    assert result.y_events[1][0, 1] == pytest.approx(velocity, abs=1e-6)
    # dt = dy / v
    assert result.t_events_std[1][0] == pytest.approx(result.y_std[0, -1] / abs(velocity), rel=1e-6)
    inside = result.t_events[0][result.t_events[0] > 0.0]
    np.testing.assert_allclose(exact(inside)[1], 0.0, atol=1e-6)


def test_complex_states():
    result = solve(lambda t, y, v: -y, start=[[1.0 + 2.0j], [0.5j]])
    t = result.t
    np.testing.assert_allclose(result.y[0], (1 + 2j) * np.cos(t) + 0.5j * np.sin(t), atol=1e-5)
    np.testing.assert_allclose(result.y[1], 0.5j * np.cos(t) - (1 + 2j) * np.sin(t), atol=1e-5)
    assert result.y_cov.shape == (len(t), 2, 2)
    spread = np.sqrt(np.diagonal(result.y_cov, axis1=1, axis2=2).real).T
    np.testing.assert_allclose(spread, result.y_std, rtol=1e-9)


def test_a_tolerance_on_the_answer_is_met_by_both():
    result = solve(rtol=1e-3, atol=1e-3, global_atol=1e-7, global_rtol=0.0)
    assert result.global_met
    assert np.max(abs(result.y - exact(result.t))) <= 1e-7


def pair(t, y, v):
    return np.array([[-1.0]]), np.array([[0.0]])


@pytest.mark.parametrize(
    "jac",
    [pair, lambda t, y, v: [[-1.0, 0.0]], np.array([[-1.0, 0.0]]), (-1.0, 0.0)],
    ids=["pair", "side-by-side", "matrix", "numbers"],
)
@pytest.mark.parametrize("fun", [driven, only_python], ids=["traced", "python"])
def test_a_user_gives_both_jacobians(fun, jac):
    result = solve(fun, jac=jac)
    np.testing.assert_allclose(result.y, exact(result.t), atol=1e-6)


def test_a_wrong_jacobian_is_told():
    with pytest.warns(UserWarning, match="not the derivative"):
        solve(lambda t, y, v: -y + 0.0 * t, jac=np.array([[1.0, 0.0]]))


@pytest.mark.parametrize("tolerance", [1e-7, [1e-7] * 2, [1e-7, 1e-6]], ids=str)
def test_tolerances_for_all_or_for_each(tolerance):
    result = solve(atol=tolerance, rtol=1e-7)
    np.testing.assert_allclose(result.y, exact(result.t), atol=1e-5)


def test_auto_takes_an_order_more():
    result = solve(method="auto", order="auto")
    first = solve_ivp(
        lambda t, u: np.array([u[1], np.sin(2 * t) - u[0]]),
        *((0.0, 5.0), [-1.0, 0.0]),
        method="auto",
        order="auto",
        **TIGHT,
    )
    assert result.posterior.solver.order == first.posterior.solver.order + 1


def test_backwards_on_a_grid_and_with_vectors_as_columns():
    def columns(t, y, v):
        assert y.ndim == 2
        return -y

    grid = np.linspace(2.0, 0.0, 81)
    result = solve(columns, (2.0, 0.0), [np.cos(2.0), -np.sin(2.0)], grid=grid, vectorized=True)
    np.testing.assert_allclose(result.y[:, -1], [1.0, 0.0], atol=1e-6)


def test_a_switch_in_time_starts_anew():
    """``y'' = 1`` until ``t = 1``, then ``-1``: a parabola, and another one."""
    result = solve(lambda t, y, v: np.where(t < 1.0, 1.0, -1.0) + 0.0 * y, (0.0, 2.0), [0.0, 0.0])
    np.testing.assert_allclose(result.y[:, -1], [1.0, 0.0], atol=1e-9)
    assert len(result.t) < 40


def test_a_solve_that_is_stopped_returns_what_it_has():
    result = solve(max_num_steps=10)
    assert not result.success and 2 < len(result.t) <= 11
    np.testing.assert_allclose(result.y, exact(result.t), atol=1e-6)


def test_nothing_to_integrate():
    result = solve(span=(1.0, 1.0))
    np.testing.assert_array_equal(result.y, [[-1.0, -1.0], [0.0, 0.0]])


@dataclass(frozen=True)
class ThirdOrder(probode.Equation):
    order: ClassVar[int] = 3


@pytest.mark.parametrize(
    "start", [(1.0, -1.0, 1.0), [[1.0], [-1.0], [1.0]]], ids=["numbers", "lists"]
)
def test_any_equation_is_taken(start):
    equation = ThirdOrder(lambda t, y, v, a: -a)
    result = solve_ivp(equation, (0.0, 2.0), start, **TIGHT)
    decay = np.exp(-result.t)
    np.testing.assert_allclose(result.y, [decay, -decay, decay], atol=1e-6)
    assert np.all(abs(result.y - [decay, -decay, decay]) <= 6 * result.y_std + 1e-15)


def test_an_equation_and_a_function_give_the_same():
    one, other = solve(), solve_ivp(SecondOrder(driven), (0.0, 5.0), [-1.0, 0.0], **TIGHT)
    np.testing.assert_array_equal(one.y, other.y)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 1.0}, "needs \\(y, y'\\) at t0"),
        ({"start": [1.0, 2.0, 3.0]}, "2 times as many numbers"),
        ({"start": [1.0, [2.0, 3.0]]}, "one shape"),
        ({"start": [[[1.0]], [[0.0]]]}, "1-dimensional"),
        ({"fun": lambda t, y: -y}, "is called as f\\(t, y, y'\\)"),
        ({"fun": lambda t, y, v: [1.0, 2.0]}, "shape"),
        ({"fun": probode.FirstOrder(lambda t, y: -y)}, "leave it out"),
        ({"method": EK1(1)}, "too low"),
        ({"atol": [1.0, 1.0, 1.0]}, "for each derivative"),
        ({"global_rtol": [1.0, 1.0, 1.0]}, "must be a number"),
        ({"jac": lambda t, y, v: [[1.0]]}, "tuple of 2 matrices"),
        ({"jac": lambda t, y: [[1.0]]}, "called as jac\\(t, y, y'\\)"),
        ({"lband": 1}, "first order"),
    ],
)
def test_what_does_not_fit_is_said(options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        solve(**options)


def test_solve_says_what_to_do_with_numpy_functions():
    import math

    with pytest.raises(Exception) as caught:
        probode.solve(SecondOrder(lambda t, y, v: -math.sin(y)), (0.0, 1.0), (1.0, 0.0))
    assert any("solve_ivp" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("words", ["is called as f\\(t, y, y', arg1\\)"])
def test_solve_says_how_the_function_is_called(words):
    with pytest.raises(TypeError, match=words):
        probode.solve(SecondOrder(lambda t, y, v: -y), (0.0, 1.0), (1.0, 0.0), args=(1.0,))
