"""Starts and first steps where only Python can evaluate the vector field."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import probode
from probode import EK0, EK1, DiffuseStart, PControl, RungeKuttaStart, TaylorStart, solve_ivp

Y0 = np.array([1.0, 0.5])


def field(t, y):
    return np.array([y[0] - y[0] * y[1], y[0] * y[1] - y[1]])


def opaque(t, y):
    """The same, and it cannot be traced."""
    return field(t, [float(str(x)) for x in y])


SOLVER = EK0(3)


def driven(method=SOLVER, function=opaque, **options):
    made = solve_ivp(function, (0.0, 1.0), Y0, method=method, **options).posterior
    assert (made.stats.path == "python") == (function is not field)
    return made


@pytest.mark.parametrize("start", ["runge-kutta", "diffuse", DiffuseStart(0.3)], ids=str)
@pytest.mark.parametrize("diffusion", ["dynamic", "fixed"])
def test_a_start_that_was_asked_for_is_made(start, diffusion):
    """As where the function is compiled."""
    python, compiled = (
        driven(EK0(3, diffusion), function, initialization=start) for function in (opaque, field)
    )
    assert python.solver == compiled.solver
    np.testing.assert_allclose(python.t, compiled.t, rtol=1e-6)
    np.testing.assert_allclose(python.mean, compiled.mean, rtol=1e-6)
    np.testing.assert_allclose(python.std, compiled.std, rtol=1e-4, atol=1e-14)


def test_a_start_of_the_solver_is_made():
    assert driven(EK1(3, initialization="diffuse")).solver.initialization == DiffuseStart()


def test_what_was_done_instead_of_an_exact_start_is_told(caplog):
    with caplog.at_level(logging.WARNING, "probode"):
        made = driven(initialization="taylor")
    assert made.solver.initialization == RungeKuttaStart()
    assert any("Runge-Kutta" in note for note in made.diagnose().notes)
    assert "begun by Runge-Kutta steps instead" in caplog.text


def test_nobody_is_warned_who_asked_for_nothing(caplog):
    with caplog.at_level(logging.WARNING, "probode"):
        made = driven()
    assert made.solver.initialization == RungeKuttaStart()
    assert "Runge-Kutta" not in caplog.text


def test_a_start_that_is_not_known_is_an_error():
    with pytest.raises(ValueError, match="'runge-kutta'"):
        driven(initialization="runge")


@pytest.mark.parametrize("start", ["runge-kutta", "diffuse"])
def test_evaluations_of_a_start_are_counted(start):
    calls = []

    def counted(t, y):
        calls.append(t)
        return opaque(t, y)

    solve_ivp(lambda t, y: opaque(t, y), (0, 1), Y0, initialization=start)  # known from here on
    result = solve_ivp(counted, (0, 1), Y0, method="EK0", initialization=start, calibration="model")
    assert result.nfev <= len(calls) <= result.nfev + 4  # those that try to trace it


def test_scipy_drives_a_start_that_was_asked_for():
    """A diffuse start knows less than one by Runge-Kutta steps, so other steps follow."""
    first, second = (
        scipy.integrate.solve_ivp(
            field, (0, 1), Y0, method=probode.scipy.EK0, initialization=start, first_step=0.01
        )
        for start in ("runge-kutta", "diffuse")
    )
    assert first.nfev > second.nfev + 20  # 17 a node, for 5 // 2 + 1 of them
    assert not np.array_equal(first.t, second.t)


class Guess(DiffuseStart):
    """Begins with a second derivative of one."""

    def __call__(self, *given):
        start = super().__call__(*given)
        return start._replace(mean=start.mean.at[2].set(1.0))


class Differentiates(DiffuseStart):
    """With the exact second derivative."""

    def __call__(self, field, t0, t1, y0, h, order):
        start = super().__call__(field, t0, t1, y0, h, order)
        second = jax.jvp(lambda y: field(t0, y), (y0,), (start.mean[1],))[1]
        return start._replace(mean=start.mean.at[2].set(second))


def test_a_start_of_the_users_own_is_made_by_its_formula():
    python, compiled = (
        driven(function=function, initialization=Guess()) for function in (opaque, field)
    )
    assert type(python.solver.initialization) is Guess
    for part in ("mean", "factor"):
        own, other = (getattr(made.path.rows, part)[0] for made in (python, compiled))
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-12)


def test_a_start_of_the_users_own_that_differentiates_is_told_of():
    made = driven(initialization=Differentiates())
    assert made.solver.initialization == RungeKuttaStart()
    assert any("differentiates f" in note for note in made.diagnose().notes)


class Own(PControl):
    """A first step of ``0.1 / |f|``."""

    def initial_step(self, outset):
        return 0.1 / jnp.max(jnp.abs(outset.field(outset.t0, outset.y0)))


def test_a_control_of_the_users_own_chooses_the_first_step():
    python, compiled = (
        driven(function=function, control=Own(1e-3, 1e-6)) for function in (opaque, field)
    )
    expected = 0.1 / np.max(np.abs(field(0.0, Y0)))
    for made in (python, compiled):
        assert made.path.rows.h[1] == pytest.approx(expected, rel=1e-12)


def test_a_start_that_failed_is_not_reported_as_done():
    """Where exact derivatives are not finite, Runge-Kutta steps take their place."""
    made = probode.solve(lambda t, y: -jnp.sqrt(jnp.maximum(y, 0.0)), (0.0, 1.0), np.zeros(1))
    assert EK1().initialization == TaylorStart()
    assert made.solver.initialization == RungeKuttaStart()
