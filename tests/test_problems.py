"""The zoo: vector fields, reference values and exact solutions against SciPy's solvers."""

import dataclasses
import math
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from probode import problems


@dataclasses.dataclass(frozen=True)
class Check:
    """How SciPy solves a problem, and how near its end value comes to the reference."""

    method: str
    rtol: float
    atol: float
    relative: float
    absolute: float = 0.0


CHECKS = {
    "brusselator": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "exponential-decay": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "fitzhugh-nagumo": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "henon-heiles": Check("DOP853", 1e-11, 1e-13, relative=1e-8),
    "hires": Check("Radau", 1e-8, 1e-12, relative=1e-8),
    "linear-oscillator": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "logistic": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "lorenz": Check("DOP853", 1e-11, 1e-13, relative=1e-8),
    "lotka-volterra": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "neural": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "orego": Check("Radau", 1e-8, 1e-10, relative=1e-8),
    "pleiades": Check("DOP853", 1e-11, 1e-13, relative=1e-7),
    "prothero-robinson": Check("Radau", 1e-8, 1e-10, relative=1e-8),
    "reaction-diffusion": Check("Radau", 1e-8, 1e-10, relative=1e-9),
    "rigid-body": Check("DOP853", 1e-11, 1e-13, relative=1e-10),
    "rober": Check("Radau", 1e-8, 1e-18, relative=1e-8),
    "seir": Check("DOP853", 1e-11, 1e-14, relative=1e-8),
    "three-body": Check("DOP853", 1e-12, 1e-14, relative=0.0, absolute=1e-7),
    "van-der-pol": Check("LSODA", 1e-8, 1e-10, relative=1e-5),
    "van-der-pol-bari": Check("Radau", 1e-8, 1e-10, relative=1e-8),
}
EXACT = [name for name in problems.names() if problems.get(name).exact is not None]


def solve_end(problem, check):
    """End value by SciPy, with the vector field and its Jacobian evaluated through JAX."""
    with jax.enable_x64(True):
        args = tuple(jax.numpy.asarray(value) for value in problem.args)
        field = jax.jit(problem.vector_field)
        jacobian = jax.jit(jax.jacfwd(problem.vector_field, argnums=1))
        options = {}
        if check.method != "DOP853":
            options["jac"] = lambda t, y: np.asarray(jacobian(t, y, *args))
        result = solve_ivp(
            lambda t, y: np.asarray(field(t, y, *args)),
            problem.t_span,
            problem.y0,
            method=check.method,
            rtol=check.rtol,
            atol=check.atol,
            t_eval=problem.t_span[1:],
            **options,
        )
    assert result.success, result.message
    return result.y[:, -1]


def test_every_problem_has_a_check():
    assert sorted(CHECKS) == problems.names()


@pytest.mark.parametrize("name", problems.names())
def test_scipy_reaches_the_reference(name):
    problem, check = problems.get(name), CHECKS[name]
    end = solve_end(problem, check)
    np.testing.assert_allclose(end, problem.reference_end, rtol=check.relative, atol=check.absolute)


def test_scipy_reaches_the_second_reference_of_van_der_pol():
    problem = problems.van_der_pol(y0=(0.0, math.sqrt(3.0)))
    end = solve_end(problem, CHECKS["van-der-pol"])
    np.testing.assert_allclose(end, problem.reference_end, rtol=1e-5)


@pytest.mark.parametrize("name", problems.names())
def test_every_reference_states_its_source(name):
    assert problems.get(name).reference_source


@pytest.mark.parametrize("name", problems.names())
def test_the_vector_field_keeps_the_shape_of_the_state(name):
    problem = problems.get(name)
    with jax.enable_x64(True):
        slope = problem.vector_field(problem.t_span[0], problem.y0, *problem.args)
    assert slope.shape == problem.y0.shape == (problem.dimension,)
    assert slope.dtype == np.float64
    assert np.all(np.isfinite(slope))


