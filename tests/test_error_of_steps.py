"""What steps of EK1 are judged by: ``error="residual"`` (the paper's) or ``error="correction"``.

With the second no component counts more than twenty times what an update corrects.
"""

from math import factorial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp

from probode import EK1, IOUP, PIControl, SecondOrder, lanes, problems, solve, solve_ivp
from probode.base.precision import double_precision
from probode.engines import native
from probode.model.equation import FIRST_ORDER
from probode.model.linearize import Residual, correction_noise
from probode.model.prior import IWP
from probode.posterior import export

pytestmark = pytest.mark.optimised

ROBERTSON = problems.get("rober")
DAMPED = EK1(4, error="correction")
START = np.array([1.0, 0.5])


def coupled(t, y):
    """Stiff and not linear."""
    return jnp.stack([-1e3 * (y[0] - jnp.cos(y[1])), y[0] - 0.1 * y[1] ** 2])


def linearised_again(t, y):
    """The same, so stiff that steps are linearised again."""
    return jnp.stack([-1e7 * (y[0] - jnp.cos(y[1])), y[0] - 0.1 * y[1] ** 2])


def coupled_in_python(t, y):
    """The same where only Python can evaluate it."""
    u, v = number(y[0]), number(y[1])
    return [-1e3 * (u - np.cos(v)), u - 0.1 * v**2]


def solved(solver=DAMPED, rtol=1e-5, y0=START, **options):
    control = PIControl(rtol, 1e-3 * rtol)
    return solve(coupled, (0.0, 5.0), y0, solver=solver, control=control, **options)


def robertson(rtol, error):
    control, solver = PIControl(rtol, 1e-6 * rtol), EK1(5, error=error)
    where = (0.0, 1e5), ROBERTSON.y0, ROBERTSON.args
    return solve(ROBERTSON.vector_field, *where, solver=solver, control=control)


def process_noise(q, h):
    """Entries ``(i, j)`` of the covariance of one step, in plain units."""

    def entry(i, j):
        power = 2 * q + 1 - i - j
        return h**power / (power * factorial(q - i) * factorial(q - j))

    return entry


@double_precision()
@pytest.mark.parametrize("q", [1, 2, 3, 5])
@pytest.mark.parametrize("rate", [5.0, 5e4])
def test_std_is_bounded_by_that_of_the_correction_from_dense_covariances(q, rate):
    """``Cov(δ) = Q_0. Hᵀ S⁻¹ H Q_.0`` in plain units, nothing factored; and ``δ`` itself."""
    rng, h, d = np.random.default_rng(q), 0.3, 3
    jacobian, z = rng.normal(size=(d, d)) - rate * np.eye(d), rng.normal(size=d)
    residual = Residual(jnp.asarray(z), {0: -jacobian, 1: 1.0}, jnp.zeros(d))
    found = correction_noise(IWP(q), jnp.asarray(h), residual)

    entry = process_noise(q, h)
    joint = np.block([[entry(i, j) * np.eye(d) for j in (0, 1)] for i in (0, 1)])
    observation = np.hstack([-jacobian, np.eye(d)])
    innovation = observation @ joint @ observation.T
    gain = joint[:d] @ observation.T @ np.linalg.inv(innovation)
    # What the residual is for J = 0, over the step, in units of what the update moves y by.
    unit = h * np.sqrt(entry(1, 1)) / (entry(0, 1) / np.sqrt(entry(1, 1)))
    bound = 20.0 * unit * np.sqrt(np.diag(gain @ innovation @ gain.T))
    alone = h * np.sqrt(np.diag(innovation))
    assert np.all(bound < alone) == (rate > 5.0)
    size = np.sqrt(z @ np.linalg.solve(innovation, z))
    # All with the s or σ of this residual. The dense inverse has a condition number of 1e5.
    scale = np.linalg.norm(found.whitened)
    std = np.minimum(alone, bound) * size
    np.testing.assert_allclose(h * found.std * scale, std, rtol=1e-9)
    np.testing.assert_allclose(h * found.unbounded * scale, alone * size, rtol=1e-9)
    moved = IWP(q).coordinates(jnp.asarray(h))[0] * found.update.correction[:d, 0]
    np.testing.assert_allclose(moved, gain @ z, rtol=1e-9)


