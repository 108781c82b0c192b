"""Steps of the two-pole filter by the kernels are those of Python: in bands, sparse, full, weighed.

Both do the same operations in another order. What rounding changes in a step of the filter grows
with the solution's own errors: far below the tolerance.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csc_array, diags_array

import probode
from probode import MassMatrix, PIControl, SparseEK1, Status
from probode.base.precision import double_precision
from probode.engines.native.library import available, disabled
from probode.engines.two_pole.outset import begin
from probode.engines.two_pole.step import Weights, attempt
from probode.engines.two_pole.system import Asked, system_of
from probode.programs.field import bind

pytestmark = pytest.mark.skipif(not available(), reason="no kernels")
N = 90
SHUFFLED = np.random.default_rng(0).permutation(N)
BACK = np.argsort(SHUFFLED)
X = np.arange(1, N + 1) / (N + 1)
Y0 = np.sin(np.pi * X) + 0.3 * np.sin(3 * np.pi * X)


def reaction(t, y):
    """Diffusion and a cubic reaction, with a source that moves."""
    wide = jnp.concatenate([jnp.zeros(1), y, jnp.zeros(1)])
    return 200.0 * (wide[:-2] - 2.0 * y + wide[2:]) + y - y**3 + jnp.sin(3.0 * t)


def shuffled(t, y):
    return reaction(t, y[BACK])[SHUFFLED]


def torus(t, y):
    """In two dimensions: its LU has no narrow band."""
    u = y.reshape(9, 10)
    around = sum(jnp.roll(u, s, k) for k in (0, 1) for s in (1, -1)) - 4.0 * u
    return (50.0 * around + u - u**3 + jnp.sin(3.0 * t)).reshape(-1)


def everybody(t, y):
    return -y + jnp.tanh(jnp.mean(y)) * jnp.linspace(0.0, 1.0, N)


MASS = csc_array(diags_array([1.0, 4.0, 1.0], offsets=(-1, 0, 1), shape=(N, N)) / 6)
EQUATIONS = {
    "band": reaction,
    "band of another order": shuffled,
    "sparse": torus,
    "full": everybody,
    "band, weighed": MassMatrix(reaction, MASS),
    "sparse, weighed": MassMatrix(torus, MASS),
}


def solve(equation, order=4, **options):
    options = {"calibration": "defect", "control": PIControl(1e-5, 1e-5)} | options
    return probode.solve(equation, (0.0, 2.0), Y0, solver=SparseEK1(order), **options)


def without(*args, **options):
    with disabled():
        return solve(*args, **options)


def agree(one, other):
    np.testing.assert_allclose(one.t, other.t, rtol=1e-7)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-8)
    size = np.abs(other.global_error()).max()
    np.testing.assert_allclose(one.global_error(), other.global_error(), atol=1e-3 * size)
    np.testing.assert_allclose(one.std, other.std, rtol=1e-2, atol=1e-3 * size)
    assert one.stats.f_evaluations == other.stats.f_evaluations
    assert one.stats.jacobian_evaluations == other.stats.jacobian_evaluations


@pytest.mark.parametrize("kind", EQUATIONS)
def test_steps_and_their_errors_are_those_of_python(kind):
    agree(solve(EQUATIONS[kind]), without(EQUATIONS[kind]))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_of_every_order(order):
    agree(solve(reaction, order), without(reaction, order))


def test_steps_that_growing_errors_keep_short():
    def invasion(t, y):
        wide = jnp.concatenate([y[:1], y, y[-1:]])
        return 4.0 * (wide[:-2] - 2.0 * y + wide[2:]) + 20.0 * y * (1.0 - y)

    options = {"solver": SparseEK1(), "control": PIControl(1e-2, 1e-2)}
    start = np.exp(-80.0 * X**2)
    found = probode.solve(invasion, (0.0, 0.5), start, **options)
    with disabled():
        again = probode.solve(invasion, (0.0, 0.5), start, **options)
    assert found.stats.rejected > 0
    assert found.stats.f_evaluations == again.stats.f_evaluations
    np.testing.assert_allclose(found.mean, again.mean, atol=1e-8)


@pytest.mark.parametrize("kind", ["band", "sparse"])
def test_at_chosen_times(kind):
    times = np.array([0.0, 0.31, 0.32, 1.7, 2.0])
    agree(*(run(EQUATIONS[kind], save_at=times) for run in (solve, without)))


def test_a_tolerance_for_each_component():
    control = PIControl(1e-4, np.where(X < 0.5, 1e-6, 1e-3))
    agree(solve(reaction, control=control), without(reaction, control=control))


def test_a_function_that_only_python_evaluates():
    def plain(t, y):
        wide = np.concatenate([[0.0], y, [0.0]])
        return 200.0 * (wide[:-2] - 2.0 * y + wide[2:]) + y - y**3 + float(np.sin(3.0 * t))

    options = {"method": "SparseEK1", "rtol": 1e-5, "atol": 1e-5, "lband": 1, "uband": 1}
    found = probode.solve_ivp(plain, (0.0, 2.0), Y0, **options)
    np.testing.assert_allclose(found.y[:, -1], solve(reaction).mean[-1], atol=1e-4)
    with disabled():
        again = probode.solve_ivp(plain, (0.0, 2.0), Y0, **options)
    np.testing.assert_allclose(found.y, again.y, atol=1e-8)


def test_an_event_ends_both_at_the_same_step():
    def crossing(t, y):
        return y[40] - 0.9

    crossing.terminal = True
    options = {"method": "SparseEK1", "rtol": 1e-6, "atol": 1e-6, "events": crossing}
    found = probode.solve_ivp(reaction, (0.0, 2.0), Y0, **options)
    with disabled():
        again = probode.solve_ivp(reaction, (0.0, 2.0), Y0, **options)
    assert found.status == again.status == 1
    np.testing.assert_allclose(found.t, again.t, rtol=1e-7)
    np.testing.assert_allclose(found.y_std, again.y_std, rtol=1e-2, atol=1e-10)


def test_where_f_is_not_finite_both_say_so():
    def root(t, y):
        return reaction(t, y) - jnp.sqrt(1.0 - t)

    ends = [run(root, calibration="model") for run in (solve, without)]
    assert ends[0].status == ends[1].status == Status.NOT_FINITE
    np.testing.assert_allclose(ends[0].t[-1], ends[1].t[-1], rtol=1e-7)


def test_iterative_solvers_keep_their_vectors_on_the_device():
    asked = Asked(linear="krylov")
    with double_precision():
        field = bind(reaction, jnp.asarray(0.0), jnp.asarray(Y0), (), None, diagonal=False)
        system = system_of(field, 0.0, Y0, 4, asked)
        now = begin(system, PIControl(1e-5, 1e-5), 0.0, 2.0, Y0)
        after = attempt(system, Weights(1e-2, 1e-2), now, now.h)
        solved = after.used.solve(after.x[0])
    assert after.counts.accepted == 1
    assert isinstance(after.x, jax.Array)
    assert isinstance(solved, jax.Array)


@pytest.mark.parametrize("mass", [None, np.linspace(1.0, 100.0, N)])
def test_rates_over_decades_are_divided_out(mass):
    rates = 10.0 ** np.random.default_rng(0).uniform(0.0, 6.0, N)

    def f(t, y):
        return torus(t, y) - rates * (y - jnp.sin(t))

    equation = f if mass is None else MassMatrix(f, mass)
    steps = {}
    for name in ("jacobi", None, "lu"):
        krylov = {} if name == "lu" else {"linear": "krylov", "preconditioner": name}
        found = probode.solve(equation, (0.0, 2.0), Y0, solver=SparseEK1(**krylov))
        assert found.success
        steps[name] = int(found.stats.steps) + int(found.stats.rejected)
    assert steps["jacobi"] == steps[None] < 1.5 * steps["lu"]


@pytest.mark.parametrize("kind", ["sparse", "sparse, weighed"])
def test_iterations_take_the_steps_of_factorisations(kind):
    options = {"calibration": "defect", "control": PIControl(1e-5, 1e-5)}
    solver = SparseEK1(4, linear="krylov")
    found = probode.solve(EQUATIONS[kind], (0.0, 2.0), Y0, solver=solver, **options)
    factorised = solve(EQUATIONS[kind])
    exact = solve(EQUATIONS[kind], control=PIControl(1e-8, 1e-8))
    # Its systems are solved roughly, so steps and errors are not the same; the bars know.
    assert abs(int(found.stats.steps) / int(factorised.stats.steps) - 1.0) < 0.1
    times = np.linspace(0.1, 2.0, 20)
    error = found(times).mean - exact(times).mean
    np.testing.assert_allclose(error, 0.0, atol=1e-4)
    assert 1 / 3 < np.mean((error / found(times).std) ** 2) < 3
