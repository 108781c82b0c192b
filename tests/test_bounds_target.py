"""Tolerances on the answer that no shorter step can meet: relative to zero, or held to a bound."""

import numpy as np
import pytest

from probode import solve_ivp


def decay(t, y):
    """Decays past zero, where the bound holds it."""
    return -y - 0.01


@pytest.mark.parametrize("atol", [None, 1e-9])
def test_a_target_that_bounds_prevent_ends_after_two_rounds(atol):
    given = {"global_rtol": 1e-6, "global_atol": atol, "first_step": 1e-4}
    result = solve_ivp(decay, (0, 10), [1.0], bounds=(0, np.inf), **given)
    assert not result.success
    assert result.global_rounds == 2


def test_a_target_relative_to_zero_names_the_argument_that_is_missing():
    result = solve_ivp(decay, (0, 10), [1.0], bounds=(0, np.inf), global_rtol=1e-6)
    assert "global_atol" in result.message