def test_where_nothing_is_stiff_steps_are_those_of_the_paper():
    """But for the rounding of another program, with as many evaluations."""
    problem = problems.get("lotka-volterra")
    known = {"args": problem.args, "control": PIControl(1e-4, 1e-7)}
    ours, paper = (
        solve(problem.vector_field, problem.t_span, problem.y0, solver=EK1(4, error=error), **known)
        for error in ("correction", "residual")
    )
    np.testing.assert_allclose(ours.t, paper.t, rtol=1e-9)
    np.testing.assert_allclose(ours.mean, paper.mean, rtol=1e-9)
    assert ours.stats.f_evaluations == paper.stats.f_evaluations
    assert ours.stats.jacobian_evaluations == paper.stats.jacobian_evaluations


def test_on_a_grid_it_changes_nothing():
    """Steps of given lengths are not judged."""
    grid, on_the_slow_curve = np.linspace(0.0, 5.0, 201), np.array([np.cos(0.5), 0.5])
    ours, paper = (
        solved(EK1(2, error=error), y0=on_the_slow_curve, grid=grid)
        for error in ("correction", "residual")
    )
    assert np.max(np.abs(paper.mean)) < 2.0
    np.testing.assert_allclose(ours.mean, paper.mean, rtol=1e-8)
    assert ours.stats.jacobian_evaluations == paper.stats.jacobian_evaluations


@double_precision()
def test_it_is_bounded_however_stiff():
    """Of y' = λ y with h λ = -1e8 the paper's estimate is |h λ| times what y is off by."""
    residual = Residual(jnp.ones(1), {0: 1e8 * jnp.eye(1), 1: 1.0}, jnp.zeros(1))
    of_residual = FIRST_ORDER.local_noise(IWP(3), jnp.ones(()), residual).std[0]
    of_correction = correction_noise(IWP(3), jnp.ones(()), residual).std[0]
    assert of_residual > 1e6
    assert of_correction < 100.0


