"""Dynamic diffusions: each from its own residual, or damped by the step before."""

from functools import partial
from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probode
from probode import EK0, EK1, DynamicDiffusion, problems


def spread(q, diffusion):
    """Largest over smallest diffusion of the last steps, where ``y^(q+1)`` is constant."""
    posterior = probode.solve(
        lambda t, y: 0.0 * y + t**q / factorial(q),
        (0.0, 60.0),
        np.zeros(1),
        solver=EK0(q, diffusion),
        step=1.0,
        smooth=False,
    )
    last = np.asarray(posterior.diffusion)[-10:]
    return last.max() / last.min()


@pytest.mark.parametrize("q", [2, 3, 4, 5, 7])
def test_damped_residuals_settle(q):
    assert spread(q, "damped") < 1.2


@pytest.mark.parametrize("q", [3, 7])
def test_residuals_of_their_own_alternate(q):
    assert spread(q, "dynamic") > 10.0


def test_first_step_has_its_own_diffusion():
    problem = problems.get("lotka-volterra")
    given = (problem.vector_field, (0.0, 0.04), problem.y0, problem.args)
    damped, own = (
        probode.solve(*given, solver=EK1(3, model), grid=np.array([0.0, 0.01, 0.03, 0.04]))
        for model in ("damped", "dynamic")
    )
    assert damped.diffusion[0] == own.diffusion[0]
    # The second step begins alike; only the noise it is given differs.
    np.testing.assert_allclose(
        damped.diffusion[1], np.sqrt(own.diffusion[0] * own.diffusion[1]), rtol=1e-9
    )


def test_its_name_says_so():
    assert EK1(3, "damped").diffusion == DynamicDiffusion(damped=True)


def test_errors_are_smaller_in_as_many_steps():
    problem = problems.get("fitzhugh-nagumo")

    def constant(diffusion):
        """``error · steps⁴``, geometric mean over tolerances."""
        sizes = []
        for rtol in 10.0 ** np.arange(-3, -8, -0.5):
            posterior = probode.solve(
                *(problem.vector_field, problem.t_span, problem.y0, problem.args),
                solver=EK1(3, diffusion),
                control=probode.PIControl(rtol, rtol),
                save_at=problem.t_span[1],
            )
            error = np.abs(np.asarray(posterior.mean)[-1] - problem.reference_end).max()
            sizes.append(np.log(error) + 4 * np.log(int(posterior.stats.steps)))
        return np.exp(np.mean(sizes))

    assert constant("damped") < 0.7 * constant("dynamic")


@pytest.mark.parametrize(
    ("kind", "order", "rtol"), [(EK0, 5, 1e-8), (EK1, 5, 1e-8), (EK1, 8, 1e-3)]
)
def test_steps_get_across_a_jump(kind, order, rtol):
    """Where what was inferred before is too little by orders of magnitude."""
    posterior = probode.solve(
        lambda t, y: jnp.stack([y[1], -jnp.sign(y[0] - 0.3) - 0.1 * y[1]]),
        (0.0, 4.0),
        np.array([1.0, 0.5]),
        solver=kind(order, "damped"),
        control=probode.PIControl(rtol, 1e-3 * rtol),
        max_steps=1000,
    )
    assert posterior.success


def test_zero_residuals_have_no_diffusion():
    posterior = probode.solve(
        lambda t, y: 1.0 + 0.0 * y, (0.0, 5.0), np.zeros(1), solver=EK0(3, "damped"), step=0.5
    )
    np.testing.assert_allclose(posterior.mean[-1], 5.0)
    assert np.all(np.isfinite(posterior.std))


@pytest.mark.parametrize(
    "solver",
    [pytest.param(EK0(2), marks=pytest.mark.slow), EK0(2, "dynamic-mv"), EK1(2, "damped")],
    ids=["EK0", "EK0-mv", "damped"],
)
@pytest.mark.parametrize("t1", [2.0, -2.0])
def test_with_save_at_it_is_that_of_the_step(solver, t1):
    """Into which a time falls; the steps are those of a solve that keeps them."""
    problem = problems.get("lotka-volterra")
    grid = t1 * np.array([0.0, 0.1, 0.25, 0.5, 0.7, 1.0])
    given = (problem.vector_field, (0.0, t1), problem.y0, problem.args)
    every = probode.solve(*given, solver=solver, grid=grid)
    times = t1 * np.array([0.0, 0.05, 0.1, 0.3, 0.4, 0.7, 0.9, 1.0])
    some = probode.solve(*given, solver=solver, grid=grid, save_at=times)
    assert np.all(np.isnan(some.diffusion[0]))
    steps = [0, 0, 2, 2, 3, 4, 4]
    np.testing.assert_allclose(some.diffusion[1:], every.diffusion[steps], rtol=1e-9)


@pytest.mark.parametrize("traced", [False, True])
def test_at_the_end_it_is_that_of_the_last_step(traced):
    problem = problems.get("lotka-volterra")

    def solved(y0, **options):
        return probode.solve(problem.vector_field, (0.0, 1.0), y0, problem.args, **options)

    at_end = jax.jit(partial(solved, save_at=1.0)) if traced else partial(solved, save_at=1.0)
    np.testing.assert_allclose(
        at_end(problem.y0).diffusion, solved(problem.y0).diffusion[-1:], rtol=1e-3
    )
