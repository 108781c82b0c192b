"""Quick solves of a small problem, for tests of what goes in and what can go wrong."""

import numpy as np

from probode import EK0, solve

QUICK = EK0(2)
PAIR = (1.0, 2.0)


def decay(t, y):
    return -y


def attempt(vector_field=decay, t_span=(0.0, 1.0), y0=PAIR, **options):
    return solve(vector_field, t_span, y0, **{"solver": QUICK, **options})


class OwnError(Exception):
    """Something that only the user's function raises."""


def assert_finite(posterior):
    assert np.all(np.isfinite(posterior.mean))
    assert np.all(np.isfinite(posterior.std))
