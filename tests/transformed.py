"""A small solve, to be transformed by JAX in every way."""

import jax
import jax.numpy as jnp
import numpy as np

import probode
from probode import EK0, PIControl

# All numbers are exact in 32 bits too, so that a solve does not depend on who rounded them.
Y0 = np.array([1.0, 0.5])
RATES = np.array([1.0, 0.75])
SPAN = (0.0, 2.0)
GRID = np.linspace(*SPAN, 17)
SAVE_AT = np.linspace(*SPAN, 5)
LOOSE = 2.0**-10
QUICK = EK0(2)


def predator_prey(t, y, rates):
    return jnp.stack([rates[0] * y[0] - y[0] * y[1], y[0] * y[1] - rates[1] * y[1]])


def solve(
    y0=Y0,
    rates=RATES,
    t_span=SPAN,
    tolerance=LOOSE,
    solver=QUICK,
    field=predator_prey,
    **options,
):
    control = PIControl(rtol=tolerance, atol=tolerance * 2.0**-7)
    return probode.solve(field, t_span, y0, (rates,), solver=solver, control=control, **options)


def outputs(posterior):
    return posterior.t, posterior.mean, posterior.std, posterior.log_evidence


def assert_same(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


ON_GRID, SAVED = {"grid": GRID}, {"save_at": SAVE_AT}
