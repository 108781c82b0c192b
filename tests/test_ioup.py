"""The integrated Ornstein-Uhlenbeck prior: its matrices against many digits."""

from functools import partial

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from probode import IOUP, IWP
from probode.base.precision import double_precision

pytestmark = pytest.mark.optimised


def exact(q: int, z: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Transition and noise covariance in the coordinates of a step, in 60 digits and more.

    One exponential of ``[[-F, g gᵀ], [0, Fᵀ]]`` has both (Van Loan).
    """
    rate = np.atleast_2d(z)
    d, n = len(rate), q + 1
    size = n * d
    with mpmath.workdps(60 + int(2.2 * np.max(np.sum(abs(rate), 1)))):
        drift = mpmath.zeros(size)
        for i in range(q):
            for a in range(d):
                drift[i * d + a, (i + 1) * d + a] = q - i
        for a in range(d):
            for b in range(d):
                drift[q * d + a, q * d + b] = mpmath.mpf(rate[a, b])
        both = mpmath.zeros(2 * size)
        both[:size, :size], both[size:, size:] = -drift, drift.T
        for a in range(d):
            both[q * d + a, size + q * d + a] = 1
        made = mpmath.expm(both)
        transition = made[size:, size:].T
        noise = transition * made[:size, size:]
        return tuple(np.array(m.tolist(), float).reshape(size, size) for m in (transition, noise))


def in_closed_form(q: int, z: float) -> tuple[np.ndarray, np.ndarray]:
    """The same for one component and any ``z``, from ``∫ τ^a e^(b z τ)`` in many digits."""
    with mpmath.workdps(80 + int(12 * abs(mpmath.log10(abs(z))) * (q + 1))):
        z = mpmath.mpf(z)

        def moment(a: int, b: int) -> mpmath.mpf:  # ∫₀¹ τ^a e^(b z τ) dτ
            if b == 0:
                return mpmath.mpf(1) / (a + 1)
            x, value = b * z, (mpmath.exp(b * z) - 1) / (b * z)
            for j in range(1, a + 1):
                value = (mpmath.exp(x) - j * value) / x
            return value

        def series(k: int) -> list:  # v_k = k! z^-k (e^(zτ) - Σ_(j<k) (zτ)^j / j!)
            weight = mpmath.factorial(k) / z**k
            return [(weight, 0, 1)] + [
                (-weight * z**j / mpmath.factorial(j), j, 0) for j in range(k)
            ]

        phi = [sum(w * (mpmath.exp(z) if b else 1) for w, _, b in series(k)) for k in range(q + 1)]
        noise = [
            [
                sum(w * u * moment(a + c, b + e) for w, a, b in series(k) for u, c, e in series(m))
                for m in range(q, -1, -1)
            ]
            for k in range(q, -1, -1)
        ]
        transition = np.array(IWP(q).transition())
        transition[:, -1] = [float(x) for x in phi[::-1]]
        return transition, np.array([[float(x) for x in row] for row in noise])


@partial(jax.jit, static_argnums=0)
def _made(q: int, rate: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    prior = IOUP(q, rate)
    return prior.transition(h), prior.noise_factor(h)


def made(q: int, rate: float | np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray]:
    with double_precision():
        return tuple(map(np.asarray, _made(q, jnp.asarray(rate, float), jnp.asarray(h))))


def assert_same(found: tuple, wanted: tuple, tolerance: float) -> None:
    """Transitions entry by entry; covariances in units of standard deviations."""
    np.testing.assert_allclose(found[0], wanted[0], rtol=tolerance, atol=1e-300)
    std = np.sqrt(np.diag(wanted[1]))
    noise = found[1].T @ found[1]
    scaled = [matrix / std[:, None] / std for matrix in (noise, wanted[1])]
    np.testing.assert_allclose(*scaled, rtol=0.0, atol=tolerance)


SIZES = [1e-12, 1e-3, 0.7, 3.0, 31.9, 32.1, 100.0, 1e4, 1e6]


@pytest.mark.parametrize("q", [1, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_rates_of_any_size_and_sign_have_no_cancellation(q: int) -> None:
    for z in (*(-size for size in SIZES), *(size for size in SIZES if size < 600)):
        assert_same(made(q, z / 0.5, 0.5), in_closed_form(q, z), 1e-13)


def test_rates_of_components_are_those_of_each() -> None:
    rates = np.array([-50.0, 0.0, 3.0])
    together = made(3, rates, 0.3)
    for i, rate in enumerate(rates):
        for both, one in zip(together, made(3, rate, 0.3), strict=True):
            np.testing.assert_allclose(both[i], one, rtol=1e-13, atol=1e-300)


NORMAL = np.array([[-30.0, 1.0], [1.0, -0.1]])
NOT_NORMAL = np.array([[-1.0, 40.0], [0.0, -3.0]])
TURNING = np.array([[0.0, 9.0], [-9.0, 0.0]])


@pytest.mark.parametrize("matrix", [NORMAL, NOT_NORMAL, TURNING, np.zeros((2, 2))])
def test_a_matrix_against_many_digits(matrix: np.ndarray) -> None:
    """Squaring loses the digits that a halved step has lost beside one: as many as halvings."""
    for h in (1e-6, 0.3, 2.0):
        wanted, found = exact(2, matrix * h), made(2, matrix, h)
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-13 * np.max(abs(wanted[0])))
        std = np.sqrt(np.diag(wanted[1]))
        scaled = [noise / np.outer(std, std) for noise in (found[1].T @ found[1], wanted[1])]
        np.testing.assert_allclose(*scaled, atol=1e-12)


def test_a_diagonal_matrix_is_one_rate_per_component() -> None:
    rates = np.array([-1e4, -3.0])
    (wide, noise), (each, parts) = made(2, np.diag(rates), 1.0), made(2, rates, 1.0)
    both = noise.T @ noise
    for i in range(2):
        np.testing.assert_allclose(wide[i::2, i::2], each[i], rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(both[i::2, i::2], parts[i].T @ parts[i], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("q", [1, 11, pytest.param(5, marks=pytest.mark.slow)])
def test_without_a_rate_it_is_an_integrated_wiener_process(q: int) -> None:
    for rate in (0.0, 1e-12):
        transition, factor = made(q, rate, 0.1)
        np.testing.assert_allclose(transition, IWP(q).transition(), rtol=1e-11)
        # Factors up to signs of their rows; the last pivot is known to ε times the condition.
        np.testing.assert_allclose(abs(factor), abs(IWP(q).noise_factor()), rtol=1e-6, atol=1e-12)
