"""EK0 with a second evaluation in a step (the oracle's ``EK0x2``: see ``against_oracle``)."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import jit_once
from only_python import number
from scipy.integrate import solve_ivp as scipy_solve_ivp

import probode
from probode import EK0, EK1, PIControl, problems, solve, solve_ivp
from probode.engines import native
from probode.posterior import export

CONTROL = PIControl(rtol=1e-6, atol=1e-6)
DIFFUSIONS = ("dynamic", "dynamic-mv", "fixed", "fixed-mv")


def predator_and_prey(t, y):
    return jnp.stack([1.5 * y[0] - y[0] * y[1], -3.0 * y[1] + y[0] * y[1]])


Y0 = np.array([1.0, 2.0])


def solved(solver, **options):
    return solve(predator_and_prey, (0.0, 5.0), Y0, solver=solver, control=CONTROL, **options)


class NeedsPython:
    """The same field as a function that only Python can evaluate; keeps where it was called.

    ``second`` makes the second evaluation at a time of the first (after the start, which has such
    evaluations too).
    """

    def __init__(self, second=None):
        self.times = []
        self.second = second
        self.first = None

    def __call__(self, t, y):
        again = bool(self.times) and self.times[-1] == t > 0.5
        self.times.append(t)
        if again and self.second:
            return self.second(self.first)
        prey, predators = number(y[0]), number(y[1])
        self.first = [1.5 * prey - prey * predators, -3.0 * predators + prey * predators]
        return self.first


def in_python(function, solver):
    return solve_ivp(
        function, (0.0, 5.0), Y0, solver, rtol=1e-6, atol=1e-6, calibration="model", first_step=0.01
    )


@pytest.mark.parametrize(
    "order", [3, *(pytest.param(order, marks=pytest.mark.slow) for order in (1, 5))]
)
@pytest.mark.parametrize("diffusion", DIFFUSIONS)
def test_kernels_and_jax_agree(order, diffusion):
    solver = EK0(order, diffusion, evaluations=2)
    ours = solved(solver, grid=np.linspace(0.0, 5.0, 60))
    with native.disabled():
        judge = solved(solver, grid=np.linspace(0.0, 5.0, 60))
    np.testing.assert_allclose(ours.mean, judge.mean, rtol=1e-9)
    np.testing.assert_allclose(ours.std[1:], judge.std[1:], rtol=1e-5)


@pytest.mark.parametrize("structure", ["block-diagonal", "dense"])
def test_structures_agree(structure):
    one = solved(EK0(4, evaluations=2), grid=np.linspace(0.0, 5.0, 60))
    other = solved(EK0(4, evaluations=2, structure=structure), grid=np.linspace(0.0, 5.0, 60))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-9)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_function_in_python_is_solved_alike(kernels):
    solver = EK0(5, evaluations=2)
    traced = in_python(predator_and_prey, solver)
    with nullcontext() if kernels else native.disabled():
        driven = in_python(NeedsPython(), solver)
    # They begin differently: with derivatives, and with Runge-Kutta steps.
    np.testing.assert_allclose(driven.y[:, -1], traced.y[:, -1], rtol=1e-6)


@pytest.mark.parametrize("kernels", [True, False])
def test_evaluations_are_counted(kernels):
    function = NeedsPython()
    with nullcontext() if kernels else native.disabled():
        result = in_python(function, EK0(5, evaluations=2))
    assert result.nfev == len(function.times)


def test_accepted_steps_are_evaluated_twice():
    stats = solved(EK0(5, evaluations=2)).stats
    once = solved(EK0(5)).stats
    start = int(once.f_evaluations) - int(once.steps)
    assert int(stats.f_evaluations) == int(stats.steps) + int(stats.accepted) + start


@pytest.mark.parametrize("kernels", [True, False])
def test_a_second_evaluation_that_is_not_finite_is_left_out(kernels):
    without, same = (lambda f: [np.nan, f[1]]), (lambda f: f)
    with nullcontext() if kernels else native.disabled():
        left_out = in_python(NeedsPython(second=without), EK0(5, evaluations=2))
        of_no_use = in_python(NeedsPython(second=same), EK0(5, evaluations=2))
    np.testing.assert_array_equal(left_out.y, of_no_use.y)


@pytest.mark.parametrize("order", [5, 7])
@pytest.mark.parametrize("name", ["lotka-volterra", "lorenz", "brusselator"])
def test_fewer_evaluations_to_the_same_error(name, order):
    problem = problems.get(name)
    work = {}
    for evaluations in (1, 2):
        points = []
        for rtol in 10.0 ** np.arange(-3, -10, -0.5):
            posterior = solve(
                *(problem.vector_field, problem.t_span, problem.y0, problem.args),
                solver=EK0(order, evaluations=evaluations),
                control=PIControl(rtol=rtol, atol=rtol),
                save_at=problem.t_span[1],
            )
            error = np.abs(np.asarray(posterior.mean)[-1] - problem.reference_end).max()
            points.append((np.log(error), np.log(int(posterior.stats.f_evaluations))))
        errors, counts = np.array(sorted(points)).T
        work[evaluations] = np.interp(np.log(1e-5), errors, counts)
    assert work[2] < work[1] - np.log(1.2)


def test_inside_jit_and_vmap():
    def end(y0):
        solver = EK0(5, evaluations=2)
        field, control = predator_and_prey, CONTROL
        return solve(field, (0.0, 5.0), y0, solver=solver, control=control, save_at=5.0).mean[-1]

    starts = np.array([[1.0, 2.0], [2.0, 1.0]])
    plain = np.stack([end(y0) for y0 in starts])
    np.testing.assert_allclose(jit_once(end)(starts[0]), plain[0], rtol=1e-12)
    np.testing.assert_allclose(jit_once(jax.vmap(end))(starts), plain, rtol=1e-9)


def test_derivative_with_respect_to_the_initial_value():
    def end(y0):
        solver = EK0(5, evaluations=2)
        field, grid = predator_and_prey, np.linspace(0.0, 2.0, 200)
        return solve(field, (0.0, 2.0), y0, solver=solver, grid=grid, smooth=False).mean[-1]

    with jax.enable_x64(True):
        slopes = jit_once(jax.jacfwd(end))(jnp.asarray(Y0))
    steps = 1e-6 * np.eye(2)
    differences = np.stack([(end(Y0 + h) - end(Y0 - h)) / 2e-6 for h in steps], axis=-1)
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)


def test_scipy_steps_with_it():
    result = scipy_solve_ivp(
        lambda t, y: [y[1], -y[0]],
        *((0.0, 10.0), [1.0, 0.0]),
        *(probode.scipy.EK0,),
        rtol=1e-8,
        atol=1e-8,
        evaluations=2,
    )
    np.testing.assert_allclose(result.y[0, -1], np.cos(10.0), atol=1e-6)


def test_it_is_saved_with_the_posterior(tmp_path):
    posterior = solved(EK0(5, evaluations=2))
    export.save(posterior, tmp_path / "posterior")
    assert export.load(tmp_path / "posterior").solver == posterior.solver


def test_its_name_says_so():
    assert EK0(5, evaluations=2).name == "EK0(5)x2"


@pytest.mark.parametrize("evaluations", [0, 3, 1.5, True, "2", None])
def test_other_numbers_are_refused(evaluations):
    with pytest.raises(ValueError, match="evaluations must be 1 or 2"):
        EK0(5, evaluations=evaluations)


def test_solve_ivp_takes_the_number():
    result = solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], "EK0", evaluations=2)
    assert result.posterior.solver == EK0(5, evaluations=2)


def test_where_a_jacobian_is_known_a_second_evaluation_is_refused():
    with pytest.raises(ValueError, match="is for EK0, got EK1"):
        solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], "EK1", evaluations=2)


def test_one_is_no_special_case_of_other_methods():
    result = solve_ivp(lambda t, y: -y, (0.0, 1.0), [1.0], "EK1", evaluations=1)
    assert result.posterior.solver == EK1(5, error="correction")
