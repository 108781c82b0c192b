"""A function with other values at the same point, and steps that lead nowhere, end the solve."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from probode import Status, solve_ivp
from probode.engines import native
from probode.engines.unsteady import stops_where_unsteady


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "jax"])
@pytest.mark.parametrize("method", ["EK1", "EK0"])
def test_noise_ends_a_solve_that_would_not_end(method, kernels):
    random = np.random.default_rng(1)

    def noisy(t, y):
        return [-y[0] + random.normal()]

    with nullcontext() if kernels else native.disabled():
        result = solve_ivp(noisy, (0, 1), [1.0], method, rtol=1e-6, max_num_steps=20_000)
    assert result.status == -1 and result.posterior.status == Status.NOT_A_FUNCTION
    assert "two calls of f at t = " in result.message
    # What was solved comes back: by noise of size one y hardly moves in so short a time.
    assert len(result.t) > 500 and 0 < result.t[-1] < 0.05
    np.testing.assert_allclose(result.y, 1.0, atol=0.05)


def judged(function, length=1e-9, steps=600, t1=1.0):
    """The verdict on steps of this length, and what is noted."""
    t, mean = length * np.arange(steps + 1), np.ones((steps + 1, 3, 2))
    notes = []
    judge = stops_where_unsteady(function, t1, notes)
    return judge(SimpleNamespace(t=t, mean=mean, steps=steps)), notes


class Noisy:
    """``-y``, other by ``size`` in every other call."""

    def __init__(self, size):
        self.size, self.calls = size, 0

    def __call__(self, t, y):
        self.calls += 1
        return -y + self.size * (self.calls % 2)


def test_it_is_noted_where_and_by_how_much_two_calls_differ():
    status, notes = judged(Noisy(0.5))
    assert status == Status.NOT_A_FUNCTION
    assert notes == ["two calls of f at t = 6e-07 and the same y differed by 0.5"]


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        (0.0, {}),
        (1e-14, {}),
        (np.nan, {}),
        (0.5, {"length": 1e-5}),
        (0.5, {"steps": 100}),
        (0.5, {"t1": np.inf}),
    ],
    ids=["short steps", "rounding", "NaN", "the end in reach", "few steps", "no end"],
)
def test_other_solves_go_on(size, steps):
    assert judged(Noisy(size), **steps) == (None, [])
