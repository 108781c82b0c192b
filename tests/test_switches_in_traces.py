"""Switches in time hold in likelihoods, ensembles and traced solves as they do in ``solve_ivp``.

The model is an infusion into one compartment, ``y' = -k y + (rate during the infusion)``, with a
closed form. Pulses begin late, where steps have grown: what is not stopped at is stepped over.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import probode
from probode import (
    EK1,
    MassMatrix,
    Observations,
    PIControl,
    Sweep,
    inputs,
    log_likelihood,
    solve,
    solve_ensemble,
    solve_ivp,
)
from probode.ensemble import one_by_one
from probode.programs.field import bind
from probode.programs.moving_switches import switch_times

SPAN, BEGIN, DOSE = (0.0, 24.0), 10.0, 100.0
TIMES = np.array([9.0, BEGIN, 12.0, 15.0, 24.0])
NOISE = 1.0


def exact(t, k, begin, width):
    on = jnp.clip(t - begin, 0.0, width)
    later = jnp.clip(t - begin - width, 0.0)
    return DOSE / width / k * (1.0 - jnp.exp(-k * on)) * jnp.exp(-k * later)


def pulse(width, begin=BEGIN):
    return inputs.constant([0.0, begin, begin + width], [0.0, DOSE / width, 0.0])


def infused(t, y, k, u):
    return u(t) - k * y


def switched(t, y, k, begin, width):
    return jnp.where((t >= begin) & (t < begin + width), DOSE / width, 0.0) - k * y


def data_of(width):
    off = np.array([0.3, -1.0, 0.5, 1.2, -0.2])
    return Observations(TIMES, np.asarray(exact(TIMES, 0.3, BEGIN, width)) + off, noise=NOISE)


def density(k, begin, width):
    return jnp.sum(norm.logpdf(data_of(0.5).u[:, 0], exact(TIMES, k, begin, width), NOISE))


@pytest.mark.parametrize("method", ["fenrir", "plain", "filter", "dalton"])
@pytest.mark.parametrize("rtol", [1e-6, 1e-8])
def test_likelihoods_see_pulses_of_any_length(method, rtol):
    # In units of the noise, errors of the solution are far below what is asked for here.
    for width in (2.0, 0.1, 0.01):
        data = data_of(width)
        truth = norm.logpdf(data.u[:, 0], exact(TIMES, 0.3, BEGIN, width), NOISE).sum()
        control = PIControl(rtol, 1e-3 * rtol)
        found = log_likelihood(
            infused, SPAN, 0.0, (0.3, pulse(width)), data,
            method=method, solver=EK1(3), control=control,
        )  # fmt: skip
        assert abs(found - truth) < 1e-3


@pytest.mark.slow
def test_derivatives_of_likelihoods_go_across_switches():
    with jax.enable_x64(True):
        data = data_of(0.5)

        def value(k):
            return log_likelihood(infused, SPAN, 0.0, (k, pulse(0.5)), data, solver=EK1(3))

        slope = jax.grad(value)(0.35)
        assert slope == pytest.approx(float(jax.grad(density)(0.35, BEGIN, 0.5)), rel=1e-4)


def test_a_likelihood_has_a_derivative_by_the_time_of_a_switch():
    with jax.enable_x64(True):
        data = data_of(0.5)

        def value(begin, width):
            given = (0.3, begin, width)
            return log_likelihood(switched, SPAN, 0.0, given, data, method="plain", solver=EK1(2))

        slopes = jax.grad(value, argnums=(0, 1))(9.7, 0.4)
        truth = jax.grad(density, argnums=(1, 2))(0.3, 9.7, 0.4)
        assert np.allclose(slopes, truth, rtol=1e-3)


def test_a_traced_solve_takes_the_steps_of_a_plain_one():
    with jax.enable_x64(True):
        given = {"solver": EK1(3), "save_at": jnp.asarray(TIMES)}

        def traced(begin, width):
            made = solve(switched, SPAN, 0.0, (0.3, begin, width), **given)
            return made.mean, made.stats.steps

        plain = solve(switched, SPAN, 0.0, (0.3, BEGIN, 0.01), solver=EK1(3))
        mean, steps = jax.jit(traced)(BEGIN, 0.01)
        assert np.allclose(mean, exact(TIMES, 0.3, BEGIN, 0.01), atol=1e-5)
        assert int(steps) <= plain.stats.steps + 4


@pytest.mark.parametrize(
    ("engine", "count"),
    [("auto", 3), ("auto", 5), pytest.param("vmapped", 5, marks=pytest.mark.slow)],
)
def test_members_share_an_input(engine, count):
    rates = np.linspace(0.3, 0.5, count)
    found = solve_ensemble(
        infused, SPAN, [0.0], (rates, pulse(0.5)), save_at=TIMES, engine=engine, solver=EK1(3),
        calibration="model",
    )  # fmt: skip
    truth = exact(TIMES, rates[:, None], BEGIN, 0.5)
    assert np.allclose(found.mean[..., 0], truth, atol=1e-4)


def test_members_have_inputs_of_their_own_by_a_sweep():
    widths = (2.0, 0.5)
    given = (0.3, Sweep([pulse(width) for width in widths], "pulse"))
    found = solve_ensemble(
        infused, SPAN, [0.0], given, save_at=TIMES, solver=EK1(3), calibration="model"
    )
    assert found.dims == ("pulse",)
    for mean, width in zip(found.mean[..., 0], widths, strict=True):
        assert np.allclose(mean, exact(TIMES, 0.3, BEGIN, width), atol=1e-4)


def test_a_sweep_of_inputs_that_differ_in_kind_is_refused():
    several = Sweep([pulse(0.5), inputs.linear([0.0, 1.0], [0.0, 1.0])])
    with pytest.raises(ValueError, match="inputs of one kind"):
        solve_ensemble(infused, SPAN, [0.0], (0.3, several))


def test_many_members_are_solved_in_a_batch_that_starts_anew(monkeypatch):
    monkeypatch.setattr(one_by_one, "_MOST_ALONE", 2)
    begins = np.array([10.0, 11.0, 14.9])
    found = solve_ensemble(
        switched, SPAN, [0.0], (0.3, begins, 0.01), save_at=TIMES,
        solver=EK1(3), calibration="model",
    )  # fmt: skip
    assert found.engine == "vmapped"
    assert np.allclose(found.mean[..., 0], exact(TIMES, 0.3, begins[:, None], 0.01), atol=1e-4)


def test_lanes_refuse_what_switches():
    with pytest.raises(ValueError, match="switches in time"):
        solve_ensemble(infused, SPAN, [0.0], (np.array([0.3, 0.4]), pulse(0.5)), engine="lanes")


FUNCTIONS = {
    "where": lambda t, a: jnp.where(t > a, 1.0, 0.0),
    "heaviside": lambda t, a: jnp.heaviside(t - a, 0.5),
    "period": lambda t, a: jnp.where((t % a) < 1.0, 1.0, 0.0),
    "shifted": lambda t, a: jnp.where((t - a) % 8.0 < 1.5, 1.0, 0.0),
    "clip": lambda t, a: jnp.clip(t - a, 0.0, 2.0),
    "floor": lambda t, a: jnp.floor(t / a),
    "kink": lambda t, a: jnp.abs(jnp.minimum(2.0 * t, a) - 3.0),
    "curve": lambda t, a: jnp.where(t**2 > a**2, 1.0, 0.0),
    "wave": lambda t, a: jnp.sign(jnp.sin(t / a)),
    "input": lambda t, a: inputs.linear(jnp.stack([a - 1.0, a, a + 2.0]), jnp.arange(3.0))(t),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_times_of_switches_that_depend_on_traced_numbers(name):
    a, function = 5.3, FUNCTIONS[name]

    def f(t, y, a):
        return function(t, a) - y

    with jax.enable_x64(True):
        zero, start = np.asarray(0.0), np.zeros(1)
        field = bind(f, zero, start, (a,), None, diagonal=False)
        known = np.unique(np.round(switch_times(field, 0.0, 20.0), 9))

        def times(a):
            return switch_times(field.with_arguments((a,)), 0.0, 20.0)

        def inside(found):
            found = np.asarray(found)
            return np.flatnonzero((found > 1e-9) & (found < 20.0 - 1e-9))

        along = jax.jit(lambda a: jax.jvp(times, (a,), (1.0,)))
        found, slope = along(a)
        some, inner = inside(found), known[inside(known)]
        t = np.asarray(found)[some]
        assert np.array_equal(np.unique(np.round(t, 9)), inner)
        # Where a switch is after a change of `a`: what is found there, in whichever order.
        moved = np.asarray(along(a + 1e-6)[0])
        apart = np.abs(moved - (t + 1e-6 * np.asarray(slope)[some])[:, None])
        assert np.all(apart.min(axis=1) < 1e-9)


def test_a_mass_matrix_goes_with_inputs_and_numpy():
    t = np.linspace(0.0, 2.0, 9)
    u = inputs.constant(t, np.sin(t))

    def f(t, y, u):  # near y = 1000 u: a small difference of large terms
        return np.array([1e3 * u(t) - y[0], y[1] - y[0] * np.exp(-t)])

    result = solve_ivp(
        f, (0.0, 1.0), [0.0, 0.0], args=(u,), mass_matrix=np.diag([1.0, 0.0]), method="EK1", order=2
    )
    assert result.success
    assert np.allclose(result.y[1, -1], result.y[0, -1] * np.exp(-1.0), rtol=1e-3)


def test_a_mass_matrix_inside_a_trace_stops_at_a_switch():
    with jax.enable_x64(True):
        equation = MassMatrix(lambda t, y, k, u: infused(t, y, k, u), np.eye(1))

        def end(k):
            made = solve(equation, SPAN, jnp.zeros(1), (k, pulse(0.5)), save_at=24.0, solver=EK1(3))
            return made.mean[-1, 0]

        assert float(jax.jit(end)(0.3)) == pytest.approx(float(exact(24.0, 0.3, BEGIN, 0.5)), 1e-4)


def test_an_input_refuses_members_that_go_beyond_its_times():
    u = inputs.constant([0.0, BEGIN], [0.0, 1.0], outside="refuse")
    with pytest.raises(ValueError, match="not known outside"):
        probode.solve_ensemble(infused, SPAN, [0.0], (np.array([0.3, 0.4]), u))