@pytest.mark.parametrize("name", problems.names())
def test_the_jacobian_is_finite_at_the_start(name):
    problem = problems.get(name)
    with jax.enable_x64(True):
        jacobian = jax.jacfwd(problem.vector_field, argnums=1)(
            problem.t_span[0], problem.y0, *problem.args
        )
    assert np.all(np.isfinite(jacobian))


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_solution_starts_at_the_initial_value(name):
    problem = problems.get(name)
    np.testing.assert_allclose(problem.exact(problem.t_span[0]), problem.y0, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("name", EXACT)
def test_the_exact_solution_keeps_the_shape_of_the_times(name):
    problem = problems.get(name)
    assert problem.exact(np.zeros((3, 2))).shape == (3, 2, problem.dimension)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("logistic", {"rate": 2.0, "y0": 0.3}),
        ("exponential-decay", {"rate": 2.5, "y0": -3.0}),
        ("linear-oscillator", {"frequency": 3.0}),
        ("rigid-body", {"parameter": 0.9}),
        ("prothero-robinson", {"rate": 4.0, "y0": 3.0}),
    ],
)
def test_the_exact_solution_satisfies_the_equation_for_other_parameters(name, parameters):
    problem = problems.get(name, **parameters)
    t, h = 0.7, 1e-3
    # Fourth-order central difference: error of order h^4 and eps / h.
    offsets, weights = np.array([-2, -1, 1, 2]), np.array([1, -8, 8, -1]) / 12
    slope = weights @ problem.exact(t + h * offsets) / h
    with jax.enable_x64(True):
        field = problem.vector_field(t, problem.exact(t), *problem.args)
    np.testing.assert_allclose(slope, field, rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lotka-volterra", {"alpha": 2.0}),
        ("van-der-pol", {"mu": 1e3}),
        ("van-der-pol", {"y0": (1.0, 0.0)}),
        ("neural", {"seed": 1}),
        ("reaction-diffusion", {"n": 50}),
    ],
)
def test_a_reference_is_dropped_when_it_does_not_apply(name, parameters):
    assert problems.get(name, **parameters).reference_end is None


@pytest.mark.parametrize("name", ["van-der-pol", "lotka-volterra", "neural"])
def test_the_vector_field_is_shared_so_that_compiled_code_is_reused(name):
    assert problems.get(name).vector_field is problems.get(name).vector_field


def test_the_pleiades_keep_their_momentum():
    problem = problems.pleiades()
    (masses,) = problem.args
    with jax.enable_x64(True):
        slope = np.asarray(problem.vector_field(0.0, problem.y0, masses))
    forces = masses * slope[14:].reshape(2, 7)
    np.testing.assert_allclose(forces.sum(axis=1), 0.0, atol=1e-14)


def test_reaction_without_growth_keeps_its_mass():
    problem = problems.reaction_diffusion(n=30, growth=0.0)
    with jax.enable_x64(True):
        slope = np.asarray(problem.vector_field(0.0, problem.y0, *problem.args))
    np.testing.assert_allclose(slope.sum(), 0.0, atol=1e-12)


def test_the_grid_size_of_the_reaction_is_free():
    assert problems.get("reaction-diffusion", n=17).y0.shape == (17,)


def test_an_unknown_name_suggests_the_nearest_and_lists_all():
    with pytest.raises(ValueError, match="did you mean 'lotka-volterra'") as caught:
        problems.get("lotka-voltera")
    assert all(name in str(caught.value) for name in problems.names())


def test_an_unknown_parameter_lists_those_accepted():
    with pytest.raises(TypeError, match=r"'nu'; expected 'mu', 'y0'"):
        problems.get("van-der-pol", nu=1.0)


def test_initial_values_cannot_be_changed_in_place():
    with pytest.raises(ValueError, match="read-only"):
        problems.lotka_volterra().y0[0] = 2.0


def test_a_scalar_initial_value_is_refused_with_its_remedy():
    with pytest.raises(ValueError, match=r"expected y0 of shape \(d,\), received shape \(\)"):
        problems.InitialValueProblem("scalar", lambda t, y: y, (0.0, 1.0), np.array(1.0))


def test_making_problems_neither_switches_precision_nor_starts_a_backend():
    script = (
        "import jax\n"
        "from jax._src import xla_bridge\n"
        "from probode import problems\n"
        "made = [problems.get(name) for name in problems.names()]\n"
        "assert not jax.config.jax_enable_x64\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
