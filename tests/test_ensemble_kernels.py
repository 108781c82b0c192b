"""Members one by one on the native kernels: what the reference engine gives, nothing compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_ensembles import quick_reference_engine

from probode import EK1, Status, Sweep, solve_ensemble
from probode.engines import native

pytestmark = pytest.mark.skipif(not native.available(), reason="native kernels were not built")

RATES = np.array([0.5, 1.0, 3.0, np.inf])
"""The third blows up before the end, the last one has no start."""


def blow_up(t, y, rate):
    return jnp.stack([rate * y[0] ** 2, -y[1] * y[0]])


def solved(**options):
    return solve_ensemble(
        *(blow_up, (0.0, 0.6), [1.0, 2.0], (Sweep(RATES),)),
        solver=EK1(2),
        atol=1e-7,
        covariance=True,
        max_steps=300,
        **options,
    )


@pytest.fixture(scope="module")
def both():
    with quick_reference_engine():
        reference = solved(engine="vmapped")
    return solved(engine="kernels"), reference


@pytest.mark.parametrize("name", ["mean", "std", "cov"])
def test_results_are_those_of_the_reference(both, name):
    """To rounding, amplified by the steps: their lengths follow an error that is rounded."""
    one, other = (np.asarray(getattr(found, name)) for found in both)
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-16)


@pytest.mark.parametrize("name", ["status", "steps", "accepted", "f_evaluations"])
def test_counts_and_verdicts_are_those_of_the_reference(both, name):
    one, other = (np.asarray(getattr(found, name)) for found in both)
    np.testing.assert_array_equal(one, other)


def test_a_member_that_fails_leaves_the_others(both):
    assert [int(x) == Status.SUCCESS.value for x in both[0].status] == [True, True, False, False]


def test_few_members_compile_no_program():
    seen = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **more: (
            seen.append(more.get("fun_name")) if "backend_compile" in event else None
        )
    )
    solve_ensemble(
        lambda t, y, a: -a * y + jnp.tanh(y[::-1]), (0.0, 1.0), [1.0, 2.0], (Sweep(RATES[:3]),)
    )
    assert not [name for name in seen if name and "lanes" in name]


def test_save_points_are_not_for_the_kernels():
    with pytest.raises(ValueError, match="cannot solve this ensemble"):
        solved(engine="kernels", save_at=[0.1, 0.6])
