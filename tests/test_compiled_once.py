"""A solve is compiled once: new values, and functions created anew, do not compile again."""

import gc
import subprocess
import sys
import weakref
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transformed import GRID, QUICK, RATES, SAVE_AT, SPAN, Y0, predator_prey, solve

import probode
from probode import EK0, EK1, IOUP, MassMatrix, Matern

pytestmark = pytest.mark.usefixtures("jax_as_it_comes")

_COMPILED = []


def _record(event, duration, **_):
    if event == "/jax/core/compile/backend_compile_duration":
        _COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_record)


@contextmanager
def compilations():
    """A list that has as many entries as programs were compiled within the block."""
    before, found = len(_COMPILED), []
    yield found
    found.extend(_COMPILED[before:])


def test_other_numbers_in_invariants_do_not_compile_again():
    def held(start, upper):
        y0 = np.array([start, 0.0])
        g = lambda y: jnp.sum(y**2 - y0**2)  # noqa: E731
        turn = lambda t, y: jnp.stack([y[1], -y[0]])  # noqa: E731
        box = (-upper, upper)
        return probode.solve(turn, (0.0, 1.0), y0, solver=EK0(2), bounds=box, invariants=g)

    held(1.0, 2.0)
    with compilations() as found:
        held(1.5, 3.0)
    assert not found


def unlisted(t, y, rates):
    """A field that no kernel can list: it has to be compiled."""
    return predator_prey(t, y, rates) * jnp.exp(jax.lax.lgamma(2.0 + 0.0 * y))


def test_compilations_are_counted():
    with compilations() as found:
        probode.solve(unlisted, SPAN, Y0, (0.9 * RATES,), solver=EK0(1))
    assert found


CALLS = {
    "y0": lambda i: solve(Y0 + i).mean,
    "args": lambda i: solve(rates=RATES + 0.25 * i).mean,
    "t_span": lambda i: solve(t_span=(0.5 * i, 2.0 - i)).mean,
    "tolerance": lambda i: solve(tolerance=2.0 ** (-10 - i)).mean,
    "max_steps": lambda i: solve(max_steps=1000 + i).mean,
    "grid": lambda i: solve(grid=2.0 * (GRID / 2.0) ** (1 + i)).mean,
    "save_at": lambda i: solve(save_at=2.0 * (SAVE_AT / 2.0) ** (1 + i)).mean,
    "lengthscale": lambda i: solve(solver=EK0(Matern(1, 1.0 + i)))(0.3).std,
    "rate": lambda i: solve(solver=EK0(IOUP(1, -1.0 - i))).std,
    "mass-matrix": lambda i: (
        probode.solve(
            MassMatrix(lambda t, y: -y, np.array([1.0 + i, 0.0])),
            (0.0, 1.0),
            [1.0, 0.0],
            solver=EK1(1),
        )(0.5).std
    ),
    "step": lambda i: solve(step=0.125 / (1 + i)).mean,
    "dense-output": lambda i: solve(Y0 + i)(np.linspace(0.0, 1.0 + i, 7)).std,
    "derivative": lambda i: solve(Y0 + i).derivative(0.25 * i).mean,
    "sample": lambda i: solve(grid=GRID, y0=Y0 + i).sample(3, seed=i),
    "sample-dense": lambda i: solve(grid=GRID, y0=Y0 + i).sample(3, seed=i, t=[0.3 * i + 0.1]),
    "sample-save_at": lambda i: solve(Y0 + i, save_at=SAVE_AT).sample(3, seed=i),
    "events": lambda i: probode.solve_ivp(
        lambda t, y: [y[1], -y[0]], (0, 3 + 20 * i), [1.0, 0.0], events=lambda t, y: y[0]
    ).t_events_std[0],
    "unlisted-y0": lambda i: solve(Y0 + i, field=unlisted).mean,
    "unlisted-args": lambda i: solve(rates=RATES + 0.25 * i, field=unlisted).mean,
    "unlisted-tolerance": lambda i: solve(tolerance=2.0 ** (-10 - i), field=unlisted).mean,
}


@pytest.mark.parametrize("name", CALLS)
def test_new_values_do_not_compile_again(name):
    first = CALLS[name](0)
    with compilations() as found:
        others = [CALLS[name](1), CALLS[name](2)]
    assert not found
    assert all(np.all(np.isfinite(value)) for value in (first, *others))


@jax.custom_jvp
def _own_rule(y):
    return -y


_own_rule.defjvp(lambda primals, tangents: (-primals[0], -tangents[0]))

