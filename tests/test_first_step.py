"""The first step: from the derivatives that an exact start knows."""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, PIControl, problems, solve
from probode.base.precision import double_precision
from probode.filter.first_step import Known, from_derivatives

pytestmark = pytest.mark.optimised

LOTKA_VOLTERRA = problems.get("lotka-volterra")
ORDERS = [1, 3, 5, 8, 11]
RTOL, ATOL = 1e-6, 1e-9


def first_step(field, t_span, y0, solver, **options):
    control = PIControl(RTOL, options.pop("atol", ATOL), **options)
    posterior = solve(field, t_span, y0, solver=solver, control=control, smooth=False)
    assert posterior.success
    return posterior.t[1] - posterior.t[0]


def prey_and_predators(t, y):
    return LOTKA_VOLTERRA.vector_field(t, y, *LOTKA_VOLTERRA.args)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("diffusion", ["dynamic", "fixed"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_unit_of_time_does_not_matter(order, diffusion, unit):
    def slower(t, y):
        return prey_and_predators(t / unit, y) / unit

    solver, y0 = EK1(order, diffusion), LOTKA_VOLTERRA.y0
    usual = first_step(prey_and_predators, (0.0, 0.1), y0, solver)
    other = first_step(slower, (0.0, 0.1 * unit), y0, solver)
    assert other / unit == pytest.approx(usual, rel=1e-12)


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("order", ORDERS)
def test_the_unit_of_the_state_does_not_matter(order, unit):
    def larger(t, y):
        return unit * prey_and_predators(t, y / unit)

    y0 = LOTKA_VOLTERRA.y0
    usual = first_step(prey_and_predators, (0.0, 0.1), y0, EK1(order))
    other = first_step(larger, (0.0, 0.1), unit * y0, EK1(order), atol=unit * ATOL)
    assert other == pytest.approx(usual, rel=1e-12)


@pytest.mark.parametrize("solver", [EK0(3), EK1(5), EK1(8), EK1(5, "fixed")])
def test_backwards_it_is_as_long(solver):
    y0 = LOTKA_VOLTERRA.y0
    forwards = first_step(prey_and_predators, (0.0, 0.1), y0, solver)
    backwards = first_step(lambda t, y: -prey_and_predators(-t, y), (0.0, -0.1), y0, solver)
    assert backwards == -forwards


@pytest.mark.parametrize("field", [lambda t, y: 0.0 * y, lambda t, y: 1.0 + 0.0 * y])
@pytest.mark.parametrize("span", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("solver", [EK0(2), EK1(5), EK1(11)])
def test_where_derivatives_vanish_it_is_half_of_the_interval(field, span, solver):
    assert first_step(field, (0.0, span), 1.0, solver) == 0.5 * span


@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_evaluated_outside_of_a_short_interval(order):
    end = 1e-9
    posterior = solve(
        lambda t, y: jnp.where((t < 0.0) | (t > end), jnp.nan, -y),
        (0.0, end),
        1.0,
        solver=EK1(order),
    )
    assert posterior.success


@pytest.mark.parametrize("bound", [{"max_step": 1e-4}, {"min_step": 0.05}])
def test_it_keeps_to_the_bounds_of_all_steps(bound):
    step = first_step(prey_and_predators, (0.0, 0.1), LOTKA_VOLTERRA.y0, EK1(5), **bound)
    assert [step] == list(bound.values())


@pytest.mark.parametrize("beyond", [np.inf, np.nan, 0.0])
def test_a_derivative_that_says_nothing_is_left_to_the_one_before(beyond):
    derivatives = jnp.array([[1.0], [-1.0], [1.0], [beyond]])
    step = from_derivatives(Known(derivatives, 2, 1.0), jnp.ones(()), RTOL, ATOL)
    assert step == pytest.approx(0.8 * 3.0 * (RTOL + ATOL) ** 0.5)


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_in_an_interval_without_end_it_has_one(slope):
    """Where there is nothing to bound it either: derivatives from the second on vanish."""
    derivatives = jnp.array([[1.0], [slope], [0.0], [0.0], [0.0]])
    step = from_derivatives(Known(derivatives, 3, 1.0), jnp.asarray(np.inf), RTOL, ATOL)
    assert 0.0 < float(step) <= 1.0


def test_derivatives_whose_squares_overflow_bound_it():
    with double_precision():
        derivatives = jnp.array([[1.0], [0.0], [1e150], [1e300]])
        step = from_derivatives(Known(derivatives, 2, 1.0), jnp.ones(()), RTOL, ATOL)
    assert 0.0 < float(step) < 1e-70


@pytest.mark.parametrize("order", [1, 2, 4, 6, 8])
def test_it_is_measured_by_what_steps_settle_to(order):
    """On ``y' = t^q / q!`` the derivative of order ``q+1`` is one, and so is the tolerance."""
    posterior = solve(
        lambda t, y: jnp.full(1, t**order / factorial(order)),
        *((0.0, 60.0), [0.0]),
        solver=EK1(order),
        control=PIControl(1e-300, 1.0),
        smooth=False,
    )
    assert np.median(np.diff(posterior.t)) == pytest.approx(0.8, rel=0.15)


@pytest.mark.parametrize(
    ("solver", "options", "evaluations"),
    [
        (EK1(5), {}, 6),
        (EK0(3), {}, 4),
        (EK0(1), {}, 1),
        (EK1(5), {"first_step": 0.01}, 5),
        (EK1(5, initialization="diffuse"), {}, 3),
    ],
    ids=["taylor", "taylor, EK0", "order 1", "given", "diffuse"],
)
def test_evaluations_of_the_start_are_counted(solver, options, evaluations):
    posterior = solve(
        prey_and_predators,
        (0.0, 0.1),
        LOTKA_VOLTERRA.y0,
        solver=solver,
        control=PIControl(RTOL, ATOL, **options),
    )
    assert posterior.stats.f_evaluations == posterior.stats.steps + evaluations


def test_order_one_needs_no_derivative_of_the_vector_field():
    def opaque(t, y):
        # JAX may call back from a thread of its own, which computes with 32 bits.
        single = jax.ShapeDtypeStruct(y.shape, np.float32)
        return jax.pure_callback(lambda y: -np.asarray(y, np.float32), single, y)

    posterior = solve(opaque, (0.0, 1.0), [1.0], solver=EK0(1), control=PIControl(1e-3, 1e-6))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0), rtol=1e-2)


@pytest.mark.parametrize("rtol", [1e-2, 1e-3, 1e-6])
@pytest.mark.parametrize("rate", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("order", [9, 10])
def test_smoothing_of_high_orders_is_as_accurate_as_the_tolerance(order, rate, rtol):
    posterior = solve(
        lambda t, y, rate: -rate * y,
        *((0.0, 3.0 / rate), 1.0, (rate,)),
        solver=EK1(order),
        control=PIControl(rtol, 1e-3 * rtol),
    )
    assert np.max(np.abs(posterior.mean - np.exp(-rate * posterior.t))) < 10.0 * rtol
