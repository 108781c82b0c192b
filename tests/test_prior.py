"""The integrated Wiener process against its definition."""

from fractions import Fraction
from math import factorial

import jax
import numpy as np
import pytest

import probode
from probode import IWP

ORDERS = range(1, 12)


def plain_transition(q, h):
    n = q + 1
    return np.array(
        [[h ** (j - i) / factorial(j - i) if j >= i else 0.0 for j in range(n)] for i in range(n)]
    )


@pytest.mark.parametrize("q", ORDERS)
def test_noise_factor_squares_to_the_noise(q):
    """Q̃ is ill-conditioned, but its factor is exact up to the last rounding."""
    factor = [[Fraction(float(x)) for x in row] for row in IWP(q).noise_factor()]
    for i in range(q + 1):
        for j in range(q + 1):
            entry = sum(factor[k][i] * factor[k][j] for k in range(q + 1))
            assert abs(float(entry * (2 * q + 1 - i - j)) - 1) < 1e-15 * (q + 1)


@pytest.mark.parametrize("q", ORDERS)
@pytest.mark.parametrize("h", [0.3, -0.3, 1e-9, 1e9])
def test_prediction_is_the_taylor_expansion(q, h):
    mean = (
        np.random.default_rng(q).standard_normal((q + 1, 2)) / abs(h) ** np.arange(q + 1)[:, None]
    )
    with jax.enable_x64(True):
        ours = np.asarray(IWP(q).predict_mean(mean, np.float64(h)))
    exact = plain_transition(q, h) @ mean
    weight = abs(h) ** np.arange(q + 1)[:, None]
    np.testing.assert_allclose(ours * weight, exact * weight, rtol=1e-12, atol=1e-13 * 2**q)


@pytest.mark.parametrize("q", [1, 3, 7, 11])
@pytest.mark.parametrize("h", [0.2, -0.2])
def test_coordinates_make_the_noise_constant(q, h):
    """T Q̃ T s² is the process noise of the plain coordinates, for unit diffusion."""
    prior = IWP(q)
    with jax.enable_x64(True):
        coords = np.asarray(prior.coordinates(np.float64(h)))
        s = float(prior.unit_noise(np.float64(h)))
    ours = s**2 * coords[:, None] * (prior.noise_factor().T @ prior.noise_factor()) * coords
    n = q + 1
    exact = [
        [
            abs(h) ** (2 * q + 1 - i - j)
            * np.sign(h) ** (i + j)
            / ((2 * q + 1 - i - j) * factorial(q - i) * factorial(q - j))
            for j in range(n)
        ]
        for i in range(n)
    ]
    np.testing.assert_allclose(ours, exact, rtol=1e-12)


@pytest.mark.parametrize("order", [0, 12, -1])
def test_orders_outside_the_range_are_refused(order):
    with pytest.raises(ValueError, match="between 1 and 11"):
        probode.EK1(order)