FRESH = {
    "arithmetic": lambda: lambda t, y: -y,
    "relu": lambda: lambda t, y: -jax.nn.relu(y),
    "custom_jvp": lambda: lambda t, y: _own_rule(y),
    "jit": lambda: jax.jit(lambda t, y: -y),
    "cond": lambda: lambda t, y: jax.lax.cond(t < 9.0, lambda y: -y, lambda y: y, y),
    "scan": lambda: lambda t, y: jax.lax.scan(lambda c, _: (-c, None), y, None, length=3)[0],
}


@pytest.mark.parametrize("name", FRESH)
def test_a_function_created_anew_does_not_compile_again(name):
    def final():
        return probode.solve(FRESH[name](), (0.0, 1.0), 1.0, solver=QUICK).mean[-1]

    first = final()
    with compilations() as found:
        assert final() == first
    assert not found
    assert first == pytest.approx(np.exp(-1.0), rel=1e-5)


@pytest.mark.parametrize("name", FRESH)
def test_a_vector_field_is_not_kept_alive_but_by_its_posterior(name):
    vector_field = FRESH[name]()
    reference = weakref.ref(vector_field)
    posterior = probode.solve(vector_field, (0.0, 1.0), 1.0, solver=QUICK)
    assert posterior.success
    del vector_field, posterior
    gc.collect()
    assert reference() is None


WITHOUT_COMPILING = {
    "t_eval": {"t_eval": np.linspace(0, 3, 37)},
    "dense_output": {"dense_output": True},
    "events": {"events": lambda t, y: y[0]},
}


@pytest.mark.skipif(not probode.engines.native.available(), reason="native kernels were not built")
@pytest.mark.parametrize("method", ["EK0", "EK1", "DiagonalEK1"])
@pytest.mark.parametrize("name", WITHOUT_COMPILING)
def test_a_first_call_compiles_nothing(name, method):
    jax.clear_caches()
    with compilations() as found:
        result = probode.solve_ivp(
            lambda t, y: [y[1], -y[0]], (0, 3), [1.0, 0.0], method, **WITHOUT_COMPILING[name]
        )
        if result.sol is not None:
            result.sol([0.1, 0.2])
    assert result.success
    assert not found


CLOSURES = {
    "numpy-array": lambda rate: np.array([rate, 1.0]),
    "jax-array": lambda rate: jnp.array([rate, 1.0]),
    "jax-number": lambda rate: jnp.asarray(rate, jnp.float32),
    "float": float,
    "numpy-number": np.float64,
}


def _with_closure(kind, rate, wrap=lambda f: f):
    captured = CLOSURES[kind](rate)
    vector_field = wrap(lambda t, y: -captured * y)
    return probode.solve(vector_field, (0.0, 1.0), [1.0, 1.0], solver=QUICK).mean[-1, 0]


@pytest.mark.parametrize("kind", CLOSURES)
def test_a_new_value_in_a_closure_gives_the_new_result(kind):
    for rate in (1.0, 2.0, 1.0):
        assert _with_closure(kind, rate) == pytest.approx(np.exp(-rate), rel=1e-4)


@pytest.mark.parametrize("kind", ["jax-array", "float"])
def test_a_new_value_in_the_closure_of_a_compiled_function_gives_the_new_result(kind):
    for rate in (1.0, 2.0, 1.0):
        assert _with_closure(kind, rate, jax.jit) == pytest.approx(np.exp(-rate), rel=1e-4)


@pytest.mark.parametrize("kind", ["numpy-array", "jax-array", "jax-number"])
def test_a_new_array_in_a_closure_does_not_compile_again(kind):
    _with_closure(kind, 1.0)
    with compilations() as found:
        _with_closure(kind, 2.0)
    assert not found


_rate = 1.0


def _global_decay(t, y):
    return -_rate * y


@pytest.mark.parametrize("kind", [float, jnp.float32])
def test_a_global_that_changes_gives_the_new_result(kind, monkeypatch):
    for rate in (1.0, 2.0):
        monkeypatch.setitem(globals(), "_rate", kind(rate))
        posterior = probode.solve(_global_decay, (0.0, 1.0), 1.0, solver=QUICK)
        assert posterior.mean[-1] == pytest.approx(np.exp(-rate), rel=1e-4)


def test_a_second_process_finds_compiled_programs(tmp_path):
    """The cache holds the solver after one process, and the next adds no other version of it.

    (On a busy machine it may add a program that was compiled too quickly before to be kept.)
    """
    code = (
        "import sys, probode; probode.use_compilation_cache(sys.argv[1]);"
        "probode.solve(lambda t, y: -y, (0.0, 1.0), 1.0, solver=probode.EK1(2), save_at=[0.5])"
    )
    kept = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
        kept.append({path.name for path in tmp_path.glob("*-cache")})
    assert kept[0]
    known = {name.split("-")[0] for name in kept[0]}
    assert {name for name in kept[1] if name.split("-")[0] in known} == kept[0]
