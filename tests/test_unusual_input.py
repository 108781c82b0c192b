"""Unusual but good input just works."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attempts import PAIR, assert_finite, attempt

from probode import EK1, PIControl, Status


@pytest.mark.parametrize(
    "y0",
    [
        2,
        2.0,
        True,
        np.float64(2.0),
        np.float32(2.0),
        np.int64(2),
        np.array(2),
        [1, 2],
        (1, 2.5),
        np.array([1, 2]),
        np.array([1, 2], np.uint8),
        np.array([1.0, 2.0], np.float32),
        np.array([1.0, 2.0], np.float16),
        jnp.array([1.0, 2.0]),
        jnp.array([1, 2]),
        [jnp.array(1.0), np.float32(2.0)],
        np.arange(6).reshape(2, 3),
    ],
    ids=lambda y0: f"{type(y0).__name__}-{np.asarray(y0).dtype}-{np.shape(y0)}",
)
def test_any_kind_of_initial_value_is_solved_in_double_precision(y0):
    posterior = attempt(y0=y0)
    expected = np.exp(-1.0) * np.array(y0, float)
    assert posterior.status == Status.SUCCESS
    assert posterior.mean.dtype == posterior.std.dtype == np.float64
    assert posterior.mean.shape[1:] == expected.shape
    np.testing.assert_allclose(posterior.mean[-1], expected, rtol=1e-6)


TIGHT = {"solver": EK1(5), "control": PIControl(rtol=1e-11, atol=1e-13)}


@pytest.mark.parametrize("rate", [np.float32(0.1), jnp.float32(0.1)])
def test_single_precision_input_does_not_make_a_single_precision_result(rate):
    y0 = np.array([1.1, 2.3], np.float32)
    posterior = attempt(lambda t, y, rate: -rate * y, y0=y0, args=(rate,), **TIGHT)
    expected = np.exp(-np.float64(np.float32(0.1))) * y0.astype(float)
    assert posterior.mean.dtype == posterior.std.dtype == np.float64
    np.testing.assert_allclose(posterior.mean[-1], expected, rtol=1e-10)


@pytest.mark.parametrize(
    "t_span",
    [
        (0, 1),
        [0.0, 1.0],
        np.array([0, 1]),
        jnp.array([0.0, 1.0]),
        (np.float32(0.0), np.int64(1)),
        (jnp.array(0.0), 1),
    ],
    ids=repr,
)
def test_any_kind_of_t_span(t_span):
    posterior = attempt(t_span=t_span)
    assert posterior.t.dtype == np.float64
    assert posterior.t[-1] == 1.0
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0) * np.array(PAIR), rtol=1e-6)


@pytest.mark.parametrize(
    "tolerance",
    [np.float64(1e-8), np.float32(1e-8), jnp.array(1e-8), [1e-8, 1e-8], (1e-8, 1e-8)],
    ids=repr,
)
def test_any_kind_of_tolerance(tolerance):
    posterior = attempt(control=PIControl(rtol=tolerance, atol=tolerance))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-1.0) * np.array(PAIR), rtol=1e-7)


def turned(t, y, a):
    return (a * y[1], -a * y[0])


@pytest.mark.parametrize(
    "vector_field",
    [
        pytest.param(lambda t, y, a: (a * y[1], -a * y[0]), id="tuple"),
        pytest.param(lambda t, y, a: [a * y[1], -a * y[0]], id="list"),
        pytest.param(lambda t, y, a: [a * y[1], -a * y[0] + np.float64(0)], id="mixed"),
        pytest.param(lambda t, y, a: jnp.array([a * y[1], -a * y[0]], jnp.float64), id="array"),
        pytest.param(jax.jit(turned), id="compiled"),
        pytest.param(functools.partial(turned), id="partial"),
    ],
)
def test_any_kind_of_vector_field(vector_field):
    posterior = attempt(vector_field, y0=[1.0, 0.0], args=(2.0,))
    np.testing.assert_allclose(posterior.mean[-1], [np.cos(2.0), -np.sin(2.0)], atol=1e-4)


def test_numbers_among_the_outputs_of_the_vector_field():
    posterior = attempt(lambda t, y: [1, y[0]], y0=[0.0, 0.0])
    np.testing.assert_allclose(posterior.mean[-1], [1.0, 0.5], atol=1e-6)


def test_integers_as_output_of_the_vector_field():
    posterior = attempt(lambda t, y: jnp.array([1, 2]), y0=[0.0, 0.0])
    np.testing.assert_allclose(posterior.mean[-1], [1.0, 2.0], atol=1e-9)


def test_nested_args_reach_the_vector_field():
    def vector_field(t, y, parameters, kind):
        assert kind == "linear"
        rate, (shift, none) = parameters["rate"], parameters["others"]
        assert none is None
        return -rate * y + shift["by"]

    parameters = {"rate": np.array([1.0, 2.0]), "others": [{"by": jnp.array(0.0)}, None]}
    posterior = attempt(vector_field, args=(parameters, "linear"))
    np.testing.assert_allclose(posterior.mean[-1], [np.exp(-1.0), 2 * np.exp(-2.0)], rtol=1e-5)


def repeated(t, y, number, rate):
    for _ in range(number):
        y = rate * y
    return -y


@pytest.mark.parametrize("number", [2, np.int64(2)], ids=repr)
def test_an_integer_in_args_may_be_the_length_of_a_loop(number):
    posterior = attempt(repeated, args=(number, 0.5))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-0.25) * np.array(PAIR), rtol=1e-5)


@pytest.mark.parametrize("flag", [True, np.True_], ids=repr)
def test_a_switch_in_args_may_steer_the_vector_field(flag):
    posterior = attempt(lambda t, y, grows: y if grows else -y, args=(flag,))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(1.0) * np.array(PAIR), rtol=1e-5)


def test_an_integer_in_args_may_be_the_length_of_a_loop_in_jac_alone():
    def jac(t, y, number):
        return -sum(jnp.eye(2) for _ in range(number))

    posterior = attempt(lambda t, y, number: -number * y, args=(2,), jac=jac, solver=EK1(2))
    np.testing.assert_allclose(posterior.mean[-1], np.exp(-2.0) * np.array(PAIR), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"save_at": 1.0}, {"smooth": False}], ids=str)
def test_an_interval_of_length_zero_is_its_initial_value(options):
    posterior = attempt(t_span=(1.0, 1.0), **options)
    assert posterior.status == Status.SUCCESS
    np.testing.assert_array_equal(posterior.t, [1.0])
    np.testing.assert_array_equal(posterior.mean, [PAIR])
    np.testing.assert_array_equal(posterior.std, [(0.0, 0.0)])


def test_dense_output_and_samples_of_an_interval_of_length_zero():
    posterior = attempt(t_span=(1.0, 1.0))
    np.testing.assert_array_equal(posterior(1.0).mean, PAIR)
    np.testing.assert_array_equal(posterior.sample(2), [[PAIR], [PAIR]])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"step": 0.01},
        {"grid": np.linspace(1.0, 0.0, 101)},
        {"save_at": [0.5, 0.0]},
    ],
    ids=str,
)
def test_integrating_backwards_in_time(options):
    posterior = attempt(t_span=(1.0, 0.0), y0=np.exp(-1.0) * np.array(PAIR), **options)
    assert posterior.status == Status.SUCCESS
    assert posterior.t[-1] == 0.0
    assert np.all(np.diff(posterior.t) < 0)
    np.testing.assert_allclose(posterior.mean[-1], PAIR, rtol=1e-4)
    assert_finite(posterior)
