"""The large stiff problems of the benchmarks are what they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import large_bars, large_problems
from benchmarks.large import at_error
from probode.base.precision import double_precision

SMALL = {name: large_problems.MAKERS[name](60) for name in large_problems.names()}
EXACT = [name for name, problem in SMALL.items() if problem.exact is not None]
NEAR = [name for name, problem in SMALL.items() if problem.preconditioner is not None]


@pytest.fixture(autouse=True)
def in_double_precision():
    with double_precision():
        yield


def somewhere(problem):
    moved = 0.01 * np.random.default_rng(1).normal(size=problem.d)
    return 0.3 * problem.end, problem.y0 + moved


@pytest.mark.parametrize("name", SMALL)
def test_numpy_and_jax_evaluate_the_same(name):
    t, y = somewhere(SMALL[name])
    plain = SMALL[name].in_numpy(t, y)
    traced = np.asarray(SMALL[name].in_jax(t, jnp.asarray(y)))
    assert np.max(np.abs(plain - traced)) <= 1e-13 * np.max(np.abs(plain))


@pytest.mark.parametrize("name", SMALL)
def test_the_pattern_has_all_entries_and_the_bands_have_the_pattern(name):
    problem = SMALL[name]
    t, y = somewhere(problem)
    jacobian = np.asarray(jax.jacfwd(lambda y: problem.in_jax(t, y))(jnp.asarray(y)))
    pattern = problem.sparsity.toarray()
    assert not np.any((jacobian != 0.0) & (pattern == 0.0))
    if problem.bands is not None:
        below, above = problem.bands
        rows, columns = np.nonzero(pattern)
        assert np.max(rows - columns) <= below
        assert np.max(columns - rows) <= above


@pytest.mark.parametrize("name", EXACT)
def test_the_closed_form_solves_the_equation(name):
    problem = SMALL[name]
    t, h = 0.3 * problem.end, 1e-5 * problem.end
    slope = (problem.exact(t + h) - problem.exact(t - h)) / (2 * h)  # off by h² y'''/6
    left = slope if problem.mass is None else problem.mass() @ slope
    right = problem.in_numpy(t, problem.exact(t))
    assert np.max(np.abs(left - right)) <= 1e-6 * np.max(np.abs(right))


@pytest.mark.parametrize("name", NEAR)
def test_the_preconditioner_solves_what_is_stiff(name):
    problem = SMALL[name]
    t, y = somewhere(problem)
    right, c = np.random.default_rng(2).normal(size=problem.d), 0.01 * problem.end
    u = problem.preconditioner(np, c, right)
    _, push = jax.jvp(lambda y: problem.in_jax(t, y), (jnp.asarray(y),), (jnp.asarray(u),))
    # All but the reaction, whose part of c J is below one here.
    assert np.linalg.norm(u - c * np.asarray(push) - right) < 0.6 * np.linalg.norm(right)


@pytest.mark.parametrize("kind", ["HELD_OUT", "RESERVE"])
def test_no_problem_for_judging_is_one_that_constants_were_chosen_with(kind):
    tuned = {"brusselator-1d": (200, 400), "brusselator-2d": (512,), "burgers": (200, 400)}
    for maker, size, _ in getattr(large_problems, kind).values():
        assert size not in tuned.get(maker, ())
    assert len(getattr(large_problems, kind)) == 16


def test_times_at_equal_errors_are_interpolated_and_never_extrapolated():
    points = [
        {"error": 10.0**-k, "seconds": 10.0 ** (k / 2), "clear": True} for k in range(2, 7)
    ]  # a line in logarithms
    assert at_error(points, 10.0**-3.5) == pytest.approx(10.0**1.75)
    assert np.isnan(at_error(points, 1e-1))
    assert np.isnan(at_error(points, 1e-7))


def test_bars_of_the_size_of_the_errors_have_a_chi_of_one():
    error = np.random.default_rng(3).normal(size=(40, 500))
    found = large_bars.judged(error, np.ones_like(error), np.ones(40, bool))
    # 20 000 squares of normal numbers: their mean has the standard deviation 0.01.
    assert found["chi2"] == pytest.approx(1.0, abs=0.05)
    assert found["cover95"] == pytest.approx(0.95, abs=0.01)
    assert found["times_within"] == 1.0
