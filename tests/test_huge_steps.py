"""Steps so long that rounding hides most of the smoother's regression: a decay to t = 1e12."""

import numpy as np
import pytest

from probode import solve_ivp
from probode.engines import native

END = 1e12


@pytest.fixture(scope="module", params=[(5, True), (8, True), (5, False)], ids=str)
def decayed(request):
    """``y' = -y`` in some order, with native kernels or without."""
    order, fast = request.param

    def solved():
        return solve_ivp(lambda t, y: -y, (0.0, END), [1.0], order=order, dense_output=True)

    if fast:
        return solved()
    with native.disabled():
        return solved()


def test_smoothed_means_are_as_exact_as_the_tolerance(decayed):
    assert np.max(np.abs(decayed.y[0] - np.exp(-decayed.t))) < 1e-5


def test_standard_deviations_are_as_small_as_the_tolerance(decayed):
    assert np.max(decayed.y_std) < 1e-5


def test_dense_output_agrees_with_the_nodes(decayed):
    t = np.r_[np.linspace(0.0, 30.0, 61), np.geomspace(30.0, END, 60)]
    assert np.max(np.abs(decayed.sol(t)[0] - np.exp(-t))) < 1e-5


def test_samples_agree_with_the_nodes(decayed):
    drawn = np.asarray(decayed.posterior.sample(3)).reshape(3, -1)
    assert np.max(np.abs(drawn - np.exp(-decayed.t))) < 1e-5


def test_an_event_that_never_occurs_is_not_found():
    def never(t, y):
        return y[0] + 1.0

    never.terminal, never.direction = True, -1.0
    result = solve_ivp(lambda t, y: -y, (0.0, END), [1.0], events=never)
    assert result.status == 0
    assert len(result.t_events[0]) == 0
