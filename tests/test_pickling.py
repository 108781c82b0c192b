"""Results in other places: pickled, copied, returned from a process pool, and used there."""

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probode import EK0, EK1, Sweep, solve, solve_ensemble, solve_ivp
from probode.posterior.export import to_dataframe
from probode.programs.stored import NotStorable, listing

MATRIX = np.array([[0.0, 1.0], [-1.0, -0.1]])
SPAN = (0.0, 1.0)


def with_a_branch(t, y):
    """Only Python can evaluate it."""
    return [-y[0] if float(str(y[0])) > 0.5 else -0.5]


def decay(t, y, a):
    """With a parameter."""
    return -a * y


def ivp(fun, y0=(1.0, 0.5), **options):
    """A result with everything in it."""
    return solve_ivp(fun, SPAN, list(y0), dense_output=True, **options)


def there_and_back(value):
    """As another process would get it."""
    return pickle.loads(pickle.dumps(value))


RESULTS = {
    "lambda": lambda: ivp(lambda t, y: -2.0 * y),
    "EK0": lambda: ivp(lambda t, y: MATRIX @ y, method="EK0"),
    "DiagonalEK1": lambda: ivp(lambda t, y: MATRIX @ y, method="DiagonalEK1"),
    "user's Jacobian": lambda: ivp(lambda t, y: MATRIX @ y, jac=lambda t, y: MATRIX),
    "parameters": lambda: ivp(lambda t, y, a: -a * y, args=(2.0,)),
    "complex": lambda: ivp(lambda t, y: 1j * y, [1.0 + 0.0j]),
    "Python": lambda: ivp(with_a_branch, [1.0]),
    "model": lambda: ivp(lambda t, y: -3.0 * y, calibration="model"),
    "event": lambda: ivp(lambda t, y: -y, events=lambda t, y: y[0] - 0.5),
    "stopped": lambda: ivp(lambda t, y: y**2, [1.2]),
    "nothing to do": lambda: solve_ivp(lambda t, y: -y, (0.0, 0.0), [1.0], dense_output=True),
}


@cache
def result_of(kind):
    """Computed once."""
    return RESULTS[kind]()