def test_loose_tolerances_are_cheap_on_a_stiff_problem():
    """Robertson to t = 1e5, rtol 1e-2: 634 steps, none rejected (1705 by the paper's rule).

    SciPy's Radau at 1e-10 says how large the error is: below the tolerance in every component.
    """
    found = robertson(1e-2, "correction")
    assert found.success
    assert found.stats.steps <= 680
    assert found.stats.steps < found.stats.jacobian_evaluations < 1.4 * found.stats.steps
    assert robertson(1e-2, "residual").stats.steps > 2.5 * found.stats.steps

    def field(t, y):
        return np.asarray(ROBERTSON.vector_field(t, y, *ROBERTSON.args))

    exact = scipy_solve_ivp(field, (0.0, 1e5), ROBERTSON.y0, "Radau", rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(found.mean[-1], exact.y[:, -1], rtol=1e-2)


def test_fewer_steps_at_equal_error():
    """Robertson: at a tolerance of 1e-3 three quarters of the steps that the paper's rule takes at
    1e-1, with a third of the error (at 30 times, the largest in parts of a component)."""
    times = np.geomspace(1e-2, 1e5, 30)
    exact = robertson(1e-6, "residual")(times).mean

    def error(found):
        return np.max(np.abs(found(times).mean / exact - 1.0))

    ours, paper = robertson(1e-3, "correction"), robertson(1e-1, "residual")
    assert 1.3 * ours.stats.steps < paper.stats.steps
    assert error(ours) < error(paper)


@pytest.mark.skipif(not native.available(), reason="native kernels were not built")
@pytest.mark.parametrize("diffusion", ["dynamic", "damped", "fixed"])
@pytest.mark.parametrize("name", ["coupled", "hires", "exact zeros"])
def test_kernels_and_jax_agree(diffusion, name):
    """Steps, means and covariances; HIRES has eight components, and another update."""
    fields = {
        "coupled": (coupled, 5.0, START, ()),
        "hires": (problems.get("hires").vector_field, 5.0, problems.get("hires").y0, ()),
        "exact zeros": (
            lambda t, y: jnp.array([0.0, 1.0, -y[2]]),
            1.0,
            np.array([1.0, 2.0, 3.0]),
            (),
        ),
    }
    f, t1, y0, args = fields[name]
    solver = EK1(3, diffusion, error="correction")

    def run():
        control = PIControl(1e-5, 1e-8)
        return solve(f, (0.0, t1), y0, args, solver=solver, control=control)

    ours = run()
    with native.disabled():
        reference = run()
    assert ours.success
    assert ours.stats.steps == reference.stats.steps
    assert ours.stats.f_evaluations == reference.stats.f_evaluations
    assert ours.stats.jacobian_evaluations == reference.stats.jacobian_evaluations
    np.testing.assert_allclose(ours.t, reference.t, rtol=1e-7)
    np.testing.assert_allclose(ours.mean, reference.mean, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(ours.std, reference.std, rtol=1e-3, atol=1e-12)


@pytest.mark.skipif(not native.available(), reason="native kernels were not built")
def test_kernels_and_jax_agree_where_steps_are_linearised_again():
    """Rounding counts ``h λ`` = 1e5 times in residuals, and moves single decisions."""

    def run():
        control = PIControl(1e-5, 1e-8)
        return solve(
            linearised_again, (0.0, 5.0), START, solver=EK1(3, error="correction"), control=control
        )

    ours = run()
    with native.disabled():
        reference = run()
    for one in (ours, reference):
        assert one.stats.jacobian_evaluations > one.stats.steps
        assert one.stats.f_evaluations - one.stats.jacobian_evaluations == 4  # of the start
    assert abs(ours.stats.steps / reference.stats.steps - 1.0) < 0.02
    again, others = (one.stats.jacobian_evaluations for one in (ours, reference))
    assert abs(again / others - 1.0) < 0.02
    np.testing.assert_allclose(ours.mean[-1], reference.mean[-1], rtol=1e-6)


@pytest.mark.skipif(not native.available(), reason="native kernels were not built")
def test_kernels_take_as_many_steps_where_h_times_the_rate_is_huge():
    """Robertson to 1e11, h |λ| above 1e10: corrections from the decomposition itself.

    Solving with its triangle loses so many digits that steps were rejected. Runs from initial
    values that differ by 1e-9 differ by some percent, with and without kernels.
    """

    def steps():
        control, solver = PIControl(1e-2, 1e-8), EK1(5, error="correction")
        where = (0.0, 1e11), ROBERTSON.y0, ROBERTSON.args
        known = {"solver": solver, "control": control, "smooth": False}
        return int(solve(ROBERTSON.vector_field, *where, **known).stats.steps)

    ours = steps()
    with native.disabled():
        reference = steps()
    assert abs(ours / reference - 1.0) < 0.15


@pytest.mark.parametrize("kernels", [True, False])
def test_functions_of_python_take_the_same_steps(kernels):
    """From the same start and first step; Jacobians by finite differences are off by 1e-7."""
    solver = EK1(4, error="correction", initialization="runge-kutta")
    known = {"rtol": 1e-5, "atol": 1e-8, "first_step": 1e-3, "calibration": "model"}
    traced = solve_ivp(coupled, (0.0, 5.0), START, solver, **known)
    if kernels:
        driven = solve_ivp(coupled_in_python, (0.0, 5.0), START, solver, **known)
    else:
        with native.disabled():
            driven = solve_ivp(coupled_in_python, (0.0, 5.0), START, solver, **known)
    assert driven.success
    assert abs(driven.posterior.stats.steps - traced.posterior.stats.steps) <= 1
    np.testing.assert_allclose(driven.y[:, -1], traced.y[:, -1], rtol=1e-6)


def test_a_field_without_any_residual_keeps_no_variance():
    """y' = 1 is predicted exactly: no diffusion, and exact zeros stay zeros."""
    found = solve(lambda t, y: jnp.ones(2), (0.0, 1.0), np.zeros(2), solver=DAMPED)
    assert found.success
    np.testing.assert_allclose(found.mean[-1], 1.0, rtol=1e-14)
    assert np.all(found.std == 0.0)


def test_nan_where_the_first_linearisation_leads_is_a_rejection():
    """sqrt(y) with y' = -2 sqrt(y) (1 + 1e3 sqrt(y)), whose steps would lead below zero."""

    def rooted(t, y):
        return -(2.0 * jnp.sqrt(y) + 1e3 * y)

    control = PIControl(1e-2, 1e-5, first_step=1.0)
    found = solve(rooted, (0.0, 1e-3), np.ones(1), solver=DAMPED, control=control)
    assert found.success
    assert np.all(np.isfinite(found.mean))


def test_derivatives_match_finite_differences():
    """With respect to the initial value, of mean and standard deviation, on a fixed grid.

    Central differences with a step of 1e-4 are good to 1e-8 here. With a fixed diffusion: in a
    dynamic one there is the rounding of each residual, divided by that step.
    """
    grid, solver = jnp.linspace(0.0, 0.1, 21), EK1(4, "fixed", error="correction")

    @jax.jit
    def final(u):
        start = jnp.stack([1.3 + u, 0.5])
        options = {"solver": solver, "grid": grid, "smooth": False, "differentiate": "all"}
        found = solve(coupled, (0.0, 0.1), start, **options)
        return jnp.concatenate([found.mean[-1], found.std[-1]])

    with jax.enable_x64(True):
        slope = jax.jacfwd(final)(jnp.asarray(0.0))
        step = 1e-4
        difference = (final(jnp.asarray(step)) - final(jnp.asarray(-step))) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-6)


def test_vmap_gives_each_member_its_own_steps():
    starts = np.array([[1.0, 0.5], [0.2, 0.3], [0.9, -0.4]])

    def final(y0):
        return solved(y0=y0, save_at=5.0).mean[-1]

    together = jax.jit(jax.vmap(final))(starts)
    for i, start in enumerate(starts):
        np.testing.assert_allclose(together[i], final(start), rtol=1e-7)


def test_saved_and_loaded(tmp_path):
    found = solved()
    found.save(tmp_path / "found.npz")
    assert export.load(tmp_path / "found.npz").solver == DAMPED


def test_lanes_leave_it_to_other_engines():
    options = {"count": 10_000, "only_end": True}
    assert lanes.supports(EK1(2), PIControl(), 2, **options)
    assert not lanes.supports(EK1(2, error="correction"), PIControl(), 2, **options)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="residual"):
        EK1(3, error="paper")
    with pytest.raises(ValueError, match="first order"):
        solve(SecondOrder(lambda t, y, v: -y), (0.0, 1.0), (1.0, 0.0), solver=DAMPED)
    with pytest.raises(ValueError, match="same for all components"):
        prior = IOUP(3, rate=np.array([-1.0, -2.0]))
        solve(coupled, (0.0, 1.0), START, solver=EK1(prior, error="correction"))


@pytest.mark.parametrize(
    ("method", "order", "error"),
    [("EK1", 5, "correction"), ("EK1", 7, "residual"), ("auto", "auto", "correction")],
)
def test_solve_ivp_takes_it_by_itself_up_to_order_six(method, order, error):
    """What users build is what runs: the paper's rule, unless they ask for the other."""
    found = solve_ivp(coupled, (0.0, 5.0), START, method, order=order)
    assert found.posterior.solver.error == error
    assert found.posterior.solver.order <= 7
    assert EK1(5).error == "residual"
