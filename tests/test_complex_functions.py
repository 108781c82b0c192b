"""Right-hand sides of complex states, in NumPy, JAX and plain Python, against SciPy."""

import cmath
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from only_python import number

from probode import EK1, solve_ivp
from probode.base.precision import double_precision
from probode.ivp.function import UserFunction
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.programs.tracing.evaluate import Evaluator

START = np.array([1.0 + 0.5j, 0.3 - 1.0j])
MATRIX = np.array([[1.0, 0.5j], [-0.5j, 2.0]])

FUNCTIONS = {
    "jnp.abs": lambda t, u: -1j * u * jnp.abs(u) ** 2,
    "np.abs": lambda t, u: -1j * u * np.abs(u) ** 2,
    "jnp.angle": lambda t, u: -1j * u * jnp.angle(u + 2),
    "jnp.real": lambda t, u: -u * jnp.real(u) ** 2,
    "jnp.conj": lambda t, u: -1j * (u * jnp.conj(u)) * u,
    "jnp.exp": lambda t, u: jnp.exp(1j * t) * u,
    "jnp.where": lambda t, u: jnp.where(jnp.real(u) > 0, -u, 1j * u),
    "jnp.linalg.norm": lambda t, u: -1j * u * jnp.linalg.norm(u),
    "jnp.fft": lambda t, u: jnp.fft.ifft(-1j * jnp.arange(2) * jnp.fft.fft(u)),
    "jnp.array": lambda t, u: jnp.array([1j * u[0], -u[1] * jnp.imag(u[0])]),
    "jnp and a branch": lambda t, u: -1j * jnp.abs(u) * u if abs(u[0]) > 1 else 1j * jnp.conj(u),
    "list of jnp": lambda t, u: [1j * jnp.abs(u[0]), -u[1]],
    "matrix": lambda t, u: -1j * (MATRIX @ u) + u * np.vdot(u, u).real * 1j,
    "np.fft": lambda t, u: np.fft.ifft(-1j * np.arange(2) * np.fft.fft(u)),
    "attributes": lambda t, u: -u * u.real + u.conj() * u.imag,
    "complex()": lambda t, u: np.array([complex(0, 1) * u[0], complex(u[1].imag, u[1].real)]),
    "cmath": lambda t, u: [1j * cmath.exp(1j * t) * cmath.sqrt(u[0]), -u[1]],
    "branch": lambda t, u: -1j * u if abs(u[0]) > 1.05 else u * (1j - 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_functions_are_traced_with_their_values(name):
    function = FUNCTIONS[name]
    user = UserFunction(function, (), False, Options(), EK1(4), Embedding(2, True))
    with double_precision():
        traced = user.traced(0.0, 1.0, user.embedding.flatten(START))
        assert traced is not None
        field, generator = traced.field, np.random.default_rng(0)
        program = Evaluator(field.program.closed(field.constants))
        for t in (0.0, 0.3, 0.9):
            state = generator.normal(size=4)
            value = np.asarray(function(t, state[:2] + 1j * state[2:]), complex)
            found = program(np.float64(t), state)
            np.testing.assert_allclose(found, [*value.real, *value.imag], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["jnp.abs", "branch", "list of jnp"])
def test_complex_functions_are_solved_without_python(name):
    function, options = FUNCTIONS[name], {"rtol": 1e-6, "atol": 1e-9}
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        found = solve_ivp(function, (0, 1), START, **options)
    assert found.path != "python"
    with jax.enable_x64(True):
        plain = lambda t, u: np.asarray(function(t, u), complex)  # noqa: E731
        expected = scipy.integrate.solve_ivp(plain, (0, 1), START, max_step=0.01, **options)
    # SciPy's error at this tolerance; a switch of the state costs both of them a little more
    np.testing.assert_allclose(found.y[:, -1], expected.y[:, -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["auto", "EK0"])
def test_the_choice_of_a_method_takes_complex_states(method):
    def rotation(t, u):
        return -1j * u * number(abs(u[0]))

    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.ComplexWarning)
        found = solve_ivp(rotation, (0, 1), START, method=method, order="auto")
    expected = START * np.exp(-1j * abs(START[0]))
    np.testing.assert_allclose(found.y[:, -1], expected, rtol=0, atol=1e-4)