@pytest.mark.parametrize("copied", [there_and_back, copy.deepcopy])
@pytest.mark.parametrize("kind", RESULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_result_is_the_same_after_the_journey(kind, copied):
    result = result_of(kind)
    other = copied(result)
    t = np.linspace(result.t[0], result.t[-1], 4)
    assert result.keys() == other.keys()
    for name in ("t", "y", "y_std", "status", "message", "success", "nfev", "path"):
        np.testing.assert_array_equal(result[name], other[name])
    if result.t_events is not None:
        np.testing.assert_array_equal(result.t_events[0], other.t_events[0])
    for use in (
        lambda sol: sol(t),
        lambda sol: sol.std(t),
        lambda sol: sol.cov(t),
        lambda sol: sol.sample(2, seed=3),
    ):
        np.testing.assert_array_equal(use(result.sol), use(other.sol))
    if kind == "nothing to do":
        return
    mine, theirs = result.posterior, other.posterior
    assert str(mine.diagnose()) == str(theirs.diagnose())
    assert repr(mine) == repr(theirs)
    assert to_dataframe(mine).equals(to_dataframe(theirs))


def softly(t, y):
    """With functions that bring derivative rules of their own, once in a jit."""
    return jax.jit(jax.nn.softplus)(-y) - jax.nn.silu(y)


def in_loops(t, y):
    """With programs inside the program."""
    halved = jax.lax.fori_loop(0, 3, lambda i, x: 0.5 * x, y)
    below = jax.lax.while_loop(lambda x: jnp.max(x) > 1.0, lambda x: 0.5 * x, y)
    return jax.lax.cond(t > 0.5, lambda x: -x, lambda x: x - below, halved)


def with_tables(t, y):
    """With arrays that the function holds, indices and a linear system."""
    table = jnp.interp(t, jnp.arange(3.0), jnp.array([0.0, 1.0, 0.0]))
    return jnp.zeros(2).at[1].add(-y[0]) + table - jnp.linalg.solve(jnp.asarray(MATRIX), y)


@pytest.mark.parametrize("solver", [EK0(2), EK1(2)], ids=["EK0", "EK1"])
@pytest.mark.parametrize("field", [softly, in_loops, with_tables])
def test_a_traced_function_travels_by_value(field, solver):
    """Pickle is told of no function here: they are lambdas. Bounds: another order of rounding."""
    posterior = solve(lambda t, y: field(t, y), SPAN, jnp.array([0.9, 0.5]), solver=solver)
    here, there = posterior.calibrate(), there_and_back(posterior).calibrate()
    np.testing.assert_allclose(there.global_error(), here.global_error(), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("kind", ["lambda", "parameters", "complex", "Python", "user's Jacobian"])
def test_what_has_travelled_can_be_calibrated_and_can_travel_again(kind):
    here = result_of(kind).posterior
    there = there_and_back(there_and_back(here))
    np.testing.assert_array_equal(
        there.calibrate("defect-fast").std, here.calibrate("defect-fast").std
    )


def test_a_python_function_that_has_no_name_is_missed_when_it_is_needed():
    posterior = there_and_back(ivp(lambda t, y: with_a_branch(t, y), [1.0])).posterior
    assert np.all(np.isfinite(posterior.std))
    with pytest.raises(ValueError, match=r"was pickled, and its vector field cannot be: .*lambda"):
        posterior.calibrate()


def test_what_is_no_plain_data_is_not_stored():
    def calls_back(y):
        return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct((2,), np.float32), y)

    program = jax.make_jaxpr(calls_back)(np.ones(2, np.float32))
    with pytest.raises(NotStorable, match="pure_callback"):
        listing(program.jaxpr)


@pytest.mark.parametrize(
    "options",
    [{"save_at": jnp.linspace(0.0, 1.0, 3)}, {"smooth": False}, {"max_steps": 2}],
    ids=["save_at", "filter", "failed"],
)
def test_posteriors_of_all_kinds_travel(options):
    posterior = solve(lambda t, y: -y, SPAN, jnp.ones(2), solver=EK1(1), **options)
    other = there_and_back(posterior)
    np.testing.assert_array_equal(posterior.cov, other.cov)
    assert other.status == posterior.status


def test_a_posterior_that_went_through_a_transform_travels_and_says_what_it_lost():
    posterior = solve(lambda t, y: -y, SPAN, jnp.ones(2), solver=EK1(2))
    other = there_and_back(jax.tree.map(np.asarray, posterior))
    np.testing.assert_array_equal(posterior.std, other.std)
    with pytest.raises(ValueError, match=r"went through jit, vmap or tree\.map"):
        other.calibrate()


@pytest.mark.parametrize("copied", [there_and_back, copy.deepcopy])
def test_arrays_of_jax_keep_all_their_digits(copied):
    """A batch holds them; JAX's switch is off."""
    posterior = solve(lambda t, y: -y, SPAN, jnp.ones(2), solver=EK1(2))
    with jax.enable_x64(True):
        batch = jax.tree.map(lambda x: jnp.stack([x, x]), posterior)
    other = copied(batch)
    assert other.path.t.dtype == float
    for mine, theirs in zip(jax.tree.leaves(batch), jax.tree.leaves(other), strict=True):
        assert type(mine) is type(theirs)
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("fun", [decay, lambda t, y, a: -a * y], ids=["by name", "by value"])
def test_ensembles_travel_and_can_solve_again(fun):
    args = (Sweep([1.0, 2.0]),)
    here = solve_ensemble(fun, SPAN, [1.0], args=args, solver=EK0(2))
    for there in (there_and_back(there_and_back(here)), copy.deepcopy(here)):
        np.testing.assert_array_equal(there.std, here.std)
        np.testing.assert_array_equal(there.moments().mean, here.moments().mean)
        np.testing.assert_array_equal(there.rerun([1]).mean, here.rerun([1]).mean)


def test_an_ensemble_travels_without_a_function_that_cannot():
    def fun(t, y, a):
        return jax.pure_callback(lambda a, y: -a * y, jax.ShapeDtypeStruct((1,), float), a, y)

    here = solve_ensemble(decay, SPAN, [1.0], args=(Sweep([1.0, 2.0]),), solver=EK0(2))
    object.__setattr__(here, "fun", fun)
    there = there_and_back(here)
    np.testing.assert_array_equal(there.mean, here.mean)
    with pytest.raises(ValueError, match="was pickled without its function: "):
        there.member(0)


def solved(k):
    """What a worker does: a result of a function that exists in the worker alone."""
    return ivp(lambda t, y: -k * y)


def test_a_process_pool_returns_results():
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        result = pool.submit(solved, 2.0).result(timeout=300)
    np.testing.assert_array_equal(result.sol(0.5), ivp(lambda t, y: -2.0 * y).sol(0.5))
    assert np.all(result.posterior.calibrate().std >= 0.0)
