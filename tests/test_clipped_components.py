"""Components that are clipped at zero, and decay to it: ``-λ max(y, 0)``, next to a large one."""

import numpy as np
import pytest

import probode
from probode.programs.colouring import colouring
from probode.programs.finite_differences import finite_difference_jacobian, sparse_differences

RATE, LARGE = 1e5, 2000.0


def clipped(t, y):
    return np.array([-RATE * np.maximum(y[0], 0.0), 1.0 + 0.0 * y[1]])


calls = []


def clipped_and_counted(t, y):
    calls.append(t)
    return clipped(t, y)


@pytest.mark.parametrize("small", [1e-14, -1e-14, 0.0])
@pytest.mark.parametrize("sparse", [False, True])
def test_differences_do_not_cross_a_kink_at_zero(small, sparse):
    # The other component makes the difference 5e-13, far more than the small one is.
    y = np.array([small, LARGE])
    jacobian = finite_difference_jacobian(clipped)
    if sparse:
        jacobian = sparse_differences(clipped, colouring(np.eye(2, dtype=bool)))
    found = jacobian(0.0, y, clipped(0.0, y))
    found = found.toarray() if sparse else found
    expected = -RATE if np.copysign(1.0, small) > 0 else 0.0
    assert found[0, 0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("order", [3, 5])
def test_a_clipped_component_takes_no_more_steps_when_python_evaluates(order):
    call = ((0, 20), [1.0, LARGE])
    options = {"method": "EK1", "order": order, "rtol": 1e-6, "atol": 1e-10}
    compiled = probode.solve_ivp(clipped, *call, **options)
    driven = probode.solve_ivp(clipped_and_counted, *call, **options, max_num_steps=2000)
    assert (compiled.path, driven.path) == ("numpy", "python")
    assert driven.success
    assert len(driven.t) < 1.3 * len(compiled.t)
